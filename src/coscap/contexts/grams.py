"""N-grams of captions as numbers, and CIDEr's tf-idf vectors of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

ORDERS = 4  # words of the longest n-gram


class Words(Protocol):
    """What is needed of a bank: its words by number, and how rare n-grams are."""

    def encode(self, caption: Sequence[str]) -> NDArray[np.uint16]: ...
    def rarity(self, grams: NDArray[np.uint64]) -> NDArray[np.float64]:
        """log N - log df of each"""
        ...


@dataclass(frozen=True, eq=False)
class WeightedGrams:
    """CIDEr's tf-idf vectors of captions for one n: E entries that are not 0."""

    grams: NDArray[np.uint64]  # (G,) rising
    column: NDArray[np.int64]  # (E,) which n-gram
    caption: NDArray[np.int64]  # (E,) whose
    weight: NDArray[np.float64]  # (E,)
    size: NDArray[np.float64]  # (R,) the length of each caption's vector

    @classmethod
    def of(
        cls, words: Words, tokens: NDArray[np.uint16], lengths: NDArray[np.int64], n: int
    ) -> "WeightedGrams":
        owner = np.repeat(np.arange(len(lengths)), lengths)  # (T,)
        grams = pack(tokens, n)
        whole = owner[: len(grams)] == owner[n - 1 : n - 1 + len(grams)]  # not across the end of a caption
        grams, owner = grams[whole], owner[: len(grams)][whole]
        order = np.argsort(grams, kind="stable")  # by n-gram, then by caption
        grams, owner = grams[order], owner[order]
        new = np.ones(len(grams), np.bool_)
        new[1:] = grams[1:] != grams[:-1]
        unique = grams[new]
        entry = new.copy()
        entry[1:] |= owner[1:] != owner[:-1]
        starts = np.flatnonzero(entry)
        counts = np.diff(starts, append=len(grams))
        column, caption = np.cumsum(new)[starts] - 1, owner[starts]
        weight = counts * words.rarity(unique)[column]
        size = np.sqrt(np.bincount(caption, np.square(weight), minlength=len(lengths)))
        return cls(unique, column, caption, weight, size)


@dataclass(frozen=True, eq=False)
class CaptionVectors:
    """The vectors of K captions, for each n by itself."""

    lengths: NDArray[np.int64]  # (K,) tokens
    orders: tuple[WeightedGrams, ...]  # n = 1, 2 ...

    @classmethod
    def of(cls, words: Words, captions: Sequence[Sequence[str]], orders: int = ORDERS) -> "CaptionVectors":
        rows = [words.encode(caption) for caption in captions]
        tokens = np.concatenate([np.zeros(0, np.uint16), *rows])
        lengths = np.array([len(row) for row in rows], np.int64)
        return cls(lengths, tuple(WeightedGrams.of(words, tokens, lengths, n) for n in range(1, orders + 1)))

    def __len__(self) -> int:
        return len(self.lengths)


def pack(caption: NDArray[np.uint16], n: int) -> NDArray[np.uint64]:
    """The n-grams of tokens as numbers, 16 bits a word with 1 added, so that orders do not mix: (T - n + 1,)"""
    words = caption.astype(np.uint64) + 1
    grams = np.zeros(max(0, len(words) - n + 1), np.uint64)
    for offset in range(n):
        grams = (grams << np.uint64(16)) | words[offset : offset + len(grams)]
    return grams
