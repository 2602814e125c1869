"""Loading must never be what training waits for: batches a second of the loader against training steps.

Both run in one thread of this process and in turn: the loader makes a batch (no prefetching), then the
`small` model takes a whole training step on it. Prints `ratio`, the time of a step over the time of
loading its batch; exits 1 below the bar.

    python benchmarks/loading.py [--data coco --regions regions.h5]

Without options it writes a data set of COCO's proportions to a temporary folder first.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from coscap.data import open_prepared
from coscap.data.loader import Loader
from coscap.data.prepare import Options, prepare
from coscap.data.records import Picture, Source, Troubles
from coscap.data.splits import Choice
from coscap.models import build_model, preset
from coscap.vision.published import open_regions
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.store import StoreWriter

BAR = 5
SECONDS, STEPS = 20, 4  # measure for so long, and at least so many steps
PICTURES, WIDTH, DETECTIONS, GRID, VOCABULARY, BATCH = 800, 1024, 12, 4, 10_000, 100


def make_data(folder: Path) -> None:
    """Five captions a picture with COCO's mean of 10 words, of which 1.5 name objects."""
    chance = np.random.default_rng(0)
    names = np.array(
        ["man", "dog", "cars", "fire hydrant", "horse", "cat", "people", "bus", "kites", "pizza"]
    )
    pictures = []
    for image_id in range(1, PICTURES + 1):
        captions = []
        for length in np.clip(chance.poisson(10, 5), 6, 20):
            words = [f"word{int(i)}" for i in chance.integers(0, 2000, length)]
            for place in chance.choice(length, chance.integers(0, 4), replace=False):
                words[place] = str(chance.choice(names))
            captions.append(" ".join(words))
        pictures.append(Picture(image_id, f"{image_id}.jpg", tuple(captions)))
    source = Source("made", tuple(pictures), {"made": "0" * 64})
    prepare(source, Choice("random", 0, 0), folder / "data", Options(minimum=1), Troubles())


def make_regions(folder: Path) -> None:
    """Up to 12 detections and a 4 x 4 grid, the shape of the built-in vision."""
    chance = np.random.default_rng(0)
    recipe = Recipe("made/1", WIDTH, tuple(f"class {i}" for i in range(80)), DETECTIONS, GRID)
    with StoreWriter(folder / "regions.h5", recipe) as writer:
        for image_id in range(1, PICTURES + 1):
            found = int(chance.integers(1, DETECTIONS + 1))
            count = found + GRID * GRID
            labels = np.full(count, GRID_LABEL, dtype=np.int16)
            labels[:found] = chance.integers(0, 80, found)
            features = chance.random((count, WIDTH), dtype=np.float32)
            corners = chance.random((count, 2), dtype=np.float32) / 2
            boxes = np.concatenate([corners, corners + 0.4], axis=1)
            writer.add(image_id, Regions(features, boxes, labels, np.ones(count, np.float32)))


def measure(data: Path, regions: Path) -> tuple[float, float]:
    """Seconds of loading a batch and of a training step on it; the least of each, which other work disturbs least."""
    prepared, store = open_prepared(data), open_regions(regions)
    torch.manual_seed(0)
    size = max(VOCABULARY, len(prepared.vocabulary))
    config = preset(
        "small", vocabulary=size, region_width=store.recipe.width, classes=max(1, len(store.recipe.classes))
    )
    model = build_model(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = Loader(prepared, store, "train", BATCH, seed=0, grid=config.grid, prefetch=0)
    loading, training = [], []
    begin = time.perf_counter()
    batches = iter(loader)
    while len(training) < STEPS or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:  # the epoch is over
            batches = iter(loader)
            continue
        loaded = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        model.loss(batch).objective().backward()
        optimiser.step()
        loading.append(loaded - start)
        training.append(time.perf_counter() - loaded)
    return min(loading), min(training)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a prepared data set")
    parser.add_argument("--regions", type=Path, help="a store of regions")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if told.data and told.regions:
            loading, training = measure(told.data, told.regions)
        else:
            make_data(Path(name))
            make_regions(Path(name))
            loading, training = measure(Path(name) / "data", Path(name) / "regions.h5")
    ratio = training / loading
    print(f"{BATCH} captions, {torch.get_num_threads()} threads:", end=" ")
    print(f"load {loading * 1e3:.1f} ms, step {training * 1e3:.0f} ms")
    print(f"loading: ratio {ratio:.1f}, bar {BAR}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
