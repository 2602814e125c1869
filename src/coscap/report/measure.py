"""All figures of one set of samples, by flat names: "oracle/20/CIDEr", "best5/100/Div-2", "rank/20/3".

oracle, average, worst/N/METRIC   of the first N captions of each picture
consensus/N/METRIC, rank/N/R      of the best caption after re-ranking N; CIDEr of the R-th best
all/N/METRIC, best5/N/METRIC      metrics of sets: of all N captions, and of the five best after re-ranking
f1/N/OBJECT                       novel objects, named by any of N captions
consensus-f1/N/OBJECT             named by the caption that consensus puts first of N
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coscap.contexts.bank import Bank
from coscap.contexts.make_bank import places_of
from coscap.data import Prepared
from coscap.errors import UserError
from coscap.files import sha256, whole_file
from coscap.metrics import spice
from coscap.metrics.consensus import NEIGHBOURS, Consensus, best_first, nearest
from coscap.metrics.evaluation import SPREAD, Figure
from coscap.metrics.grams import Longs
from coscap.metrics.intervals import Statistics, mean
from coscap.metrics.oracle import best_average_worst
from coscap.metrics.table import METRICS, CaptionScores, Material, Metric
from coscap.metrics.words import token_groups
from coscap.progress import track
from coscap.report.sampling import Samples
from coscap.text.objects import ObjectClasses
from coscap.vision.stores import Stores

Figures = dict[str, Figure]

NUMBERS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100)
"""Numbers of samples at which curves have a point."""
KEPT = 5  # captions after re-ranking whose diversity is measured, as in the paper
RANKS = 10
OF_ALL = ("diversity", "chair", "content")  # groups of METRICS that are measured of all samples
OF_BEST = ("diversity", "chair")  # and of the five best


class Ranker:
    """Scores candidates of the report's pictures by their agreement with captions of similar training pictures: those
    with alike mean features, as published, or, with a bank, those about which people would write alike."""

    def __init__(
        self,
        prepared: Prepared,
        stores: Stores,
        pictures: Sequence[int],
        work: Path,
        bank: Bank | None = None,
    ) -> None:
        captions = prepared.references("train")
        wanted = set(pictures)
        self.pool = [image for image in captions if image in stores and image not in wanted]
        self.training_pictures = len(captions)
        if not self.pool:
            raise UserError(
                f"{stores} holds no training picture of {prepared.path}; give the training pictures' regions "
                "with a further --regions, or leave out re-ranking with --no-rerank."
            )
        tokens = token_groups(track(list(captions.values()), "training captions", unit="image"))
        self.known = {caption for group in tokens for caption in group}
        """All training captions as tokens: what is not among them is novel."""
        by_image = dict(zip(captions, tokens, strict=True))
        self.consensus = Consensus.of([by_image[image] for image in self.pool])
        written = [[text.split() for text in by_image[image]] for image in self.pool]
        self.neighbours = self._nearest(stores, pictures, work, bank, written)  # (I, 60)

    def _nearest(
        self,
        stores: Stores,
        pictures: Sequence[int],
        work: Path,
        bank: Bank | None,
        written: Sequence[Sequence[Sequence[str]]],
    ) -> NDArray[np.int64]:
        by = () if bank is None else (sha256(bank.path / "bank.json"),)
        key = hashlib.sha256(repr((list(pictures), self.pool, stores.recipe, *by)).encode()).hexdigest()[:10]
        path = work / f"neighbours-{key}.npy"
        if path.is_file():
            kept: NDArray[np.int64] = np.load(path, allow_pickle=False)
            return kept
        if bank is None:
            queries = stores.means(pictures, "mean features")
            pool = stores.means(self.pool, "mean features of training pictures")
        else:
            queries = places_of(bank, map(stores.get, pictures), stores.recipe)
            pool = places_of(bank, map(stores.get, self.pool), stores.recipe, written)
        found = nearest(queries, pool, NEIGHBOURS)
        with whole_file(path) as partial, partial.open("wb") as file:
            np.save(file, found, allow_pickle=False)
        return found

    def order(self, captions: Sequence[Sequence[str]]) -> "Order":
        """captions: tokenised candidates of each of the report's pictures"""
        threads = os.cpu_count() or 1
        return Order(captions, self.consensus.scores(captions, self.neighbours, by="cider", threads=threads))


@dataclass(frozen=True)
class Order:
    """Candidates and their consensus scores."""

    captions: Sequence[Sequence[str]]
    scores: Sequence[NDArray[np.float64]]

    def best_of(self, n: int) -> list[list[int]]:
        """Of the first n of each picture, the places of different captions, the best first."""
        found = []
        for captions, scores in zip(self.captions, self.scores, strict=True):
            kept: dict[str, int] = {}
            for place in best_first(scores[:n]).tolist():
                kept.setdefault(captions[place], place)
            found.append(list(kept.values()))
        return found


