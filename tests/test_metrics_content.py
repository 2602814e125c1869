"""Contexts and objects of captions, counted by hand."""

import numpy as np
import pytest

from coscap.metrics import measure

REFERENCES = [["a dog on a couch", "two dogs near a chair"], ["a red sky", "a field of grass"]]
SAMPLES = [
    ["a dog on a couch", "a cat on a chair", "a dog with a dog", "the sky is blue"],
    ["a cow in a field", "a horse in a field", "a cow in a field", "a field"],
]
NAMES = ["contexts", "objects-each", "objects-all", "named", "found"]


def figures(n: int) -> dict[str, float]:
    return measure(NAMES, [captions[:n] for captions in SAMPLES], REFERENCES)


def test_contexts_and_objects_are_those_counted_by_hand() -> None:
    # of 2: "a <s> on a <s>" twice; "a <s> in a field" twice
    assert figures(2)["contexts"] == pytest.approx(100 * (1 / 2 + 1 / 2) / 2)
    # of 4: on, with, the sky; in a field, a field
    assert figures(4)["contexts"] == pytest.approx(100 * (3 / 4 + 2 / 4) / 2)
    assert figures(4)["objects-each"] == pytest.approx((2 + 2 + 1 + 0 + 1 + 1 + 1 + 0) / 8)
    assert figures(4)["objects-all"] == pytest.approx((4 + 2) / 2)
    # dog and couch, not cat but chair, dog; people name no object in the second picture
    assert figures(4)["named"] == pytest.approx(100 * 4 / 8)
    assert figures(2)["named"] == pytest.approx(100 * 3 / 6)
    assert figures(1)["found"] == pytest.approx(100 * 2 / 3)  # dog and couch, not chair
    assert figures(4)["found"] == pytest.approx(100.0)


def test_where_no_object_is_named_there_is_no_share() -> None:
    found = measure(NAMES, [["a field"]], [["a red sky"]])
    assert np.isnan(found["named"]) and np.isnan(found["found"])
    assert found["objects-all"] == 0
