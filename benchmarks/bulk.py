"""How much of the rate of a plain loop `coscap bulk` keeps on the same cores.

The plain loop is the best one: a process for each core, each with a captioner on one thread and the same batches.
It runs before and after the collection, so that other work on the machine falls on both alike. Starting processes
and loading models is left out on both sides. The pictures are pieces of the photographs in examples/, or the first
of a folder: python benchmarks/bulk.py FOLDER COUNT. Prints `ratio`, exits 1 below the bar.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from PIL import Image

from coscap.bulk import run
from coscap.bulk.entries import local_entry
from coscap.bulk.worker import Job, caption_batch

BAR = 0.85
JOB = Job(n=1, batch=8)  # one caption: the less work a picture is, the more everything around it weighs
PICTURES = 160
CORES = len(os.sched_getaffinity(0))


def make_pictures(folder: Path) -> list[str]:
    """Pieces of 256 x 256 pixels, each another."""
    photos = sorted((Path(__file__).parents[1] / "examples").glob("*.jpg"))
    sources = [Image.open(photo).convert("RGB").resize((384, 384)) for photo in photos]
    paths = []
    for index in range(PICTURES):
        left, top = index * 7 % 128, index * 13 % 128
        path = folder / f"{index:04d}.jpg"
        sources[index % len(sources)].crop((left, top, left + 256, top + 256)).save(path)
        paths.append(str(path))
    return paths


def plain_loop(orders: Connection) -> None:
    """A process of the plain loop: captions the paths that it is sent, and says when it is done."""
    import torch

    torch.set_num_threads(1)
    captioner = JOB.load()
    orders.send("ready")
    while paths := orders.recv():
        for start in range(0, len(paths), JOB.batch):
            batch = paths[start : start + JOB.batch]
            caption_batch(captioner, JOB, batch, [Path(path).read_bytes() for path in batch])
        orders.send("done")


class Plain:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(CORES)]
        self.ends = [ours for ours, _ in pairs]
        for _, theirs in pairs:
            context.Process(target=plain_loop, args=(theirs,), daemon=True).start()
        for end in self.ends:
            end.recv()

    def seconds(self, paths: list[str]) -> float:
        begin = time.perf_counter()
        for index, end in enumerate(self.ends):
            end.send(paths[index::CORES])
        for end in self.ends:
            end.recv()
        return time.perf_counter() - begin

    def close(self) -> None:
        for end in self.ends:
            end.send([])


def bulk_rate(ray: object, paths: list[str]) -> float:
    """Pictures a second, from when every worker has given its first pictures."""
    run.BLOCK = JOB.batch
    entries = [local_entry(path) for path in paths]
    counted, begin = 0, 0.0
    for number, rows in enumerate(run._stream(ray, entries, JOB, CORES), 1):
        counted += len(rows) if number > CORES else 0
        if number == CORES:
            begin = time.perf_counter()
        now = time.perf_counter()
    return counted / (now - begin)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        given = sys.argv[1:]
        paths = make_pictures(Path(folder))
        if given:
            paths = sorted(str(path) for path in Path(given[0]).glob("*.jpg"))[: int(given[1])]
        with run._ray(None, CORES) as (ray, _):
            plain = Plain()
            plain.seconds(paths[: 2 * CORES])
            half = paths[: len(paths) // 2]
            before = plain.seconds(half)
            bulk = bulk_rate(ray, paths)
            rate = 2 * len(half) / (before + plain.seconds(half))
            plain.close()
    print(f"{len(paths)} pictures on {CORES} cores: plain loop {rate:.1f} pictures/s, coscap bulk {bulk:.1f}")
    ratio = bulk / rate
    print(f"bulk: ratio {ratio:.2f}, bar {BAR}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
