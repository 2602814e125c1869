"""BLEU, ROUGE-L and CIDEr: what a caption shares with the references of its picture.

The definitions are those of the official COCO code. Every function takes one caption a picture and the
references of each picture, and returns the score of the whole set and the score of each caption.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coscap.metrics import kernels
from coscap.metrics.grams import (
    ORDERS,
    EncodedCaptions,
    Floats,
    Grams,
    Longs,
    document_frequency,
    flat,
    inverse_frequency,
)
from coscap.metrics.intervals import Statistics
from coscap.metrics.words import token_groups

_TINY, _SMALL = (
    1e-15,
    1e-9,
)  # the official code's guards against division by zero; they are part of the scores
_BETA = 1.2  # ROUGE-L's weight of recall against precision


@dataclass(frozen=True)
class Overlap:
    """All that BLEU, ROUGE-L and CIDEr need, for every caption of every picture, from one pass."""

    starts: Longs  # (I + 1,) captions of picture i are starts[i]:starts[i + 1]
    lengths: Longs  # (C,) words
    correct: Longs  # (C, 4) clipped matches of n-grams
    closest: Longs  # (C,) length of the closest reference, the shorter of two equally close ones
    cider_d: Floats  # (C,)
    cider_plain: Floats  # (C,)
    rouge_l: Floats  # (C,)

    def bleu(self) -> Floats:
        """BLEU-1..4 of each caption by itself, (C, 4)."""
        return bleu_of_counts(self.correct, self.lengths, guesses(self.lengths), self.closest)

    def corpus_bleu(self, rows: Longs, order: int) -> Statistics:
        """BLEU-n of a choice of captions, one of each picture: counts are summed first."""
        lengths = self.lengths[rows]
        table = [self.correct[rows], guesses(lengths), lengths, self.closest[rows]]
        terms = np.ascontiguousarray(np.column_stack(table).T, np.float64)  # (10, I)

        def finish(sums: Floats) -> Floats:
            sums = np.moveaxis(sums, 0, -1)
            found = bleu_of_counts(sums[..., :4], sums[..., 8], sums[..., 4:8], sums[..., 9])
            return np.asarray(found[..., order - 1])

        return Statistics(terms, finish)


def guesses(lengths: Longs) -> Longs:
    """How many n-grams captions of these lengths have, (C, 4)."""
    return np.asarray(np.maximum(0, lengths[:, None] - np.arange(ORDERS)), np.int64)


def bleu_of_counts(
    correct: Longs | Floats, lengths: Longs | Floats, guessed: Longs | Floats, closest: Longs | Floats
) -> Floats:
    """BLEU-1..4 from matches (..., 4), lengths (...), n-grams (..., 4) and reference lengths (...)."""
    precision = np.cumprod((correct + _TINY) / (guessed + _SMALL), axis=-1)
    scores = precision ** (1.0 / np.arange(1, ORDERS + 1))
    ratio = (lengths + _TINY) / (closest + _SMALL)
    penalty = np.where(ratio < 1, np.exp(np.minimum(0.0, 1 - 1 / ratio)), 1.0)
    return np.asarray(scores * np.asarray(penalty)[..., None], np.float64)


def compare(
    captions: EncodedCaptions,
    caption_starts: Longs,
    references: EncodedCaptions,
    reference_starts: Longs,
    idf: Floats,
) -> Overlap:
    """Compare the captions of each picture with its references."""
    correct, closest, cider_d, cider_plain = kernels.overlap(
        captions.grams,
        captions.offsets,
        caption_starts,
        references.grams,
        references.offsets,
        reference_starts,
        idf,
        False,
    )
    precision, recall = kernels.longest_common(
        captions.line_words,
        captions.line_offsets,
        caption_starts,
        references.line_words,
        references.line_offsets,
        reference_starts,
    )
    weighted = recall + _BETA**2 * precision
    rouge = np.divide(
        (1 + _BETA**2) * precision * recall, weighted, out=np.zeros_like(recall), where=weighted > 0
    )
    return Overlap(
        caption_starts,
        captions.lengths,
        correct.astype(np.int64),
        closest.astype(np.int64),
        cider_d,
        cider_plain,
        rouge,
    )


def overlap(captions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Overlap:
    """One pass over pictures with any number of tokenised captions and references each.

    CIDEr's document frequencies are those of `references`, one document a picture.
    """
    grams = Grams()
    flat_references, reference_starts = flat(references)
    encoded_references = grams.encode(flat_references)
    frequency = document_frequency(encoded_references, reference_starts, len(grams))
    flat_captions, caption_starts = flat(captions)
    encoded = grams.encode(flat_captions)
    idf = inverse_frequency(frequency, len(references), len(grams))
    return compare(encoded, caption_starts, encoded_references, reference_starts, idf)


def bleu(
    captions: Sequence[str], references: Sequence[Sequence[str]], *, tokenised: bool = False
) -> tuple[Floats, Floats]:
    """BLEU-1..4 of the whole set (4,) and of each caption (C, 4).

    >>> bleu(["a dog runs on grass"], [["a dog runs on the grass", "a dog in a field"]])[0].round(3).tolist()
    [0.819, 0.709, 0.598, 0.487]
    """
    parts = _one_each(captions, references, tokenised)
    rows = np.arange(len(captions))
    return np.array([parts.corpus_bleu(rows, order).value() for order in range(1, ORDERS + 1)]), parts.bleu()


def rouge_l(
    captions: Sequence[str], references: Sequence[Sequence[str]], *, tokenised: bool = False
) -> tuple[float, Floats]:
    """ROUGE-L: the mean, and each caption's."""
    each = _one_each(captions, references, tokenised).rouge_l
    return float(np.mean(each)), each


def cider(
    captions: Sequence[str], references: Sequence[Sequence[str]], *, tokenised: bool = False
) -> tuple[float, Floats]:
    """CIDEr-D, which the field calls CIDEr: the mean, and each caption's.

    Document frequencies come from the references given, so the score of a subset is not that of the whole.
    """
    each = _one_each(captions, references, tokenised).cider_d
    return float(np.mean(each)), each


def cider_plain(
    captions: Sequence[str], references: Sequence[Sequence[str]], *, tokenised: bool = False
) -> tuple[float, Floats]:
    """CIDEr without CIDEr-D's clipping and length penalty: 10 times the mean cosine of tf-idf vectors."""
    each = _one_each(captions, references, tokenised).cider_plain
    return float(np.mean(each)), each


def _one_each(captions: Sequence[str], references: Sequence[Sequence[str]], tokenised: bool) -> Overlap:
    if isinstance(captions, str):
        raise TypeError("expected a list of captions and, for each of them, a list of references")
    if len(captions) != len(references) or not captions:
        raise ValueError(
            f"{len(captions)} captions and {len(references)} lists of references; both must be equal, > 0"
        )
    empty = [number for number, group in enumerate(references) if not group]
    if empty:
        raise ValueError(f"{len(empty)} captions have no reference (first: number {empty[0]})")
    pictures = token_groups([[caption] for caption in captions], tokenised)
    return overlap(pictures, token_groups(references, tokenised))
