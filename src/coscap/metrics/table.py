"""The table of all metrics. `coscap evaluate`, `coscap report` and training's validation read it.

A new metric is one entry of METRICS: its name, what it needs, a function from `Material`, and whether more is better.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coscap.metrics import diversity
from coscap.metrics.chair import ObjectWords, chair_statistics, in_pictures
from coscap.metrics.grams import EncodedCaptions, Floats, Grams, Longs, flat, starts
from coscap.metrics.intervals import Statistics, mean, ratio
from coscap.metrics.novel_objects import HELD_OUT, ObjectScores, object_f1
from coscap.metrics.overlap import Overlap, overlap
from coscap.text.objects import ObjectClasses, load_classes
from coscap.text.slots import Split, split


@dataclass(frozen=True)
class Material:
    """Tokenised captions of each picture and what they are compared with; what metrics share is computed once."""

    pictures: Sequence[Sequence[str]]
    references: Sequence[Sequence[str]] = ()
    training: Sequence[Sequence[str]] = ()  # tokenised training captions of each training picture
    known: Collection[str] = frozenset()  # the same as one set, where it is at hand
    classes: ObjectClasses | None = None  # for contexts and objects; default: COCO's
    words: ObjectWords | None = None  # for CHAIR; default: the published script's
    instances: Sequence[set[str]] | None = None  # classes in each picture, for CHAIR
    objects: Mapping[str, Collection[str]] = field(default_factory=lambda: HELD_OUT)  # for F1
    spice_cache: str | Path | None = None

    @property
    def has(self) -> set[str]:
        """Which of the things that metrics need are there."""
        known = self.known or self.training
        there = {"references": self.references, "training": self.training, "known": known}
        return {name for name, value in there.items() if value}

    @cached_property
    def starts(self) -> Longs:
        return starts([len(captions) for captions in self.pictures])

    @property
    def first(self) -> Longs:
        """The row of each picture's first caption, (I,)."""
        return self.starts[:-1]

    @cached_property
    def overlap(self) -> Overlap:
        return overlap(self.pictures, self.references)

    @cached_property
    def bleu(self) -> Floats:
        return self.overlap.bleu()  # (C, 4)

    @cached_property
    def encoded(self) -> tuple[EncodedCaptions, int]:
        grams = Grams()
        return grams.encode(flat(self.pictures)[0]), len(grams)

    @cached_property
    def mbleu(self) -> tuple[Statistics, Statistics]:
        captions, size = self.encoded
        return diversity.mbleu_statistics(captions, self.starts, size)

    @cached_property
    def meteor(self) -> Any:
        from coscap.metrics.meteor import Meteor

        return Meteor().statistics(self.pictures, self.references)  # (C, 23)

    @cached_property
    def novel(self) -> Floats:
        known = self.known or {caption for captions in self.training for caption in captions}
        return diversity.novel_counts(self.pictures, known)

    @cached_property
    def chair(self) -> dict[str, Statistics]:
        words = self.words or ObjectWords.official()
        return chair_statistics(self.pictures, in_pictures(self.references, words, self.instances), words)

    @cached_property
    def object_scores(self) -> ObjectScores:
        return object_f1(self.pictures, self.references, self.objects, tokenised=True)

    @cached_property
    def splits(self) -> tuple[list[list[Split]], list[set[int]]]:
        """Every caption as context and objects; the classes that references of each picture name."""
        classes = self.classes or load_classes("coco")

        def parts(captions: Sequence[str]) -> list[Split]:
            return [split(caption.split(" "), classes) for caption in captions]

        named = [{kind for part in parts(captions) for kind in part.classes} for captions in self.references]
        return [parts(captions) for captions in self.pictures], named


@dataclass(frozen=True)
class CaptionScores:
    """A metric of single captions."""

    each: Floats  # (C,)
    together: Callable[[Longs], Statistics] | None = None
    """Of one caption of each picture (rows), where that is not the mean of their scores."""

    def of(self, rows: Longs) -> Statistics:
        return mean(self.each[rows]) if self.together is None else self.together(rows)


@dataclass(frozen=True)
class Metric:
    """One entry of the table."""

    name: str  # in tables and JSON
    group: str  # in --metrics
    needs: tuple[str, ...]  # of "references", "training", "known", "Java", "pycocoevalcap"
    function: Callable[[Material], CaptionScores | Statistics | float]
    """Of captions: CaptionScores, which give oracle, average and worst too. Of sets: Statistics; or a number, for what
    only all captions together have, without an interval."""
    higher: bool | None  # whether more is better; None: neither
    of: Literal["captions", "sets"] = "sets"


def _bleu(order: int) -> Callable[[Material], CaptionScores]:
    return lambda material: CaptionScores(
        material.bleu[:, order - 1], lambda rows: material.overlap.corpus_bleu(rows, order)
    )


def _meteor(material: Material) -> CaptionScores:
    from coscap.metrics.meteor.scorer import corpus_terms, scores, scores_of_sums

    return CaptionScores(
        scores(material.meteor), lambda rows: Statistics(corpus_terms(material.meteor[rows]), scores_of_sums)
    )


