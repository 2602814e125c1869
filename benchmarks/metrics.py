"""CPU time of BLEU + ROUGE-L + CIDEr-D, of consensus scores and of intervals, against plain ways in the same run.

1,000 pictures x 100 captions x 5 references for the scores; 1,000 pictures x 20 candidates x the captions of 60
similar pictures for the consensus. The peer is slow, so it gets a part of the same work and its time is scaled up.
Compiling is not counted (it is kept on disk); turning words into numbers is. Both sides must give the same values.
Intervals: 1,000 resamples of 1,000 pictures x 20 captions, every n-gram metric, oracle, diversity and CHAIR, against
scoring each resample anew (one resample, scaled up); they must also stay under 5 CPU-seconds.
"""

import re
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

import numpy as np
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.rouge.rouge import Rouge

from coscap.metrics import Evaluation, evaluate
from coscap.metrics.consensus import Consensus, nearest
from coscap.metrics.overlap import Overlap, overlap
from coscap.metrics.references import coco_captions
from coscap.metrics.words import tokens

PICTURES, CAPTIONS, CANDIDATES, NEIGHBOURS = 1000, 100, 20, 60
PEER_COLUMNS = 2  # of the 100 captions of each picture
PEER_PICTURES = 1  # of the 1,000, for the consensus
BAR, CONSENSUS_BAR, INTERVALS_BAR = 100, 300, 100
RESAMPLES, MOST_SECONDS = 1000, 5.0
INTERVAL_METRICS = "bleu,rouge,cider,diversity,chair"
SAME = 1e-10

T = TypeVar("T")


def timed(work: Callable[[], T], repeats: int = 1) -> tuple[float, T]:
    """The least CPU time of a few runs, of all threads together, and the result."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


def recombine(references: list[str], count: int) -> list[str]:
    """Captions that are like a model's: the beginning of one reference and the end of another."""
    words = [reference.split() for reference in references]
    pairs = [(a, b, cut) for cut in range(2, 12) for a in words for b in words if a is not b]
    return [" ".join(a[:cut] + b[cut:]) for a, b, cut in islice(pairs, count)]


def scores(pictures: list[list[str]], references: list[list[str]]) -> float:
    overlap(pictures[:2], references[:2])  # compiles, or loads what was compiled
    ours, result = timed(lambda: overlap(pictures, references), 3)
    theirs = 0.0
    for column in range(PEER_COLUMNS):
        spent, values = timed(lambda column=column: peer(pictures, references, column))
        theirs += spent
        check(result, column, *values)
    theirs *= CAPTIONS / PEER_COLUMNS
    print(f"BLEU + ROUGE-L + CIDEr-D of {PICTURES * CAPTIONS:,} captions: {ours:.2f} CPU-s")
    print(
        f"pycocoevalcap: {theirs:.0f} CPU-s (from {PEER_COLUMNS} of {CAPTIONS} captions a picture); equal to {SAME}"
    )
    return theirs / ours


