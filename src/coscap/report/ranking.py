"""Consensus re-ranking for the report: neighbours and training captions are made ready once for all runs."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coscap.data import Prepared
from coscap.errors import UserError
from coscap.files import whole_file
from coscap.metrics.consensus import NEIGHBOURS, Consensus, best_first, nearest
from coscap.metrics.words import token_groups
from coscap.progress import track
from coscap.report.stores import Stores


class Ranker:
    """Scores candidates of the report's pictures by their agreement with captions of similar training pictures."""

    def __init__(self, prepared: Prepared, stores: Stores, pictures: Sequence[int], work: Path) -> None:
        captions = prepared.references("train")
        asked = set(pictures)
        self.pool = [image for image in captions if image in stores and image not in asked]
        self.training_pictures = len(captions)
        if not self.pool:
            raise UserError(
                f"{stores} holds no training picture of {prepared.path}; give the training pictures' regions "
                "with a further --regions, or leave out re-ranking with --no-rerank."
            )
        everyone = [captions[image] for image in captions]
        tokenised = token_groups(track(everyone, "training captions", unit="image"))
        self.known = {caption for group in tokenised for caption in group}
        """All training captions as tokens: what is not among them is novel."""
        place = dict(zip(captions, tokenised, strict=True))
        self.training = [place[image] for image in self.pool]
        self.consensus = Consensus.of(self.training)
        self.neighbours = self._nearest(stores, pictures, work)  # (I, 60)

    def _nearest(self, stores: Stores, pictures: Sequence[int], work: Path) -> NDArray[np.int64]:
        key = hashlib.sha256(repr((list(pictures), self.pool, stores.recipe)).encode()).hexdigest()[:10]
        path = work / f"neighbours-{key}.npy"
        if path.is_file():
            kept: NDArray[np.int64] = np.load(path, allow_pickle=False)
            return kept
        queries = stores.means(pictures, "mean features")
        found = nearest(queries, stores.means(self.pool, "mean features of training pictures"), NEIGHBOURS)
        with whole_file(path) as partial, partial.open("wb") as file:
            np.save(file, found, allow_pickle=False)
        return found

    def scores(self, candidates: Sequence[Sequence[str]]) -> list[NDArray[np.float64]]:
        """The consensus score of each tokenised caption of each of the report's pictures."""
        return self.consensus.scores(candidates, self.neighbours, by="cider", threads=os.cpu_count() or 1)


def ranked(captions: Sequence[str], scores: NDArray[np.float64]) -> list[int]:
    """Places of a picture's different captions, the best first; of equal captions the first."""
    kept: dict[str, int] = {}
    for place in best_first(scores).tolist():
        kept.setdefault(captions[place], place)
    return list(kept.values())
