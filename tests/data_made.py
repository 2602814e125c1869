"""Small data sets for the tests of the room `data`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from coscap.data.prepare import Options, prepare
from coscap.data.prepared import Prepared, open_prepared
from coscap.data.records import Picture, Source, Troubles
from coscap.data.splits import Choice
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.store import RegionStore, StoreWriter

WIDTH = 8
SENTENCES = (
    "a dog runs",
    "two dogs run near a fire hydrant",
    "a man rides a horse on the beach",
    "a red bus",
    "people fly kites in a wide green park on a very sunny day with clouds",
    "an empty room with white walls",
)


def coco_document() -> dict[str, Any]:
    """Three pictures: two captions, one, none."""
    return {
        "images": [
            {"id": 7, "file_name": "COCO_val2014_000000000007.jpg"},
            {"id": 3, "file_name": "COCO_val2014_000000000003.jpg"},
            {"id": 5, "file_name": "COCO_val2014_000000000005.jpg"},
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "caption": "A dog near a fire hydrant."},
            {"id": 2, "image_id": 3, "caption": "Two cars."},
            {"id": 3, "image_id": 7, "caption": "The dog sits."},
        ],
    }


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def made_source(pictures: int, captionless: int = 0) -> Source:
    """Pictures 100, 101, ... with 1 to 4 captions each; the last `captionless` have none."""
    chance = np.random.default_rng(5)
    made = []
    for number in range(pictures):
        count = 0 if number >= pictures - captionless else int(chance.integers(1, 5))
        captions = tuple(SENTENCES[int(i)] + f" {number}" for i in chance.integers(0, len(SENTENCES), count))
        made.append(Picture(100 + number, f"{100 + number}.jpg", captions))
    return Source("made", tuple(made), {"made": "0" * 64})


def made_prepared(
    folder: Path, pictures: int = 40, captionless: int = 0, choice: Choice | None = None, **options: Any
) -> Prepared:
    choice = choice or Choice("random", validation=5, test=5, seed=1)
    options = {"minimum": 1} | options
    prepare(made_source(pictures, captionless), choice, folder, Options(**options), Troubles())
    return open_prepared(folder)


def made_regions(image_id: int) -> Regions:
    """1 to 4 detections and 2 cells of a grid; the first number of every feature is the picture's id."""
    count = 1 + image_id % 4
    chance = np.random.default_rng(image_id)
    features = chance.random((count + 2, WIDTH)).astype(np.float16)
    features[:, 0] = image_id
    boxes = np.tile(np.array([0.1, 0.2, 0.5, 0.6], dtype=np.float32), (count + 2, 1))
    labels = np.array([*range(count), GRID_LABEL, GRID_LABEL], dtype=np.int16)
    scores = np.linspace(0.9, 0.5, count + 2, dtype=np.float32)
    return Regions(features, boxes, labels, scores)


def made_store(path: Path, ids: list[int]) -> RegionStore:
    with StoreWriter(path, Recipe("made/1", WIDTH, ("a", "b", "c", "d"), 4, 1)) as writer:
        for image_id in ids:
            writer.add(image_id, made_regions(image_id))
    return RegionStore.open(path)
