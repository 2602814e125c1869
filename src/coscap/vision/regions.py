"""Regions: what the model sees of one picture."""

import zlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError

GRID_LABEL = -1  # the label of a region that is a cell of the grid, not a detected object
SURE = 0.3  # score from which on a region counts for the key of its picture's noise


@dataclass(frozen=True)
class Regions:
    """The regions of one picture: detections by falling score, words by falling probability, then the cells of the
    grid, row by row."""

    features: NDArray[np.floating]  # (R, F) float16 or float32
    boxes: NDArray[np.float32]  # (R, 4) x1, y1, x2, y2 in 0..1 of the picture's width and height
    labels: NDArray[
        np.int16
    ]  # (R,) index into the recipe's classes and then its words, GRID_LABEL for a cell
    scores: NDArray[np.float32]  # (R,) 0..1, 1 for a cell of the grid

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, kept: NDArray[np.bool_]) -> "Regions":
        """Some of them; kept: (R,)"""
        return Regions(self.features[kept], self.boxes[kept], self.labels[kept], self.scores[kept])


def noise_key(regions: Regions) -> int:
    """What the noise of a picture's draws follows from, besides the user's seed: the labels that are seen for sure,
    and the first region with its box to 1/64. Processors and versions of libraries differ in the last digits of all
    numbers, and draws should not. Where nothing has a label, a checksum of the features at half precision.

    The same in any batch, from a store or fresh from the detector."""
    labels = regions.labels[(regions.labels != GRID_LABEL) & (regions.scores >= SURE)]
    if not len(regions) or regions.labels[0] == GRID_LABEL:
        return zlib.crc32(np.ascontiguousarray(regions.features, dtype=np.float16).data)
    place = np.rint(regions.boxes[0] * 64)  # rounded: boxes often end at 0 or 1
    return zlib.crc32(np.concatenate([regions.labels[:1], np.sort(labels), place]).astype("<i4").data)


@dataclass(frozen=True)
class Recipe:
    """How regions were made. A store and a model name theirs; a model refuses regions of another."""

    name: str  # e.g. "picodet-s+pplcnetv2/1"
    width: int  # F, the width of a feature
    classes: tuple[str, ...]  # the classes that labels index
    detections: int  # at most this many detections a picture
    grid: int  # the grid has grid x grid cells, 0 for none
    words: tuple[str, ...] = ()  # what labels from len(classes) on stand for; "" for one that is hidden
    most_words: int = 0  # at most this many words a picture

    def detects_like(self, other: "Recipe") -> bool:
        """Whether both have the same detections, of the built-in detector, and differ in their map only."""
        detector, plus, _ = self.name.partition("+")
        mine, others = (detector, self.classes, self.detections), (other.classes, other.detections)
        return bool(plus) and mine == (other.name.partition("+")[0], *others)

    def without_words(self, hidden: Collection[str]) -> Self:
        """The same with these words hidden: regions that they name are left out, all other labels stay."""
        return replace(self, words=tuple("" if word in hidden else word for word in self.words))

    def hides_words_of(self, other: "Recipe") -> bool:
        """Whether this is the other recipe with some of its words hidden."""
        kept = {word for word in self.words if word}
        return self != other and self == other.without_words(set(other.words) - kept)

    def shown(self, labels: NDArray[np.int16]) -> NDArray[np.bool_]:
        """(R,) which regions have no hidden word as their label"""
        named = np.array(
            [*(True for _ in self.classes), *map(bool, self.words), True]
        )  # the last for the grid
        return named[labels]

    def label_name(self, label: int) -> str:
        """The class or word that a label stands for; not for a cell of the grid."""
        return self.classes[label] if label < len(self.classes) else self.words[label - len(self.classes)]

    def fields(self) -> dict[str, Any]:
        """For JSON. Fields that a recipe does not use are left out, so that older files keep their digests."""
        fields = asdict(self)
        return (
            fields
            if self.words
            else {name: fields[name] for name in fields if name not in ("words", "most_words")}
        )

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """From what `fields` gave; KeyError or TypeError where that is not a recipe."""
        lists = {name: fields[name] for name in ("classes", "words") if name in fields}
        tuples: dict[str, Any] = {name: tuple(given) for name, given in lists.items()}
        recipe = cls(**{**fields, **tuples})
        numbers = (recipe.width, recipe.detections, recipe.grid, recipe.most_words)
        texts = (recipe.name, *recipe.classes, *recipe.words)
        if (
            any(isinstance(given, str | dict) for given in lists.values())
            or any(type(number) is not int or number < 0 for number in numbers)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise TypeError("a field of the recipe has a value of another type")
        return recipe


def check_recipe(source: str, ours: Recipe | None, recipe: Recipe) -> None:
    """Refuse regions that were made in another way than those of the model in `source`."""
    if ours is None or recipe == ours:
        return
    for field in ("name", "width", "classes", "detections", "grid", "words", "most_words"):
        mine, other = getattr(ours, field), getattr(recipe, field)
        if mine != other:
            break
    if field in ("classes", "words"):
        mine, other = f"{len(mine)} {field}", f"{len(other)} {field} or another order"
    raise UserError(
        f"{source} was trained on regions of the recipe {ours.name} ({field} {mine}), and these are of "
        f"{recipe.name} ({field} {other}); extract the regions with the model's recipe."
    )
