"""What the ratings say: means of each method with their intervals, differences, and how far annotators agree."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coscap.serve.study.answers import Rating

Measure = Literal["accuracy", "diversity"]
MEASURES: tuple[Measure, Measure] = ("accuracy", "diversity")
RESAMPLES = 2000


@dataclass(frozen=True)
class Mean:
    """A mean over pictures, each of them averaged over its annotators."""

    mean: float
    low: float | None
    """The ends of the 95 % interval: a bootstrap over pictures. None for a single picture."""
    high: float | None
    pictures: int
    least: float
    """The lowest and the highest picture."""
    most: float


@dataclass(frozen=True)
class Difference:
    """How much higher pictures are rated with one method than with the other, on the pictures that both have."""

    one: str
    other: str
    accuracy: Mean
    diversity: Mean


@dataclass(frozen=True)
class Results:
    methods: Mapping[str, Mapping[Measure, Mean]]
    """Only methods that were rated."""
    differences: Sequence[Difference]
    agreement: Mapping[Measure, float | None]
    """Krippendorff's alpha: 1 is full agreement, 0 chance; None where no two annotators rated the same."""
    annotators: Mapping[str, Mapping[Measure, float]]
    """The mean of what each gave."""
    ratings: int


def results(ratings: Sequence[Rating], methods: Sequence[str]) -> Results:
    rated = {measure: by_picture(ratings, methods, measure) for measure in MEASURES}
    present = [method for method in methods if rated["accuracy"][method]]
    differences = []
    for one, other in combinations(present, 2):
        both = [p for p in rated["accuracy"][one] if p in rated["accuracy"][other]]
        if both:
            means = [mean_of([rated[m][one][p] - rated[m][other][p] for p in both]) for m in MEASURES]
            differences.append(Difference(one, other, *means))
    given: dict[str, list[Rating]] = defaultdict(list)
    for rating in ratings:
        given[rating.annotator].append(rating)
    return Results(
        methods={
            method: {measure: mean_of(list(rated[measure][method].values())) for measure in MEASURES}
            for method in present
        },
        differences=differences,
        agreement={measure: agreement(ratings, measure) for measure in MEASURES},
        annotators={
            name: {measure: float(np.mean([getattr(one, measure) for one in own])) for measure in MEASURES}
            for name, own in given.items()
        },
        ratings=len(ratings),
    )


def by_picture(
    ratings: Sequence[Rating], methods: Sequence[str], measure: Measure
) -> dict[str, dict[str, float]]:
    """Of each method, the ratings of each picture averaged over annotators."""
    values: dict[str, dict[str, list[int]]] = {method: defaultdict(list) for method in methods}
    for rating in ratings:
        if rating.method in values:
            values[rating.method][rating.picture].append(getattr(rating, measure))
    return {
        method: {picture: sum(given) / len(given) for picture, given in found.items()}
        for method, found in values.items()
    }


def mean_of(values: Sequence[float]) -> Mean:
    """The mean with a percentile bootstrap. The same values always give the same interval."""
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)  # (P,)
    low = high = None
    if len(array) > 1:
        chosen = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
        ends = np.percentile(array[chosen].mean(1), [2.5, 97.5])
        low, high = float(ends[0]), float(ends[1])
    return Mean(float(array.mean()), low, high, len(array), float(array.min()), float(array.max()))


def agreement(ratings: Sequence[Rating], measure: Measure) -> float | None:
    """Krippendorff's alpha for interval data over what several annotators rated (Krippendorff 2011).

    alpha = 1 - observed / expected disagreement, both as mean squared differences: within an item, and among all
    ratings of items that have more than one.
    """
    items: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rating in ratings:
        items[rating.picture, rating.method].append(getattr(rating, measure))
    shared = [np.array(values, dtype=np.float64) for values in items.values() if len(values) > 1]
    if not shared:
        return None
    everything = np.concatenate(shared)
    n = len(everything)
    # The sum of squared differences over ordered pairs of m values is 2 m^2 times their variance.
    observed = sum(2 * len(values) ** 2 * values.var() / (len(values) - 1) for values in shared) / n
    expected = 2 * n**2 * everything.var() / (n * (n - 1))
    return None if expected == 0 else float(1 - observed / expected)
