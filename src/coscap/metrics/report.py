"""`evaluate`: every metric of a set of samples in one call."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coscap.errors import UserError
from coscap.metrics import diversity
from coscap.metrics.checks import check_captions, check_match, check_words
from coscap.metrics.grams import Floats, Longs, starts
from coscap.metrics.novel_objects import HELD_OUT, ObjectScores, object_f1
from coscap.metrics.oracle import Curves, curves
from coscap.metrics.overlap import overlap
from coscap.metrics.references import ImageId, as_captions
from coscap.metrics.words import token_groups
from coscap.progress import track

ACCURACY = ("bleu", "meteor", "rouge", "cider", "spice")
GROUPS = (*ACCURACY, "diversity", "novel_objects")
DEFAULT = (*ACCURACY, "diversity")

Captions = Mapping[ImageId, Sequence[str]]
Scorer = Callable[[list[str], list[list[str]]], tuple[float, list[float]]]


@dataclass(frozen=True)
class Report:
    """What `evaluate` found. Names of metrics are the field's; "CIDEr" is CIDEr-D, as officially."""

    images: int
    captions: int
    samples: int  # captions of the picture that has most
    accuracy: Mapping[str, float]  # of the first caption of each picture
    curves: Mapping[str, Curves]  # by metric, over n = 1 .. samples; empty with one caption a picture
    diversity: Mapping[str, float] = field(default_factory=dict)
    objects: ObjectScores | None = None
    notes: tuple[str, ...] = ()

    @property
    def oracle(self) -> dict[str, float]:
        return {name: float(curve.best[-1]) for name, curve in self.curves.items()}

    @property
    def average(self) -> dict[str, float]:
        return {name: float(curve.average[-1]) for name, curve in self.curves.items()}

    @property
    def worst(self) -> dict[str, float]:
        return {name: float(curve.worst[-1]) for name, curve in self.curves.items()}

    def json(self, with_curves: bool = False) -> dict[str, Any]:
        """As plain values; a metric that is not defined for these samples is null."""
        result: dict[str, Any] = {"images": self.images, "captions": self.captions, "samples": self.samples}
        result.update(self.accuracy)
        if self.curves:
            result.update(oracle=self.oracle, average=self.average, worst=self.worst)
        if self.diversity:
            result["diversity"] = {name: _or_null(value) for name, value in self.diversity.items()}
        if self.objects is not None:
            result["novel_objects"] = _objects_json(self.objects)
        if with_curves and self.curves:
            result["curves"] = {
                name: {
                    "oracle": curve.best.tolist(),
                    "average": curve.average.tolist(),
                    "worst": curve.worst.tolist(),
                }
                for name, curve in self.curves.items()
            }
        if self.notes:
            result["notes"] = list(self.notes)
        return result


def evaluate(
    samples: Captions | Sequence[Mapping[str, Any]],
    references: Captions | Sequence[Mapping[str, Any]] | str,
    *,
    metrics: Collection[str] | str | None = None,
    train: Captions | Sequence[Mapping[str, Any]] | str | None = None,
    objects: Mapping[str, Collection[str]] | None = None,
    tokenised: bool = False,
    allow_empty: bool = False,
    spice_cache: str | Path | None = None,
    names: tuple[str, str] = ("the samples", "the references"),
) -> Report:
    """Evaluate one or several captions a picture.

    `samples` and `references` map image ids to captions, or are rows with image_id and caption, or the name
    of references such as "coco:val2014". `metrics` is a choice of GROUPS (or "bleu,cider"); what is named
    must work, while by default METEOR and SPICE are left out with a note where their data is not installed.
    `train` (training captions by image) adds novel captions and self-CIDEr with their document frequencies.
    `objects` (names and their words) asks for novel objects; named as a metric without it, they are the eight
    of held-out COCO. The accuracy is that of each picture's first caption; oracle, average and worst are over
    all of them.
    """
    chosen = _chosen(metrics)
    samples, references = as_captions(samples, names[0]), as_captions(references, names[1])
    check_captions(samples, names[0])
    check_match(samples, references, names)
    check_captions({image: references[image] for image in samples}, names[1])
    ids = list(samples)
    pictures = token_groups([samples[image] for image in ids], tokenised)
    if not allow_empty:
        hint = "remove them, or allow them (--allow-empty) to score them as captions without words"
        check_words(dict(zip(ids, pictures, strict=True)), names[0], hint)
    wanted = token_groups([references[image] for image in ids], tokenised)

    caption_starts = starts([len(captions) for captions in pictures])
    accuracy, each, notes = _accuracy(
        pictures, wanted, caption_starts, chosen, metrics is not None, spice_cache
    )
    blank = [image for image, group in zip(ids, wanted, strict=True) for caption in group if not caption]
    if blank:
        notes.append(
            f"{len(blank):,} reference captions have no words (first: image {blank[0]!r}); they stay references."
        )
    most = int(np.diff(caption_starts).max())
    several = {name: curves(scores, caption_starts) for name, scores in each.items()} if most > 1 else {}
    spread = {}
    if "diversity" in chosen and (most > 1 or metrics is not None or train is not None):
        training = None
        if train is not None:
            groups = [group for group in as_captions(train, "the training captions").values() if group]
            training = token_groups(track(groups, "training captions", unit="image"), tokenised)
        spread = diversity_of(pictures, wanted, training)
        single = sum(len(captions) == 1 for captions in pictures)
        if 0 < single < len(pictures):
            notes.append(
                f"{single:,} of {len(pictures):,} images have one caption only "
                f"(first: {_first_single(samples)!r}); mBLEU-4 and self-CIDEr are over the others."
            )
    found = None
    if "novel_objects" in chosen or objects is not None:
        found = object_f1(pictures, wanted, HELD_OUT if objects is None else objects, tokenised=True)
    if found is not None and found.missing:
        notes.append(
            f"no reference names {', '.join(found.missing)}; the average F1 is over the other objects."
        )
    return Report(len(ids), int(caption_starts[-1]), most, accuracy, several, spread, found, tuple(notes))


