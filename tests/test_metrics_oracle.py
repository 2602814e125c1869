"""Oracle curves and novel objects, against their definitions written out."""

import numpy as np
import pytest

from coscap.metrics import curves, object_f1
from coscap.metrics.grams import starts


def test_curves_are_those_of_each_n_alone() -> None:
    rng = np.random.default_rng(3)
    groups = [rng.random(size) for size in (4, 1, 7, 3)]
    found = curves(np.concatenate(groups), starts([len(group) for group in groups]))
    for n in range(1, 8):
        parts = [group[:n] for group in groups]
        assert found.best[n - 1] == pytest.approx(np.mean([part.max() for part in parts]))
        assert found.average[n - 1] == pytest.approx(np.mean([part.mean() for part in parts]))
        assert found.worst[n - 1] == pytest.approx(np.mean([part.min() for part in parts]))
    assert len(found.best) == 7


def test_curves_of_a_picture_without_captions() -> None:
    with pytest.raises(ValueError):
        curves(np.array([1.0]), starts([1, 0]))


def test_object_f1_counts_whole_words_plurals_and_synonyms() -> None:
    references = [
        ["a sofa in a room"],
        ["two buses"],
        ["a dog", "a bus and a car"],
        ["a minibus"],
        ["a couch"],
    ]
    pictures = [
        ["a room", "a couch there"],  # couch: found at n = 2
        ["Buses!", "a bus"],  # bus: found at n = 1
        ["a dog", "a car"],  # bus: never found
        ["a minibus", "a minibus here"],  # not a bus
        ["the bus", "a couch"],  # bus: wrongly found; couch: found at n = 2
    ]
    scores = object_f1(pictures, references)
    bus = scores.f1[scores.objects.index("bus")]
    couch = scores.f1[scores.objects.index("couch")]
    assert bus.tolist() == pytest.approx([50.0, 50.0])  # 1 hit, 2 found, 2 labelled
    assert couch.tolist() == pytest.approx([0.0, 100.0])
    assert scores.average.tolist() == pytest.approx([25.0, 75.0])
    assert scores.missing == ("bottle", "microwave", "pizza", "racket", "suitcase", "zebra")


def test_object_f1_of_own_objects_with_several_words() -> None:
    references = [["a fire hydrant"], ["a fire and a hydrant"]]
    scores = object_f1([["red fire hydrant"], ["fire hydrants"]], references, {"hydrant": ["fire hydrant"]})
    assert scores.f1.tolist() == [[100.0]]
