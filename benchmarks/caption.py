"""From a photograph to five captions: against the bare time of its own networks, against torch, and from a cold start.

    python benchmarks/caption.py

All in one run, on one thread, in CPU time, so that a busy machine changes little. The bare time is that of the
detector's and the captioner's graphs alone: all that they are given is recorded once and given to them again, in the
same order, because a network that ran just before finds its weights in the cache.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coscap import Captioner

PHOTOS = sorted((Path(__file__).parents[1] / "examples").glob("*.jpg"))
BAR = 1.35  # of the bare time
FASTER = 3.0  # than torch
TURNS = 5


Calls = list[tuple[Any, Any, dict[str, Any]]]  # session, outputs, what it was given


class Recorded:
    """A session of onnxruntime that keeps what it is given."""

    def __init__(self, session: Any, calls: Calls) -> None:
        self.session, self.calls = session, calls

    def run(self, outputs: Any, feed: dict[str, Any]) -> Any:
        self.calls.append((self.session, outputs, feed))
        return self.session.run(outputs, feed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def again(calls: Calls) -> None:
    for session, outputs, feed in calls:
        session.run(outputs, feed)


def seconds(works: Sequence[Callable[[], Any]]) -> list[float]:
    """CPU seconds of each, the best of some turns; turn by turn, so that a processor that slows down slows all."""
    best = [float("inf")] * len(works)
    for _ in range(TURNS):
        for number, work in enumerate(works):
            began = time.process_time()
            work()
            best[number] = min(best[number], time.process_time() - began)
    return best


def record(captioner: Captioner) -> Calls:
    """The calls of all graphs while every photograph is captioned."""
    places = [(captioner.detector, "_picodet"), (captioner.detector, "_map")]
    places += [(captioner.model, "_start"), (captioner.model, "_step")]
    calls: Calls = []
    recorded = [Recorded(getattr(owner, name), calls) for owner, name in places]
    for (owner, name), session in zip(places, recorded, strict=True):
        setattr(owner, name, session)
    caption(captioner)
    for (owner, name), session in zip(places, recorded, strict=True):
        setattr(owner, name, session.session)
    return calls


def caption(captioner: Captioner) -> None:
    for photo in PHOTOS:  # one at a time, as most people have them
        captioner(photo, n=5)


def cold(runtime: str) -> float:
    """CPU seconds of the whole command for one photograph, its imports included."""
    code = "import sys; from coscap.cli.main import main; main()"
    command = [sys.executable, "-c", code, "caption", str(PHOTOS[0]), "--runtime", runtime]
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    graphs, plain = Captioner.from_pretrained(runtime="onnx"), Captioner.from_pretrained(runtime="torch")
    calls = record(graphs)
    bare, ours, theirs = seconds([lambda: again(calls), lambda: caption(graphs), lambda: caption(plain)])
    each = 1000 / len(PHOTOS)
    print(
        f"a photograph: {ours * each:.0f} CPU-ms, bare networks {bare * each:.0f}, torch {theirs * each:.0f}"
    )
    start, torch_start = min(cold("onnx") for _ in range(2)), min(cold("torch") for _ in range(2))
    print(f"cold start: {start:.2f} CPU-s, torch {torch_start:.2f}, ratio {torch_start / start:.2f}")
    print(f"torch: ratio {theirs / ours:.2f}, bar {FASTER:g}")
    print(f"caption: ratio {ours / bare:.2f}, bar {BAR}")
    return int(ours / bare > BAR or theirs / ours < FASTER)


if __name__ == "__main__":
    sys.exit(main())
