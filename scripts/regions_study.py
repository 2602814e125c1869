"""Stores of one list of pictures made in several ways, for the study of regions (docs/vision.md).

    python scripts/regions_study.py study.txt --out study                    grids of 1, 4 and 8 cells a side, 32 words
    python scripts/regions_study.py study.txt --map-side 320 --grids 4 --out study
    python scripts/regions_study.py study.txt --detector-side 512 --detections 24 --grids 4 --out study

Each store is `OUT/d384x16-m256-g4.h5`: side and number of detections, side of the map, cells. A model that looks at
fewer words or detections takes the first of them (`--set model.word_regions=8`), so these need no store of their own.
Prints the CPU time of a picture for each, from its file to its regions.
"""

import argparse
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from coscap.progress import track
from coscap.vision.builtin import BATCH, DETECTOR_SIDE, EYES, MAP_SIDE, BuiltinDetector, shrunk
from coscap.vision.extract import detections_of
from coscap.vision.ids import image_id_of
from coscap.vision.pictures import open_picture
from coscap.vision.store import RegionStore, StoreWriter

WORDS = 32
TIMED = 200  # pictures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pictures", type=Path, help="a text file with one path a line, e.g. study.txt")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the stores, e.g. study")
    parser.add_argument("--eyes", type=Path, default=EYES, help="a tuned map network, e.g. runs/eyes")
    parser.add_argument("--detector-side", type=int, default=DETECTOR_SIDE)
    parser.add_argument("--detections", type=int, default=16)
    parser.add_argument("--map-side", type=int, default=MAP_SIDE)
    parser.add_argument("--grids", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--reuse", type=Path, help="a store that has the same detections, e.g. data/words.h5")
    given = parser.parse_args()
    if not given.pictures.is_file() or not given.pictures.read_text().split():
        parser.error(f"{given.pictures} is no list of pictures; give a text file with one path a line.")
    sides = {"detector_side": given.detector_side, "map_side": given.map_side}
    detectors = []
    base = BuiltinDetector(eyes=given.eyes, **sides).recipe
    for grid in given.grids:
        name = f"d{given.detector_side}x{given.detections}-m{given.map_side}-g{grid}"
        recipe = replace(
            base,
            name=base.name.replace("/2", f"-{name}/2"),
            detections=given.detections,
            grid=grid,
            most_words=WORDS,
        )
        detectors.append((name, BuiltinDetector(eyes=given.eyes, recipe=recipe, **sides)))
    given.out.mkdir(parents=True, exist_ok=True)
    names = given.pictures.read_text().split()
    known = RegionStore.open(given.reuse) if given.reuse else None
    with ExitStack() as open_stores:
        writers = [
            open_stores.enter_context(StoreWriter(given.out / f"{name}.h5", detector.recipe))
            for name, detector in detectors
        ]
        for first in track(range(0, len(names), BATCH), "regions", unit="batch"):
            batch = names[first : first + BATCH]
            detector = detectors[0][1]
            pictures = [
                shrunk(open_picture(name, least_side=detector.least_side), given.detector_side)
                for name in batch
            ]
            maps = detector.maps(pictures)
            if known:
                seen = [detections_of(known.get(image_id_of(name)), known.recipe) for name in batch]
            else:
                seen = detector.detect(pictures)
            for writer, (_, detector) in zip(writers, detectors, strict=True):
                for name, regions in zip(batch, detector.describe(seen, *maps), strict=True):
                    writer.add(image_id_of(name), regions, name)
    for name, detector in detectors:
        print(f"{name}: {1000 * seconds_a_picture(detector, names[:TIMED]):.1f} CPU-ms a picture")


def seconds_a_picture(detector: BuiltinDetector, names: list[str]) -> float:
    """CPU time from the file to its regions."""
    start = time.process_time()
    for first in range(0, len(names), BATCH):
        batch = names[first : first + BATCH]
        detector.regions([open_picture(name, least_side=detector.least_side) for name in batch])
    return (time.process_time() - start) / len(names)


if __name__ == "__main__":
    main()
