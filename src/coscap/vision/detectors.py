"""One small protocol for all that finds regions, and their names: builtin, hf:NAME_OR_DIR (a detector or an encoder),
torchvision:NAME."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from PIL import Image

from coscap.errors import UserError
from coscap.vision.regions import Recipe, Regions


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


def load_detector(name: str = "builtin", *, classes: Sequence[str] = (), device: str = "cpu") -> Detector:
    """The detector of that name; `classes` are what an open-vocabulary detector looks for."""
    if classes and not name.startswith("hf:"):
        raise UserError(
            f"the detector {name} has classes of its own; leave --classes out or take an OWLv2 model."
        )
    if name == "builtin":
        from coscap.vision.builtin import BuiltinDetector

        return BuiltinDetector()
    if name.startswith("builtin:"):
        from coscap.vision.builtin import EYES, BuiltinDetector

        folder = name.removeprefix("builtin:")
        return BuiltinDetector(eyes=EYES if folder == "words" else Path(folder))
    if name.startswith("hf:"):
        from coscap.vision.huggingface import load_transformers

        return load_transformers(name.removeprefix("hf:"), classes, device)
    if name.startswith("torchvision:"):
        from coscap.vision.faster_rcnn import FasterRcnnDetector

        return FasterRcnnDetector(name.removeprefix("torchvision:"), device)
    raise UserError(
        f"{name} is not a detector; give builtin, builtin:words, builtin:RUN, hf:NAME_OR_DIR or torchvision:NAME."
    )
