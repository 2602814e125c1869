"""All figures of one set of samples, as flat names: "oracle/20/CIDEr", "best5/100/Div-2", "rank/20/3"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.metrics import diversity
from coscap.metrics.grams import Floats, Longs, starts
from coscap.metrics.novel_objects import object_f1
from coscap.metrics.oracle import curves
from coscap.metrics.overlap import Overlap, overlap
from coscap.metrics.words import token_groups
from coscap.report.ranking import Ranker, ranked
from coscap.report.said import Said
from coscap.report.sampling import Samples
from coscap.text.objects import ObjectClasses

Figures = dict[str, float]

NUMBERS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100)
"""Numbers of samples at which curves have a point."""
KEPT = 5  # captions after re-ranking whose diversity is told, as in the paper
RANKS = 10


@dataclass(frozen=True)
class Judge:
    """What samples are compared with."""

    pictures: tuple[int, ...]
    references: list[list[str]]  # tokenised, in the order of the pictures
    ranker: Ranker | None
    said: Said
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
    ) -> "Judge":
        tokens = token_groups(list(references.values()))
        return cls(tuple(references), tokens, ranker, Said(tokens, classes), meteor, objects)

    def measure(self, samples: Samples, budgets: Sequence[int]) -> Figures:
        """Every figure at each budget: a number of samples, of which the first so many are taken."""
        tokens = token_groups([samples[image] for image in self.pictures])
        found = _Scored(tokens, self.references, self.meteor)
        figures = found.curves(budgets) | self.said.figures(tokens, budgets)
        if self.objects:
            figures |= self._objects(tokens)
        scores = self.ranker.scores(tokens) if self.ranker is not None else None
        for n in budgets:
            first = [captions[:n] for captions in tokens]
            figures[f"unique/{n}"] = diversity.unique(first, tokenised=True)
            figures[f"self-CIDEr/{n}"] = diversity.self_cider(first, self.references, tokenised=True)[0]
            if scores is not None:
                order = [ranked(captions, each[:n]) for captions, each in zip(first, scores, strict=True)]
                figures |= found.after_ranking(order, n)
                figures |= self._best(first, order, n)
        return {name: float(value) for name, value in figures.items()}

    def _objects(self, tokens: list[list[str]]) -> Figures:
        found = object_f1(tokens, self.references, tokenised=True)
        figures = {}
        for n in (n for n in NUMBERS if n <= found.f1.shape[1]):
            figures[f"f1/{n}/average"] = float(found.average[n - 1])
            for name, row in zip(found.objects, found.f1, strict=True):
                figures[f"f1/{n}/{name}"] = float(row[n - 1])
        return figures

    def _best(self, tokens: list[list[str]], order: list[list[int]], n: int) -> Figures:
        """The diversity of (at most) the five best captions after re-ranking."""
        assert self.ranker is not None
        best = [
            [captions[at] for at in places[:KEPT]] for captions, places in zip(tokens, order, strict=True)
        ]
        novel = diversity.novel(best, self.ranker.known, tokenised=True)
        several = [captions for captions in best if len(captions) > 1]
        figures: Figures = {
            "captions": sum(map(len, best)),
            "novel": novel,
            "novel-percent": 100.0 * novel / sum(map(len, best)),
            "Div-1": diversity.div_n(best, 1, tokenised=True),
            "Div-2": diversity.div_n(best, 2, tokenised=True),
        }
        if several:
            corpus, picture = diversity.mbleu4(several, tokenised=True)
            spread = diversity.self_cider(several, self.references, tokenised=True)[0]
            figures |= {"mBLEU-4-corpus": corpus, "mBLEU-4-picture": picture, "self-CIDEr": spread}
        return {f"best{KEPT}/{n}/{name}": value for name, value in figures.items()}


class _Scored:
    """Every caption's scores against the references."""

    def __init__(self, tokens: list[list[str]], references: list[list[str]], meteor: bool) -> None:
        self.starts: Longs = starts([len(captions) for captions in tokens])
        self.parts: Overlap = overlap(tokens, references)
        bleu = self.parts.bleu()
        self.each: dict[str, Floats] = {f"BLEU-{order}": bleu[:, order - 1] for order in (4, 3, 2, 1)}
        self.each |= {"CIDEr": self.parts.cider_d, "ROUGE-L": self.parts.rouge_l}
        self.meteor: NDArray[np.float64] | None = None
        if meteor:
            from coscap.metrics.meteor import Meteor
            from coscap.metrics.meteor.scorer import scores

            self.meteor = Meteor().statistics(tokens, references)
            self.each["METEOR"] = scores(self.meteor)

    def curves(self, budgets: Sequence[int]) -> Figures:
        """Best, mean and worst of the first n samples; CIDEr also at the numbers between."""
        figures: Figures = {}
        for metric, values in self.each.items():
            curve = curves(values, self.starts)
            points = {*budgets, *(NUMBERS if metric == "CIDEr" else ())}
            for n in sorted(n for n in points if n <= len(curve.best)):
                figures[f"oracle/{n}/{metric}"] = float(curve.best[n - 1])
                figures[f"average/{n}/{metric}"] = float(curve.average[n - 1])
                figures[f"worst/{n}/{metric}"] = float(curve.worst[n - 1])
        return figures

    def after_ranking(self, order: list[list[int]], n: int) -> Figures:
        """Accuracy of the best caption of each picture, and CIDEr of the second best, and so on."""
        first = self.starts[:-1] + np.array([places[0] for places in order])  # (I,)
        figures: Figures = {
            f"consensus/{n}/BLEU-{k + 1}": float(v) for k, v in enumerate(self.parts.corpus_bleu(first))
        }
        for metric in ("CIDEr", "ROUGE-L"):
            figures[f"consensus/{n}/{metric}"] = float(self.each[metric][first].mean())
        if self.meteor is not None:
            from coscap.metrics.meteor.scorer import corpus_score

            figures[f"consensus/{n}/METEOR"] = corpus_score(self.meteor[first])
        for rank in range(1, RANKS + 1):
            rows = [
                start + places[rank - 1]
                for start, places in zip(self.starts[:-1], order, strict=True)
                if len(places) >= rank
            ]
            if rows:
                figures[f"rank/{n}/{rank}"] = float(self.each["CIDEr"][np.array(rows)].mean())
        return figures


def check_meteor() -> str | None:
    """None where METEOR can be computed, otherwise the reason why not."""
    try:
        from coscap.metrics.meteor import Meteor

        Meteor()
    except UserError as error:
        return str(error)
    return None
