"""Consensus re-ranking (m-RNN): the caption that agrees most with the captions of similar training pictures.

picture -> nearest training pictures -> all their captions -> a candidate's score is the sum of its highest
similarities to single captions among them.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coscap.metrics import kernels
from coscap.metrics.grams import (
    EncodedCaptions,
    Floats,
    Grams,
    Longs,
    document_frequency,
    flat,
    inverse_frequency,
    starts,
)

By = Literal["cider", "bleu"]

NEIGHBOURS = 60  # training pictures, as published
BEST = {"cider": 125, "bleu": 175}  # how many of the highest similarities are summed, as published

_BLOCK = 8192  # training pictures in one matrix product


def nearest(queries: NDArray[np.float32], pool: NDArray[np.float32], count: int = NEIGHBOURS) -> Longs:
    """The `count` nearest rows of `pool` (Euclidean) for each query, nearest first; exact.

    (Q, F), (P, F) -> (Q, count), by blocked matrix products: |q - p|^2 = |q|^2 - 2 q.p + |p|^2.
    """
    queries, pool = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(pool, np.float32)
    count = min(count, len(pool))
    distances = np.empty((len(queries), 0), np.float32)
    places = np.empty((len(queries), 0), np.int64)
    for first in range(0, len(pool), _BLOCK):
        block = pool[first : first + _BLOCK]
        # |q|^2 is the same for all of a row, so the order does not need it.
        found = np.einsum("pf,pf->p", block, block) - 2.0 * (queries @ block.T)  # (Q, block)
        best = _lowest(found, count)
        distances = np.concatenate([distances, np.take_along_axis(found, best, axis=1)], axis=1)
        places = np.concatenate([places, best + first], axis=1)
        keep = _lowest(distances, count)
        distances = np.take_along_axis(distances, keep, axis=1)
        places = np.take_along_axis(places, keep, axis=1)
    order = np.lexsort((places, distances), axis=1)
    return np.take_along_axis(places, order, axis=1)


def _lowest(values: NDArray[np.float32], count: int) -> Longs:
    """Places of each row's lowest values, in any order."""
    if values.shape[1] <= count:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argpartition(values, count - 1, axis=1)[:, :count]


@dataclass(frozen=True)
class Consensus:
    """Training captions made ready: those of each training picture, and CIDEr-D's document frequencies."""

    grams: Grams
    captions: EncodedCaptions
    picture_starts: Longs  # (P + 1,)
    frequency: NDArray[np.int32]  # (n-grams,)
    documents: int

    @classmethod
    def of(
        cls, training: Sequence[Sequence[str]], documents: Sequence[Sequence[str]] | None = None
    ) -> "Consensus":
        """From tokenised training captions. `documents` replace them for the document frequencies."""
        grams = Grams()
        captions, picture_starts = flat(training)
        encoded = grams.encode(captions)
        if documents is None:
            frequency = document_frequency(encoded, picture_starts, len(grams))
            return cls(grams, encoded, picture_starts, frequency, len(training))
        flat_documents, document_starts = flat(documents)
        frequency = document_frequency(grams.encode(flat_documents), document_starts, len(grams))
        return cls(grams, encoded, picture_starts, frequency, len(documents))

    def scores(
        self,
        candidates: Sequence[Sequence[str]],
        neighbours: Longs | Sequence[Sequence[int]],
        *,
        by: By = "cider",
        best: int | None = None,
        threads: int = 1,
    ) -> list[Floats]:
        """The consensus score of each candidate of each picture.

        `neighbours` holds, for each picture, numbers of training pictures; `best` is how many of the highest
        similarities are summed. The scores do not depend on the number of threads.
        """
        captions, caption_starts = flat(candidates)
        encoded = self.grams.encode(captions)
        idf = inverse_frequency(self.frequency, self.documents, len(self.grams))
        groups = [
            np.concatenate([np.arange(self.picture_starts[p], self.picture_starts[p + 1]) for p in row])
            for row in neighbours
        ]
        kind = kernels.CIDER if by == "cider" else kernels.FSCORE
        out = np.empty(len(captions))

        def score(images: NDArray[np.int64]) -> None:
            first, last = images[0], images[-1] + 1
            rows = slice(caption_starts[first], caption_starts[last])
            kernels.pairs(
                encoded.grams,
                encoded.offsets[rows.start : rows.stop + 1],
                caption_starts[first : last + 1] - rows.start,
                self.captions.grams,
                self.captions.offsets,
                np.concatenate(groups[first:last]),
                starts([len(group) for group in groups[first:last]]),
                idf,
                kind,
                best or BEST[by],
                out[rows],
            )

        parts = [part for part in np.array_split(np.arange(len(candidates)), max(1, threads)) if len(part)]
        with ThreadPoolExecutor(max(1, threads)) as pool:
            list(pool.map(score, parts))
        return np.split(out, caption_starts[1:-1])


def best_first(scores: Floats) -> Longs:
    """Places of the candidates by falling score; equal scores keep their order."""
    return np.argsort(-np.asarray(scores, np.float64), kind="stable")