def peer(
    pictures: list[list[str]], references: list[list[str]], column: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    wanted = dict(enumerate(references))
    given = {number: [captions[column]] for number, captions in enumerate(pictures)}
    bleu = Bleu(4).compute_score(wanted, given, verbose=0)[1]
    return np.array(bleu).T, Rouge().compute_score(wanted, given)[1], Cider().compute_score(wanted, given)[1]


def check(result: Overlap, column: int, bleu: np.ndarray, rouge: np.ndarray, cider: np.ndarray) -> None:
    rows = result.starts[:-1] + column
    for ours, theirs in ((result.bleu(), bleu), (result.rouge_l, rouge), (result.cider_d, cider)):
        assert np.abs(ours[rows] - theirs).max() < SAME


def bags(pictures: list[list[str]], width: int = 256) -> np.ndarray:
    """A vector for each picture from the words of its captions, so that neighbours are about the same things."""
    place: dict[str, int] = {}
    vectors = np.zeros((len(pictures), width), np.float32)
    for row, captions in zip(vectors, pictures, strict=True):
        for word in {word for caption in captions for word in caption.split() if len(word) > 3}:
            row[place.setdefault(word, len(place)) % width] += 1
    return vectors


def consensus(candidates: list[list[str]], own: list[list[str]], training: list[list[str]]) -> float:
    vectors = bags(own + training)
    near = nearest(vectors[: len(own)], vectors[len(own) :], NEIGHBOURS)
    Consensus.of(training[:2]).scores(candidates[:1], [[0, 1]])
    ours, _ = timed(lambda: Consensus.of(training).scores(candidates, near))
    pairs = sum(
        len(group) * sum(len(training[number]) for number in row)
        for group, row in zip(candidates, near, strict=True)
    )

    part, rows = candidates[:PEER_PICTURES], near[:PEER_PICTURES]
    work = [
        (caption, reference)
        for group, row in zip(part, rows, strict=True)
        for caption in group
        for number in row
        for reference in training[number]
    ]
    ready = Consensus.of(training)
    frequencies = CiderScorer()
    frequencies.crefs = [[dict.fromkeys(grams(caption), 1) for caption in captions] for captions in training]
    frequencies.compute_doc_freq()

    def theirs_of() -> list[float]:
        scorer = CiderScorer()
        for caption, reference in work:
            scorer += (caption, [reference])
        scorer.document_frequency = frequencies.document_frequency
        return list(scorer.compute_cider())

    theirs, values = timed(theirs_of)
    # The peer takes log N from its number of pairs; ours is given the same N to compare the values.
    ready = Consensus(ready.grams, ready.captions, ready.picture_starts, ready.frequency, len(work))
    sums = np.concatenate(ready.scores(part, rows, best=10**9))
    ends = np.cumsum(
        [sum(len(training[n]) for n in row) for group, row in zip(part, rows, strict=True) for _ in group]
    )
    expected = np.add.reduceat(values, np.concatenate([[0], ends[:-1]]))
    assert np.abs(sums - expected).max() < 1e-8, np.abs(sums - expected).max()
    print(f"consensus of {pairs:,} pairs: {ours:.2f} CPU-s, {1e6 * ours / pairs:.2f} us a pair")
    print(
        f"pycocoevalcap: {1e3 * theirs / len(work):.3f} ms a pair (from {len(work):,} pairs); the same sums"
    )
    return theirs / len(work) / (ours / pairs)


def grams(caption: str) -> set[tuple[str, ...]]:
    words = caption.split()
    return {tuple(words[at : at + n]) for n in range(1, 5) for at in range(len(words) - n + 1)}


def intervals(pictures: list[list[str]], references: list[list[str]]) -> tuple[float, float]:
    """The ratio and our CPU-seconds, scores and resamples together."""
    samples, wanted = dict(enumerate(pictures)), dict(enumerate(references))

    def score(ids: list[int]) -> Evaluation:
        return evaluate(
            {n: samples[i] for n, i in enumerate(ids)},
            {n: wanted[i] for n, i in enumerate(ids)},
            metrics=INTERVAL_METRICS,
            tokenised=True,
        )

    everyone = list(samples)
    score(everyone[:2])
    ours, found = timed(lambda: score(everyone).intervals(RESAMPLES))
    drawn = np.random.default_rng(0).integers(len(everyone), size=len(everyone)).tolist()
    theirs, _ = timed(lambda: score(drawn))
    print(f"{len(found)} intervals of {RESAMPLES:,} resamples: {ours:.2f} CPU-s, bar {MOST_SECONDS:g}")
    print(f"scoring every resample anew: {theirs * RESAMPLES:.0f} CPU-s (from one)")
    return theirs * RESAMPLES / ours, ours


def main() -> int:
    raw = list(coco_captions("coco:val2014").values())
    some = [caption for captions in raw[:400] for caption in captions]
    tokens(some[:50])
    spent, _ = timed(lambda: tokens(some))
    print(f"tokenising (not in the ratios): {1e6 * spent / len(some):.0f} us a caption")

    plain = [
        [" ".join(re.findall("[a-z0-9']+", caption.lower())) for caption in group[:5]]
        for group in raw[:12000]
    ]
    references, training = plain[:PICTURES], plain[PICTURES:]
    pictures = [recombine(group, CAPTIONS) for group in references]
    consensus_ratio = consensus([group[:CANDIDATES] for group in pictures], references, training)
    print(f"consensus: ratio {consensus_ratio:.0f}, bar {CONSENSUS_BAR}")
    intervals_ratio, seconds = intervals([group[:CANDIDATES] for group in pictures], references)
    print(f"intervals: ratio {intervals_ratio:.0f}, bar {INTERVALS_BAR}")
    ratio = scores(pictures, references)
    print(f"metrics: ratio {ratio:.0f}, bar {BAR}")
    slow = intervals_ratio < INTERVALS_BAR or seconds > MOST_SECONDS
    return int(ratio < BAR or consensus_ratio < CONSENSUS_BAR or slow)


if __name__ == "__main__":
    sys.exit(main())
