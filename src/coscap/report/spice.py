"""SPICE for the report: of the best caption after re-ranking, and of the first draws for an oracle."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coscap.metrics import spice
from coscap.metrics.words import token_groups
from coscap.report.measure import Figures, Judge
from coscap.report.ranking import ranked
from coscap.report.sampling import Samples


def spice_figures(
    samples: Samples, judge: Judge, budgets: Sequence[int], draws: int, cache: Path | None
) -> Figures:
    """`draws`: how many captions of each picture are scored; oracles of more than these stay empty."""
    tokens = token_groups([samples[image] for image in judge.pictures])
    figures: Figures = {}
    if judge.ranker is not None:
        scores = judge.ranker.scores(tokens)
        for n in budgets:
            order = [ranked(captions[:n], each[:n]) for captions, each in zip(tokens, scores, strict=True)]
            firsts = [captions[places[0]] for captions, places in zip(tokens, order, strict=True)]
            figures[f"consensus/{n}/SPICE"] = spice.score(firsts, judge.references, cache=cache)[0]
    enough = [n for n in budgets if n <= draws]
    if enough:
        most = max(enough)
        pairs = [
            (caption, references)
            for captions, references in zip(tokens, judge.references, strict=True)
            for caption in captions[:most]
        ]
        _, each = spice.score([one for one, _ in pairs], [other for _, other in pairs], cache=cache)
        table = np.array(each).reshape(len(tokens), -1)  # (I, S)
        for n in enough:
            figures[f"oracle/{n}/SPICE"] = float(table[:, :n].max(axis=1).mean())
    return figures
