"""Keep the memory of one training step for the next."""

import ctypes
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD = -3, -1, -2  # names of glibc's settings


def keep_freed_memory() -> bool:
    """Have the C library keep freed arrays instead of giving them back to the system after each use.

    A training step frees and asks for the same gigabyte every time, and every page that comes back from
    the system has to be cleared first: about a tenth of a step on a CPU. The process then holds on to the
    most it ever used. Gives False where the C library has no such setting.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
