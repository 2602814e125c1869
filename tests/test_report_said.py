"""Contexts and objects of samples, counted by hand."""

import pytest

from coscap.report.said import Said
from coscap.text.objects import load_classes

REFERENCES = [["a dog on a couch", "two dogs near a chair"], ["a red sky", "a field of grass"]]
SAMPLES = [
    ["a dog on a couch", "a cat on a chair", "a dog with a dog", "the sky is blue"],
    ["a cow in a field", "a horse in a field", "a cow in a field", "a field"],
]


def test_contexts_and_objects_are_those_counted_by_hand():
    figures = Said(REFERENCES, load_classes("coco")).figures(SAMPLES, (1, 2, 4))
    # of 2: "a <s> on a <s>" twice; "a <s> in a field" twice
    assert figures["said/2/contexts"] == pytest.approx(100 * (1 / 2 + 1 / 2) / 2)
    # of 4: on, with, the sky; in a field, a field
    assert figures["said/4/contexts"] == pytest.approx(100 * (3 / 4 + 2 / 4) / 2)
    assert figures["said/4/objects-each"] == pytest.approx((2 + 2 + 1 + 0 + 1 + 1 + 1 + 0) / 8)
    assert figures["said/4/objects"] == pytest.approx((4 + 2) / 2)
    # dog and couch, not cat but chair, dog; people name no object in the second picture
    assert figures["said/4/named"] == pytest.approx(100 * 4 / 8)
    assert figures["said/2/named"] == pytest.approx(100 * 3 / 6)
    assert figures["said/1/found"] == pytest.approx(100 * 2 / 3)  # dog and couch, not chair
    assert figures["said/4/found"] == pytest.approx(100.0)


def test_where_no_object_is_named_there_is_no_share():
    figures = Said([["a red sky"]], load_classes("coco")).figures([["a field"]], (1,))
    assert not {"said/1/named", "said/1/found"} & figures.keys()
    assert figures["said/1/objects"] == 0
