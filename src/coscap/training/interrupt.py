"""Ctrl-C and SIGTERM as a request that the loop answers between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """True once the user or the system has asked for an end."""

    def __init__(self) -> None:
        self.stop = False

    def __call__(self) -> bool:
        return self.stop


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Inside the block a first Ctrl-C or any SIGTERM only sets the request; a second Ctrl-C breaks off at once.

    SIGTERM never breaks off, because torchrun sends one after the Ctrl-C that the processes saw themselves.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.stop:
            raise KeyboardInterrupt
        request.stop = True

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