@dataclass(frozen=True)
class Measurer:
    """What samples are compared with."""

    pictures: tuple[int, ...]
    references: list[list[str]]  # tokenised, in the order of the pictures
    ranker: Ranker | None
    classes: ObjectClasses
    meteor: bool
    objects: bool  # whether novel objects are counted

    @classmethod
    def of(
        cls,
        references: Mapping[int, Sequence[str]],
        ranker: Ranker | None,
        classes: ObjectClasses,
        *,
        meteor: bool,
        objects: bool,
    ) -> "Measurer":
        return cls(
            tuple(references), token_groups(list(references.values())), ranker, classes, meteor, objects
        )

    def measure(self, samples: Samples, budgets: Sequence[int]) -> Figures:
        """Every figure at each budget: a number of samples, of which the first so many are taken."""
        tokens = token_groups([samples[image] for image in self.pictures])
        material = self._material(tokens)
        scores = {metric.name: _scores(metric, material) for metric in METRICS if self._wants(metric)}
        figures: Figures = {}
        for name, each in scores.items():
            figures |= _spread(name, each, material.starts, (1, *budgets) if self.objects else budgets)
        if self.objects:
            figures |= _novel_objects("f1", material)
        order = self.ranker.order(tokens) if self.ranker is not None else None
        for n in budgets:
            figures |= self._sets(f"all/{n}", [captions[:n] for captions in tokens], OF_ALL)
            if order is not None:
                best = order.best_of(n)
                figures |= _ranked(scores, material.starts, best, n)
                chosen = [
                    [captions[at] for at in places[:KEPT]]
                    for captions, places in zip(tokens, best, strict=True)
                ]
                figures |= self._sets(f"best{KEPT}/{n}", chosen, OF_BEST)
                if self.objects:
                    first = _novel_objects("", self._material([captions[:1] for captions in chosen]))
                    figures |= {
                        name.replace("/1/", f"consensus-f1/{n}/"): each for name, each in first.items()
                    }
        return figures

    def spice(
        self, samples: Samples, budgets: Sequence[int], draws: int, pictures: int, cache: Path | None
    ) -> Figures:
        """SPICE of the best caption after re-ranking, and of the first `draws` of so many pictures (0: of all), evenly
        spread; oracles of more stay empty."""
        tokens = token_groups([samples[image] for image in self.pictures])
        figures: Figures = {}
        if self.ranker is not None:
            order = self.ranker.order(tokens)
            for n in budgets:
                firsts = [captions[at[0]] for captions, at in zip(tokens, order.best_of(n), strict=True)]
                figures[f"consensus/{n}/SPICE"] = mean(
                    np.array(spice.score(firsts, self.references, cache=cache)[1])
                )
        enough = [n for n in ((1, *budgets) if self.objects else budgets) if n <= draws]
        if enough:
            count = min(pictures or len(tokens), len(tokens))
            places = np.arange(count) * len(tokens) // count
            material = Material(
                [tokens[at][: max(enough)] for at in places],
                [self.references[at] for at in places],
                spice_cache=cache,
            )
            metric = next(metric for metric in METRICS if metric.name == "SPICE")
            found = _spread("SPICE", _scores(metric, material), material.starts, enough)
            figures |= {name: _among(each, places, len(tokens)) for name, each in found.items()}
        return figures

    def _wants(self, metric: Metric) -> bool:
        """Metrics of captions that need no Java; METEOR where its tables are there."""
        there = "Java" not in metric.needs and (self.meteor or "pycocoevalcap" not in metric.needs)
        return metric.of == "captions" and there

    def _material(self, captions: Sequence[Sequence[str]]) -> Material:
        known = self.ranker.known if self.ranker is not None else frozenset()
        return Material(captions, self.references, known=known, classes=self.classes)

    def _sets(self, prefix: str, captions: list[list[str]], groups: Sequence[str]) -> Figures:
        material = self._material(captions)
        found: Figures = {f"{prefix}/captions": float(sum(map(len, captions)))}
        for metric in METRICS:
            if metric.of == "sets" and metric.group in groups and set(metric.needs) <= material.has:
                scores = metric.function(material)
                assert not isinstance(scores, CaptionScores)
                found[f"{prefix}/{metric.name}"] = scores
        return found


def _scores(metric: Metric, material: Material) -> CaptionScores:
    scores = metric.function(material)
    assert isinstance(scores, CaptionScores)
    return scores


def _spread(name: str, scores: CaptionScores, starts: Longs, budgets: Sequence[int]) -> Figures:
    """Best, mean and worst of the first n samples; CIDEr also at the numbers between."""
    most = int(np.diff(starts).max())
    figures: Figures = {}
    for n in sorted(n for n in {*budgets, *(NUMBERS if name == "CIDEr" else ())} if n <= most):
        found = best_average_worst(scores.each, starts, n)
        figures |= {f"{kind}/{n}/{name}": found[kind] for kind in SPREAD}
    return figures


def _among(figure: Figure, places: NDArray[np.int64], pictures: int) -> Figure:
    """The figure of some pictures as one of all, in which the others do not count, so that resamples are the same."""
    assert isinstance(figure, Statistics)
    terms = np.zeros((len(figure.terms), pictures))
    terms[:, places] = figure.terms
    return Statistics(terms, figure.finish)


def _ranked(scores: Mapping[str, CaptionScores], starts: Longs, best: list[list[int]], n: int) -> Figures:
    """Accuracy of the best caption of each picture, and CIDEr of the second best, and so on."""
    first = starts[:-1] + np.array([places[0] for places in best])  # (I,)
    figures: Figures = {f"consensus/{n}/{name}": each.of(first) for name, each in scores.items()}
    for rank in range(1, RANKS + 1):
        there = np.array([len(places) >= rank for places in best])
        if there.any():
            places = np.array([places[min(rank, len(places)) - 1] for places in best])
            figures[f"rank/{n}/{rank}"] = mean(scores["CIDEr"].each[starts[:-1] + places], there)
    return figures


def _novel_objects(prefix: str, material: Material) -> Figures:
    found = material.object_scores
    figures: Figures = {}
    for n in (n for n in NUMBERS if n <= found.f1.shape[1]):
        figures[f"{prefix}/{n}/average"] = found.statistics(n)
        figures |= {f"{prefix}/{n}/{name}": found.statistics(n, name) for name in found.objects}
    return figures


def check_meteor() -> str | None:
    """None where METEOR can be computed, otherwise the reason why not."""
    try:
        from coscap.metrics.meteor import Meteor

        Meteor()
    except UserError as error:
        return str(error)
    return None
