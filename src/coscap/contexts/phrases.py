"""What people would write about a picture: how much each phrase of one to three words weighs in captions of it,
foretold from what the eyes see.

    mean of the map, scores of classes, probable words ─▶ K numbers ─▶ weight of each of P phrases
    candidate caption ─▶ product of its own tf-idf vector with these weights: how far it is what was to be expected
    picture ─▶ K numbers ─▶ pictures of the bank about which people wrote, or would write, alike: its neighbours

Learnt in closed form from training pictures: a ridge regression of the mean of the CIDEr vectors of a picture's
captions, of reduced rank. A bank holds it beside its captions (coscap.contexts.bank):

    phrase_grams.npy    (P,)    uint64   rising; phrases that enough pictures have
    phrase_means.npy    (P,)    float32  their usual weights
    phrase_vectors.npy  (P, K)  int8     how the K numbers change them, times phrase_scales.npy (P,) float32
    phrase_map.npy      (F + C + W, K)  float16  vector, classes and words to the K numbers, less phrase_shift.npy (K,)
    phrase_sizes.npy    (K,)    float32  how much a unit of each number changes all phrases together
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.contexts.grams import CaptionVectors, Words, pack
from coscap.errors import UserError
from coscap.progress import track
from coscap.vision.words import FLOOR

ARRAYS = (
    "phrase_grams", "phrase_means", "phrase_vectors", "phrase_scales", "phrase_map", "phrase_shift", "phrase_sizes",
)  # fmt: skip
ORDERS = 3  # words of the longest phrase
LEAST = (5e-4, 1e-3, 1.5e-3)  # the share of pictures that has a phrase of one, two, three words
FEWEST = 5  # pictures that have it, in a small data set
WORDS = 16  # probable words of a picture that count, as the recipe of the built-in regions has them
RANK = 256
RIDGE, RIDGE_LEAST = 0.006, 100.0  # a picture, and at least
LOUD = 1.5  # scores and probabilities count so much more than the vector, each in units of its spread
PART = 512  # pictures at once


@dataclass(frozen=True, eq=False)
class Seen:
    """What is seen of N pictures."""

    vectors: NDArray[np.float32]  # (N, F)
    scores: NDArray[np.float32]  # (N, C) the best of each class
    words: NDArray[np.float32]  # (N, W) probabilities of the most probable words, 0 for the others
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def numbers(self) -> NDArray[np.float32]:
        """All of it, (N, F + C + W)"""
        return np.concatenate([self.vectors, self.scores, self.words], axis=1).astype(np.float32)

    def of(self, rows: NDArray[np.int64]) -> "Seen":
        """Of some of the pictures."""
        return Seen(self.vectors[rows], self.scores[rows], self.words[rows], self.classes)


@dataclass(frozen=True, eq=False)
class Phrases:
    """A map that was learnt."""

    arrays: Mapping[str, NDArray[Any]]
    classes: tuple[str, ...]
    words: int  # W, of the eyes

    def expected(
        self,
        vector: NDArray[np.float32],
        detected: Mapping[str, Sequence[float]],
        probabilities: NDArray[np.float32],
    ) -> "ExpectedPhrases":
        """vector: (F,), detected: the scores of each class, probabilities: (W,) of the words of the eyes"""
        scores = np.array([max(detected.get(name, ()), default=0.0) for name in self.classes], np.float32)
        seen = [vector.astype(np.float32), scores, probable(probabilities)[: self.words]]
        x = np.concatenate(seen)
        matrix, shift = self.arrays["phrase_map"], self.arrays["phrase_shift"]
        self.check(len(x))
        some = np.flatnonzero(x)
        return ExpectedPhrases(self, x[some] @ matrix[some].astype(np.float32) - shift)

    def check(self, numbers: int) -> None:
        """Refuse pictures of which other eyes see another number of things."""
        learnt = len(self.arrays["phrase_map"])
        if numbers != learnt:
            raise UserError(
                f"the phrases of the bank were learnt from {learnt} numbers a picture, and these eyes give "
                f"{numbers}; make the bank again (`coscap bank`)."
            )

    def consistent(self) -> bool:
        """Whether the arrays fit each other."""
        a = self.arrays
        count, width = a["phrase_grams"].size, a["phrase_map"].shape[-1]
        return (
            count > 0
            and a["phrase_grams"].shape == (count,)
            and a["phrase_map"].ndim == 2
            and a["phrase_vectors"].shape == (count, width)
            and a["phrase_shift"].shape == a["phrase_sizes"].shape == (width,)
            and a["phrase_means"].shape == a["phrase_scales"].shape == (count,)
        )


@dataclass(frozen=True, eq=False)
class ExpectedPhrases:
    """The phrases of one picture."""

    phrases: Phrases = field(repr=False)
    numbers: NDArray[np.float32]  # (K,)

    @property
    def place(self) -> NDArray[np.float32]:
        """(K,) pictures about which people would write alike are near each other: `places`"""
        place: NDArray[np.float32] = self.numbers * np.sqrt(self.phrases.arrays["phrase_sizes"])
        return place

    def agreement(self, captions: CaptionVectors) -> NDArray[np.float64]:
        """How far each caption is what was to be expected, on the scale of CIDEr: (captions,)"""
        a = self.phrases.arrays
        total = np.zeros(len(captions))
        for own in captions.orders[:ORDERS]:
            places, known = _find(a["phrase_grams"], own.grams)
            rows = places[known]
            changed = a["phrase_vectors"][rows].astype(np.float32) @ self.numbers
            weight = np.zeros(len(own.grams))
            weight[known] = a["phrase_means"][rows] + a["phrase_scales"][rows] * changed
            sums = np.bincount(own.caption, own.weight * weight[own.column], minlength=len(captions))
            total += np.divide(sums, own.size, out=np.zeros(len(captions)), where=own.size > 0)
        result: NDArray[np.float64] = 10 * total / ORDERS
        return result


def learn_phrases(bank: Words, seen: Seen, captions: Sequence[Sequence[Sequence[str]]]) -> Phrases | None:
    """From what is seen of N pictures and what people wrote about each; None where no phrase occurs often enough."""
    grams = _often(bank, captions)
    if not len(grams):
        return None
    x = seen.numbers  # (N, F + C + W)
    mean, scale = x.mean(axis=0), _scales(x, seen.vectors.shape[1])
    x = (x - mean) * scale
    means, product = np.zeros(len(grams)), np.zeros((x.shape[1], len(grams)))
    for first in track(range(0, len(x), PART), "phrases"):
        here = slice(first, first + PART)
        y = np.stack([_weights(bank, each, grams) for each in captions[here]])  # (B, P)
        means += y.sum(axis=0) / len(x)
        product += x[here].T @ y
    # x has mean 0, so y need not be centred. W = (X'X + ridge)^-1 X'Y = L^-T T, of which the K directions that
    # change what is foretold most are kept.
    ridge = RIDGE * len(x) + RIDGE_LEAST
    lower = np.linalg.cholesky((x.T @ x).astype(np.float64) + ridge * np.eye(x.shape[1]))
    solved = np.linalg.solve(lower, product)  # T, (F', P)
    rank = min(RANK, len(grams), x.shape[1])
    directions = np.linalg.eigh(solved @ solved.T).eigenvectors
    kept = directions[:, ::-1][:, :rank]  # (F', K)
    matrix = (np.linalg.solve(lower.T, kept) * scale[:, None]).astype(np.float32)  # (F', K)
    spread = 1 / np.maximum(np.abs(matrix).max(axis=0), 1e-12)  # so that half precision has room
    matrix = (matrix * spread).astype(np.float16)
    vectors = (kept.T @ solved).T / spread  # (P, K)
    scales = np.maximum(np.abs(vectors).max(axis=1), 1e-12) / 127
    arrays = {
        "phrase_grams": grams,
        "phrase_means": means.astype(np.float32),
        "phrase_vectors": np.rint(vectors / scales[:, None]).astype(np.int8),
        "phrase_scales": scales.astype(np.float32),
        "phrase_map": matrix,
        "phrase_shift": (mean @ matrix.astype(np.float32)).astype(np.float32),
        "phrase_sizes": np.sqrt(np.square(vectors).sum(axis=0)).astype(np.float32),
    }
    return Phrases(arrays, seen.classes, seen.words.shape[1])


def places(
    bank: Words, phrases: Phrases, seen: Seen, captions: Sequence[Sequence[Sequence[str]]] | None = None
) -> NDArray[np.float32]:
    """Where pictures stand, (N, K): by what would be written about them and, where they have captions, by what was.

    The K directions of the phrases are at right angles, so what was written has K numbers, too: its product with each
    direction over the square of its length.
    """
    a = phrases.arrays
    phrases.check(seen.vectors.shape[1] + seen.scores.shape[1] + seen.words.shape[1])
    foretold = seen.numbers @ a["phrase_map"].astype(np.float32) - a["phrase_shift"]
    if captions is not None:
        directions = a["phrase_vectors"] * a["phrase_scales"][:, None]  # (P, K)
        squares = np.maximum(np.square(a["phrase_sizes"]), 1e-12)
        for row, each in enumerate(track(captions, "what was written", unit="image")):
            weights = _weights(bank, each, a["phrase_grams"]) - a["phrase_means"]
            foretold[row] += weights @ directions / squares
    found: NDArray[np.float32] = (foretold * np.sqrt(a["phrase_sizes"])).astype(np.float32)
    return found


def probable(probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of the WORDS most probable words alone, 0 for the others: what a store of regions has. (W,)"""
    if len(probabilities) <= WORDS:
        return np.where(probabilities >= FLOOR, probabilities, 0).astype(np.float32)
    least = max(float(np.partition(probabilities, -WORDS)[-WORDS]), FLOOR)
    return np.where(probabilities >= least, probabilities, 0).astype(np.float32)


