"""The public API: `Captioner.from_pretrained()("photo.jpg", n=5)`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coscap.data.collate import region_batch
from coscap.errors import UserError
from coscap.models.pretrained import Pretrained, load_pretrained
from coscap.search.caption import Caption
from coscap.search.entry import search
from coscap.search.rescore import rescore
from coscap.search.select import select
from coscap.search.settings import SearchSettings
from coscap.search.vary import Keep, keep_latents, vary
from coscap.shipped import SHIPPED, model_folder
from coscap.text.objects import load_classes
from coscap.vision.detectors import Detector, load_detector
from coscap.vision.pictures import open_picture
from coscap.vision.regions import Regions

if TYPE_CHECKING:
    import torch

    from coscap.models.latents import Latents

Photo = str | Path | bytes | Image.Image | NDArray[np.uint8]
POOL = 4  # draws for each caption that is shown


@dataclass(frozen=True)
class Word:
    """A word of a caption and the region that the model looked at most when it wrote it."""

    word: str
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2 in 0..1 of the photograph's width and height."""
    weight: float
    """The attention on that region, 0..1."""


@dataclass(frozen=True)
class PhotoCaption:
    """One caption of one photograph."""

    text: str
    log_probability: float
    """How sure the model is: log p(caption | photograph) with the latents at their priors' means, summed over
    the words and the end. It does not favour a caption for the draw that it came from."""
    words: tuple[Word, ...]
    found: Caption = field(repr=False, compare=False)
    """The caption as the search found it, with its whole attention."""
    settings: SearchSettings = field(repr=False, compare=False)
    regions: Regions = field(repr=False, compare=False)
    kept: "Latents | None" = field(default=None, repr=False, compare=False)
    """The latents that a variation has in common with the caption it was made from."""

    def to_json(self) -> dict[str, Any]:
        words = [{"word": word.word, "box": list(word.box), "weight": word.weight} for word in self.words]
        told = {"text": self.text, "log_probability": self.log_probability, "words": words}
        return (
            told if self.found.satisfied else {**told, "satisfied": False}
        )  # the search could not meet a wish


@dataclass(frozen=True)
class PhotoCaptions:
    """The captions of one photograph, the best first."""

    photo: str
    captions: tuple[PhotoCaption, ...]

    def to_json(self) -> dict[str, Any]:
        return {"photo": self.photo, "captions": [caption.to_json() for caption in self.captions]}