def diversity_of(
    pictures: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]] | None = None,
    training: Sequence[Sequence[str]] | None = None,
) -> dict[str, float]:
    """All diversity metrics of tokenised captions, by name."""
    corpus, picture = diversity.mbleu4(pictures, tokenised=True)
    result: dict[str, float] = {
        "unique": diversity.unique(pictures, tokenised=True),
        "mBLEU-4-corpus": corpus,
        "mBLEU-4-picture": picture,
        "Div-1": diversity.div_n(pictures, 1, tokenised=True),
        "Div-2": diversity.div_n(pictures, 2, tokenised=True),
    }
    if references is not None:
        result["self-CIDEr-references"] = diversity.self_cider(pictures, references, tokenised=True)[0]
    if training is not None:
        result["self-CIDEr-train"] = diversity.self_cider(pictures, training, tokenised=True)[0]
        known = {caption for captions in training for caption in captions}
        result["novel"] = diversity.novel(pictures, known, tokenised=True)
        result["novel-percent"] = 100.0 * result["novel"] / sum(map(len, pictures))
    result["vocabulary"] = diversity.vocabulary_size(pictures, tokenised=True)
    result["length"] = diversity.mean_length(pictures, tokenised=True)
    return result


def _chosen(metrics: Collection[str] | str | None) -> tuple[str, ...]:
    if metrics is None:
        return DEFAULT
    if isinstance(metrics, str):
        metrics = metrics.replace(" ", "").split(",")
    unknown = [name for name in metrics if name not in GROUPS]
    if unknown or not metrics:
        named = f"metric {unknown[0]!r} is not known" if unknown else "no metric was named"
        raise UserError(f"{named}; choose from {', '.join(GROUPS)}.")
    return tuple(metrics)


def _accuracy(
    pictures: list[list[str]],
    references: list[list[str]],
    caption_starts: Longs,
    chosen: Collection[str],
    named: bool,
    spice_cache: str | Path | None,
) -> tuple[dict[str, float], dict[str, Floats], list[str]]:
    """Scores of the first captions together, scores of every caption, and what could not be scored."""
    together: dict[str, float] = {}
    each: dict[str, Floats] = {}
    notes: list[str] = []
    first = caption_starts[:-1]
    parts = overlap(pictures, references) if {"bleu", "rouge", "cider"} & set(chosen) else None
    for name in (group for group in ACCURACY if group in chosen):
        if name == "bleu" and parts is not None:
            bleu = parts.bleu()
            for order, value in enumerate(parts.corpus_bleu(first)):
                together[f"BLEU-{order + 1}"] = float(value)
                each[f"BLEU-{order + 1}"] = bleu[:, order]
        elif name == "rouge" and parts is not None:
            together["ROUGE-L"], each["ROUGE-L"] = float(parts.rouge_l[first].mean()), parts.rouge_l
        elif name == "cider" and parts is not None:
            together["CIDEr"], each["CIDEr"] = float(parts.cider_d[first].mean()), parts.cider_d
            together["CIDEr-plain"] = float(parts.cider_plain[first].mean())
            each["CIDEr-plain"] = parts.cider_plain
        else:
            try:
                scorer = _meteor() if name == "meteor" else _spice(spice_cache)
                together[name.upper()], each[name.upper()] = _outside(
                    scorer, pictures, references, caption_starts
                )
            except UserError as error:
                if named:
                    raise
                notes.append(f"{name.upper()} is left out: {error}")
    return together, each, notes


def _meteor() -> Scorer:
    from coscap.metrics.meteor import Meteor

    scorer: Scorer = Meteor().score
    return scorer


def _spice(cache: str | Path | None) -> Scorer:
    from coscap.metrics import spice

    return lambda captions, references: spice.score(captions, references, cache=cache)


def _outside(
    score: Scorer, pictures: list[list[str]], references: list[list[str]], caption_starts: Longs
) -> tuple[float, Floats]:
    """A metric that scores lists; a picture's equal captions are scored once."""
    firsts = [captions[0] for captions in pictures]
    together, scores = score(firsts, references)
    if caption_starts[-1] == len(pictures):
        return together, np.array(scores)
    known = {
        (number, caption): value for number, (caption, value) in enumerate(zip(firsts, scores, strict=True))
    }
    others = [
        (number, caption)
        for number, captions in enumerate(pictures)
        for caption in dict.fromkeys(captions)
        if (number, caption) not in known
    ]
    if others:
        _, more = score([caption for _, caption in others], [references[number] for number, _ in others])
        known.update(zip(others, more, strict=True))
    return together, np.array([known[number, caption] for number, caption in _numbered(pictures)])


def _numbered(pictures: Iterable[Iterable[str]]) -> Iterable[tuple[int, str]]:
    for number, captions in enumerate(pictures):
        for caption in captions:
            yield number, caption


def _first_single(samples: Captions) -> ImageId:
    return next(image for image, captions in samples.items() if len(captions) == 1)


def _or_null(value: float) -> float | None:
    return None if np.isnan(value) else value


def _objects_json(scores: ObjectScores) -> dict[str, Any]:
    def at(n: int) -> dict[str, float | None]:
        values = {name: _or_null(float(row[n])) for name, row in zip(scores.objects, scores.f1, strict=True)}
        return {"average": _or_null(float(scores.average[n])), **values}

    most = scores.f1.shape[1]
    return {
        "first": at(0),
        "any": at(most - 1),
        "any-average-by-n": [_or_null(float(v)) for v in scores.average],
    }