def _scales(x: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """One over the spread of the vector, and of scores and words: (F + C + W,)"""
    first, rest = max(float(x[:, :width].std()), 1e-9), max(float(x[:, width:].std()), 1e-9)
    return np.repeat([1 / first, LOUD / rest], [width, x.shape[1] - width]).astype(np.float32)


def _often(bank: Words, captions: Sequence[Sequence[Sequence[str]]]) -> NDArray[np.uint64]:
    """The phrases that enough pictures have, rising."""
    each: tuple[list[NDArray[np.uint64]], ...] = ([], [], [])
    for some in captions:
        rows = [bank.encode(caption) for caption in some]
        for n, of_order in enumerate(each, 1):
            parts = [pack(row, n) for row in rows]
            of_order.append(np.unique(np.concatenate([np.zeros(0, np.uint64), *parts])))
    found = []
    for share, of_order in zip(LEAST, each, strict=True):
        grams, counts = np.unique(np.concatenate(of_order), return_counts=True)
        found.append(grams[counts >= max(FEWEST, share * len(captions))])
    return np.sort(np.concatenate(found))


def _weights(
    bank: Words, captions: Sequence[Sequence[str]], grams: NDArray[np.uint64]
) -> NDArray[np.float32]:
    """The mean of the unit tf-idf vectors of a picture's captions: (P,)"""
    result = np.zeros(len(grams))
    for own in CaptionVectors.of(bank, captions, ORDERS).orders:
        places, known = _find(grams, own.grams)
        size = own.size[own.caption]
        share = np.divide(own.weight, size, out=np.zeros_like(size), where=size > 0) / len(captions)
        entries = known[own.column]
        np.add.at(result, places[own.column[entries]], share[entries])
    return result.astype(np.float32)


def _find(
    known: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The place of each n-gram among the known ones, and whether it is one of them."""
    places = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return places, known[places] == wanted