class Captioner:
    """Captions photographs.

    >>> from coscap import Captioner                                            # doctest: +SKIP
    >>> for caption in Captioner.from_pretrained()("photo.jpg", n=5).captions:  # doctest: +SKIP
    ...     print(caption.text)
    """

    def __init__(self, pretrained: Pretrained, detector: Detector) -> None:
        pretrained.check_recipe(detector.recipe)
        self.model = pretrained.model.eval()
        self.vocabulary = pretrained.vocabulary
        self.objects = pretrained.classes or load_classes("coco")
        self.detector = detector

    @classmethod
    def from_pretrained(
        cls, model: str | Path = SHIPPED, *, device: str = "cpu", detector: Detector | None = None
    ) -> "Captioner":
        """The model inside the package, one in a folder (a run of `coscap train`), or `owner/name` on a hub."""
        loaded = load_pretrained(model_folder(model))
        loaded.model.to(device)
        return cls(loaded, detector or load_detector(device=device))

    @property
    def device(self) -> "torch.device":
        return next(self.model.parameters()).device

    @overload
    def __call__(self, photos: Photo, n: int = 5, **options: Any) -> PhotoCaptions: ...
    @overload
    def __call__(self, photos: Sequence[Photo], n: int = 5, **options: Any) -> list[PhotoCaptions]: ...
    def __call__(
        self, photos: Photo | Sequence[Photo], n: int = 5, **options: Any
    ) -> PhotoCaptions | list[PhotoCaptions]:
        """n captions for a photograph, or for each of a list: paths, bytes, PIL pictures, arrays (H, W, 3).

        Options are those of `caption`: variety and settings.
        """
        if isinstance(photos, str | Path | bytes | Image.Image | np.ndarray):
            return self.caption([photos], n, **options)[0]
        found: list[PhotoCaptions] = []
        for start in range(0, len(photos), self.detector.batch):
            found += self.caption(photos[start : start + self.detector.batch], n, **options)
        return found

    def caption(
        self,
        photos: Sequence[Photo],
        n: int = 5,
        *,
        variety: float = 0.5,
        settings: SearchSettings | None = None,
    ) -> list[PhotoCaptions]:
        """Captions of one batch of photographs.

        A latent search draws four captions for each one shown and takes likely ones that differ: `variety`
        0 takes the likeliest, 1 the most different. `settings` decides everything else.
        """
        pictures = [as_picture(photo, self.detector.least_side) for photo in photos]
        names = [_name(photo, place) for place, photo in enumerate(photos)]
        return self.describe(names, self.detector.regions(pictures), n, variety=variety, settings=settings)

    def describe(
        self,
        names: Sequence[str],
        regions: Sequence[Regions],
        n: int = 5,
        *,
        variety: float = 0.5,
        settings: SearchSettings | None = None,
    ) -> list[PhotoCaptions]:
        """The same for pictures whose regions are known."""
        if not 0 <= variety <= 1:
            raise UserError(f"variety is {variety}, and it goes from 0 (likeliest) to 1 (most different).")
        settings = settings or SearchSettings()
        pooled = settings.search == "latent" and settings.draws is None
        batch = region_batch(regions).to(self.device)
        found = search(
            self.model,
            batch,
            self.vocabulary,
            POOL * n if pooled else n,
            settings,
            objects=self.objects,
            classes=self.detector.recipe.classes,
        )
        found = rescore(self.model, batch, found, self.vocabulary)
        if pooled:
            found = [select(captions, n, variety) for captions in found]
        return [
            PhotoCaptions(name, tuple(_told(caption, seen, settings) for caption in captions))
            for name, seen, captions in zip(names, regions, found, strict=True)
        ]

    def vary(
        self, caption: PhotoCaption, keep: Keep = "context", n: int = 5, seed: int = 1
    ) -> list[PhotoCaption]:
        """Up to n other captions of the same photograph, with this one's context or objects kept.

        What it gives can be varied again.
        """
        if keep not in ("context", "objects"):
            raise UserError(f"keep is {keep!r}, and it is context or objects.")
        batch = region_batch([caption.regions]).to(self.device)
        kept = keep_latents(
            self.model,
            batch,
            caption.found,
            self.vocabulary,
            keep=keep,
            settings=caption.settings,
            kept=caption.kept,
        )
        # Captions of beams were found at the latents' means, where every draw would be the same.
        drawn = {"seed": seed, "temperature": caption.settings.temperature or 1.0}
        settings = caption.settings.model_copy(update=drawn)
        found = vary(self.model, batch, kept, self.vocabulary, self.objects, n=POOL * n, settings=settings)
        found = rescore(self.model, batch, [found], self.vocabulary)[0]
        fresh = [other for other in found if other.text != caption.text]
        return [_told(other, caption.regions, settings, kept) for other in select(fresh, n, 0.5)]


def as_picture(photo: Photo, least_side: int = 0) -> Image.Image:
    """An upright RGB picture of whatever was given; a file may be decoded smaller, down to `least_side`."""
    if isinstance(photo, np.ndarray):
        if photo.dtype != np.uint8 or photo.ndim not in (2, 3):
            raise UserError(
                f"An array of type {photo.dtype} and shape {photo.shape} is no photograph; "
                "give (height, width, 3) of uint8."
            )
        return Image.fromarray(photo).convert("RGB")
    if isinstance(photo, Image.Image):
        return photo.convert("RGB")
    return open_picture(photo, least_side=least_side)


def _name(photo: Photo, place: int) -> str:
    return str(photo) if isinstance(photo, str | Path) else f"photo {place + 1}"


def _told(
    caption: Caption, regions: Regions, settings: SearchSettings, kept: "Latents | None" = None
) -> PhotoCaption:
    words = []
    for unit, attention in zip(caption.units, caption.attention, strict=True):
        region = int(np.argmax(attention[: len(regions)]))
        x1, y1, x2, y2 = (round(float(side), 5) for side in regions.boxes[region])
        words.append(Word(unit, (x1, y1, x2, y2), round(float(attention[region]), 5)))
    log_probability = round(caption.log_probability, 6)
    return PhotoCaption(caption.text, log_probability, tuple(words), caption, settings, regions, kept)
