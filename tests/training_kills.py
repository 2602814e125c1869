"""Kill `coscap train` with SIGKILL again and again, go on with --resume, and say what came out.

    python tests/training_kills.py run.yaml OUT

Imports are done once and every attempt is a fork, so an attempt costs no more than its training. Prints JSON:
the weights of an undisturbed run and of runs that were killed at random moments, between writes, by Ctrl-C.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import coscap.training.checkpoint
import coscap.training.run
from coscap.cli.main import main

torch.set_num_threads(1)
CONFIG, OUT = Path(sys.argv[1]), Path(sys.argv[2])
OFTEN = ["--set", "checkpoint_minutes=1e-6", "--set", "validation.pictures=0", "--set", "steps=9"]
PASSES_BY = ("captions_per_second",)


def start(run: Path, prelude: Callable[[], None] | None = None) -> int:
    """`coscap train` in a fork; its process id."""
    child = os.fork()
    if child:
        return child
    with (OUT / f"{run.name}.err").open("a") as errors:
        os.dup2(errors.fileno(), 2)
    sys.argv = ["coscap", "train", str(CONFIG), "--out", str(run), "--resume", "--device", "cpu", *OFTEN]
    code = 1
    try:
        if prelude is not None:
            prelude()
        main()
    except SystemExit as leave:
        code = int(leave.code or 0)
    finally:
        os._exit(code)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def send_itself(kind: signal.Signals, number: int) -> Callable[[], None]:
    """Make the process send itself a signal before its `number`-th write, rename or removal."""
    calls = 0

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), kind)
            return function(*given, **named)

        return call

    def prelude() -> None:
        Path.replace = mortal(Path.replace)  # type: ignore[method-assign]
        shutil.rmtree = mortal(shutil.rmtree)  # type: ignore[assignment]
        coscap.training.checkpoint.save_file = mortal(coscap.training.checkpoint.save_file)

    return prelude


def result(run: Path, kills: int) -> dict[str, Any]:
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    files = [
        run / "last" / "model.safetensors",
        *(newest / f"{n}.safetensors" for n in ("model", "optimiser")),
    ]
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {
        "kills": kills,
        "weights": [hashlib.sha256(file.read_bytes()).hexdigest() for file in files],
        "steps": [(line["kind"], line["step"]) for line in log],
        "validation": [line for line in log if line["kind"] == "validation"],
        "left": [path.name for path in run.rglob(".*")],
        "checkpoints": len(list((run / "checkpoints").iterdir())),
    }


def undisturbed() -> dict[str, Any]:
    began = time.monotonic()
    assert wait(start(OUT / "plain")) == 0
    return result(OUT / "plain", 0) | {"seconds": time.monotonic() - began}


def at_random(attempts: int, seconds: float) -> dict[str, Any]:
    """Killed at moments of the `seconds` that a whole run takes on this machine."""
    run, kills, chance = OUT / "random", 0, random.Random(7)
    for _ in range(attempts):
        child = start(run)
        time.sleep(seconds * chance.uniform(0.02, 0.4))
        os.kill(child, signal.SIGKILL)
        kills += wait(child) == -signal.SIGKILL
    assert wait(start(run)) == 0
    return result(run, kills)


def between_writes(numbers: list[int]) -> dict[str, Any]:
    run, kills = OUT / "writes", 0
    for number in numbers:
        kills += wait(start(run, send_itself(signal.SIGKILL, number))) == -signal.SIGKILL
    assert wait(start(run)) == 0
    return result(run, kills)


def asked(kind: signal.Signals, go_on: bool) -> dict[str, Any]:
    """Ctrl-C or SIGTERM in the middle of a run: saved, exit code 130, the command to go on with."""
    run = OUT / kind.name
    code = wait(start(run, send_itself(kind, 9)))
    said = (OUT / f"{run.name}.err").read_text()
    if go_on:
        assert wait(start(run)) == 0
    return result(run, 0) | {"code": code, "said": said}


if __name__ == "__main__":
    plain = undisturbed()
    found = {
        "plain": plain,
        "random": at_random(4, plain["seconds"]),
        "writes": between_writes([1, 3, 9, 16, 18]),
        "SIGINT": asked(signal.SIGINT, go_on=True),
        "SIGTERM": asked(signal.SIGTERM, go_on=False),
    }
    print(json.dumps(found))
