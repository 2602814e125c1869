"""Tags: the words that people would write about a picture, with calibrated probabilities and places."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coscap.errors import UserError
from coscap.vision.builtin import BATCH, EYES, MAP_SIDE, read_network, session, shrunk, squash
from coscap.vision.words import Evidence, WordReader


@dataclass(frozen=True)
class Tag:
    word: str
    probability: float  # that one of five people's captions has the word
    box: tuple[float, float, float, float]  # where the evidence is: x1, y1, x2, y2 in 0..1

    def to_json(self) -> dict[str, Any]:
        return {"word": self.word, "probability": self.probability, "box": list(self.box)}


class Tagger:
    """Finds the words of pictures with a tuned map network: the package's own, or that of a `coscap backbone` run."""

    least_side = 2 * MAP_SIDE

    def __init__(self, eyes: Path | None = None, threads: int = 1) -> None:
        folder = eyes or EYES
        folder = folder / "best" if (folder / "best").is_dir() else folder
        if not (folder / "words.json").is_file():
            raise UserError(f"{folder} has no words.json; give the run folder of `coscap backbone`.")
        self.reader = WordReader(folder / "words.json")
        self._file, self._threads = folder / "backbone.onnx", threads
        self.digest = hashlib.sha256(read_network(self._file)).hexdigest()

    @cached_property
    def _map(self) -> Any:
        """The network; nobody needs it where a detector with the same one looks at the pictures anyway."""
        return session(read_network(self._file), self._threads, str(self._file))

    def look(self, pictures: Sequence[Image.Image]) -> list[Evidence]:
        found: list[Evidence] = []
        for first in range(0, len(pictures), BATCH):
            batch = [
                shrunk(picture) for picture in pictures[first : first + BATCH]
            ]  # as a detector sees them
            squashed = np.stack([squash(picture, MAP_SIDE) for picture in batch])
            maps, evidence = self._map.run(["map", "evidence"], {"picture": squashed})
            found += Evidence.of(maps, evidence)
        return found

    def __call__(self, pictures: Sequence[Image.Image], n: int = 20, floor: float = 0.2) -> list[list[Tag]]:
        """At most n words of each picture with a probability of at least `floor`, the most probable first."""
        if n < 1:
            raise UserError(f"n is {n}, and at least 1 tag must be asked for.")
        if not 0 <= floor <= 1:
            raise UserError(f"floor is {floor}; give a probability, 0 to 1.")
        return [self._tags(seen.words, n, floor) for seen in self.look(pictures)]

    def _tags(self, evidence: NDArray[np.float32], n: int, floor: float) -> list[Tag]:
        seen = self.reader.best(evidence, n, floor)
        tags = []
        for number, probability, box in zip(seen.numbers, seen.probabilities, seen.boxes, strict=True):
            x1, y1, x2, y2 = (round(float(side), 4) for side in box)
            tags.append(Tag(self.reader.words[number], round(float(probability), 4), (x1, y1, x2, y2)))
        return [tag for tag in tags if tag.probability >= floor]
