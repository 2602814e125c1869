"""Which metric agrees with people: Kendall's tau-c and accuracy against ratings.

It reads Flickr8k's ExpertAnnotations.txt and CrowdFlowerAnnotations.txt (their captions are those of
Flickr8k.token.txt, which is then the file of references), the CSV files of the Composite data set, rows of one's own
`{"image_id", "caption", "rating"}` (JSON or JSONL), and the CSV that `coscap serve --study` exports, whose ratings are
of sets of captions.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from coscap.errors import UserError
from coscap.files import read_text
from coscap.metrics.evaluation import Evaluation, higher_is_better
from coscap.metrics.grams import Floats, Longs, starts
from coscap.metrics.intervals import Statistics
from coscap.metrics.references import Captions, ImageId, read_samples
from coscap.metrics.table import CaptionScores, Material, Metric
from coscap.metrics.words import token_groups

STUDY = ["annotator", "image_id", "method", "accuracy", "diversity"]
_KINDS = "Flickr8k's or Composite's ratings, rows with image_id, caption and rating, or a study's CSV"


@dataclass(frozen=True)
class RatedCaptions:
    """Captions of pictures, each with one rating or several."""

    captions: Captions
    ratings: Mapping[ImageId, list[list[float]]]  # of each of these captions


@dataclass(frozen=True)
class StudyRow:
    """One rating of a set of captions by `coscap serve --study`."""

    image_id: ImageId
    method: str
    accuracy: float
    diversity: float


@dataclass(frozen=True)
class Agreement:
    """How far a metric agrees with people; a metric of which less is better is turned round first."""

    tau_c: float
    accuracy: float  # of pairs of the same picture that people rated differently, those that the metric orders alike
    ratings: int
    pairs: int


def agreement(scores: Floats, ratings: Sequence[Sequence[float]], picture_starts: Longs) -> Agreement:
    """scores (C,) and ratings of each caption; captions of picture i are picture_starts[i]:picture_starts[i + 1].

    Every single rating is one observation of tau-c, as in the literature; pairs take the mean of a caption's.
    """
    repeated = np.repeat(scores, [len(each) for each in ratings])
    single = np.array([value for each in ratings for value in each])
    means = np.array([np.mean(each) for each in ratings])
    right, pairs = 0.0, 0
    for first, last in pairwise(picture_starts.tolist()):
        ours = np.sign(scores[first:last, None] - scores[None, first:last])
        people = np.sign(means[first:last, None] - means[None, first:last])
        differ = np.triu(people != 0)
        pairs += int(differ.sum())
        right += float((ours == people)[differ].sum() + 0.5 * (ours == 0)[differ].sum())
    return Agreement(kendall_tau_c(repeated, single), right / pairs if pairs else np.nan, len(single), pairs)


def kendall_tau_c(x: Floats, y: Floats) -> float:
    """Stuart's tau-c: 2 (concordant - discordant) / (n^2 (m - 1) / m), m being the smaller number of values."""
    levels = np.unique(y)
    smaller = min(len(levels), len(np.unique(x)))
    if smaller < 2:
        return np.nan
    ranks = [np.sort(x[y == level]) for level in levels]
    balance = 0
    for low in range(len(ranks)):
        for high in range(low + 1, len(ranks)):
            below = np.searchsorted(ranks[low], ranks[high], "left").sum()  # pairs in which x rises with y
            above = (len(ranks[low]) - np.searchsorted(ranks[low], ranks[high], "right")).sum()
            balance += int(below) - int(above)
    return 2.0 * balance / (len(x) ** 2 * (smaller - 1) / smaller)


