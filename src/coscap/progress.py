"""Progress that a person can follow: a bar with rate and time left, on standard error, only on a terminal."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")


class Advance(Protocol):
    def __call__(self, steps: int = 1) -> None: ...


@contextmanager
def bar(description: str, total: int | None, unit: str = "it") -> Iterator[Advance]:
    """A progress bar; the block calls what it is given with the number of steps done."""
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
    )
    with progress:
        task = progress.add_task(description, total=total)

        def advance(steps: int = 1) -> None:
            progress.advance(task, steps)

        yield advance


def track(items: Iterable[T], description: str, total: int | None = None, unit: str = "it") -> Iterator[T]:
    """Iterate with a progress bar."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(description, total, unit) as advance:
        for item in items:
            yield item
            advance()
