"""How different the captions of one picture are from each other and from the training captions.

All functions take a list of captions for each picture, and tokenise them unless `tokenised` says they are.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from coscap.metrics import kernels
from coscap.metrics.grams import (
    Encoded,
    Floats,
    Grams,
    Longs,
    document_frequency,
    flat,
    inverse_frequency,
)
from coscap.metrics.overlap import bleu_of_counts, guesses
from coscap.metrics.words import token_groups, tokens

Pictures = Sequence[Sequence[str]]

_BLOCK = 256  # pictures whose similarity matrices are in memory together


def unique(pictures: Pictures, *, tokenised: bool = False) -> float:
    """Percentage of distinct captions among a picture's captions, mean over pictures."""
    shares = [len(set(captions)) / len(captions) for captions in token_groups(pictures, tokenised)]
    return 100.0 * float(np.mean(shares))


def novel(pictures: Pictures, training: Iterable[str], *, tokenised: bool = False) -> int:
    """How many captions are not, word for word, among the training captions."""
    known = set(training if tokenised else tokens(training))
    return sum(caption not in known for caption in chain(*token_groups(pictures, tokenised)))


def vocabulary_size(pictures: Pictures, *, tokenised: bool = False) -> int:
    """Distinct words in all captions."""
    captions = set(chain(*token_groups(pictures, tokenised)))
    return len(set(chain(*(caption.split() for caption in captions))))


def mean_length(pictures: Pictures, *, tokenised: bool = False) -> float:
    """Words in a caption, mean over all captions."""
    lengths = [len(caption.split()) for caption in chain(*token_groups(pictures, tokenised))]
    return float(np.mean(lengths))


def div_n(pictures: Pictures, n: int, *, tokenised: bool = False) -> float:
    """Div-n: distinct n-grams of a picture's captions over their number of *words*, mean over pictures."""
    if not 1 <= n <= 4:
        raise ValueError(f"n is {n}; expected 1 to 4")
    captions, starts = flat(token_groups(pictures, tokenised))
    encoded = Grams().encode(captions)
    ratios = []
    for first, last in zip(encoded.offsets[starts[:-1]], encoded.offsets[starts[1:]], strict=True):
        grams = encoded.grams[first:last, n - 1]
        ratios.append(len(np.unique(grams[grams >= 0])) / max(1, last - first))
    return float(np.mean(ratios))


def mbleu4(pictures: Pictures, *, tokenised: bool = False) -> tuple[float, float]:
    """mBLEU-4 by both definitions of the field; lower is more diverse.

    corpus:  BLEU-4 of the i-th caption of all pictures (counts summed) against the pictures' other captions,
             mean over i;
    picture: BLEU-4 of each caption by itself against the picture's others, mean in a picture, then over all.
    Pictures with one caption do not count.
    """
    pictures = [captions for captions in token_groups(pictures, tokenised) if len(captions) > 1]
    if not pictures:
        return float("nan"), float("nan")
    captions, starts = flat(pictures)
    grams = Grams()
    encoded = grams.encode(captions)
    matches, lengths, _, _ = kernels.overlap(
        encoded.grams,
        encoded.offsets,
        starts,
        encoded.grams,
        encoded.offsets,
        starts,
        np.zeros(len(grams)),
        True,
    )
    correct, closest = matches.astype(np.int64), lengths.astype(np.int64)
    guessed = guesses(encoded.lengths)
    each = bleu_of_counts(correct, encoded.lengths, guessed, closest)[:, 3]
    counts = np.diff(starts)
    picture = float((np.add.reduceat(each, starts[:-1]) / counts).mean())
    corpus = []
    for sample in range(counts.max()):
        rows = starts[:-1][counts > sample] + sample
        parts = (
            correct[rows].sum(axis=0),
            encoded.lengths[rows].sum(),
            guessed[rows].sum(axis=0),
            closest[rows].sum(),
        )
        corpus.append(bleu_of_counts(*parts)[3])
    return float(np.mean(corpus)), picture


def self_cider(pictures: Pictures, documents: Pictures, *, tokenised: bool = False) -> tuple[float, Floats]:
    """Self-CIDEr: how many directions the captions of a picture span, 0 (all say the same) to 1.

    K_ij is CIDEr-D of caption i with caption j as its one reference, made symmetric; with its singular values
    s, the score is -log(max sqrt(s) / sum sqrt(s)) / log(number of captions). `documents` give the document
    frequencies: the references evaluated or the training captions. Pictures with one caption do not count.
    """
    grams = Grams()
    flat_documents, document_starts = flat(token_groups(documents, tokenised))
    encoded_documents = grams.encode(flat_documents)
    frequency = document_frequency(encoded_documents, document_starts, len(grams))
    pictures = [captions for captions in token_groups(pictures, tokenised) if len(captions) > 1]
    scores = []
    for first in range(0, len(pictures), _BLOCK):
        captions, starts = flat(pictures[first : first + _BLOCK])
        encoded = grams.encode(captions)
        idf = inverse_frequency(frequency, len(documents), len(grams))
        scores.extend(_spans(encoded, starts, idf))
    return (float(np.mean(scores)) if scores else float("nan")), np.array(scores)


def _spans(encoded: Encoded, starts: Longs, idf: Floats) -> list[float]:
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