def caption_agreement(
    rated: RatedCaptions, references: Captions, metrics: Sequence[Metric], spice_cache: Path | None = None
) -> dict[str, Agreement]:
    """Every metric of captions against ratings of captions."""
    ids = list(rated.captions)
    pictures = token_groups([rated.captions[image] for image in ids])
    material = Material(pictures, token_groups([references[image] for image in ids]), spice_cache=spice_cache)
    ratings = [each for image in ids for each in rated.ratings[image]]
    found = {}
    for metric in (metric for metric in metrics if metric.of == "captions"):
        scores = metric.function(material)
        assert isinstance(scores, CaptionScores)
        sign = -1.0 if metric.higher is False else 1.0
        found[metric.name] = agreement(sign * scores.each, ratings, material.starts)
    return found


def study_agreement(
    rows: Sequence[StudyRow], systems: Mapping[str, Evaluation], name: str
) -> dict[str, dict[str, Agreement]]:
    """Every figure of the picture's captions against a study's ratings of accuracy and of diversity."""
    unknown = sorted({row.method for row in rows} - set(systems))
    if unknown:
        raise UserError(
            f"{name} rates the method {unknown[0]!r}, whose captions were not given; give the files of the study "
            f"(given: {', '.join(systems)})."
        )
    places = {method: {image: n for n, image in enumerate(found.ids)} for method, found in systems.items()}
    lost = [row.image_id for row in rows if row.image_id not in places[row.method]]
    if lost:
        raise UserError(
            f"{len(lost):,} of {len(rows):,} ratings of {name} are of pictures that the captions do not have (first: "
            f"{lost[0]!r}); give the files of the study."
        )
    rated: dict[ImageId, dict[str, list[StudyRow]]] = {}
    for row in rows:
        rated.setdefault(row.image_id, {}).setdefault(row.method, []).append(row)
    picture_starts = starts([len(methods) for methods in rated.values()])
    items = [(image, method, given) for image, methods in rated.items() for method, given in methods.items()]
    figures = [
        figure for figure in next(iter(systems.values())).figures if _each(systems, figure) is not None
    ]
    found: dict[str, dict[str, Agreement]] = {}
    for figure in figures:
        each = _each(systems, figure)
        assert each is not None
        sign = -1.0 if higher_is_better(figure) is False else 1.0
        scores = np.array([sign * each[method][places[method][image]] for image, method, _ in items])
        if np.isnan(scores).any():
            continue
        found[figure] = {
            "accuracy": agreement(
                scores, [[row.accuracy for row in given] for *_, given in items], picture_starts
            ),
            "diversity": agreement(
                scores, [[row.diversity for row in given] for *_, given in items], picture_starts
            ),
        }
    return found


def _each(systems: Mapping[str, Evaluation], figure: str) -> dict[str, Floats] | None:
    """The figure of each picture by itself, (I,) of each system."""
    found = {}
    for method, evaluation in systems.items():
        statistics = evaluation.figures.get(figure)
        if not isinstance(statistics, Statistics):
            return None
        found[method] = statistics.finish(statistics.terms)
    return found


