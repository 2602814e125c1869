"""Faults that the words of a caption show by themselves."""

import pytest

from coscap.text import load_classes
from coscap.text.faults import faults, mend_articles, mended


@pytest.mark.parametrize(
    ("caption", "wrong"),
    [
        ("a cat is sitting in front of a cat", "cat is named twice"),
        ("a plate with a cup of coffee and a cup of coffee", "cup is named twice"),
        ("a kitten next to a cat", "cat is named twice"),
        ("an umbrella walking down a street", "umbrella cannot be walking"),
        ("a surfboard riding a wave", "surfboard cannot be riding"),
        ("a surfboard is surfing on a wave", "surfboard cannot be surfing"),
        ("two buses and a bus", "bus is named twice"),
        ("a plate with food on a plate", "plate is named twice"),
        ("a white plate topped with a plate of food", "plate is named twice"),
        ("a cat is looking at a camera camera", "camera comes twice in a row"),
    ],
)
def test_faults(caption: str, wrong: str) -> None:
    assert wrong in faults(caption.split(), load_classes("coco"))


@pytest.mark.parametrize(
    "caption",
    [
        "a man riding a wave on top of a surfboard",
        "a bus driving down a street next to a park",
        "a man and a woman sitting on a bench",
        "a dog is looking at a bird on the green grass",
        "a woman holding an umbrella in the rain",
        "a dog standing next to another dog",
        "a white bath tub sitting next to a white toilet",
        "people sitting on a couch watching tv in a room",
        "birds are eating from a bird feeder",
    ],
)
def test_no_fault(caption: str) -> None:
    assert faults(caption.split(), load_classes("coco")) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a umbrella and an dog", "an umbrella and a dog"),
        ("a hour in an unicorn suit", "an hour in a unicorn suit"),
        ("an european in a uninteresting place", "a european in an uninteresting place"),
        ("a one way street", "a one way street"),
        ("an <unk> thing", "an <unk> thing"),
        ("a", "a"),
    ],
)
def test_articles(before: str, after: str) -> None:
    assert mend_articles(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a umbrella with a collar on it 's head", "an umbrella with a collar on its head"),
        ("a dog that has it 's mouth open", "a dog that has its mouth open"),
        ("a dog that does n't move", "a dog that doesn't move"),
        ("it 's a cat", "it's a cat"),
        ("the 'stop sign", "the 'stop sign"),
    ],
)
def test_a_caption_is_mended_before_it_is_shown(before: str, after: str) -> None:
    assert mended(before) == after
