"""Put the best model of a run into the package, its large matrices in whole numbers, and with its graphs.

    python scripts/ship_model.py runs/first
    python scripts/ship_model.py runs/peers-trunk --out models/trunk      beside the package, for others to begin with

The notes of the model keep the run's configuration and its validation figures. What rounding changes is
printed: the largest difference of a log-probability on one real photograph.
"""

import argparse
import json
from pathlib import Path

import torch
import yaml

from coscap.data.collate import region_batch
from coscap.export.onnx import add_graphs
from coscap.models import Pretrained, load_pretrained, save_pretrained
from coscap.shipped import detector_name, model_folder
from coscap.text.vocabulary import START
from coscap.vision.detectors import load_detector
from coscap.vision.pictures import open_picture

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "coscap" / "weights" / "captioner"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=TARGET)
    asked = parser.parse_args()
    run, target = asked.run, asked.out.resolve()
    best = load_pretrained(model_folder(run))
    save_pretrained(
        best.model,
        target,
        vocabulary=best.vocabulary,
        recipe=best.recipe,
        classes=best.classes,
        notes={"training": training(run), "validation": validation(run)},
        dtype="int8",
    )
    graphs = add_graphs(load_pretrained(target), target, int8=True)  # captions need no torch then
    size = sum(path.stat().st_size for path in target.iterdir()) / 1e6
    print(f"{asked.out}: {size:.1f} MB")
    rounded = difference(best, load_pretrained(target))
    print(
        f"largest difference of a log-probability: {rounded:.4f}, of the graph in int8 {graphs.int8_difference:.4f}"
    )


def training(run: Path) -> dict[str, object]:
    """The configuration without the places where its data and the model it began with lay."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    for section, place in (("pseudo", "contexts"), ("reward", "captions")):
        if config.get(section):
            config[section].pop(place, None)
    return {name: value for name, value in config.items() if name not in ("data", "regions", "start")}


def validation(run: Path) -> dict[str, float]:
    """The figures of the best validation by its own criterion."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return max(
        (line for line in lines if line["kind"] == "validation"), key=lambda line: line["cider_oracle"]
    )


@torch.inference_mode()
def difference(one: Pretrained, other: Pretrained) -> float:
    picture = open_picture(ROOT / "examples" / "cat.jpg")
    detector = load_detector(detector_name(one.recipe, "the model"))
    regions = region_batch(detector.regions([picture]))
    logs = []
    for loaded in (one, other):
        state = loaded.model.start(regions, 8, seed=1)
        logs.append(loaded.model.step(torch.full((8,), START), state)[0])
    both = torch.isfinite(logs[0])
    return float((logs[0] - logs[1])[both].abs().max())


if __name__ == "__main__":
    main()