def is_study(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".csv" and _first_line(path).split(",")[:5] == STUDY


def read_study_ratings(path: str | Path, ids: Sequence[ImageId]) -> list[StudyRow]:
    known = _by_name(ids)
    rows = []
    for number, row in enumerate(csv.DictReader(read_text(path).splitlines()), 2):
        try:
            image = known.get(row["image_id"], row["image_id"])
            rows.append(StudyRow(image, row["method"], float(row["accuracy"]), float(row["diversity"])))
        except (TypeError, ValueError):
            raise UserError(
                f"{path} line {number} is not a rating; expected {', '.join(STUDY)}, as the study exports them."
            ) from None
    if not rows:
        raise UserError(f"{path} holds no ratings; expected a line for each.")
    return rows


def read_ratings(path: str | Path, references: Captions, name: str = "the references") -> RatedCaptions:
    """Rated captions of pictures that the references know.

    A caption that is one of its picture's own references is left out, as is usual for Flickr8k: it would be compared
    with itself.
    """
    given = _read(Path(path), references)
    if not given:
        raise UserError(f"{path} holds no ratings; expected {_KINDS}.")
    known = _by_name(list(references))
    unknown = [image for image, _, _ in given if image not in known]
    if unknown:
        raise UserError(
            f"{len(set(unknown)):,} of {len({image for image, _, _ in given}):,} rated pictures of {path} are not "
            f"in {name} (first: {unknown[0]}); give references that hold all of them."
        )
    captions: Captions = {}
    ratings: dict[ImageId, list[list[float]]] = {}
    for image, caption, values in given:
        place = known[image]
        if caption in references[place]:
            continue
        captions.setdefault(place, []).append(caption)
        ratings.setdefault(place, []).append(values)
    if not captions:
        raise UserError(
            f"every rated caption of {path} is a reference of its picture; nothing is left to compare."
        )
    return RatedCaptions(captions, ratings)


_Given = list[tuple[str, str, list[float]]]  # image, caption, ratings


def _read(path: Path, references: Captions) -> _Given:
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson"):
        return _read_rows(path)
    first = _first_line(path)
    if "Input.image_url" in first:
        return _read_composite(path)
    if len(first.split("\t")) == 5:
        return _read_flickr8k(path, references)
    raise UserError(f"{path} is not a file of ratings; expected {_KINDS}.")


def _read_rows(path: Path) -> _Given:
    found: _Given = []
    rows = read_samples(path)
    for row in rows:
        value = row.fields.get("rating", row.fields.get("ratings"))
        values = value if isinstance(value, list) else [value]
        if not values or not all(
            isinstance(each, int | float) and not isinstance(each, bool) for each in values
        ):
            raise UserError(
                f'{path} has a caption without a rating (image {row.image_id!r}); each row needs "rating", a number.'
            )
        found.append((str(row.image_id), row.caption, [float(each) for each in values]))
    return found


def _read_flickr8k(path: Path, references: Captions) -> _Given:
    """image, image#number of the caption, and three ratings (experts), or share, yeses and noes (CrowdFlower)."""
    rows = [line.split("\t") for line in read_text(path).splitlines() if line.strip()]
    experts = all(value in ("1", "2", "3", "4") for row in rows for value in row[2:5])
    found: _Given = []
    for number, row in enumerate(rows, 1):
        try:
            image, (owner, _, place) = row[0], row[1].rpartition("#")
            values = [float(value) for value in row[2:5]]
            caption = references[owner][int(place)]
        except (KeyError, IndexError, ValueError):
            raise UserError(
                f"{path} line {number} names the caption {row[1] if len(row) > 1 else row[0]!r}, which is not among "
                "the references; give Flickr8k.token.txt as --references."
            ) from None
        found.append((image, caption, values if experts else values[:1]))
    return found


def _read_composite(path: Path) -> _Given:
    found: _Given = []
    for row in csv.DictReader(read_text(path).splitlines(), delimiter=";"):
        image = PurePosixPath(row["Input.image_url"] or "").name
        for number in range(1, 10):
            caption, answer = row.get(f"Input.text{number}"), row.get(f"Answer.Q{number}Answer")
            if image and caption and answer and re.fullmatch(r"\d+(\.\d+)?", answer.strip()):
                found.append((image, caption, [float(answer)]))
    return found


def _by_name(ids: Sequence[ImageId]) -> dict[str, Any]:
    """Ids by what ratings call them: 42 is "42", "COCO_val2014_000000000042.jpg" and "000000000042.jpg"."""
    found: dict[str, Any] = {}
    for image in ids:
        found[str(image)] = image
        if isinstance(image, int):
            padded = f"{image:012d}.jpg"
            for name in (padded, f"COCO_val2014_{padded}", f"COCO_train2014_{padded}"):
                found.setdefault(name, image)
    return found


def _first_line(path: str | Path) -> str:
    return next((line for line in read_text(path).splitlines() if line.strip()), "")
