"""Captions of validation pictures, which captioner, vision and bank must not have learnt from, to fit support with.

    python scripts/support_pools.py DATA --pictures DIR --out FOLDER [--model RUN] [--regions STORE] [--count 2000]

Of each picture 20 captions as `coscap caption` draws them, and those of the turns in which it may draw again; those of
`--accurate` now and before, and a beam; and what the eyes see.
It goes on where it was stopped. `read_pools` adds what is true by what people wrote (`coscap.metrics.reference_words`).
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from coscap import Captioner
from coscap.captioner import BEAM, FURTHER, POOL, SAFE_POOL
from coscap.contexts.judge import Judge, Judgement, detected_scores
from coscap.data import open_prepared
from coscap.data.word_targets import pictures_in
from coscap.files import read_json, whole_file, write_json
from coscap.metrics.reference_words import ReferenceWords
from coscap.progress import bar
from coscap.seam import Caption, RegionArrays
from coscap.search.config import SearchSettings
from coscap.search.manner import ACCURATE, USUAL, beam_settings
from coscap.search.select import rescore
from coscap.text import load_classes
from coscap.text.faults import faults
from coscap.vision.pictures import open_picture
from coscap.vision.published import open_regions
from coscap.vision.tags import Tagger

PART = 40  # pictures that are written together
BEFORE = 0.4, 20  # temperature and draws of `--accurate` before there was a judge
SHOWN = 5
TURNS = tuple(
    f"turn {turn}" for turn in range(FURTHER + 1)
)  # the draws of a picture after so many further turns


# ---- draws of a captioner -------------------------------------------------------------------------------------------


def collect(asked: argparse.Namespace) -> None:
    """Parts of FOLDER: captions of pictures as JSON, and what the eyes see of them as arrays."""
    prepared = open_prepared(asked.data)
    images, paths = pictures_in(prepared, asked.pictures, "validation", 0, seed=0)
    store = None if asked.regions is None else open_regions(asked.regions)
    places = [
        at for at, image in enumerate(images) if store is None or int(prepared.image_ids[image]) in store
    ]
    places = np.random.default_rng(11).permutation(places)[: asked.count].tolist()
    captioner, tagger = Captioner.from_pretrained(asked.model, bank=None), Tagger()
    if store is not None:
        captioner.loaded.check_recipe(store.recipe)
    asked.out.mkdir(parents=True, exist_ok=True)
    with bar("draws", len(places), "pictures") as advance:
        for first in range(0, len(places), PART):
            here = places[first : first + PART]
            file = asked.out / f"{first:06d}.json"
            if not file.is_file():
                ids = [int(prepared.image_ids[images[at]]) for at in here]
                eyes = look(tagger, ids, [paths[at] for at in here], asked.out / f"{first:06d}.npz")
                found = []
                for four in range(0, len(here), 4):
                    some = slice(four, four + 4)
                    if store is None:
                        pictures = [
                            open_picture(paths[at], least_side=captioner.detector.least_side)
                            for at in here[some]
                        ]
                        regions = captioner.detector.regions(pictures)
                    else:
                        regions = [store.get(image) for image in ids[some]]
                    found += draw(captioner, regions)
                rows = [{"image": image, **each} for image, each in zip(ids, found, strict=True)]
                write_json(file, {"model": str(asked.model), "eyes": eyes, "pictures": rows})
            advance(len(here))


def look(tagger: Tagger, ids: Sequence[int], paths: Sequence[Path], file: Path) -> str:
    """Write what the eyes see of pictures, unless it was written before; the name of the eyes."""
    if not file.is_file():
        pictures = [open_picture(path, least_side=tagger.least_side) for path in paths]
        seen = tagger.look(pictures)
        words = np.stack([tagger.reader.probabilities(each.words) for each in seen])
        with whole_file(file) as partial, partial.open("wb") as out:
            np.savez(out, ids=ids, vectors=np.stack([each.vector for each in seen]), words=words)
    return tagger.digest


def draw(captioner: Captioner, regions: Sequence[Any]) -> list[dict[str, Any]]:
    """Of each picture: draws, calm draws and a beam, each caption with its log-probability a token."""
    arrays = RegionArrays.stack(regions)
    usual, calm = (SearchSettings(latent_temperature=each[0]) for each in (USUAL, ACCURATE))
    ways = {
        **{
            name: captioner.generate(arrays, POOL * SHOWN, usual, turn=turn)
            for turn, name in enumerate(TURNS)
        },
        "calm": captioner.generate(arrays, SAFE_POOL, calm),
        "before": captioner.generate(arrays, BEFORE[1], SearchSettings(latent_temperature=BEFORE[0])),
        "beam": captioner.generate(arrays, BEAM, beam_settings(usual)),
    }
    recipe = captioner.loaded.recipe
    rows: list[dict[str, Any]] = [
        {"detected": detected_scores(each, recipe) if recipe else {}} for each in regions
    ]
    for way, found in ways.items():
        for row, captions in zip(
            rows, rescore(captioner.model, arrays, found, captioner.vocabulary), strict=True
        ):
            row[way] = [[list(each.tokens), round(each.log_probability, 5)] for each in captions]
    return rows


# ---- pictures with all that is known of them ------------------------------------------------------------------------


@dataclass
class Picture:
    """Pools of captions: TURNS, each with the draws of those before; calm (as --accurate draws), before (as it
    did without a judge), beam, accurate (calm and beam)."""

    image: int
    references: list[str]
    pools: dict[str, list[Caption]]
    marks: dict[str, list[list[bool]]] = field(default_factory=dict)  # whether each token is borne out
    true: dict[str, list[bool]] = field(default_factory=dict)  # whether each caption is
    rows: dict[str, list[list[Any]]] = field(default_factory=dict)  # features of each token, None without
    verdicts: dict[str, list[Judgement]] = field(default_factory=dict)  # without support at first


def read_pools(folder: Path, data: Path, judge: Judge, count: int | None = None) -> list[Picture]:
    prepared, objects = open_prepared(data), load_classes("coco")
    pictures = []
    files = sorted(folder.glob("*.json"))[: None if count is None else -(-count // PART)]
    with bar("pictures", PART * len(files), "pictures") as advance:
        for file in files:
            content, seen = read_json(file), np.load(file.with_suffix(".npz"))
            assert content["eyes"] == judge.tagger.digest, (
                f"{file} was made with other eyes; collect it again"
            )
            for row, vector, words in zip(content["pictures"], seen["vectors"], seen["words"], strict=True):
                pictures.append(_picture(row, vector, words, judge, prepared, objects))
                advance(1)
    return pictures[:count]


def _picture(row: Any, vector: Any, words: Any, judge: Judge, prepared: Any, objects: Any) -> Picture:
    image = prepared.index(row["image"])
    made = {way: [_caption(*each) for each in row[way]] for way in (*TURNS, "calm", "before", "beam")}
    for before, turn in pairwise(TURNS):
        made[turn] = [*made[before], *made[turn]]
    pools = {**made, "accurate": [*made["calm"], *made["beam"]]}
    known = judge.known_of(vector, words, row["detected"])
    said = ReferenceWords(map(prepared.units, prepared.captions_of(image)), objects)
    found = Picture(row["image"], [prepared.text(each) for each in prepared.captions_of(image)], pools)
    for way, captions in pools.items():
        tokens = [caption.tokens for caption in captions]
        found.marks[way] = [said.marks(each) for each in tokens]
        found.true[way] = [said.is_true(each) for each in tokens]
        if way in (*TURNS, "accurate"):
            features = judge.features(tokens, known, objects)
            found.rows[way] = [features.rows(each) for each in tokens]
            agreed = zip(tokens, *judge.agreement(tokens, known), strict=True)
            found.verdicts[way] = [
                Judgement(0.0, 0.0, (), consensus, expected, tuple(faults(each, objects)))
                for each, consensus, expected in agreed
            ]
    return found


def _caption(tokens: Sequence[str], log_probability: float) -> Caption:
    return Caption(tuple(tokens), log_probability, 0, np.zeros((len(tokens), 1), np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="shipped")
    parser.add_argument(
        "--regions", type=Path, help="a store of the model's recipe; without it, they are found"
    )
    parser.add_argument("--count", type=int, default=2000)
    collect(parser.parse_args())


if __name__ == "__main__":
    main()
