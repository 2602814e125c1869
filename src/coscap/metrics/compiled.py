"""The one way in which this room compiles: numba, kept on disk, without the interpreter's lock."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile at the first call and keep the machine code beside the source (or in the user's cache folder).

    `fastmath` stays off: sums are taken in one order, so that results are the same everywhere.
    """
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # no folder can be written: compile anew in each process
        return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))
