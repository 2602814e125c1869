"""Captions as numbers: every word and every n-gram (n = 1..4) gets one integer.

An n-gram is known by its first n-1 words (which are an n-gram themselves and so have a number) and its last
word. That pair fits into 64 bits whatever the number of words, so one table serves all n without a limit.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coscap.metrics.compiled import compiled

ORDERS = 4  # n-grams of 1 to 4 words, as in BLEU and CIDEr
NONE = -1  # in `grams`: the caption ends before the n-gram would

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EncodedCaptions:
    """Captions as numbers of words and of n-grams; caption c owns offsets[c]:offsets[c + 1]."""

    offsets: Longs  # (C + 1,)
    grams: Ints  # (T, 4) the n-grams that start at each word, NONE beyond the caption's end
    line_offsets: Longs  # (C + 1,) the same captions as ROUGE-L sees them, split at single spaces only
    line_words: Ints  # (T',)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Longs:
        return np.diff(self.offsets)


class _Numbers(dict[str, int]):
    """A dictionary that gives the next number to a word that it has not seen."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class Grams:
    """The numbers given so far. Captions that are compared with each other need the same `Grams`."""

    def __init__(self) -> None:
        self._words = _Numbers()
        self._keys = np.zeros(1 << 16, np.uint64)  # open addressing, 0 = free
        self._values = np.zeros(1 << 16, np.int32)
        self._size = 0

    def __len__(self) -> int:
        """How many n-grams have a number: numbers are 0 .. len - 1, over all n together."""
        return self._size

    def encode(self, captions: Sequence[str]) -> EncodedCaptions:
        """Numbers of tokenised captions (words with single spaces between them)."""
        text = "".join(captions)
        words, offsets = self._number(captions, None)
        # BLEU and CIDEr split at any white space, ROUGE-L at spaces: U+00A0 in "25 1/2" makes a difference.
        plain = text.isprintable() and "  " not in text
        line_words, line_offsets = (words, offsets) if plain else self._number(captions, " ")
        return EncodedCaptions(offsets, self._intern(words, offsets), line_offsets, line_words)

    def _number(self, captions: Sequence[str], separator: str | None) -> tuple[Ints, Longs]:
        numbers = array("i")
        ends = array("q", [0])
        number = self._words.__getitem__
        for caption in captions:
            # "".split(" ") is one empty word; for us an empty caption has none, and ROUGE-L knows of it.
            numbers.extend(map(number, caption.split(separator) if caption else ()))
            ends.append(len(numbers))
        return np.array(numbers, np.int32), np.array(ends, np.int64)

    def _intern(self, words: Ints, offsets: Longs) -> Ints:
        grams = np.full((len(words), ORDERS), NONE, np.int32)
        caption = 0
        while True:
            caption, self._size = _intern(
                words, offsets, caption, self._keys, self._values, self._size, grams
            )
            if caption == len(offsets) - 1:
                return grams
            self._grow(int(offsets[caption + 1] - offsets[caption]) * ORDERS)

    def _grow(self, more: int) -> None:
        capacity = 4 * len(self._keys)
        while capacity // 2 < self._size + more:
            capacity *= 2
        keys, values = np.zeros(capacity, np.uint64), np.zeros(capacity, np.int32)
        _rehash(self._keys, self._values, keys, values)
        self._keys, self._values = keys, values


def starts(counts: Sequence[int] | Longs) -> Longs:
    """Where each group begins, and at last where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def document_frequency(encoded: EncodedCaptions, image_starts: Longs, size: int) -> Ints:
    """For each n-gram, in the captions of how many images it occurs (CIDEr's df)."""
    return _document_frequency(encoded.grams, encoded.offsets, image_starts, size)


def inverse_frequency(frequency: Ints, images: int, size: int) -> Floats:
    """log N - log max(1, df) for all `size` n-grams; those numbered later than `frequency` have df = 0."""
    weights = np.full(size, np.log(float(images)))
    weights[: len(frequency)] -= np.log(np.maximum(1.0, frequency))
    return weights


def flat(groups: Sequence[Sequence[str]]) -> tuple[list[str], Longs]:
    """Captions of all groups in one list, and where each group starts."""
    return list(_chain(groups)), starts([len(group) for group in groups])


def _chain(groups: Sequence[Sequence[str]]) -> Iterator[str]:
    for group in groups:
        yield from group


@compiled
def _slot(keys: NDArray[np.uint64], key: np.uint64) -> int:
    """The place of `key` in the table, or the free place where it belongs."""
    mask = np.uint64(keys.size - 1)
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    slot = (mixed ^ (mixed >> np.uint64(29))) & mask
    while keys[slot] != np.uint64(0) and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)  # type: ignore[return-value]


@compiled
def _intern(
    words: Ints,
    offsets: Longs,
    caption: int,
    keys: NDArray[np.uint64],
    values: Ints,
    size: int,
    grams: Ints,
) -> tuple[int, int]:
    """Number the n-grams from `caption` on; stop before the caption that might fill the table beyond half."""
    captions = offsets.size - 1
    while caption < captions:
        begin, end = offsets[caption], offsets[caption + 1]
        if size + ORDERS * (end - begin) > keys.size // 2:
            break
        for position in range(begin, end):
            prefix = np.uint64(0)
            for order in range(min(ORDERS, end - position)):
                word = np.uint64(words[position + order]) + np.uint64(1)
                key = (prefix << np.uint64(32)) | word
                slot = _slot(keys, key)
                if keys[slot] == np.uint64(0):
                    keys[slot] = key
                    values[slot] = size
                    size += 1
                grams[position, order] = values[slot]
                prefix = np.uint64(values[slot]) + np.uint64(1)
        caption += 1
    return caption, size


@compiled
def _rehash(old_keys: NDArray[np.uint64], old_values: Ints, keys: NDArray[np.uint64], values: Ints) -> None:
    for old in range(old_keys.size):
        if old_keys[old] != np.uint64(0):
            slot = _slot(keys, old_keys[old])
            keys[slot] = old_keys[old]
            values[slot] = old_values[old]


@compiled
def _document_frequency(grams: Ints, offsets: Longs, image_starts: Longs, size: int) -> Ints:
    frequency = np.zeros(size, np.int32)
    last = np.full(size, -1, np.int32)  # the last image that had the n-gram
    for image in range(image_starts.size - 1):
        for position in range(offsets[image_starts[image]], offsets[image_starts[image + 1]]):
            for order in range(ORDERS):
                gram = grams[position, order]
                if gram < 0:
                    break
                if last[gram] != image:
                    last[gram] = image
                    frequency[gram] += 1
    return frequency
