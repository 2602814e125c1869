"""What a run says while it works: log.jsonl always, TensorBoard if asked, and a person on the console.

On a terminal a live table; elsewhere one plain line a minute, so that a log file stays readable.
"""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from coscap.errors import UserError
from coscap.files import write_text

PLAIN_SECONDS = 60.0


class Log:
    """`figures` are by name; `kind` is `train` or `validation`."""

    def __init__(self, run: Path, steps: int, tensorboard: bool = False, quiet: bool = False):
        self.run, self.steps, self.tensorboard, self.quiet = run, steps, tensorboard, quiet
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.latest: dict[str, dict[str, float]] = {}
        self.step, self.began, self.began_at = 0, time.monotonic(), 0
        self.printed = -PLAIN_SECONDS
        self.stack = ExitStack()
        self.board: Any = None

    def __enter__(self) -> Self:
        if self.quiet:
            return self
        self.file = self.stack.enter_context((self.run / "log.jsonl").open("a", encoding="utf-8"))
        if self.tensorboard:
            self.board = board_class()(str(self.run / "tensorboard"))
            self.stack.callback(self.board.close)
        if self.console.is_terminal:
            self.live = self.stack.enter_context(Live(console=self.console, refresh_per_second=2))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def start(self, step: int) -> None:
        self.step = self.began_at = step
        self.began = time.monotonic()

    def write(self, kind: str, step: int, epoch: float, figures: dict[str, float]) -> None:
        """One line of log.jsonl."""
        if self.quiet:
            return
        self.step, self.latest[kind] = step, figures
        line = {"kind": kind, "step": step, "epoch": round(epoch, 4)}
        line |= {name: float(f"{value:.6g}") for name, value in figures.items()}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in figures.items():
                self.board.add_scalar(f"{kind}/{name}", value, step)
        if kind == "validation" and self.live is None:
            print(f"step {step:,}/{self.steps:,}  validation  {_plain(figures)}", file=sys.stderr, flush=True)

    def tick(self, step: int) -> None:
        """Called after every step: refresh the table, or say a line when a minute has passed."""
        self.step = step
        if self.quiet:
            return
        if self.live is not None:
            self.live.update(self._table())
        elif "train" in self.latest and time.monotonic() - self.printed >= PLAIN_SECONDS:
            self.printed = time.monotonic()
            figures = f"{self._left()} left  {_plain(self.latest['train'])}"
            print(f"step {step:,}/{self.steps:,}  {figures}", file=sys.stderr, flush=True)

    def say(self, sentence: str) -> None:
        if not self.quiet:
            self.console.print(sentence, highlight=False, soft_wrap=True)

    def _left(self) -> str:
        done = self.step - self.began_at
        if done == 0:
            return "?"
        seconds = int((time.monotonic() - self.began) / done * (self.steps - self.step))
        return f"{seconds // 3600}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"

    def _table(self) -> Table:
        table = Table(title=f"step {self.step:,} of {self.steps:,}, {self._left()} left")
        table.add_column("figure")
        for kind in self.latest:
            table.add_column(kind, justify="right")
        names = dict.fromkeys(name for figures in self.latest.values() for name in figures)
        for name in names:
            values = [figures.get(name) for figures in self.latest.values()]
            table.add_row(name.replace("_", " "), *("" if v is None else f"{v:.4g}" for v in values))
        return table


def cut_log(run: Path, step: int) -> None:
    """Drop the lines after `step`, and half a line: what a killed run wrote beyond its last checkpoint."""
    path = run / "log.jsonl"
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    write_text(path, "".join(kept))


def _plain(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


def board_class() -> Any:
    """TensorBoard's writer, or a sentence about the package that is missing."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise UserError(
            "tensorboard: true needs the package tensorboard; `pip install coscap[tensorboard]` brings it."
        ) from None
    return SummaryWriter
