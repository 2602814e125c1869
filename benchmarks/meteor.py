"""METEOR: CPU-seconds of the official Java program against ours on the same lines, in one run.

    python benchmarks/meteor.py

Each side is a process of its own with everything that it does: start, word tables, alignments. Ours is warm, that
is, compiled and with its tables made, as for every run after the first. The answers must be equal.
Lines: 4 captions for each of the demo's 1,000 pictures against its 5 references.
"""

import gzip
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coscap.metrics.meteor.java import find_java, official_statistics

DEMO = Path(__file__).parents[1] / "tests" / "data" / "metrics_demo.json.gz"
SAMPLES = 4
BAR = 1.0


def lines() -> list[tuple[str, list[str]]]:
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        images = json.load(file)["images"]
    captions = [image["tokens"] for image in images]
    references = [[tokens for _, tokens in image["references"]] for image in images]
    return [
        (captions[(picture + shift) % len(captions)], references[picture])
        for picture in range(len(images))
        for shift in range(SAMPLES)
    ]


def ours(source: Path, target: Path) -> None:
    """What the child process does."""
    from coscap.metrics.meteor import Meteor

    pairs = json.loads(source.read_text(encoding="utf-8"))
    np.save(target, Meteor().statistics([[caption] for caption, _ in pairs], [refs for _, refs in pairs]))


def ours_in_a_process(pairs: list[tuple[str, list[str]]]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.json"), Path(folder, "out.npy")
        source.write_text(json.dumps(pairs), encoding="utf-8")
        subprocess.run([sys.executable, __file__, str(source), str(target)], check=True)
        return np.load(target)


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU time of the processes that `work` starts, and what it returns."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


def main() -> int:
    if find_java() is None:
        print("meteor: Java is not installed, so there is nothing to compare with")
        return 0
    pairs = lines()
    ours_in_a_process(pairs[:SAMPLES])  # compile and make the tables, if that has not been done
    our_seconds, our_answer = cpu_seconds(lambda: ours_in_a_process(pairs))
    java_seconds, java_answer = cpu_seconds(lambda: official_statistics(pairs))
    equal = bool((our_answer == java_answer).all())
    ratio = java_seconds / our_seconds
    print(f"{len(pairs)} captions, {sum(len(refs) for _, refs in pairs)} alignments, answers equal: {equal}")
    print(f"java {java_seconds:.1f} CPU-s, coscap {our_seconds:.1f} CPU-s")
    print(f"meteor: ratio {ratio:.2f}, bar {BAR:g}")
    return 0 if equal and ratio >= BAR else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        ours(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.exit(main())
