"""The built-in detector: PicoDet-S finds objects, a PPLCNetV2 map says what boxes, words and cells look like.

    picture ─┬─ squashed to 384 x 384 ─▶ PicoDet-S ─▶ scores, sides ─▶ at most 16 boxes ─┐
             └─ squashed to 256 x 256 ─▶ PPLCNetV2 ─▶ map (1024, 8, 8) ──────────────────┼▶ mean of the map over
                                              └─▶ evidence (W, 8, 8) ─▶ probable words ──┘  box, word, grid cell

Recipe 1 has the map as it was trained on ImageNet, and no words. Recipe 2 has a map that `coscap backbone` tuned on the
words of captions, and the most probable words of the picture as regions. Both networks are Apache-2.0 and lie in the
package as ONNX (see NOTICE and scripts/convert_detector.py). They run in onnxruntime on one thread: several processes
use several cores better than several threads do.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coscap.errors import UserError
from coscap.files import read_json, sha256
from coscap.vision.classes import COCO_CLASSES
from coscap.vision.picodet import Anchors, Detections, decode
from coscap.vision.pooling import box_weights, grid_boxes, unit, weighted
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.words import Evidence, SeenWords, WordReader

WEIGHTS = Path(__file__).parent / "weights"
EYES = WEIGHTS / "words"  # the tuned map network that comes with the package
RECIPE = Recipe(name="picodet-s+pplcnetv2/1", width=1024, classes=COCO_CLASSES, detections=16, grid=4)

DETECTOR_SIDE = 384
MAP_SIDE = 256
LEAST_SCORE = 0.1
MOST_OVERLAP = 0.5
BATCH = 4  # more gains nothing on a CPU: the maps of four pictures already fill its cache


class BuiltinDetector:
    """The detector that comes with the package. Use one object for each process.

    `eyes` is the folder of a tuned map network (`coscap backbone`), None for the map of recipe 1. Other sides are for
    studies (scripts/regions_study.py): a recipe does not name them.
    """

    batch = BATCH

    def __init__(
        self,
        threads: int = 1,
        eyes: Path | None = None,
        recipe: Recipe | None = None,
        detector_side: int = DETECTOR_SIDE,
        map_side: int = MAP_SIDE,
    ) -> None:
        self.detector_side, self.map_side = detector_side, map_side
        self.least_side = 2 * detector_side  # twice, so that squashing still averages over pixels
        self._picodet = session(_checked("picodet-s.onnx"), threads)
        self.reader: WordReader | None = None
        self.eyes_digest: str | None = None  # of the tuned map network
        if eyes is None:
            self._map = session(_checked("pplcnetv2.onnx"), threads)
            self.recipe = recipe or RECIPE
        else:
            folder = eyes / "best" if (eyes / "best").is_dir() else eyes
            self.reader = WordReader(folder / "words.json")
            content = read_network(folder / "backbone.onnx")
            self._map = session(content, threads, str(folder / "backbone.onnx"))
            self.eyes_digest = hashlib.sha256(content).hexdigest()
            self.recipe = recipe or tuned_recipe(self.eyes_digest, self.reader.words)
        self._anchors = Anchors.of(detector_side)
        self._grid = grid_boxes(self.recipe.grid)  # (G * G, 4)

    def hide_words(self, recipe: Recipe) -> None:
        """Make regions of this recipe from now on: its own with some words hidden."""
        if not recipe.hides_words_of(self.recipe):
            raise UserError(
                f"{self.recipe.name} has none of the words that are to be hidden; leave that out."
            )
        self.recipe = recipe

    def regions(self, pictures: Sequence[Image.Image]) -> list[Regions]:
        return self.see(pictures)[0]

    def regions_at(self, pictures: Sequence[Image.Image], seen: Sequence[Detections]) -> list[Regions]:
        """The regions of a few pictures whose objects are known: only the map network runs."""
        return self.describe(seen, *self.maps([shrunk(picture, self.detector_side) for picture in pictures]))

    def see(self, pictures: Sequence[Image.Image]) -> tuple[list[Regions], list[Evidence]]:
        """The regions of pictures, and what a tuned map network sees in them besides."""
        found: list[Regions] = []
        evidence: list[Evidence] = []
        for start in range(0, len(pictures), BATCH):
            batch = [shrunk(picture, self.detector_side) for picture in pictures[start : start + BATCH]]
            maps, words = self.maps(batch)
            found += self.describe(self.detect(batch), maps, words)
            evidence += Evidence.of(maps, words)
        return found, evidence

    def detect(self, pictures: Sequence[Image.Image]) -> list[Detections]:
        """The objects of a few pictures, which one batch holds."""
        squashed = np.stack([squash(picture, self.detector_side) for picture in pictures])
        scores, sides = self._picodet.run(
            ["scores", "sides"], {"picture": squashed}
        )  # (B, 80, A), (B, 32, A)
        return [
            decode(
                each,
                logits,
                self._anchors,
                least_score=LEAST_SCORE,
                most_overlap=MOST_OVERLAP,
                most=self.recipe.detections,
            )
            for each, logits in zip(scores, sides, strict=True)
        ]

    def describe(
        self, seen: Sequence[Detections], maps: NDArray[np.float32], evidence: NDArray[np.float32]
    ) -> list[Regions]:
        """The regions of pictures whose objects are known, with what `maps` gave."""
        found = []
        for number, detections in enumerate(seen):
            words = self.reader.best(evidence[number], self.recipe.most_words) if self.reader else None
            regions = self._join(detections, words, maps[number])
            found.append(
                regions.of(self.recipe.shown(regions.labels)) if "" in self.recipe.words else regions
            )
        return found

    def maps(self, pictures: Sequence[Image.Image]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The maps (B, 1024, 8, 8) and, of a tuned network, the evidence (B, W, 8, 8), otherwise without words."""
        squashed = np.stack([squash(picture, self.map_side) for picture in pictures])
        if self.reader is None:
            (maps,) = self._map.run(["map"], {"picture": squashed})
            return maps, maps[:, :0]
        maps, evidence = self._map.run(["map", "evidence"], {"picture": squashed})
        return maps, evidence

    def _join(self, seen: Detections, words: SeenWords | None, features: NDArray[np.float32]) -> Regions:
        size, cells = features.shape[1:], len(self._grid)
        weights = [box_weights(seen.boxes, *size), box_weights(self._grid, *size)]  # (R, P) each
        boxes, scores = [seen.boxes, self._grid], [seen.scores, np.ones(cells, np.float32)]
        labels = [seen.labels, np.full(cells, GRID_LABEL, np.int16)]
        if words is not None:
            weights.insert(1, words.places)
            boxes.insert(1, words.boxes)
            labels.insert(1, (words.numbers + len(self.recipe.classes)).astype(np.int16))
            scores.insert(1, words.probabilities)
        return Regions(
            features=unit(weighted(features, np.concatenate(weights))).astype(np.float16),
            boxes=np.concatenate(boxes),
            labels=np.concatenate(labels),
            scores=np.concatenate(scores),
        )


