"""The built-in detector: PicoDet-S finds objects, a PPLCNetV2 map says what boxes and cells look like.

    picture ─┬─ squashed to 384 x 384 ─▶ PicoDet-S ─▶ scores, sides ─▶ at most 16 boxes ─┐
             └─ squashed to 256 x 256 ─▶ PPLCNetV2 ─▶ map (1024, 8, 8) ──────────────────┴▶ mean of the map over
                                                                          each box and each of 4 x 4 cells

Both networks are Apache-2.0 and lie in the package as ONNX (see NOTICE and scripts/convert_detector.py). They
run in onnxruntime on one thread: several processes use several cores better than several threads do.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coscap.errors import UserError
from coscap.files import read_json
from coscap.vision.classes import COCO_CLASSES
from coscap.vision.picodet import Anchors, Detections, decode
from coscap.vision.pooling import grid_boxes, pool, unit
from coscap.vision.regions import GRID_LABEL, Recipe, Regions

WEIGHTS = Path(__file__).parent / "weights"
RECIPE = Recipe(name="picodet-s+pplcnetv2/1", width=1024, classes=COCO_CLASSES, detections=16, grid=4)

DETECTOR_SIDE = 384
MAP_SIDE = 256
LEAST_SCORE = 0.1
MOST_OVERLAP = 0.5
BATCH = 4  # more gains nothing on a CPU: the maps of four pictures already fill its cache


class BuiltinDetector:
    """The detector that comes with the package. Use one object for each process."""

    recipe = RECIPE
    least_side = 2 * DETECTOR_SIDE  # twice, so that squashing still averages over pixels
    batch = BATCH

    def __init__(self, threads: int = 1) -> None:
        self._picodet = _session("picodet-s.onnx", threads)
        self._pplcnet = _session("pplcnetv2.onnx", threads)
        self._anchors = Anchors.of(DETECTOR_SIDE)
        self._grid = grid_boxes(RECIPE.grid)  # (16, 4)

    def regions(self, pictures: Sequence[Image.Image]) -> list[Regions]:
        found: list[Regions] = []
        for start in range(0, len(pictures), BATCH):
            batch = pictures[start : start + BATCH]
            maps = self._maps(batch)  # (B, 1024, 8, 8)
            found += [
                self._join(seen, features) for seen, features in zip(self._detect(batch), maps, strict=True)
            ]
        return found

    def _detect(self, pictures: Sequence[Image.Image]) -> list[Detections]:
        squashed = np.stack([squash(picture, DETECTOR_SIDE) for picture in pictures])
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
                most=RECIPE.detections,
            )
            for each, logits in zip(scores, sides, strict=True)
        ]

    def _maps(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        squashed = np.stack([squash(picture, MAP_SIDE) for picture in pictures])
        (maps,) = self._pplcnet.run(["map"], {"picture": squashed})
        return maps  # type: ignore[no-any-return]

    def _join(self, seen: Detections, features: NDArray[np.float32]) -> Regions:
        boxes = np.concatenate([seen.boxes, self._grid])  # (D + 16, 4)
        cells = len(self._grid)
        return Regions(
            features=unit(pool(features, boxes)).astype(np.float16),
            boxes=boxes,
            labels=np.concatenate([seen.labels, np.full(cells, GRID_LABEL, np.int16)]),
            scores=np.concatenate([seen.scores, np.ones(cells, np.float32)]),
        )


def squash(picture: Image.Image, side: int) -> NDArray[np.uint8]:
    """To a square (side, side, 3), whatever the shape: so were the pictures that the captioner learnt from.

    Cubic where there are pixels to invent; linear, which takes two thirds of the time, where there are enough.
    """
    if picture.size == (side, side):
        return np.asarray(picture)
    enough = min(picture.size) >= side
    filter = Image.Resampling.BILINEAR if enough else Image.Resampling.BICUBIC
    return np.asarray(picture.resize((side, side), filter, reducing_gap=3.0))


def _session(name: str, threads: int) -> Any:
    import onnxruntime

    content = _checked(name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _checked(name: str) -> bytes:
    """The bytes of a network, which must be those that the package was made with."""
    path = WEIGHTS / name
    expected = read_json(WEIGHTS / "weights.json")["files"][name]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); install coscap again.") from None
    if hashlib.sha256(content).hexdigest() != expected:
        raise UserError(f"{path} is not the file that belongs to this version; install coscap again.")
    return content
