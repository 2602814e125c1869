"""Threads between the requests and the captioner; each takes what waits, so requests are batched together.

    request ─▶ eyes: decode, find regions ─▶ voices: write captions ─▶ the request's future
               up to detector.batch photos    up to `batch` photos each

While the voices write the captions of their batches, the eyes look at the next. Nobody waits for company: a batch is
what has gathered while the threads were busy. Company does not change a photograph's captions.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Literal, TypeVar

from coscap.errors import UserError
from coscap.search.config import SearchSettings
from coscap.serve.limits import Limits

if TYPE_CHECKING:
    from coscap.captioner import Captioner, PhotoCaption, PhotoCaptions
    from coscap.vision.regions import Regions

J = TypeVar("J")
Keep = Literal["context", "objects"]
log = logging.getLogger("coscap.serve")


@dataclass(frozen=True)
class Upload:
    """A photograph as it came: a file without a path, and the name that its sender gave it."""

    name: str
    file: BinaryIO


@dataclass(frozen=True)
class Wish:
    """How photographs are to be captioned; those with equal wishes are captioned together."""

    n: int
    variety: float
    settings: SearchSettings


@dataclass
class CaptionJob:
    uploads: Sequence[Upload]
    wish: Wish
    regions: "Sequence[Regions]" = ()
    future: "Future[list[PhotoCaptions]]" = field(default_factory=Future)


@dataclass
class VaryJob:
    caption: "PhotoCaption"
    keep: Keep
    n: int
    seed: int
    future: "Future[list[PhotoCaption]]" = field(default_factory=Future)


class Closed(Exception):
    """The server is shutting down and takes nothing more."""


class Worker:
    """Owns the captioner. Its methods can be called from any thread and return at once."""

    def __init__(
        self, captioner: "Captioner", limits: Limits, on_batch: Callable[[str, int], None] | None = None
    ) -> None:
        self._captioner = captioner
        self._limits = limits
        self._on_batch = on_batch or (lambda stage, photos: None)
        self._eyes = Stage[CaptionJob]("eyes", self._see, captioner.detector.batch)
        self._voice = Stage[CaptionJob | VaryJob]("voice", self._say, limits.batch, limits.voices)

    def caption(self, uploads: Sequence[Upload], wish: Wish) -> "Future[list[PhotoCaptions]]":
        job = CaptionJob(uploads, wish)
        self._eyes.put(job)
        return job.future

    def vary(self, caption: "PhotoCaption", keep: Keep, n: int, seed: int) -> "Future[list[PhotoCaption]]":
        job = VaryJob(caption, keep, n, seed)
        self._voice.put(job)
        return job.future

    def close(self) -> None:
        """Finish what was taken, then end."""
        self._eyes.close()
        self._voice.close()

    def _see(self, jobs: list[CaptionJob]) -> None:
        """Regions of the photographs of some jobs; a job with a bad photograph fails alone."""
        from coscap.vision.pictures import open_picture

        good, pictures = [], []
        for job in jobs:
            try:
                pixels = self._limits.pixels
                pictures += [open_picture(up.file, name=up.name, pixel_limit=pixels) for up in job.uploads]
                good.append(job)
            except Exception as error:
                _fail(job, error)
            finally:
                for upload in job.uploads:
                    upload.file.close()
        if not good:
            return
        self._on_batch("eyes", len(pictures))
        try:
            regions = self._captioner.detector.regions(pictures)
        except Exception as error:
            for job in good:
                _fail(job, error)
            return
        for job in good:
            job.regions, regions = regions[: len(job.uploads)], regions[len(job.uploads) :]
            self._voice.put(job)

    def _say(self, jobs: list[CaptionJob | VaryJob]) -> None:
        alike: dict[Wish, list[CaptionJob]] = {}
        for job in jobs:
            if isinstance(job, CaptionJob):
                alike.setdefault(job.wish, []).append(job)
        for wish, group in alike.items():
            self._describe(group, wish)
        for job in jobs:
            if isinstance(job, VaryJob):
                self._vary(job)

    def _describe(self, jobs: list[CaptionJob], wish: Wish) -> None:
        names = [upload.name for job in jobs for upload in job.uploads]
        regions = [seen for job in jobs for seen in job.regions]
        self._on_batch("voice", len(names))
        try:
            found = self._captioner.describe(
                names, regions, wish.n, variety=wish.variety, settings=wish.settings
            )
        except Exception as error:
            if len(jobs) == 1:
                return _fail(jobs[0], error)
            for job in jobs:  # the fault may be one's only
                self._describe([job], wish)
            return None
        for job in jobs:
            _settle(job, found[: len(job.uploads)])
            found = found[len(job.uploads) :]

    def _vary(self, job: VaryJob) -> None:
        self._on_batch("voice", 1)
        try:
            _settle(job, self._captioner.vary(job.caption, job.keep, job.n, job.seed))
        except Exception as error:
            _fail(job, error)


class Stage(Generic[J]):
    """Threads that take the jobs that wait, some together, in their order."""

    def __init__(self, name: str, handle: Callable[[list[J]], None], most: int, threads: int = 1) -> None:
        self._handle = handle
        self._most = most  # photographs taken together, unless one job alone has more
        self._jobs: deque[J] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"coscap-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, job: J) -> None:
        with self._changed:
            if self._closed:
                raise Closed
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while jobs := self._take():
            wanted = [job for job in jobs if not _abandoned(job)]
            if wanted:
                self._handle(wanted)

    def _take(self) -> list[J]:
        """The jobs that wait, in number no more than fit together; none when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            taken: list[J] = []
            photos = 0
            while self._jobs and (not taken or photos + _photos(self._jobs[0]) <= self._most):
                photos += _photos(self._jobs[0])
                taken.append(self._jobs.popleft())
            return taken


def _photos(job: object) -> int:
    return len(job.uploads) if isinstance(job, CaptionJob) else 1


def _abandoned(job: Any) -> bool:
    """Whether the request of a job ran out of time; then its photographs are let go, too."""
    gone: bool = job.future.cancelled()
    if gone and isinstance(job, CaptionJob):
        for upload in job.uploads:
            upload.file.close()
    return gone


def _settle(job: Any, result: object) -> None:
    with suppress(InvalidStateError):  # the request gave up in this moment
        job.future.set_result(result)


def _fail(job: Any, error: Exception) -> None:
    if not isinstance(error, UserError):
        log.error("A request failed by a fault of the server.", exc_info=error)
    with suppress(InvalidStateError):
        job.future.set_exception(error)
