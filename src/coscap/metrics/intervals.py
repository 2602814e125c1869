"""Intervals by a bootstrap over pictures: what the scores would be on other pictures of the same kind.

A metric of a set of pictures is a function of sums over them: the mean needs the sum of scores and their number, BLEU
the sums of matches, n-grams and lengths. So each picture's terms are computed once, and a resample (as many pictures,
drawn with replacement) is one matrix product. CIDEr's document frequencies stay those of the whole set.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coscap.metrics.grams import Floats

LEVEL = 0.95
RESAMPLES = 1000

_COUNTS_AT_ONCE = 1 << 23  # 64 MB


@dataclass(frozen=True)
class Statistics:
    """The terms of a metric for each picture, and the metric as a function of their sums."""

    terms: Floats  # (K, I)
    finish: Callable[[Floats], Floats]  # (K, ...) -> (...)

    def value(self, chosen: NDArray[np.bool_] | None = None) -> float:
        """The metric of all pictures, or of the chosen ones (I,)."""
        terms = self.terms if chosen is None else np.ascontiguousarray(self.terms[:, chosen])
        return float(self.finish(terms.sum(axis=1)))


def mean(values: ArrayLike, weights: ArrayLike | None = None, scale: float = 1.0) -> Statistics:
    """The mean over pictures of one value each; pictures of weight 0 do not count."""
    each = np.asarray(values, np.float64)
    weight = np.ones(len(each)) if weights is None else np.asarray(weights, np.float64)
    return ratio(np.where(weight > 0, each, 0.0) * weight, weight, scale)


def ratio(numerator: ArrayLike, denominator: ArrayLike, scale: float = 1.0) -> Statistics:
    """One sum over pictures divided by another, NaN where that is 0."""
    terms = np.stack([np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)])  # (2, I)

    def finish(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(scale * sums[0] / np.where(sums[1] == 0, np.nan, sums[1]))

    return Statistics(terms, finish)


class Bootstrap:
    """The same resamples for every metric and every system, so that differences are paired."""

    def __init__(self, pictures: int, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.pictures, self.resamples, self.seed = pictures, resamples, seed

    def values(self, figures: Mapping[str, Statistics]) -> dict[str, Floats]:
        """Every figure on every resample, (B,) each."""
        if not figures:
            return {}
        stacked = np.concatenate([each.terms for each in figures.values()])  # (sum of K, I)
        sums = np.concatenate([stacked @ counts for counts in self._counts()], axis=1)  # (sum of K, B)
        ends = np.cumsum([len(each.terms) for each in figures.values()])
        parts = np.split(sums, ends[:-1])
        return {name: each.finish(part) for (name, each), part in zip(figures.items(), parts, strict=True)}

    def _counts(self) -> Iterator[Floats]:
        """How often each picture is in each resample, (I, some of B)."""
        random = np.random.default_rng(self.seed)
        at_once = max(1, _COUNTS_AT_ONCE // self.pictures)
        for first in range(0, self.resamples, at_once):
            count = min(at_once, self.resamples - first)
            drawn = random.integers(self.pictures, size=(count, self.pictures))
            drawn += self.pictures * np.arange(count)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=count * self.pictures)
            yield np.ascontiguousarray(counts.reshape(count, self.pictures).T, np.float64)


def interval(values: Floats, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the resamples (percentile interval); NaN where some resample has no value."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class ScoreDifference:
    """How much higher one system is than another."""

    difference: float
    low: float
    high: float
    share: float  # of the resamples in which the first is the higher one; equal ones count half

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired_difference(
    one: float, other: float, resampled: Floats, other_resampled: Floats
) -> ScoreDifference:
    """From the values of two systems and those on the same resamples, (B,) each."""
    differences = resampled - other_resampled
    share = float(np.mean(differences > 0) + np.mean(differences == 0) / 2)
    return ScoreDifference(one - other, *interval(differences), share)


def unpaired_difference(
    one: float, other: float, ends: tuple[float, float], other_ends: tuple[float, float]
) -> ScoreDifference:
    """From the values of two systems and their intervals alone, as if the pictures were not the same: normal errors,
    independent of each other. Wider than a paired one, since what is hard for one system is for the other."""
    difference = one - other
    half = float(np.hypot(ends[1] - ends[0], other_ends[1] - other_ends[0])) / 2
    normal = NormalDist()
    deviation = half / normal.inv_cdf((1 + LEVEL) / 2)
    share = normal.cdf(difference / deviation) if deviation else 0.5 + float(np.sign(difference)) / 2
    return ScoreDifference(difference, difference - half, difference + half, share)
