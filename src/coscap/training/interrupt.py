"""Ctrl-C and SIGTERM as a wish that the loop grants between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Wish:
    """True once the user or the system has asked for an end."""

    def __init__(self) -> None:
        self.stop = False

    def __call__(self) -> bool:
        return self.stop


@contextmanager
def stop_wish() -> Iterator[Wish]:
    """Inside the block a first Ctrl-C or any SIGTERM only sets the wish; a second Ctrl-C breaks off at once.

    SIGTERM never breaks off, because torchrun sends one after the Ctrl-C that the processes saw themselves.
    """
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and wish.stop:
            raise KeyboardInterrupt
        wish.stop = True

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
