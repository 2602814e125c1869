"""Rows of captions that are at hand in a file: another system's, or those that `coscap caption` chose."""

from collections.abc import Sequence
from pathlib import Path

from coscap.errors import UserError
from coscap.files import sha256
from coscap.metrics.references import grouped, read_samples
from coscap.report.runs import Run
from coscap.report.sampling import Samples, SampleSet
from coscap.search.config import SearchSettings
from coscap.vision.ids import image_id_of


class GivenCaptions:
    """The captions of `FILE` or `NAME=FILE`, in place of a Sampler."""

    def __init__(self, given: str, pictures: Sequence[int]) -> None:
        name, _, place = given.rpartition("=")
        path = Path(place)
        captions = grouped(read_samples(path, image_id_of))
        missing = [image for image in pictures if image not in captions]
        if missing:
            raise UserError(
                f"--captions {path}: {len(missing):,} of the {len(pictures):,} pictures have no captions (first: "
                f"{missing[0]}); caption them too, or give the regions of the others alone."
            )
        self.found: Samples = {image: captions[image] for image in pictures}
        self.n = min(map(len, self.found.values()))
        if self.n < 2:
            short = next(image for image, each in self.found.items() if len(each) < 2)
            raise UserError(
                f"--captions {path}: picture {short} has one caption, and a report compares several; "
                "measure single captions with `coscap evaluate`."
            )
        name = name or path.stem
        self.run = Run(name, str(path), path.parent, name, sha256(path))

    @property
    def has_latents(self) -> bool:
        return False

    def set_of(self, n: int) -> SampleSet:
        return SampleSet(self.run, SearchSettings(), n)

    def samples(self, wanted: SampleSet, pictures: Sequence[int]) -> Samples:
        """The first ones of each picture."""
        return {image: self.found[image][: wanted.n] for image in pictures}
