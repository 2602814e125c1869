"""From JPEG files to regions: what it costs beside the two networks alone, and how many pictures a second.

Both are measured in turn in one run, in CPU time of one thread, so that a busy machine slows both alike:
the whole way (open, decode, squash, networks, suppression, pooling) and bare onnxruntime on arrays that are
ready. Prints `ratio` (at most 1.15) and the pictures a second that two idle cores would do (at least 20);
exits 1 beyond the bars.

    python benchmarks/vision.py [--pictures DIR]

Without the option it takes the photographs in examples/, as they are and scaled to COCO's 640 pixels.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from coscap.vision.builtin import BATCH, DETECTOR_SIDE, EYES, MAP_SIDE, BuiltinDetector, squash
from coscap.vision.pictures import open_picture

RATIO_BAR, RATE_BAR = 1.15, 20
ROUNDS, PICTURES = 5, 24
EXAMPLES = Path(__file__).parent.parent / "examples"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, help="a folder of JPEG files, e.g. train2017")
    folder = parser.parse_args().pictures
    with tempfile.TemporaryDirectory() as made:
        paths = sorted(folder.glob("*.jpg"))[:PICTURES] if folder else make_pictures(Path(made))
        whole, bare = measure(paths)
    ratio, rate = whole / bare, 2 / whole
    print(f"whole way {1000 * whole:.1f} CPU-ms a picture, networks alone {1000 * bare:.1f}")
    print(f"pictures a second on two idle cores {rate:.1f}, bar {RATE_BAR}")
    print(f"vision: ratio {ratio:.3f}, bar {RATIO_BAR}")
    return 0 if ratio <= RATIO_BAR and rate >= RATE_BAR else 1


def make_pictures(folder: Path) -> list[Path]:
    """The examples with their long side at COCO's 640 pixels, over and over."""
    paths = []
    examples = sorted(EXAMPLES.glob("*.jpg"))
    for index in range(PICTURES):
        picture = Image.open(examples[index % len(examples)]).convert("RGB")
        scale = 640 / max(picture.size)
        path = folder / f"{index}.jpg"
        picture.resize((round(picture.width * scale), round(picture.height * scale))).save(path, quality=90)
        paths.append(path)
    return paths


def measure(paths: list[Path]) -> tuple[float, float]:
    """CPU seconds a picture: the whole way, the networks alone. Of each batch the least of some rounds counts."""
    detector = BuiltinDetector(eyes=EYES)
    batches = [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]
    whole, bare = [], []
    for _ in range(ROUNDS + 1):  # the first round warms up
        for batch in batches:
            start = time.process_time()
            pictures = [open_picture(path, least_side=detector.least_side) for path in batch]
            detector.regions(pictures)
            whole.append(time.process_time() - start)
            large = np.stack([squash(picture, DETECTOR_SIDE) for picture in pictures])
            small = np.stack([squash(picture, MAP_SIDE) for picture in pictures])
            start = time.process_time()
            detector._picodet.run(None, {"picture": large})
            detector._map.run(None, {"picture": small})
            bare.append(time.process_time() - start)
    least = [np.reshape(each, (ROUNDS + 1, len(batches)))[1:].min(axis=0).sum() for each in (whole, bare)]
    return least[0] / len(paths), least[1] / len(paths)


if __name__ == "__main__":
    sys.exit(main())