def tuned_recipe(digest: str, words: tuple[str, ...]) -> Recipe:
    """How regions of a tuned map are made; the name has the beginning of the network's hash."""
    return Recipe(
        name=f"picodet-s+pplcnetv2-words-{digest[:8]}/2",
        width=1024,
        classes=COCO_CLASSES,
        detections=16,
        grid=1,
        words=words,
        most_words=16,
    )


def is_of_package(recipe: Recipe) -> bool:
    """Whether the tuned network inside the package makes regions of this recipe."""
    network = EYES / "backbone.onnx"
    return network.is_file() and recipe == tuned_recipe(sha256(network), recipe.words)


def shrunk(picture: Image.Image, side: int = DETECTOR_SIDE) -> Image.Image:
    """What the detector looks at, of which the map's smaller square is made: one way through a large photograph, not
    two. A smaller picture as it is."""
    if min(picture.size) < side or picture.size == (side, side):
        return picture
    return picture.resize((side, side), Image.Resampling.BOX, reducing_gap=3.0)


def squash(picture: Image.Image, side: int) -> NDArray[np.uint8]:
    """To a square (side, side, 3), whatever the shape: so were the pictures that the captioner learnt from.

    Cubic where there are pixels to invent; where there are enough, the mean of those that one is made of: sharper than
    linear (what is seen is a little better, docs/vision.md) and quicker.
    """
    if picture.size == (side, side):
        return np.asarray(picture)
    enough = min(picture.size) >= side
    filter = Image.Resampling.BOX if enough else Image.Resampling.BICUBIC
    return np.asarray(picture.resize((side, side), filter, reducing_gap=3.0))


def session(content: bytes, threads: int, name: str = "the network") -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for each fault, and no common one
        raise UserError(
            f"{name} is damaged or no network of this kind ({type(error).__name__}); make or copy it again."
        ) from None


def _checked(name: str) -> bytes:
    """The bytes of a network, which must be those that the package was made with."""
    path = WEIGHTS / name
    expected = read_json(WEIGHTS / "weights.json")["files"][name]
    content = read_network(path)
    if hashlib.sha256(content).hexdigest() != expected:
        raise UserError(f"{path} is not the file that belongs to this version; install coscap again.")
    return content


def read_network(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); install coscap again.") from None
