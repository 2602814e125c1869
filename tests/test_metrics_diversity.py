"""Diversity: against the official BLEU and CIDEr where they define it, by hand where arithmetic does."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider_scorer import CiderScorer

from coscap.metrics import (
    METRICS,
    div_n,
    mbleu4,
    mean_length,
    measure,
    novel,
    self_cider,
    unique,
    vocabulary_size,
)

SET = [["a dog runs", "a dog runs", "a dog sits down"], ["cats", "cats sleep"]]


@pytest.fixture(scope="module")
def human() -> list[list[str]]:
    """Pictures with five human captions each, and some with fewer."""
    path = Path(__file__).parent / "data" / "metrics_demo.json.gz"
    images = json.loads(gzip.decompress(path.read_bytes()))["images"][:60]
    groups = [[tokens for _, tokens in image["references"]][:5] for image in images]
    groups[7] = groups[7][:3]
    return groups


def test_counting_metrics_by_hand() -> None:
    assert unique(SET) == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert vocabulary_size(SET) == 7
    assert mean_length(SET) == pytest.approx((3 + 3 + 4 + 1 + 2) / 5)
    # distinct words 5 of 10 words, 2 of 3; distinct pairs of words 4 of 10 words, 1 of 3.
    assert div_n(SET, 1) == pytest.approx((5 / 10 + 2 / 3) / 2)
    assert div_n(SET, 2) == pytest.approx((4 / 10 + 1 / 3) / 2)
    assert novel(SET, ["A dog runs.", "Cats!"]) == 2
    with pytest.raises(ValueError):
        div_n(SET, 5)


def test_mbleu_of_the_corpus_is_official_bleu_of_each_column(human: list[list[str]]) -> None:
    columns = []
    for column in range(5):
        chosen = {number: group for number, group in enumerate(human) if len(group) > column}
        given = {number: [group[column]] for number, group in chosen.items()}
        rest = {number: group[:column] + group[column + 1 :] for number, group in chosen.items()}
        columns.append(Bleu(4).compute_score(rest, given, verbose=0)[0][3])
    assert mbleu4(human, tokenised=True)[0] == pytest.approx(np.mean(columns), abs=1e-12)


def test_mbleu_of_pictures_is_official_bleu_of_each_caption(human: list[list[str]]) -> None:
    means = []
    for group in human:
        given = {number: [caption] for number, caption in enumerate(group)}
        rest = {number: group[:number] + group[number + 1 :] for number in given}
        means.append(np.mean(Bleu(4).compute_score(rest, given, verbose=0)[1][3]))
    assert mbleu4(human, tokenised=True)[1] == pytest.approx(np.mean(means), abs=1e-12)


def test_mbleu_needs_two_captions() -> None:
    assert all(np.isnan(mbleu4([["a dog"], ["a cat"]])))
    assert mbleu4([["a dog"], ["a cat sat on a mat"] * 2])[1] == pytest.approx(1)


def test_self_cider_from_official_cider(human: list[list[str]]) -> None:
    documents = human[:12]
    scores = [_self_cider(group, documents) for group in human[6:9]]
    mean, each = self_cider(human[6:9], documents, tokenised=True)
    assert each == pytest.approx(scores, abs=1e-10)
    assert mean == pytest.approx(np.mean(scores))


def _self_cider(group: list[str], documents: list[list[str]]) -> float:
    scorer = CiderScorer()
    for captions in documents:
        scorer += (captions[0], captions)
    scorer.compute_doc_freq()
    table = np.zeros((len(group), len(group)))
    for row, caption in enumerate(group):
        for column, reference in enumerate(group):
            pair = CiderScorer(caption, [reference])
            # The first document gives way to the pair, since log N is taken from the number of pictures.
            scorer.crefs[0], scorer.ctest[0] = pair.crefs[0], pair.ctest[0]
            table[row, column] = scorer.compute_cider()[0]
    values = np.sqrt(np.linalg.svd((table + table.T) / 2, compute_uv=False))
    return float(-np.log(values.max() / values.sum()) / np.log(len(group)))


def test_self_cider_of_equal_and_of_unlike_captions() -> None:
    documents = [["a dog runs on grass"], ["two cats sleep at noon"], ["red cars drive by"]]
    assert self_cider([["a dog runs on grass"] * 4], documents)[0] == pytest.approx(0, abs=1e-6)
    unlike = [["a dog runs on grass", "two cats sleep at noon", "red cars drive by"]]
    assert self_cider(unlike, documents)[0] == pytest.approx(1)
    assert np.isnan(self_cider([["one caption"]], documents)[0])


def test_all_of_them_by_name(human: list[list[str]]) -> None:
    names = [metric.name for metric in METRICS if metric.group == "diversity"]
    named = measure(names, human, human, human[:30], tokenised=True)
    assert named["novel"] == len({c for g in human[30:] for c in g} - {c for g in human[:30] for c in g})
    assert 0 < named["mBLEU-4-corpus"] < 1
    assert set(named) == {
        "unique", "mBLEU-4-corpus", "mBLEU-4-picture", "Div-1", "Div-2", "self-CIDEr-references", "self-CIDEr-train",
        "novel", "novel-percent", "vocabulary", "length",
    }  # fmt: skip
