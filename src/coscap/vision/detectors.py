"""One small protocol for all that finds regions, and their names: builtin (recipe 2), builtin:imagenet (recipe 1),
builtin:RUN (eyes of your own), hf:NAME_OR_DIR (a detector or an encoder), torchvision:NAME."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from PIL import Image

from coscap.errors import UserError
from coscap.vision.regions import Recipe, Regions

if TYPE_CHECKING:
    from coscap.vision.builtin import BuiltinDetector

IMAGENET = "imagenet"  # builtin:imagenet is the map as it was before it was tuned on captions: recipe 1


class Detector(Protocol):
    """Anything that finds regions in pictures."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def least_side(self) -> int:
        """Pictures may be decoded smaller than they are, down to this side; 0 if they may not."""
        ...

    @property
    def batch(self) -> int:
        """How many pictures it likes to get at once."""
        ...

    def regions(self, pictures: Sequence[Image.Image]) -> list[Regions]:
        """The regions of upright RGB pictures. A picture's regions do not depend on the others."""
        ...


def load_detector(
    name: str = "builtin",
    *,
    classes: Sequence[str] = (),
    device: str = "cpu",
    recipe: Recipe | None = None,
) -> Detector:
    """The detector of that name; `classes` are what an open-vocabulary detector looks for. Words of the built-in one
    that the recipe hides are hidden."""
    kind, colon, rest = name.partition(":")
    if classes and kind != "hf":
        raise UserError(
            f"the detector {name} has classes of its own; leave --classes out or take an OWLv2 model."
        )
    if kind not in DETECTORS or (colon and not rest):
        own = "".join(f", {each}" for each in DETECTORS if each not in ("builtin", "hf", "torchvision"))
        raise UserError(
            f"{name} is not a detector; give builtin, builtin:imagenet, builtin:RUN, hf:NAME_OR_DIR or "
            f"torchvision:NAME{own}."
        )
    detector = DETECTORS[kind](rest, classes, device)
    if recipe is not None and kind == "builtin" and recipe.hides_words_of(detector.recipe):
        cast("BuiltinDetector", detector).hide_words(recipe)
    return detector


def _builtin(rest: str, classes: Sequence[str], device: str) -> Detector:
    from coscap.vision.builtin import EYES, BuiltinDetector

    if rest == IMAGENET:
        return BuiltinDetector()
    return BuiltinDetector(eyes=Path(rest) if rest else EYES)


def _transformers(rest: str, classes: Sequence[str], device: str) -> Detector:
    from coscap.vision.huggingface import load_transformers

    return load_transformers(rest, classes, device)


def _torchvision(rest: str, classes: Sequence[str], device: str) -> Detector:
    from coscap.vision.faster_rcnn import FasterRcnnDetector

    return FasterRcnnDetector(rest, device)


DETECTORS: dict[str, Callable[[str, Sequence[str], str], Detector]] = {
    "builtin": _builtin,
    "hf": _transformers,
    "torchvision": _torchvision,
}
"""What loads each kind of detector: from the name behind the colon, classes to look for and a device."""
