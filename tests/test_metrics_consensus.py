"""Consensus: exact neighbours, the official CIDEr-D of single references, one result for any number of threads."""

from collections import Counter

import numpy as np
import pytest
from pycocoevalcap.cider.cider_scorer import CiderScorer

from coscap.metrics import consensus as module
from coscap.metrics.consensus import Consensus, best_first, nearest

TRAINING = [
    ["a dog runs on the grass", "a brown dog", "dog in a field"],
    ["two cats sleep on a bed", "cats on a bed"],
    ["a man rides a wave on a board", "a surfer on a wave", "a man surfing", "the man rides"],
    ["a dog and a cat on a bed", "a cat and a dog"],
]
CANDIDATES = [["a dog on the grass", "a man on a bed", "cats"], ["a surfer rides a wave", "a dog"]]
NEAR = [[0, 3], [2, 1, 0]]


def test_nearest_is_exact_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((17, 6)).astype(np.float32)
    pool = rng.standard_normal((101, 6)).astype(np.float32)
    expected = np.argsort(((queries[:, None] - pool[None]) ** 2).sum(axis=2), axis=1)
    for block in (7, 64, 1000):
        monkeypatch.setattr(module, "_BLOCK", block)
        assert np.array_equal(nearest(queries, pool, 9), expected[:, :9])
    assert nearest(queries, pool[:3], 9).shape == (17, 3)


def _official(caption: str, reference: str) -> float:
    scorer = CiderScorer()
    for captions in TRAINING:
        scorer += (captions[0], captions)
    scorer.compute_doc_freq()
    pair = CiderScorer(caption, [reference])
    scorer.crefs[0], scorer.ctest[0] = pair.crefs[0], pair.ctest[0]
    return float(scorer.compute_cider()[0])


@pytest.mark.parametrize("best", [1, 3, 100])
def test_cider_scores_are_sums_of_official_ones(best: int) -> None:
    found = Consensus.of(TRAINING).scores(CANDIDATES, NEAR, best=best)
    for captions, near, scores in zip(CANDIDATES, NEAR, found, strict=True):
        for caption, score in zip(captions, scores, strict=True):
            values = sorted(
                _official(caption, reference) for number in near for reference in TRAINING[number]
            )
            assert score == pytest.approx(sum(values[-best:]), abs=1e-10)


def test_bleu_scores_are_sums_of_mean_f_scores() -> None:
    def fscore(one: str, other: str) -> float:
        total = 0.0
        for n in range(1, 5):
            a, b = (
                Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))
                for words in (one.split(), other.split())
            )
            matches = (a & b).total()
            if matches:
                precision, recall = matches / a.total(), matches / b.total()
                total += 2 * precision * recall / (precision + recall)
        return total / 4

    found = Consensus.of(TRAINING).scores(CANDIDATES, NEAR, by="bleu", best=2)
    for captions, near, scores in zip(CANDIDATES, NEAR, found, strict=True):
        for caption, score in zip(captions, scores, strict=True):
            values = sorted(fscore(caption, reference) for number in near for reference in TRAINING[number])
            assert score == pytest.approx(sum(values[-2:]), abs=1e-12)


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(1)
    words = [f"w{number}" for number in range(30)]
    captions = [[" ".join(rng.choice(words, 8)) for _ in range(4)] for _ in range(60)]
    near = rng.integers(0, 60, (60, 5))
    ready = Consensus.of(captions)
    one = np.concatenate(ready.scores(captions, near, threads=1))
    for threads in (2, 3, 7, 100):
        assert np.array_equal(one, np.concatenate(ready.scores(captions, near, threads=threads)))


def test_documents_replace_the_training_captions_for_frequencies() -> None:
    other = [["a dog"], ["a dog"], ["zebras"]]
    assert Consensus.of(TRAINING, other).documents == 3
    changed = Consensus.of(TRAINING, other).scores(CANDIDATES, NEAR)
    assert not np.allclose(changed[0], Consensus.of(TRAINING).scores(CANDIDATES, NEAR)[0])
    same = Consensus.of(TRAINING, TRAINING).scores(CANDIDATES, NEAR)
    assert np.array_equal(same[0], Consensus.of(TRAINING).scores(CANDIDATES, NEAR)[0])


def test_best_first_keeps_the_order_of_equals() -> None:
    assert best_first(np.array([1.0, 3.0, 1.0, 3.0])).tolist() == [1, 3, 0, 2]
