"""One training at a time in a run folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from coscap.errors import UserError

NAME = ".lock"  # holds the process id; hidden, so that a folder with nothing else counts as empty


@contextmanager
def run_lock(run: Path) -> Iterator[None]:
    """Hold the folder's lock inside the block, or a UserError if another process holds it.

    The system gives the lock back when its process ends, however it ends. Where there are no such locks (fcntl is
    missing), the file itself is the lock, and after a kill it has to be removed by hand.
    """
    path = run / NAME
    file = _system_lock(path)
    if file is None:
        file = _file_lock(path)
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # before the lock goes back


def _system_lock(path: Path) -> IO[str] | None:
    """The locked file; None where the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    while True:
        file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise UserError(f"{_in_use(path)}.") from None
            path.unlink(missing_ok=True)  # a file system without locks
            return None
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return file
        file.close()  # it was removed by a process that just ended


def _file_lock(path: Path) -> IO[str]:
    try:
        return path.open("x", encoding="utf-8")
    except FileExistsError:
        raise UserError(f"{_in_use(path)}; if none is running, remove {path}.") from None


def _in_use(path: Path) -> str:
    owner = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    return (
        f"{path.parent} is in use by another training (process {owner or 'unknown'}); wait for its end, "
        "or choose another --out folder"
    )
