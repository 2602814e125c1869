"""A bank: training pictures as small vectors, with their captions, to agree with (consensus, m-RNN).

    picture ─▶ vector (projected, int8) ─▶ nearest pictures of the bank ─▶ their captions
    (of what people would write about it, where phrases were learnt, otherwise the mean of its map)
    candidate caption ─▶ CIDEr-D with each of those captions ─▶ mean of the highest = its consensus

A folder of arrays that are mapped, not read, so that a bank opens in milliseconds; NumPy alone. An open bank also has
caption_starts (C+1,) and picture_starts (N+1,), sums of two of them, and `grams` has the short ones, too: (G,).

    bank.json             format, words of the bank by number, sizes, what it was made of
    vectors.npy           (N, D)  int8    unit vectors times 127
    projection.npy        (F, D)  float16, centre.npy (F,) float32
    tokens.npy            (T,)    uint16  all captions, one after the other
    caption_lengths.npy   (C,)    uint8   tokens of each caption (uint16 where one is longer)
    picture_captions.npy  (N,)    uint8   captions of each picture (uint16 where one has more)
    short_grams.npy       (S,)    uint32  rising; the n-grams that more than one picture has, n = 1 and 2
    grams.npy             (G-S,)  uint64  the same, n = 3 and 4
    frequencies.npy       (G,)    uint16  how many pictures have each (uint32 in a large bank)
    phrase_*.npy          what people would write about a picture (coscap.contexts.phrases), where that was learnt
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.contexts.grams import ORDERS, CaptionVectors, WeightedGrams, pack
from coscap.contexts.phrases import ARRAYS as PHRASE_ARRAYS
from coscap.contexts.phrases import Phrases, Seen, learn_phrases, places
from coscap.errors import UserError
from coscap.files import read_json, whole_folder, write_json

FORMAT = "coscap bank 3"
ARRAYS = (
    "vectors", "projection", "centre", "tokens", "caption_lengths", "picture_captions", "short_grams", "grams",
    "frequencies",
)  # fmt: skip
SIGMA = 6.0  # CIDEr-D's penalty for length
NEIGHBOURS, BEST = 60, 125  # as published: pictures to ask, and similarities that count
_LONG = np.uint64(1 << 32)  # n-grams of three words and more are not below
NO_WORD = 0xFFFF  # a word that the bank does not have; it agrees with nothing


@dataclass(frozen=True, eq=False)
class Bank:
    """An open bank."""

    path: Path
    words: tuple[str, ...]
    arrays: dict[str, NDArray[Any]]
    phrases: Phrases | None = None

    @classmethod
    def open(cls, path: str | Path) -> "Bank":
        path = Path(path)
        content = read_json(path / "bank.json")
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(f"{path} is not a bank of this version; make one with `coscap bank`.")
        arrays = {name: _array(path, name) for name in ARRAYS}
        counted = ("caption_lengths", "picture_captions", "short_grams", "grams")
        if any(arrays[name].ndim != 1 or arrays[name].dtype.kind != "u" for name in counted):
            raise UserError(f"{path} is damaged (an array is of another kind); make the bank again.")
        arrays["grams"] = np.concatenate([arrays["short_grams"].astype(np.uint64), arrays["grams"]])
        arrays["caption_starts"] = _starts(arrays["caption_lengths"])
        arrays["picture_starts"] = _starts(arrays["picture_captions"])
        learnt = content.get("phrases")
        phrases = None
        if learnt is not None:
            found = {name: _array(path, name) for name in PHRASE_ARRAYS}
            try:
                phrases = Phrases(found, tuple(learnt["classes"]), int(learnt["words"]))
            except (KeyError, TypeError, ValueError):
                raise UserError(
                    f"{path / 'bank.json'}: its phrases are damaged; make the bank again."
                ) from None
        bank = cls(path, tuple(content["words"]), arrays, phrases)
        bank._check()
        return bank

    def __len__(self) -> int:
        return len(self.arrays["vectors"])

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, caption: Sequence[str]) -> NDArray[np.uint16]:
        """(T,) the caption's words by number"""
        return np.array([self.numbers.get(word, NO_WORD) for word in caption], np.uint16)

    def nearest(self, features: NDArray[np.floating], count: int = NEIGHBOURS) -> NDArray[np.int64]:
        """The pictures of the bank most like each of (Q, F), nearest first: (Q, count). F are the numbers of
        `ExpectedPhrases.place` where the bank has phrases."""
        vectors = self._project(features)  # (Q, D)
        likeness = vectors @ self._vectors.T  # (Q, N)
        count = min(count, len(self))
        found = np.argpartition(likeness, len(self) - count, axis=1)[:, len(self) - count :]
        order = np.lexsort((found, -np.take_along_axis(likeness, found, axis=1)), axis=1)
        return np.take_along_axis(found, order, axis=1)

    def captions_of(self, picture: int) -> list[list[str]]:
        """What people wrote about a picture of the bank, as words."""
        first, last = (int(at) for at in self.arrays["picture_starts"][picture : picture + 2])
        return [[self.words[token] for token in self._caption(number)] for number in range(first, last)]

    def neighbour_captions(self, pictures: NDArray[np.int64]) -> "NeighbourCaptions":
        """What people wrote about these pictures of the bank."""
        a = self.arrays
        ends = [(int(a["picture_starts"][at]), int(a["picture_starts"][at + 1])) for at in pictures.tolist()]
        starts = [a["caption_starts"][first : last + 1] for first, last in ends]
        parts = [np.asarray(a["tokens"][each[0] : each[-1]]) for each in starts]
        return NeighbourCaptions(
            self,
            tokens=np.concatenate([np.zeros(0, np.uint16), *parts]),
            lengths=np.concatenate([np.zeros(0, np.int64), *(np.diff(each) for each in starts)]),
            pictures=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        )

    @cached_property
    def _projection(self) -> NDArray[np.float32]:
        return self.arrays["projection"].astype(np.float32)

    @cached_property
    def _vectors(self) -> NDArray[np.float32]:
        return self.arrays["vectors"].astype(np.float32) / np.float32(127)

    def _project(self, features: NDArray[np.floating]) -> NDArray[np.float32]:
        width = len(self.arrays["centre"])
        if features.ndim != 2 or features.shape[1] != width:
            raise UserError(f"{self.path} compares features of width {width}, not {features.shape[-1]}.")
        return _units((features - self.arrays["centre"]) @ self._projection)

    def _caption(self, number: int) -> NDArray[np.uint16]:
        first, last = (int(at) for at in self.arrays["caption_starts"][number : number + 2])
        return self.arrays["tokens"][first:last]

    def rarity(self, grams: NDArray[np.uint64]) -> NDArray[np.float64]:
        """log N - log df of n-grams; df is 1 for those that the bank does not list"""
        known, frequencies = self.arrays["grams"], self.arrays["frequencies"]
        if not len(known):
            return np.full(len(grams), np.log(max(2, len(self))))
        places = np.searchsorted(known, grams).clip(max=len(known) - 1)
        df = np.where(known[places] == grams, frequencies[places], 1)
        weights: NDArray[np.float64] = np.log(float(max(2, len(self)))) - np.log(df, dtype=np.float64)
        return weights

    def _check(self) -> None:
        """The arrays fit each other, so that no index points outside of them."""
        a = self.arrays
        fits = (
            a["vectors"].ndim == 2
            and a["projection"].shape == (len(a["centre"]), a["vectors"].shape[1])
            and len(a["picture_starts"]) == len(a["vectors"]) + 1
            and int(a["picture_starts"][-1]) == len(a["caption_starts"]) - 1
            and int(a["caption_starts"][-1]) == len(a["tokens"])
            and int(a["tokens"].max(initial=0)) < len(self.words)
            and len(a["grams"]) == len(a["frequencies"])
            and (self.phrases is None or self.phrases.consistent())
        )
        if not fits:
            raise UserError(
                f"{self.path} is damaged (its arrays do not fit each other); make the bank again."
            )


