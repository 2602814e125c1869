"""How much of the rate of a plain loop `coscap bulk` keeps on the same cores.

The plain loop is the best one: a process for each core, each with a captioner on one thread and the same batches.
Other programs that run on the machine must not decide, so what is compared is processor time, and time lost waiting:

    ratio = (CPU a picture, plain loop / CPU a picture, coscap bulk with all of Ray's processes) x (share of the time
            in which its workers were at work, not waiting for pictures)

The plain loop runs before and after. Starting processes and loading models is left out on both sides. The pictures
are pieces of the photographs in examples/, or the first of a folder: python benchmarks/bulk.py FOLDER COUNT.
The rates by the clock are printed, too. Prints `ratio`, exits 1 below the bar.
"""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from coscap.bulk import run
from coscap.bulk.entries import local_entry
from coscap.bulk.worker import BulkJob, BulkWorker, caption_batch

BAR = 0.85
JOB = BulkJob(n=1, batch=8)  # one caption: the less work a picture is, the more everything around it weighs
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


@dataclass(frozen=True)
class Measured:
    pictures: int
    seconds: float
    cpu: float  # seconds, of all processes
    busy: float = 1.0  # share of the time

    def __add__(self, other: "Measured") -> "Measured":
        return Measured(
            self.pictures + other.pictures, self.seconds + other.seconds, self.cpu + other.cpu, self.busy
        )


class Plain:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(CORES)]
        self.ends = [ours for ours, _ in pairs]
        workers = [context.Process(target=plain_loop, args=(theirs,), daemon=True) for _, theirs in pairs]
        for worker in workers:
            worker.start()
        self.pids = {worker.pid or 0 for worker in workers}
        for end in self.ends:
            end.recv()

    def measure(self, paths: list[str]) -> Measured:
        begin, cpu = time.perf_counter(), cpu_of(self.pids)
        for index, end in enumerate(self.ends):
            end.send(paths[index::CORES])
        for end in self.ends:
            end.recv()
        return Measured(len(paths), time.perf_counter() - begin, cpu_of(self.pids) - cpu)

    def close(self) -> None:
        for end in self.ends:
            end.send([])


def processes() -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            found[int(path.parent.name)] = int(fields[1]), ticks / os.sysconf("SC_CLK_TCK")
    return found


def cpu_of(pids: set[int]) -> float:
    """CPU seconds of these processes and of all below them."""
    table, family, size = processes(), set(pids), 0
    while len(family) > size:
        size = len(family)
        family |= {pid for pid, (parent, _) in table.items() if parent in family}
    return sum(table[pid][1] for pid in family if pid in table)


class Timed(BulkWorker):
    """A worker that says how long each batch took it."""

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        begin = time.perf_counter()
        for table in super().__call__(block):
            took = time.perf_counter() - begin
            yield table.append_column("took", pa.array([took / len(table)] * len(table)))
            begin = time.perf_counter()


def measure_bulk(ray: Any, paths: list[str]) -> Measured:
    """From when every worker has given its first pictures."""
    run.BLOCK, run.BulkWorker = JOB.batch, Timed  # type: ignore[misc]
    entries = [local_entry(path) for path in paths]
    counted, begin, cpu, took = 0, 0.0, 0.0, 0.0
    for number, rows in enumerate(run._stream(ray, entries, JOB, CORES), 1):
        if number > CORES:
            counted += len(rows)
            took += sum(rows["took"].to_pylist())
        elif number == CORES:
            begin, cpu = time.perf_counter(), cpu_of({os.getpid()})
        now, used = time.perf_counter(), cpu_of({os.getpid()})
    return Measured(counted, now - begin, used - cpu, min(1.0, took / (CORES * (now - begin))))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        given = sys.argv[1:]
        paths = make_pictures(Path(folder))
        if given:
            paths = sorted(str(path) for path in Path(given[0]).glob("*.jpg"))[: int(given[1])]
        with run._ray(None, CORES) as (ray, _):
            plain = Plain()
            plain.measure(paths[: 2 * CORES])
            half = paths[: len(paths) // 2]
            before = plain.measure(half)
            bulk = measure_bulk(ray, paths)
            loop = before + plain.measure(half)
            plain.close()
    print(
        f"{len(paths)} pictures on {CORES} cores: plain loop {loop.pictures / loop.seconds:.1f} pictures/s, "
        f"coscap bulk {bulk.pictures / bulk.seconds:.1f}"
    )
    each, ours = loop.cpu / loop.pictures, bulk.cpu / bulk.pictures
    print(
        f"CPU a picture: {1000 * each:.0f} ms and {1000 * ours:.0f} ms; workers busy {bulk.busy:.0%} of the time"
    )
    ratio = each / ours * bulk.busy
    print(f"bulk: ratio {ratio:.2f}, bar {BAR}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
