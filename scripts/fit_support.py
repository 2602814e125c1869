"""Fit and measure the support of captions: draws of a captioner on validation pictures, judged by what people wrote.

    python scripts/fit_support.py collect DATA --pictures DIR --out pools.jsonl --count 1000
    python scripts/fit_support.py fit pools.jsonl DATA --out src/coscap/vision/weights/words/support.json

A word counts as borne out where a person's caption of the picture has it, its stem, or another word of its class. A
caption counts as true where it names no object that nobody names and all its content words but one are borne out. The
first half of the pictures fits the weights, the second half measures them.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from nltk.stem.snowball import SnowballStemmer

from coscap import Captioner
from coscap.captioner import POOL, _best
from coscap.contexts.judge import Judgement, WordFeatures, caption_row, detections_of, sigmoid
from coscap.data import open_prepared
from coscap.data.word_targets import pictures_in
from coscap.files import write_json
from coscap.metrics import measure
from coscap.progress import bar
from coscap.seam import Caption, RegionArrays
from coscap.search.config import SearchSettings
from coscap.search.select import per_token, rescore
from coscap.text import load_classes
from coscap.text.content import is_content
from coscap.vision.pictures import open_picture

STEM = SnowballStemmer("english").stem


def collect(data: Path, pictures: Path, out: Path, count: int, n: int) -> None:
    """A pool of captions of each picture with all that a judge is given of them."""
    prepared = open_prepared(data)
    images, paths = pictures_in(prepared, pictures, "validation", count, seed=11)
    captioner = Captioner.from_pretrained()
    judge, recipe = captioner.judge, captioner.loaded.recipe
    assert judge is not None and recipe is not None
    with bar("pools", len(paths), "pictures") as advance, out.open("w", encoding="utf-8") as file:
        for first in range(0, len(paths), 4):
            opened = [
                open_picture(path, least_side=captioner.detector.least_side)
                for path in paths[first : first + 4]
            ]
            regions, evidence = captioner.see(opened)
            assert evidence is not None
            arrays = RegionArrays.stack(regions)
            found = captioner.generate(arrays, POOL * n, SearchSettings())
            found = rescore(captioner.model, arrays, found, captioner.vocabulary)
            for image, seen, sight, captions in zip(images[first:], regions, evidence, found, strict=False):
                texts = [list(caption.tokens) for caption in captions]
                detected = detections_of(seen, recipe)
                features = WordFeatures.of(judge.reader, sight, captioner.objects, detected, judge.numbers)
                rows = [[features.row(token) for token in tokens] for tokens in texts]
                line = {
                    "image": int(image),
                    "captions": texts,
                    "log_probabilities": [per_token(caption) for caption in captions],
                    "consensus": judge.consensus(texts, sight),
                    "words": [
                        [None if row is None else row.round(4).tolist() for row in each] for each in rows
                    ],
                }
                file.write(json.dumps(line) + "\n")
            advance(len(opened))


def fit(pools: Path, data: Path, out: Path | None, n: int) -> None:
    prepared, objects = open_prepared(data), load_classes("coco")
    by_word = objects.class_of
    lines = [json.loads(line) for line in pools.read_text(encoding="utf-8").splitlines()]
    truths = [_truth(line, prepared, by_word) for line in lines]
    half = len(lines) // 2
    words = [
        (row, true)
        for line, truth in zip(lines[:half], truths[:half], strict=True)
        for rows, marks in zip(line["words"], truth["words"], strict=True)
        for row, true in zip(rows, marks, strict=True)
        if row is not None
    ]
    word_weights = logistic(np.array([row for row, _ in words]), np.array([true for _, true in words]))
    print("word weights", word_weights.round(3).tolist())

    def rows_of(line: dict[str, Any]) -> list[np.ndarray]:
        made = []
        columns = (line["captions"], line["words"], line["consensus"], line["log_probabilities"])
        for tokens, rows, agreed, likely in zip(*columns, strict=True):
            supports = [None if row is None else sigmoid(float(word_weights @ np.array(row))) for row in rows]
            named = [token in by_word for token in tokens]
            made.append(caption_row(supports, named, agreed, likely))
        return made

    features = [rows_of(line) for line in lines]
    x = np.array([row for each in features[:half] for row in each])
    y = np.array([true for truth in truths[:half] for true in truth["captions"]])
    caption_weights = logistic(x, y)
    print("caption weights", caption_weights.round(3).tolist())
    supports = [[sigmoid(float(caption_weights @ row)) for row in each] for each in features]
    p = np.array([s for each in supports[half:] for s in each])
    true = np.array([t for truth in truths[half:] for t in truth["captions"]])
    print(f"second half: {len(p):,} captions, {true.mean():.3f} true; calibration in ten bins:")
    for low in np.linspace(0, 0.9, 10):
        inside = (p >= low) & (p < low + 0.1)
        if inside.any():
            here = f"support {p[inside].mean():.3f}, true {true[inside].mean():.3f}"
            print(f"  {low:.1f}: {inside.sum():6,} captions, {here}")
    if out is not None:
        write_json(
            out, {"word": word_weights.round(5).tolist(), "caption": caption_weights.round(5).tolist()}
        )
    _selection(lines[half:], supports[half:], truths[half:], prepared, objects, n)


def _truth(line: dict[str, Any], prepared: Any, by_word: dict[str, str]) -> dict[str, Any]:
    said = {
        word
        for caption in prepared.captions_of(line["image"])
        for unit in prepared.units(caption)
        for word in (unit, *unit.split())
    }
    stems, classes = {STEM(word) for word in said}, {by_word[word] for word in said if word in by_word}
    words, captions = [], []
    for tokens in line["captions"]:
        marks = [
            token in said or STEM(token) in stems or by_word.get(token, "") in classes for token in tokens
        ]
        content = [mark for token, mark in zip(tokens, marks, strict=True) if is_content(token)]
        invented = any(token in by_word and not mark for token, mark in zip(tokens, marks, strict=True))
        words.append(marks)
        captions.append(not invented and sum(not mark for mark in content) <= 1)
    return {"words": words, "captions": captions}


def _selection(
    lines: list[dict[str, Any]],
    supports: list[list[float]],
    truths: list[Any],
    prepared: Any,
    objects: Any,
    n: int,
) -> None:
    """What would be shown, by several ways to choose: CIDEr, truth and difference of n captions."""
    from coscap import captioner as module
    from coscap.text.faults import faults

    references = {
        line["image"]: [prepared.text(c) for c in prepared.captions_of(line["image"])] for line in lines
    }
    ways = {"likelihood alone": None, "0.5 1 1": (0.5, 1.0, 1.0), "1 1 1": (1.0, 1.0, 1.0), "0.5 1 2": (0.5, 1.0, 2.0),
            "1 1 2": (1.0, 1.0, 2.0), "1 1 3": (1.0, 1.0, 3.0), "0 1 0": (0.0, 1.0, 0.0)}  # fmt: skip
    for name, worth in ways.items():
        for variety in (0.1, 0.5, 0.6):
            shown, true = {}, []
            for line, support, truth in zip(lines, supports, truths, strict=True):
                pool = [
                    Caption(
                        tuple(tokens), likely * (len(tokens) + 1), 0, np.zeros((len(tokens), 1), np.float32)
                    )
                    for tokens, likely in zip(line["captions"], line["log_probabilities"], strict=True)
                ]
                judged = {}
                if worth is not None:
                    module.WORTH = worth
                    judged = {
                        caption.text: Judgement(s, (), c, tuple(faults(caption.tokens, objects)))
                        for caption, s, c in zip(pool, support, line["consensus"], strict=True)
                    }
                kept = _best(pool, judged, n, variety)
                shown[line["image"]] = [caption.text for caption in kept]
                marks = dict(zip((caption.text for caption in pool), truth["captions"], strict=True))
                true += [marks[caption.text] for caption in kept]
            names = ["average/CIDEr", "worst/CIDEr", "CIDEr", "Div-2", "CHAIR-i"]
            found = measure(names, list(shown.values()), list(references.values()))
            figures = "  ".join(f"{key} {value:.3f}" for key, value in found.items())
            print(f"{name:18} variety {variety}: {figures}  true {np.mean(true):.3f}", flush=True)


def logistic(x: np.ndarray, y: np.ndarray, ridge: float = 1e-3, rounds: int = 60) -> np.ndarray:
    """Weights of a logistic regression, by Newton's method."""
    weights = np.zeros(x.shape[1])
    y = y.astype(float)
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        gradient = x.T @ (p - y) / len(y) + ridge * weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(y) + ridge * np.eye(x.shape[1])
        change = np.linalg.solve(hessian, gradient)
        weights -= change * min(1.0, 5 / max(np.abs(change).max(), 1e-9))
        if np.abs(change).max() < 1e-7:
            break
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("collect", "fit"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("-n", type=int, default=5)
    asked = parser.parse_args()
    if asked.what == "collect":
        collect(asked.paths[0], asked.pictures, asked.out, asked.count, asked.n)
    else:
        fit(asked.paths[0], asked.paths[1], asked.out, asked.n)


if __name__ == "__main__":
    main()