def _spice(material: Material) -> CaptionScores:
    from coscap.metrics import spice

    pairs = {
        (number, caption): 0.0 for number, captions in enumerate(material.pictures) for caption in captions
    }
    _, values = spice.score(
        [caption for _, caption in pairs],
        [material.references[number] for number, _ in pairs],
        cache=material.spice_cache,
    )
    pairs.update(zip(pairs, values, strict=True))  # equal captions of a picture are scored once
    each = [
        pairs[number, caption] for number, captions in enumerate(material.pictures) for caption in captions
    ]
    return CaptionScores(np.array(each))


def _all_spice(material: Material) -> Statistics:
    from coscap.metrics import spice

    return mean(spice.score_sets(material.pictures, material.references, cache=material.spice_cache))


def _self_cider(documents: str) -> Callable[[Material], Statistics]:
    return lambda material: diversity.self_cider_statistics(material.pictures, getattr(material, documents))


def _novel(material: Material) -> Statistics:
    return Statistics(material.novel[None], lambda sums: sums[0])  # a number, not a mean


def _div(n: int) -> Callable[[Material], Statistics]:
    return lambda material: diversity.div_statistics(material.encoded[0], material.starts, n)


def _contexts(material: Material) -> Statistics:
    parts, _ = material.splits
    return mean(np.array([len({part.context for part in each}) / len(each) for each in parts]), scale=100.0)


def _objects_each(material: Material) -> Statistics:
    parts, _ = material.splits
    named = [sum(len(set(part.classes)) for part in each) for each in parts]
    return ratio(np.array(named), np.array([len(each) for each in parts]))


def _objects_all(material: Material) -> Statistics:
    return mean(np.array([len(named) for named in _classes(material)], np.float64))


def _named(material: Material) -> Statistics:
    """Of the classes that a caption names, those that a reference of its picture names too."""
    parts, people = material.splits
    kinds = [[kind for part in each for kind in set(part.classes)] for each in parts]
    right = [sum(kind in there for kind in each) for each, there in zip(kinds, people, strict=True)]
    return ratio(np.array(right), np.array([len(each) for each in kinds]), 100.0)


def _found(material: Material) -> Statistics:
    """Of the classes that references name, those that a caption names too."""
    people = material.splits[1]
    shares = [
        len(each & there) / max(1, len(there)) for each, there in zip(_classes(material), people, strict=True)
    ]
    return mean(np.array(shares), np.array([len(there) > 0 for there in people]), 100.0)


def _classes(material: Material) -> list[set[int]]:
    return [{kind for part in each for kind in part.classes} for each in material.splits[0]]


_R, _T, _K = ("references",), ("training",), ("known",)

METRICS: tuple[Metric, ...] = (
    *(Metric(f"BLEU-{n}", "bleu", _R, _bleu(n), True, "captions") for n in (1, 2, 3, 4)),
    Metric("METEOR", "meteor", (*_R, "pycocoevalcap"), _meteor, True, "captions"),
    Metric("ROUGE-L", "rouge", _R, lambda m: CaptionScores(m.overlap.rouge_l), True, "captions"),
    Metric("CIDEr", "cider", _R, lambda m: CaptionScores(m.overlap.cider_d), True, "captions"),
    Metric("CIDEr-plain", "cider", _R, lambda m: CaptionScores(m.overlap.cider_plain), True, "captions"),
    Metric("SPICE", "spice", (*_R, "Java"), _spice, True, "captions"),
    Metric("AllSPICE", "allspice", (*_R, "Java"), _all_spice, True),
    Metric("unique", "diversity", (), lambda m: diversity.unique_statistics(m.pictures), True),
    Metric("mBLEU-4-corpus", "diversity", (), lambda m: m.mbleu[0], False),
    Metric("mBLEU-4-picture", "diversity", (), lambda m: m.mbleu[1], False),
    Metric("Div-1", "diversity", (), _div(1), True),
    Metric("Div-2", "diversity", (), _div(2), True),
    Metric("self-CIDEr-references", "diversity", _R, _self_cider("references"), True),
    Metric("self-CIDEr-train", "diversity", _T, _self_cider("training"), True),
    Metric("novel", "diversity", _K, _novel, True),
    Metric("novel-percent", "diversity", _K, lambda m: ratio(m.novel, np.diff(m.starts), 100.0), True),
    Metric(
        "vocabulary", "diversity", (), lambda m: diversity.vocabulary_size(m.pictures, tokenised=True), True
    ),
    Metric("length", "diversity", (), lambda m: diversity.length_statistics(m.pictures), None),
    Metric("CHAIR-i", "chair", _R, lambda m: m.chair["CHAIR-i"], False),
    Metric("CHAIR-s", "chair", _R, lambda m: m.chair["CHAIR-s"], False),
    Metric("CHAIR-free", "chair", _R, lambda m: m.chair["CHAIR-free"], True),
    Metric("contexts", "content", (), _contexts, True),
    Metric("objects-each", "content", (), _objects_each, None),
    Metric("objects-all", "content", (), _objects_all, None),
    Metric("named", "content", _R, _named, True),
    Metric("found", "content", _R, _found, True),
    Metric("F1-first", "novel_objects", _R, lambda m: m.object_scores.statistics(1), True),
    Metric(
        "F1-any", "novel_objects", _R, lambda m: m.object_scores.statistics(m.object_scores.f1.shape[1]), True
    ),
)

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(metric.group for metric in METRICS))
DEFAULT = ("bleu", "meteor", "rouge", "cider", "spice", "diversity", "chair")
