"""How different the captions of one picture are from each other and from the training captions.

The public functions take a list of captions for each picture, and tokenise them unless `tokenised` says they are. Those
that end in `_statistics` take tokens and give each picture's terms, of which any set of pictures can be scored.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import numpy as np

from coscap.metrics import kernels
from coscap.metrics.grams import (
    EncodedCaptions,
    Floats,
    Grams,
    Longs,
    document_frequency,
    flat,
    inverse_frequency,
)
from coscap.metrics.intervals import Statistics, mean, ratio
from coscap.metrics.overlap import bleu_of_counts, guesses
from coscap.metrics.words import token_groups, tokens

Pictures = Sequence[Sequence[str]]

_BLOCK = 256  # pictures whose similarity matrices are in memory together


def unique(pictures: Pictures, *, tokenised: bool = False) -> float:
    """Percentage of distinct captions among a picture's captions, mean over pictures."""
    return unique_statistics(token_groups(pictures, tokenised)).value()


def unique_statistics(pictures: Pictures) -> Statistics:
    return mean(np.array([len(set(captions)) / len(captions) for captions in pictures]), scale=100.0)


def novel(pictures: Pictures, training: Iterable[str], *, tokenised: bool = False) -> int:
    """How many captions are not, word for word, among the training captions."""
    known = set(training if tokenised else tokens(training))
    return int(novel_counts(token_groups(pictures, tokenised), known).sum())


def novel_counts(pictures: Pictures, known: Collection[str]) -> Floats:
    """Novel captions of each picture, (I,)."""
    return np.array([sum(caption not in known for caption in captions) for captions in pictures], np.float64)


def vocabulary_size(pictures: Pictures, *, tokenised: bool = False) -> int:
    """Distinct words in all captions."""
    captions = set(chain(*token_groups(pictures, tokenised)))
    return len(set(chain(*(caption.split() for caption in captions))))


def mean_length(pictures: Pictures, *, tokenised: bool = False) -> float:
    """Words in a caption, mean over all captions."""
    return length_statistics(token_groups(pictures, tokenised)).value()


def length_statistics(pictures: Pictures) -> Statistics:
    words = [sum(len(caption.split()) for caption in captions) for captions in pictures]
    return ratio(np.array(words), np.array([len(captions) for captions in pictures]))


def div_n(pictures: Pictures, n: int, *, tokenised: bool = False) -> float:
    """Div-n: distinct n-grams of a picture's captions over their number of *words*, mean over pictures."""
    if not 1 <= n <= 4:
        raise ValueError(f"n is {n}; expected 1 to 4")
    captions, starts = flat(token_groups(pictures, tokenised))
    return div_statistics(Grams().encode(captions), starts, n).value()


def div_statistics(captions: EncodedCaptions, starts: Longs, n: int) -> Statistics:
    """captions of picture i: starts[i]:starts[i + 1]"""
    ratios = []
    for first, last in zip(captions.offsets[starts[:-1]], captions.offsets[starts[1:]], strict=True):
        grams = captions.grams[first:last, n - 1]
        ratios.append(len(np.unique(grams[grams >= 0])) / max(1, last - first))
    return mean(np.array(ratios))


def mbleu4(pictures: Pictures, *, tokenised: bool = False) -> tuple[float, float]:
    """mBLEU-4 by both definitions of the field; lower is more diverse.

    corpus:  BLEU-4 of the i-th caption of all pictures (counts summed) against the pictures' other captions,
             mean over i;
    picture: BLEU-4 of each caption by itself against the picture's others, mean in a picture, then over all.
    Pictures with one caption do not count.
    """
    captions, starts = flat(token_groups(pictures, tokenised))
    grams = Grams()
    corpus, picture = mbleu_statistics(grams.encode(captions), starts, len(grams))
    return corpus.value(), picture.value()


