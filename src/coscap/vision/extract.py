"""From many picture files to one store of regions: several processes, and a kill at any moment loses little.

The list of pictures is cut into parts of fixed size. A part is computed by one process and written as one
whole file under `OUT.parts/`; a run that is started again computes the parts that are missing. When all are
there, they are joined in the order of the list: the store has the same bytes whatever the number of processes.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.synchronize import Event
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
from PIL import Image

from coscap.errors import UserError, shown
from coscap.files import check_output, read_json, read_text, whole_file, whole_folder, write_json, write_text
from coscap.progress import Advance, bar
from coscap.vision.builtin import BuiltinDetector
from coscap.vision.detectors import Detector, load_detector
from coscap.vision.ids import image_id_of
from coscap.vision.picodet import Detections
from coscap.vision.pictures import PIXEL_LIMIT, open_picture, picture_suffixes
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.store import ROWS, RegionStore, StoreWriter

PART = 128  # pictures in a part: a few seconds of work


@dataclass(frozen=True)
class Entry:
    """A picture of the list: the name that the store keeps, and where the file is."""

    name: str
    path: str
    known_id: int | None = None  # where the data set's ids are not those of file names

    @property
    def id(self) -> int:
        return image_id_of(self.name) if self.known_id is None else self.known_id


@dataclass(frozen=True)
class ExtractJob:
    """All that a process needs to know, besides the pictures of its part."""

    detector: str = "builtin"
    classes: tuple[str, ...] = ()
    device: str = "cpu"
    pixel_limit: int = PIXEL_LIMIT
    reuse: Path | None = None
    hidden: tuple[str, ...] = ()  # words that the built-in detector must not name

    def load(self) -> Detector:
        detector = load_detector(self.detector, classes=self.classes, device=self.device)
        if self.hidden:
            if not isinstance(detector, BuiltinDetector):
                raise UserError(f"the detector {self.detector} names no words; leave --hide out.")
            detector.hide_words(detector.recipe.without_words(self.hidden))
        return detector


@dataclass(frozen=True)
class Outcome:
    pictures: int
    bad: tuple[str, ...]  # sentences, one for each picture without regions


def list_pictures(source: str | Path, ids: Mapping[str, int] | None = None) -> list[Entry]:
    """The pictures of a folder (all below it, by name) or of a text file of paths, one a line (in its order).

    With `ids`, which go by file name (whole, or its last part), only the pictures that have one are taken.
    """
    source = Path(source)
    if source.is_dir():
        suffixes = picture_suffixes()
        names = sorted(
            str(path.relative_to(source).as_posix())
            for path in source.rglob("*")
            if path.suffix.lower() in suffixes and path.is_file()
        )
        entries = [Entry(name, str(source / name)) for name in names]
    else:
        lines = (line.strip() for line in read_text(source).splitlines())
        entries = [Entry(line, str(source.parent / line)) for line in lines if line]
    if not entries:
        raise UserError(
            f"{source} has no pictures; give a folder of pictures or a file with one path a line."
        )
    if ids is not None:
        entries = _with_ids(source, entries, ids)
    _refuse_same_ids(source, entries)
    return entries


def _with_ids(source: Path, entries: Sequence[Entry], ids: Mapping[str, int]) -> list[Entry]:
    last = {PurePosixPath(name).name: number for name, number in ids.items()}
    known = []
    for entry in entries:
        number = ids.get(entry.name, last.get(PurePosixPath(entry.name).name))
        if number is not None:
            known.append(replace(entry, known_id=number))
    if not known:
        raise UserError(
            f"{source}: none of its {len(entries):,} pictures has the name of one of the data set's "
            f"(such as {next(iter(ids), 'none')}); check that they belong together."
        )
    return known


def _refuse_same_ids(source: Path, entries: Sequence[Entry]) -> None:
    seen: dict[int, str] = {}
    for entry in entries:
        other = seen.setdefault(entry.id, entry.name)
        if other is not entry.name:
            raise UserError(
                f"{source}: {other} and {entry.name} would have the same id {entry.id}; "
                "rename one or leave it out."
            )


def extract(
    entries: Sequence[Entry], out: str | Path, job: ExtractJob, *, processes: int = 1, overwrite: bool = False
) -> Outcome:
    """Make the store `out` of the pictures, going on from what an earlier run left behind."""
    out = Path(out)
    check_output(out, inputs=[job.reuse] if job.reuse else [])
    recipe = _recipe_of(job)
    if out.exists() and not overwrite:
        _refuse_other(out, entries, recipe)
        shutil.rmtree(_parts_folder(out), ignore_errors=True)
        return Outcome(len(entries), _listed_bad(out))
    parts = _make_parts(entries, out, job, recipe, processes)
    outcome = assemble(parts, out)
    shutil.rmtree(parts)
    return outcome


def assemble(parts: str | Path, out: str | Path) -> Outcome:
    """Join the parts that are there, in the order of the list; bad pictures are listed in OUT.bad.txt."""
    parts, out = Path(parts), Path(out)
    fields = read_json(parts / "plan.json")["recipe"]
    recipe = Recipe.of(fields)
    bad: list[str] = []
    with StoreWriter(out, recipe) as writer:
        for path in sorted(parts.glob("*.npz")):
            for image_id, name, regions in _read_part(path, bad):
                writer.add(image_id, regions, name)
        pictures = len(writer)
    listed = out.with_name(out.name + ".bad.txt")
    if bad:
        write_text(listed, "".join(f"{shown(sentence)}\n" for sentence in bad))
    else:
        listed.unlink(missing_ok=True)
    return Outcome(pictures, tuple(bad))


def _make_parts(entries: Sequence[Entry], out: Path, job: ExtractJob, recipe: Recipe, processes: int) -> Path:
    """Compute the parts that are missing; gives the folder that holds all of them."""
    parts = _open_parts(out, entries, recipe)
    slices = [entries[start : start + PART] for start in range(0, len(entries), PART)]
    missing = [index for index in range(len(slices)) if not _part(parts, index).exists()]
    with bar("regions", len(entries), "pictures") as advance:
        advance(len(entries) - sum(len(slices[index]) for index in missing))
        _compute(parts, slices, missing, job, processes, advance)
    return parts


def _compute(
    parts: Path,
    slices: list[Sequence[Entry]],
    missing: list[int],
    job: ExtractJob,
    processes: int,
    advance: Advance,
) -> None:
    if processes == 1:
        _start(job)
        for index in missing:
            advance(_make_part(_part(parts, index), slices[index]))
        return
    # Fresh processes, not forked ones: a fork copies the locks of threads that it does not copy.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(processes, context, initializer=_start, initargs=(job, stop)) as pool:
        waiting: set[Future[int]] = set()
        queue = iter(missing)
        try:
            while True:
                for index in islice(queue, 2 * processes - len(waiting)):
                    with _without_interrupts():
                        waiting.add(pool.submit(_make_part, _part(parts, index), slices[index]))
                if not waiting:
                    return
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    advance(future.result())
        except BrokenProcessPool:
            raise UserError(
                f"a process was killed, perhaps for want of memory; {parts} keeps what is done: run the same "
                "command again, or with fewer --processes."
            ) from None
        except BaseException:
            stop.set()  # Ctrl-C: processes give up the parts that they are at
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started here inherits that Ctrl-C does not reach it: its parent stops it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: dict[str, Any] = {}  # what a process keeps between its parts


def _start(job: ExtractJob, stop: Event | None = None) -> None:
    """Make a process ready. One thread each, so that sums come out the same in any number of processes."""
    if not job.detector.startswith("builtin"):  # that runs in onnxruntime, on one thread already
        import torch

        torch.set_num_threads(1)
    _worker["job"] = job
    _worker["stop"] = stop
    _worker["detector"] = job.load()
    _worker["reuse"] = RegionStore.open(job.reuse) if job.reuse else None


class _Waiting:
    """Pictures that wait for a batch; with `known`, a store that has their detections."""

    def __init__(self, detector: Detector, known: RegionStore | None) -> None:
        self.detector, self.known = detector, known
        self.indices: list[int] = []
        self.ids: list[int] = []
        self.pictures: list[Image.Image] = []

    def add(self, index: int, image_id: int, picture: Image.Image) -> None:
        self.indices.append(index)
        self.ids.append(image_id)
        self.pictures.append(picture)

    def regions(self) -> dict[int, Regions]:
        """Those of all that wait, by index; none waits afterwards."""
        indices, ids, pictures = self.indices, self.ids, self.pictures
        self.indices, self.ids, self.pictures = [], [], []
        if not pictures:
            return {}
        if self.known is None:
            return dict(zip(indices, self.detector.regions(pictures), strict=True))
        seen = [detections_of(self.known.get(image_id), self.known.recipe) for image_id in ids]
        found = cast(BuiltinDetector, self.detector).regions_at(pictures, seen)
        return dict(zip(indices, found, strict=True))


def detections_of(regions: Regions, recipe: Recipe) -> Detections:
    """What the detector found, of regions that have words and cells besides."""
    own = (regions.labels != GRID_LABEL) & (regions.labels < len(recipe.classes))
    return Detections(regions.boxes[own], regions.labels[own], regions.scores[own])


def _make_part(path: Path, entries: Sequence[Entry]) -> int:
    """Compute one part and write it. A picture that cannot be read becomes a sentence, not an end."""
    job: ExtractJob = _worker["job"]
    detector: Detector = _worker["detector"]
    known: RegionStore | None = _worker["reuse"]
    found: dict[int, Regions] = {}
    bad: list[str] = []
    new, moved = _Waiting(detector, None), _Waiting(detector, known)
    recipe = None if known is None else known.recipe
    same = recipe is not None and (recipe == detector.recipe or detector.recipe.hides_words_of(recipe))
    for index, entry in enumerate(entries):
        if _worker["stop"] is not None and _worker["stop"].is_set():
            return 0
        held = known is not None and entry.id in known
        if known is not None and held and same:
            regions = known.get(entry.id)
            found[index] = regions.of(detector.recipe.shown(regions.labels))
            continue
        try:
            picture = open_picture(entry.path, least_side=detector.least_side, pixel_limit=job.pixel_limit)
        except UserError as error:
            bad.append(str(error))
            continue
        waiting = moved if held else new
        waiting.add(index, entry.id, picture)
        if len(waiting.pictures) == detector.batch:
            found.update(waiting.regions())
    found.update(new.regions())
    found.update(moved.regions())
    _write_part(path, [(entries[index], found[index]) for index in sorted(found)], bad, detector.recipe.width)
    return len(entries)


def _write_part(path: Path, found: list[tuple[Entry, Regions]], bad: list[str], width: int) -> None:
    arrays: dict[str, Any] = {
        "image_id": np.array([entry.id for entry, _ in found], np.int64),
        "name": np.array([os.fsencode(entry.name) for entry, _ in found], np.bytes_),
        "count": np.array([len(regions) for _, regions in found], np.int64),
        "bad": np.array([sentence.encode("utf-8", "surrogateescape") for sentence in bad], np.bytes_),
    }
    empty = {"features": (0, width), "boxes": (0, 4), "labels": (0,), "scores": (0,)}
    for key, dtype in ROWS.items():
        rows = [np.asarray(getattr(regions, key), dtype) for _, regions in found]
        arrays[key] = np.concatenate([np.zeros(empty[key], dtype), *rows])
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _read_part(path: Path, bad: list[str]) -> Iterator[tuple[int, str, Regions]]:
    with _open_part(path) as part:
        bad += [sentence.decode("utf-8", "surrogateescape") for sentence in part["bad"].tolist()]
        rows = {key: part[key] for key in ROWS}
        ends = np.cumsum(part["count"])
        for image_id, name, count, end in zip(
            part["image_id"].tolist(),
            part["name"].tolist(),
            part["count"].tolist(),
            ends.tolist(),
            strict=True,
        ):
            regions = Regions(**{key: array[end - count : end] for key, array in rows.items()})
            yield image_id, os.fsdecode(name), regions


@contextmanager
def _open_part(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as part:
            yield part
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        raise UserError(f"{path} is damaged; remove that file and run the same command again.") from None


def _recipe_of(job: ExtractJob) -> Recipe:
    recipe = job.load().recipe
    if job.reuse:
        other = RegionStore.open(job.reuse).recipe
        if other != recipe and not other.detects_like(recipe):
            raise UserError(
                f"{job.reuse} was made with the recipe {other.name}, and this run makes {recipe.name}: "
                "they cannot be mixed."
            )
    return recipe


def _parts_folder(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def _part(parts: Path, index: int) -> Path:
    return parts / f"{index:08d}.npz"


def _open_parts(out: Path, entries: Sequence[Entry], recipe: Recipe) -> Path:
    """The folder of parts, made for exactly this list and recipe."""
    parts = _parts_folder(out)
    lines = (entry.name if entry.known_id is None else f"{entry.name}\t{entry.known_id}" for entry in entries)
    names = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape"))
    plan = {"recipe": recipe.fields(), "pictures": len(entries), "names": names.hexdigest(), "part": PART}
    if parts.exists():
        if read_json(parts / "plan.json") != json.loads(json.dumps(plan)):
            raise UserError(
                f"{parts} holds the beginning of another run (other pictures or another recipe); "
                "remove that folder or choose another --out."
            )
        for left in parts.glob(".*.part"):
            left.unlink(missing_ok=True)
        return parts
    with whole_folder(parts) as fresh:
        write_json(fresh / "plan.json", plan)
    return parts


def _refuse_other(out: Path, entries: Sequence[Entry], recipe: Recipe) -> None:
    """A store that is already there must be what this run would make."""
    store = RegionStore.open(out)
    wanted = {(entry.name, entry.id) for entry in entries}
    have = set(zip(store.names, map(int, store.ids), strict=True))
    complete = len(have) + len(_listed_bad(out)) == len(wanted) and have <= wanted
    if store.recipe != recipe or not complete:
        raise UserError(
            f"{out} is there already and holds other pictures or another recipe; "
            "choose another --out or give --overwrite."
        )


def _listed_bad(out: Path) -> tuple[str, ...]:
    listed = out.with_name(out.name + ".bad.txt")
    return tuple(read_text(listed).splitlines()) if listed.exists() else ()
