"""What a person sees of long work, on standard error: a bar with rate and time left on a terminal, otherwise a plain
line a minute, so that a log shows how far a long run is; and sentences about what was done.

`coscap --quiet` shows neither, `--verbose` also what the package logs; COSCAP_LOG (debug, info, warning, error) sets
the level of that log by itself.
"""

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Protocol, TypeVar

from coscap.errors import UserError

T = TypeVar("T")
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_quiet = False


def speak(quiet: bool = False, verbose: bool = False) -> None:
    """How much is shown from now on."""
    global _quiet
    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other; give one of them.")
    asked = os.environ.get("COSCAP_LOG", "").lower()
    if asked and asked not in LEVELS:
        raise UserError(f"COSCAP_LOG is {asked!r}, and {', '.join(LEVELS)} was expected.")
    _quiet = quiet
    level = (
        LEVELS[asked] if asked else logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING
    )
    log = logging.getLogger("coscap")
    log.setLevel(level)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)


def say(sentence: str) -> None:
    """A sentence on standard error, unless --quiet was given."""
    if not _quiet:
        print(sentence, file=sys.stderr, flush=True)


class Advance(Protocol):
    def __call__(self, steps: int = 1) -> None: ...


@contextmanager
def bar(description: str, total: int | None, unit: str = "it") -> Iterator[Advance]:
    """A progress bar; the block calls what it is given with the number of steps done."""
    if _quiet:
        yield lambda steps=1: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f} {unit}/s", style="cyan")

    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        # What is printed meanwhile goes above the bar, but never from a pipe to the terminal.
        redirect_stdout=sys.stdout.isatty(),
    )
    with progress:
        task = progress.add_task(description, total=total)

        def advance(steps: int = 1) -> None:
            progress.advance(task, steps)
            if not console.is_terminal:
                lines(steps)

        lines = _Lines(description, total, unit)
        yield advance


class _Lines:
    """A line every minute."""

    def __init__(self, description: str, total: int | None, unit: str, every: float = 60.0) -> None:
        self.description, self.total, self.unit, self.every = description, total, unit, every
        self.done, self.began = 0, time.monotonic()
        self.shown = self.began

    def __call__(self, steps: int) -> None:
        self.done += steps
        now = time.monotonic()
        if now - self.shown < self.every:
            return
        self.shown = now
        rate = self.done / (now - self.began)
        left = (
            f" of {self.total:,}, {(self.total - self.done) / rate / 60:.0f} min left"
            if self.total and rate
            else ""
        )
        print(
            f"{self.description}: {self.done:,}{left}, {rate:,.1f} {self.unit}/s", file=sys.stderr, flush=True
        )


def track(items: Iterable[T], description: str, total: int | None = None, unit: str = "it") -> Iterator[T]:
    """Iterate with a progress bar."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(description, total, unit) as advance:
        for item in items:
            yield item
            advance()