def mbleu_statistics(captions: EncodedCaptions, starts: Longs, size: int) -> tuple[Statistics, Statistics]:
    """Both definitions; `size` is the number of n-grams that have a number."""
    matches, nearest, _, _ = kernels.overlap(
        captions.grams,
        captions.offsets,
        starts,
        captions.grams,
        captions.offsets,
        starts,
        np.zeros(size),
        True,
    )
    correct, closest = matches.astype(np.int64), nearest.astype(np.int64)
    guessed = guesses(captions.lengths)
    each = bleu_of_counts(correct, captions.lengths, guessed, closest)[:, 3]
    counts = np.diff(starts)
    several = counts > 1
    picture = mean(np.add.reduceat(each, starts[:-1]) / counts, several)
    # Sample i of all pictures is one corpus: matches, n-grams, length and reference length of each picture's i-th, and
    # how many pictures have one.
    table = np.column_stack([correct, guessed, captions.lengths, closest, np.ones_like(closest)])  # (C, 11)
    most = int(counts.max())
    terms = np.zeros((most, 11, len(counts)))  # (S, 11, I)
    for sample in range(most):
        has = several & (counts > sample)
        terms[sample][:, has] = table[starts[:-1][has] + sample].T

    def finish(sums: Floats) -> Floats:
        sums = np.moveaxis(sums.reshape(most, 11, *sums.shape[1:]), 1, -1)  # (S, ..., 11)
        bleu = bleu_of_counts(sums[..., :4], sums[..., 8], sums[..., 4:8], sums[..., 9])[..., 3]
        there = sums[..., 10] > 0
        samples = there.sum(axis=0)
        return np.asarray(np.where(there, bleu, 0).sum(axis=0) / np.where(samples == 0, np.nan, samples))

    return Statistics(terms.reshape(most * 11, -1), finish), picture


def self_cider(pictures: Pictures, documents: Pictures, *, tokenised: bool = False) -> tuple[float, Floats]:
    """Self-CIDEr: how many directions the captions of a picture span, 0 (all say the same) to 1.

    K_ij is CIDEr-D of caption i with caption j as its one reference, made symmetric; with its singular values
    s, the score is -log(max sqrt(s) / sum sqrt(s)) / log(number of captions). `documents` give the document
    frequencies: the references evaluated or the training captions. Pictures with one caption do not count.
    """
    found = self_cider_statistics(token_groups(pictures, tokenised), token_groups(documents, tokenised))
    return found.value(), found.terms[0][found.terms[1] > 0]


def self_cider_statistics(pictures: Pictures, documents: Pictures) -> Statistics:
    grams = Grams()
    flat_documents, document_starts = flat(documents)
    frequency = document_frequency(grams.encode(flat_documents), document_starts, len(grams))
    several = np.array([len(captions) > 1 for captions in pictures])
    counted = [captions for captions in pictures if len(captions) > 1]
    scores: list[float] = []
    for first in range(0, len(counted), _BLOCK):
        captions, starts = flat(counted[first : first + _BLOCK])
        encoded = grams.encode(captions)
        idf = inverse_frequency(frequency, len(documents), len(grams))
        scores.extend(_spans(encoded, starts, idf))
    values = np.zeros(len(pictures))
    values[several] = scores
    return mean(values, several)


def _spans(encoded: EncodedCaptions, starts: Longs, idf: Floats) -> list[float]:
    counts = np.diff(starts)
    similarity = np.empty(int((counts**2).sum()))
    everyone = np.arange(len(encoded))
    kernels.pairs(
        encoded.grams,
        encoded.offsets,
        starts,
        encoded.grams,
        encoded.offsets,
        everyone,
        starts,
        idf,
        kernels.CIDER,
        0,
        similarity,
    )
    ends = np.cumsum(counts**2)
    return [
        _span(similarity[end - count**2 : end].reshape(count, count))
        for count, end in zip(counts, ends, strict=True)
    ]


def _span(similarity: Floats) -> float:
    """From the similarities of n captions, (n, n)."""
    symmetric = (similarity + similarity.T) / 2
    roots = np.sqrt(np.abs(np.linalg.eigvalsh(symmetric)))  # singular values of a symmetric matrix
    total = roots.sum()
    if total == 0:
        return 0.0
    return float(-np.log(roots.max() / total) / np.log(len(similarity)))
