"""Photographs in and captions out: the records of the public API, and how a photograph is opened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coscap.alt import alt_text
from coscap.contexts.judge import Judgement
from coscap.errors import UserError
from coscap.seam import Caption, LatentValues
from coscap.search.config import SearchSettings
from coscap.text.faults import ENDINGS, mended
from coscap.vision.pictures import PIXEL_LIMIT, open_picture
from coscap.vision.regions import Regions

Photo = (
    str | Path | bytes | BinaryIO | Image.Image | NDArray[np.uint8] | Callable[[], bytes] | UserError
)  # a callable is asked for the bytes; a UserError says why they could not be had


@dataclass(frozen=True)
class CaptionWord:
    """A word of a caption and the region that the model attended to most when it wrote it."""

    word: str
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2 in 0..1 of the photograph's width and height."""
    weight: float
    """The attention on that region, 0..1."""
    support: float | None = None
    """How far the photograph bears the word out, 0..1; None for words such as "a", and where nothing is known."""

    def to_json(self) -> dict[str, Any]:
        row = {"word": self.word, "box": list(self.box), "weight": self.weight}
        return row if self.support is None else {**row, "support": self.support}


@dataclass(frozen=True)
class PhotoCaption:
    """One caption of one photograph."""

    text: str
    log_probability: float
    """How sure the model is: log p(caption | photograph) with the latents at their priors' means, summed over
    the words and the end. It does not favour a caption for the draw that it came from."""
    words: tuple[CaptionWord, ...]
    found: Caption = field(repr=False, compare=False)
    """The caption as the search found it, with its whole attention."""
    settings: SearchSettings = field(repr=False, compare=False)
    regions: Regions = field(repr=False, compare=False)
    kept: LatentValues | None = field(default=None, repr=False, compare=False)
    """The latents that a variation has in common with the caption it was made from."""
    support: float | None = None
    """How likely it is that the caption is true, 0..1 (docs/support.md); None without a judge."""

    @property
    def alt(self) -> str:
        """The caption as an alternative text: one sentence of at most 125 characters (coscap.alt.alt_text)."""
        return alt_text(self.text)

    def to_json(self) -> dict[str, Any]:
        words = [word.to_json() for word in self.words]
        row = {"text": self.text, "alt": self.alt, "log_probability": self.log_probability, "words": words}
        if self.support is not None:
            row["support"] = self.support
        return row if self.found.satisfied else {**row, "satisfied": False}


@dataclass(frozen=True)
class PhotoCaptions:
    """The captions of one photograph.

    Those of draws begin with the best; each further one is the best compromise between good and unlike those before
    it. Those of beams come in the order of the search.
    """

    photo: str
    captions: tuple[PhotoCaption, ...]

    def to_json(self) -> dict[str, Any]:
        return {"photo": self.photo, "captions": [caption.to_json() for caption in self.captions]}


@dataclass(frozen=True)
class PhotoError:
    """Stands in a list of results for a photograph that could not be read."""

    photo: str
    error: str
    """One sentence: what is wrong and what to do."""
    captions: tuple[PhotoCaption, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"photo": self.photo, "error": self.error}


@dataclass(frozen=True)
class OpenedPhoto:
    """A photograph that could be read."""

    name: str
    picture: Image.Image  # upright RGB, perhaps decoded at a half, a quarter or an eighth of its size


def as_picture(
    photo: Photo, least_side: int = 0, *, name: str | None = None, pixel_limit: int = PIXEL_LIMIT
) -> Image.Image:
    """An upright RGB picture of whatever was given; a file may be decoded smaller, down to `least_side`."""
    if isinstance(photo, UserError):
        raise photo
    if isinstance(photo, np.ndarray):
        if photo.dtype != np.uint8 or photo.ndim not in (2, 3):
            raise UserError(
                f"An array of type {photo.dtype} and shape {photo.shape} is no photograph; "
                "give (height, width, 3) of uint8."
            )
        return Image.fromarray(photo).convert("RGB")
    if isinstance(photo, Image.Image):
        return photo.convert("RGB")
    if callable(photo):
        photo = photo()
    if not isinstance(photo, str | Path | bytes) and not hasattr(photo, "read"):
        raise UserError(
            f"{type(photo).__name__} is no photograph; give a path, bytes, a PIL picture or an array."
        )
    return open_picture(photo, least_side=least_side, name=name, pixel_limit=pixel_limit)


def _name(photo: Photo, place: int) -> str:
    return str(photo) if isinstance(photo, str | Path) else f"photo {place + 1}"


def open_photos(
    photos: Sequence[Photo],
    names: Sequence[str] | None,
    least_side: int,
    *,
    pixel_limit: int = PIXEL_LIMIT,
    first: int = 0,
) -> list[OpenedPhoto | PhotoError]:
    """Every photograph as an upright picture; `first` is the place of the first one, for those without a name."""
    opened: list[OpenedPhoto | PhotoError] = []
    for place, photo in enumerate(photos):
        name = _name(photo, first + place) if names is None else names[place]
        try:
            picture = as_picture(
                photo,
                least_side,
                name=None if names is None else name,
                pixel_limit=pixel_limit,
            )
            opened.append(OpenedPhoto(name, picture))
        except UserError as error:
            opened.append(PhotoError(name, str(error)))
    return opened


def photo_caption(
    caption: Caption,
    regions: Regions,
    settings: SearchSettings,
    kept: LatentValues | None = None,
    judged: Judgement | None = None,
) -> PhotoCaption:
    words = []
    written = mended("\n".join(caption.tokens), "\n").split("\n")
    supports = (None,) * len(caption.tokens) if judged is None else judged.words
    own = [at for at, token in enumerate(caption.tokens) if not at or token not in ENDINGS]
    for word, at in zip(written, own, strict=True):
        attention, support = caption.attention[at], supports[at]
        region = int(np.argmax(attention[: len(regions)]))
        x1, y1, x2, y2 = (round(float(side), 5) for side in regions.boxes[region])
        weight = round(float(attention[region]), 5)
        words.append(
            CaptionWord(word, (x1, y1, x2, y2), weight, None if support is None else round(support, 3))
        )
    log_probability = round(caption.log_probability, 6)
    return PhotoCaption(
        mended(caption.text),
        log_probability,
        tuple(words),
        caption,
        settings,
        regions,
        kept,
        None if judged is None else round(judged.support, 3),
    )
