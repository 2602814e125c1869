"""Between the requests and the captioner: the only file of the server that calls the captioner.

    request ─▶ regions: decode, detect ─▶ captions: search, rescore, select ─▶ the request's future
               one thread                 `workers` threads, `batch` photographs each
    request ─▶ regions: decode, tag ─▶ the request's future

While captions of one batch are searched, the regions of the next are found. No request waits for others to fill its
batch: a batch is what has gathered while the threads were busy. Noise belongs to the photograph, so its captions do
not depend on its batch.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from coscap.errors import UserError
from coscap.search.config import SearchSettings
from coscap.serve.limits import Limits
from coscap.serve.stage import MOST_LOST, Check, Job, Stage, Supervisor

if TYPE_CHECKING:
    from concurrent.futures import Future

    from PIL.Image import Image

    from coscap.captioner import Captioner
    from coscap.photos import PhotoCaption, PhotoCaptions
    from coscap.vision.regions import Regions
    from coscap.vision.tags import Tag
    from coscap.vision.words import Evidence

Keep = Literal["context", "objects"]
DECODED_PIXELS = 16_000_000  # decoded pictures that are held together for one call of the detector


@dataclass(frozen=True)
class Upload:
    """A photograph as it came: an open file, and the name that its sender gave it."""

    name: str
    file: BinaryIO


@dataclass(frozen=True)
class CaptionOptions:
    """How photographs are captioned; those with equal options are captioned together."""

    n: int
    variety: float
    settings: SearchSettings


@dataclass(frozen=True)
class TagOptions:
    """Which words of a photograph are given: at most n with a probability of at least `floor`."""

    n: int
    floor: float


# ---- what the server asks of the captioner --------------------------------------------------------------------------


def count_pixels(uploads: Sequence[Upload]) -> int:
    """Pixels of all photographs by their headers; nothing is decoded."""
    from coscap.vision.pictures import pixel_count

    total = 0
    for upload in uploads:
        upload.file.seek(0)
        try:
            total += pixel_count(upload.file, name=upload.name)
        except UserError:
            raise
        except Exception:  # a damaged header has no size; decoding will say what is wrong with it
            continue
    return total


def find_regions(
    captioner: "Captioner", uploads: Sequence[Upload], pixels: int, check: Check
) -> "tuple[list[Regions], list[Evidence] | None]":
    """Regions and evidence of photographs, as `coscap caption` sees them."""
    detector = captioner.detector
    found: list[Regions] = []
    seen: list[Evidence] = []
    for pictures in _decoded(uploads, detector.least_side, detector.batch, pixels, check):
        regions, evidence = captioner.see(pictures)
        found += regions
        seen += evidence or []
    return found, seen or None


def find_tags(
    captioner: "Captioner", uploads: Sequence[Upload], options: TagOptions, pixels: int, check: Check
) -> "list[list[Tag]]":
    """Words of photographs, as `coscap tags` finds them."""
    tagger = captioner.tagger
    found: list[list[Tag]] = []
    for pictures in _decoded(uploads, tagger.least_side, captioner.detector.batch, pixels, check):
        found += tagger(pictures, options.n, options.floor)
    return found


def _decoded(
    uploads: Sequence[Upload], least_side: int, batch: int, pixels: int, check: Check
) -> "Iterator[list[Image]]":
    """Photographs, decoded one at a time, in batches that do not hold too many pixels."""
    from coscap.vision.pictures import open_picture

    held: list[Image] = []
    for upload in uploads:
        check()
        upload.file.seek(0)
        held.append(open_picture(upload.file, least_side=least_side, name=upload.name, pixel_limit=pixels))
        upload.file.close()
        if len(held) == batch or sum(p.width * p.height for p in held) > DECODED_PIXELS:
            yield held
            held = []
    if held:
        yield held


def write_captions(
    captioner: "Captioner",
    names: Sequence[str],
    regions: "Sequence[Regions]",
    evidence: "Sequence[Evidence] | None",
    options: CaptionOptions,
    check: Check,
) -> "list[PhotoCaptions]":
    return captioner.describe(
        names,
        regions,
        options.n,
        variety=options.variety,
        settings=options.settings,
        evidence=evidence,
        check=check,
    )


def write_variations(captioner: "Captioner", job: "VariationJob", check: Check) -> "list[PhotoCaption]":
    return captioner.vary(job.caption, job.keep, job.n, job.seed, check=check)


# ---- the queue ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class CaptionJob(Job):
    uploads: Sequence[Upload] = ()
    options: CaptionOptions | None = None
    regions: "Sequence[Regions]" = ()
    evidence: "Sequence[Evidence] | None" = None

    @property
    def key(self) -> Hashable:
        return self.options

    @property
    def photos(self) -> int:
        return len(self.uploads)

    def release(self) -> None:
        for upload in self.uploads:
            upload.file.close()


@dataclass(eq=False)
class TagJob(Job):
    uploads: Sequence[Upload] = ()
    options: TagOptions | None = None

    @property
    def photos(self) -> int:
        return len(self.uploads)

    def release(self) -> None:
        for upload in self.uploads:
            upload.file.close()


@dataclass(eq=False)
class VariationJob(Job):
    caption: Any = None
    keep: Keep = "context"
    n: int = 5
    seed: int = 1


class Worker:
    """Owns the captioner. Its methods can be called from any thread and return at once."""

    def __init__(
        self, captioner: "Captioner", limits: Limits, on_batch: Callable[[str, int], None] | None = None
    ) -> None:
        self._captioner = captioner
        self._limits = limits
        self._on_batch = on_batch or (lambda stage, photos: None)
        grace = limits.grace
        self._regions = Stage[CaptionJob | TagJob]("regions", self._look, captioner.detector.batch, 1, grace)
        self._captions = Stage[CaptionJob | VariationJob](
            "captions", self._write, limits.batch, limits.workers, grace
        )
        self._stages: list[Stage[Any]] = [self._regions, self._captions]
        self._supervisor = Supervisor(self._stages)
        self.closing = False

    @property
    def problem(self) -> str | None:
        """Why no captions can be had now, if they cannot."""
        if self.closing:
            return "The server is shutting down."
        if any(stage.stuck == stage.threads for stage in self._stages):
            return "All workers are stuck in abandoned work; they are being replaced."
        return self.broken

    @property
    def broken(self) -> str | None:
        """Why the process should be started again, if it should."""
        if sum(stage.lost for stage in self._stages) >= MOST_LOST:
            return "Too many workers did not come back; start the server again."
        return None

    @property
    def lost(self) -> int:
        return sum(stage.lost for stage in self._stages)

    def caption(self, uploads: Sequence[Upload], options: CaptionOptions, id: str = "") -> "Future[Any]":
        job = CaptionJob(id, uploads, options)
        self._regions.put(job)
        return job.future

    def tag(self, uploads: Sequence[Upload], options: TagOptions, id: str = "") -> "Future[Any]":
        job = TagJob(id, uploads, options)
        self._regions.put(job)
        return job.future

    def vary(self, caption: "PhotoCaption", keep: Keep, n: int, seed: int, id: str = "") -> "Future[Any]":
        job = VariationJob(id, caption, keep, n, seed)
        self._captions.put(job)
        return job.future

    def close(self, seconds: float = 60.0) -> bool:
        """Finish what was taken, within some seconds; whether all of it was finished."""
        self.closing = True
        until = time.monotonic() + seconds
        finished = [stage.close(until) for stage in self._stages]  # in this order: regions become captions
        self._supervisor.close()
        return all(finished)

    def _look(self, jobs: list[CaptionJob | TagJob], check: Check) -> None:
        """A job with a bad photograph fails alone."""
        self._on_batch("regions", sum(job.photos for job in jobs))
        for job in jobs:
            if not job.wanted:
                job.release()
                continue
            try:
                if isinstance(job, TagJob):
                    assert job.options is not None
                    job.settle(
                        find_tags(self._captioner, job.uploads, job.options, self._limits.pixels, check)
                    )
                    continue
                job.regions, job.evidence = find_regions(
                    self._captioner, job.uploads, self._limits.pixels, check
                )
                self._captions.put(job)
            except Exception as error:
                job.fail(error)
            finally:
                job.release()

    def _write(self, jobs: list[CaptionJob | VariationJob], check: Check) -> None:
        first = jobs[0]
        if isinstance(first, VariationJob):
            self._on_batch("captions", 1)
            return first.settle(write_variations(self._captioner, first, check))
        self._write_captions([job for job in jobs if isinstance(job, CaptionJob)], check)

    def _write_captions(self, jobs: list[CaptionJob], check: Check) -> None:
        names = [upload.name for job in jobs for upload in job.uploads]
        regions = [each for job in jobs for each in job.regions]
        seen = [each for job in jobs for each in job.evidence or ()]
        options = jobs[0].options
        assert options is not None
        self._on_batch("captions", len(names))
        try:
            found = write_captions(self._captioner, names, regions, seen or None, options, check)
        except Exception as error:
            if len(jobs) == 1:
                return jobs[0].fail(error)
            for job in jobs:  # the fault may be of one photograph only
                self._write_captions([job], check)
            return
        for job in jobs:
            job.settle(found[: job.photos])
            found = found[job.photos :]