@dataclass(frozen=True, eq=False)
class NeighbourCaptions:
    """The captions of some pictures of a bank, one after the other: T tokens, R captions."""

    bank: Bank = field(repr=False)
    tokens: NDArray[np.uint16]  # (T,)
    lengths: NDArray[np.int64]  # (R,) tokens of each caption
    pictures: NDArray[np.int64]  # (T,) the place of each token's picture among the pictures
    _shares: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=list, repr=False)

    def consensus(self, captions: CaptionVectors, best: int = BEST) -> NDArray[np.float64]:
        """How well each caption agrees with these: the mean of its `best` highest similarities to one of them. (K,)"""
        found = self.similarity(captions)  # (K, R)
        if not found.size:
            return np.zeros(len(captions))
        few = min(best, found.shape[1])
        highest = np.partition(found, found.shape[1] - few, axis=1)[:, -few:]
        means: NDArray[np.float64] = np.sort(highest, axis=1)[:, ::-1].mean(axis=1)
        return means

    def similarity(self, captions: CaptionVectors) -> NDArray[np.float64]:
        """CIDEr-D of each of K captions with each of these as its only reference: (K, R)"""
        total = np.zeros((len(captions), len(self.lengths)))
        for own, theirs in zip(captions.orders, self._orders, strict=True):
            if not len(own.grams) or not len(theirs.grams):
                continue
            places = np.searchsorted(theirs.grams, own.grams).clip(max=len(theirs.grams) - 1)
            shared = theirs.grams[places] == own.grams
            number = np.full(len(theirs.grams), -1)
            number[places[shared]] = np.arange(shared.sum())
            row = number[theirs.column]
            dense = np.zeros((int(shared.sum()), len(self.lengths)))  # (S, R) weights of the shared n-grams
            dense[row[row >= 0], theirs.caption[row >= 0]] = theirs.weight[row >= 0]
            entries = np.flatnonzero(shared[own.column])
            entries = entries[np.argsort(own.caption[entries], kind="stable")]
            if not len(entries):
                continue
            weights = dense[number[places[own.column[entries]]]]  # (E, R)
            products = np.minimum(own.weight[entries, None], weights) * weights
            which, first = np.unique(own.caption[entries], return_index=True)
            sizes = own.size[which, None] * theirs.size
            sums = np.add.reduceat(products, first, axis=0)
            total[which] += np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0)
        bigrams = np.maximum(0, captions.lengths - 1)[:, None] - np.maximum(0, self.lengths - 1)
        result: NDArray[np.float64] = 10 * total / ORDERS * np.exp(-np.square(bigrams) / (2 * SIGMA**2))
        return result

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """(W,) of each word of the bank, the share of the pictures whose captions have it"""
        return self.shares_of(np.arange(len(self.bank.words)))

    def shares_of(self, groups: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same for groups of words; groups: (W,) the group of each word of the bank, or -1. Counted once: more
        captions are drawn for a picture, and the same is asked for again."""
        for counted, shares in self._shares:
            if counted is groups:
                return shares
        self._shares.append((groups, self._count_shares(groups)))
        return self._shares[-1][1]

    def _count_shares(self, groups: NDArray[np.int64]) -> NDArray[np.float64]:
        count = int(groups.max(initial=-1)) + 1
        group = groups[self.tokens]
        pairs = np.unique((self.pictures * count + group)[group >= 0])
        pictures = int(self.pictures.max(initial=0)) + 1
        return np.bincount(pairs % max(1, count), minlength=count) / pictures

    @cached_property
    def _orders(self) -> "list[WeightedGrams]":
        return [WeightedGrams.of(self.bank, self.tokens, self.lengths, n) for n in range(1, ORDERS + 1)]


def write_bank(
    path: Path,
    features: NDArray[np.floating],
    captions: Sequence[Sequence[Sequence[str]]],
    *,
    dimensions: int = 128,
    notes: dict[str, Any] | None = None,
    seen: Seen | None = None,
    learn_from: tuple[Seen, Sequence[Sequence[Sequence[str]]]] | None = None,
) -> Bank:
    """Make a bank of N pictures: features (N, F) and the captions of each as words. learn_from: pictures to learn from
    which phrases belong to what is seen, and their captions; `seen` is then what is seen of the N."""
    if len(features) != len(captions) or not len(features):
        raise UserError(
            f"a bank needs pictures: {len(features)} features and {len(captions)} sets of captions."
        )
    counts: dict[str, int] = {}
    for caption in (caption for each in captions for caption in each):
        for word in caption:
            counts[word] = counts.get(word, 0) + 1
    words = sorted(counts, key=lambda word: (-counts[word], word))[: NO_WORD - 1]
    numbers = {word: number for number, word in enumerate(words)}
    rows = [
        [np.array([numbers[w] for w in caption if w in numbers], np.uint16) for caption in each]
        for each in captions
    ]
    flat = [caption for each in rows for caption in each]
    grams, frequencies = _frequencies(rows)
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([np.zeros(0, np.uint16), *flat]),
        "caption_lengths": _narrow([len(caption) for caption in flat]),
        "picture_captions": _narrow([len(each) for each in rows]),
        "short_grams": grams[grams < _LONG].astype(np.uint32),
        "grams": grams[grams >= _LONG],
        "frequencies": frequencies,
    }
    content = {"format": FORMAT, "words": words, "pictures": len(rows), "captions": len(flat)}
    if learn_from is not None and seen is not None:
        begun = Bank(path, tuple(words), {**arrays, "grams": grams, "vectors": features})
        phrases = learn_phrases(begun, *learn_from)
        if phrases is not None:
            content["phrases"] = {"classes": phrases.classes, "words": phrases.words}
            arrays |= phrases.arrays
            features = places(begun, phrases, seen, captions)
    centre = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    projection = _principal(features - centre, dimensions)
    vectors = _units((features - centre) @ projection.astype(np.float32))
    arrays |= {
        "vectors": np.rint(vectors * 127).astype(np.int8),
        "projection": projection,
        "centre": centre,
    }
    with whole_folder(path) as partial:
        write_json(partial / "bank.json", content | {"notes": notes or {}})
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
    return Bank.open(path)


def _array(path: Path, name: str) -> NDArray[Any]:
    """Mapped, but without what a memmap does at every slice."""
    try:
        return np.asarray(np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError):
        raise UserError(f"{path / name}.npy is missing or damaged; make the bank again.") from None


def _narrow(counts: Sequence[int]) -> NDArray[np.unsignedinteger[Any]]:
    """In as few bytes as the largest needs."""
    return np.array(counts, np.min_scalar_type(max(counts, default=0)))


def _starts(counts: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.int64]:
    """Where each of several parts of these sizes begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _frequencies(
    rows: Sequence[Sequence[NDArray[np.uint16]]],
) -> tuple[NDArray[np.uint64], NDArray[np.unsignedinteger[Any]]]:
    """The n-grams that more than one picture has, and how many have each."""
    each = []
    for captions in rows:
        parts = [pack(caption, n) for caption in captions for n in range(1, ORDERS + 1)]
        each.append(np.unique(np.concatenate([np.zeros(0, np.uint64), *parts])))
    grams, counts = np.unique(np.concatenate([np.zeros(0, np.uint64), *each]), return_counts=True)
    often = counts > 1
    counts = counts[often]
    return grams[often], counts.astype(np.promote_types(np.uint16, np.min_scalar_type(counts.max(initial=0))))


def _principal(rows: NDArray[np.floating], dimensions: int) -> NDArray[np.float16]:
    """The directions in which the rows vary most, each scaled to unit variance to the power of a half: strong
    directions still count more, but do not drown the others. (F, D)"""
    covariance = rows.T.astype(np.float64) @ rows.astype(np.float64) / len(rows)
    values, directions = np.linalg.eigh(covariance)
    kept = slice(None, -dimensions - 1, -1)
    scale = np.maximum(values[kept], 1e-9) ** -0.25
    result: NDArray[np.float16] = (directions[:, kept] * scale).astype(np.float16)
    return result


def _units(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    length = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    result: NDArray[np.float32] = (rows / np.maximum(length, 1e-9)).astype(np.float32)
    return result
