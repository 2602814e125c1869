"""A small world for the training command: pictures whose regions say what their captions tell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coscap.contexts.folder import FORMAT, Neighbours, save_neighbours
from coscap.data import open_prepared
from coscap.data.prepare import Options, prepare
from coscap.data.records import Picture, Source, Troubles
from coscap.data.splits import Choice
from coscap.vision.regions import Recipe, Regions
from coscap.vision.store import StoreWriter

CLASSES = ("dog", "cat", "horse", "car")
PLACES = ("on the grass", "near a tree", "in the snow")
WIDTH = 8
TINY: dict[str, Any] = {
    "preset": "small",
    "region_projection": 16,
    "class_embedding": 4,
    "word_width": 12,
    "output_width": 12,
    "attention_lstm": 16,
    "language_lstm": 16,
    "attention_width": 8,
    "context_latent": 4,
    "object_latent": 4,
    "context_posterior": 8,
    "object_posterior": 8,
    "context_prior": 8,
    "object_prior": 8,
    "word_dropout": 0.2,
}


def make_world(folder: Path, pictures: int = 36, seed: int = 0, novel: int = 0) -> Path:
    """Write `data`, `regions.h5` and `run.yaml`; gives the configuration. `novel` more pictures show zebras, which no
    caption names, and have no captions."""
    chance = np.random.default_rng(seed)
    recipe = Recipe("test/1", WIDTH, (*CLASSES, "zebra") if novel else CLASSES, 3, 0)
    records = []
    with StoreWriter(folder / "regions.h5", recipe) as store:
        for number in range(pictures):
            kind, place = number % len(CLASSES), number % len(PLACES)
            count = 1 + number % 3
            features = chance.normal(size=(count, WIDTH)) * 0.1
            features[:, place] += 1
            boxes = np.tile(np.array([0.1, 0.1, 0.6, 0.7], np.float32), (count, 1))
            labels, scores = np.full(count, kind, np.int16), np.linspace(0.9, 0.5, count, dtype=np.float32)
            store.add(number + 1, Regions(features.astype(np.float16), boxes, labels, scores))
            name = CLASSES[kind] if count == 1 else CLASSES[kind] + "s"
            captions = (f"a {name} {PLACES[place]}", f"the {name} is {PLACES[place]} today")
            split = "validation" if number % 6 == 0 else "train"
            records.append(Picture(number + 1, f"{number}.jpg", captions, split))
        for number in range(pictures, pictures + novel):
            features = chance.normal(size=(2, WIDTH)) * 0.1
            features[:, number % len(PLACES)] += 1
            boxes = np.tile(np.array([0.1, 0.1, 0.6, 0.7], np.float32), (2, 1))
            labels, scores = np.array([len(CLASSES)] * 2, np.int16), np.array([0.9, 0.6], np.float32)
            store.add(number + 1, Regions(features.astype(np.float16), boxes, labels, scores))
            records.append(Picture(number + 1, f"{number}.jpg", (), "unpaired"))
    source = Source("test", tuple(records), {"test": str(seed)})
    prepare(source, Choice("source"), folder / "data", Options(minimum=1), Troubles())
    content = {
        "data": str(folder / "data"),
        "regions": str(folder / "regions.h5"),
        "model": TINY,
        "batch_size": 8,
        "steps": 20,
        "log_steps": 5,
        "optimiser": {"name": "adamw", "lr": 0.01},
        "kl_object": {"schedule": "ramp", "epochs": 1},
        "validation": {"every_epochs": 1, "captions": 12, "pictures": 4, "draws": 3, "figure": "loss"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    return folder / "run.yaml"


def make_neighbours(folder: Path) -> Path:
    """Two captions of other pictures for each training picture but the first, and for those without captions, as
    `coscap contexts` writes."""
    prepared = open_prepared(folder / "data")
    images = np.concatenate([prepared.images("train")[1:], prepared.images("unpaired")])
    captions = [
        [int(c) for c in prepared.captions_in("train") if prepared.image_of(int(c)) != i][:2] for i in images
    ]
    out = folder / "contexts"
    out.mkdir()
    manifest = {"format": FORMAT, "data": prepared.digest}
    scores = np.ones((len(images), 2), np.float32)
    save_neighbours(out, Neighbours(manifest, images, np.array(captions, np.int32), scores))
    return out


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]
