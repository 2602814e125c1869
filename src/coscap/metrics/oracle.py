"""Oracle, average and worst scores over the first n samples of each picture, for every n at once."""

from dataclasses import dataclass

import numpy as np

from coscap.metrics.grams import Floats, Longs
from coscap.metrics.intervals import Statistics, mean


@dataclass(frozen=True)
class Curves:
    """Mean over pictures of the best, mean and worst score among the first n samples, at n - 1."""

    best: Floats  # (S,) the oracle
    average: Floats  # (S,)
    worst: Floats  # (S,)


def curves(scores: Floats, starts: Longs) -> Curves:
    """From one score a caption; the captions of picture i are scores[starts[i]:starts[i + 1]], in order.

    A picture with fewer than n samples enters with all that it has.
    """
    counts = np.diff(starts)
    if not len(counts) or counts.min() < 1:
        raise ValueError("each picture needs at least one caption")
    table = padded(scores, starts)  # (I, S)
    steps = np.minimum(np.arange(1, table.shape[1] + 1), counts[:, None])
    average = np.cumsum(np.nan_to_num(table), axis=1) / steps
    return Curves(
        np.fmax.accumulate(table, axis=1).mean(axis=0),
        average.mean(axis=0),
        np.fmin.accumulate(table, axis=1).mean(axis=0),
    )


def best_average_worst(
    scores: Floats, starts: Longs, n: int | None = None, higher: bool = True
) -> dict[str, Statistics]:
    """The same at one n (default: all captions), as terms of each picture: "oracle", "average", "worst"."""
    table = padded(scores, starts)[:, :n]  # (I, n)
    counts = np.minimum(np.diff(starts), table.shape[1])
    most, least = np.nanmax(table, axis=1), np.nanmin(table, axis=1)
    return {
        "oracle": mean(most if higher else least),
        "average": mean(np.cumsum(np.nan_to_num(table), axis=1)[:, -1] / counts),
        "worst": mean(least if higher else most),
    }


def padded(scores: Floats, starts: Longs) -> Floats:
    """Scores as (pictures, most samples), NaN where a picture has fewer."""
    counts = np.diff(starts)
    table = np.full((len(counts), counts.max()), np.nan)
    table[np.arange(table.shape[1]) < counts[:, None]] = scores
    return table
