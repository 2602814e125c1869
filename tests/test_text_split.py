"""The context-object split: its rules by example, and that nothing is ever lost."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coscap.text import fill, load_classes, split

COCO = load_classes("coco")
RECORDED = Path(__file__).parent / "data" / "text_tokens.jsonl.gz"
WORDS = sorted(
    {word for each in COCO.classes for name in (*each.words, *each.plurals) for word in name.split(" ")}
    | {*COCO.rules.heads, "a", "and", "to", "the", "<s>", "<s+>", "<unk>", "25\u00a01/2"}
)


def test_units_context_and_objects_are_aligned() -> None:
    found = split(["a", "fire", "hydrant", "near", "two", "cars"])
    assert found.units == ("a", "fire hydrant", "near", "two", "cars")
    assert found.context == ("a", "<s>", "near", "two", "<s+>")
    assert found.objects == ("fire hydrant", "cars")
    assert [COCO.classes[index].name for index in found.classes] == ["fire hydrant", "car"]
    assert found.join() == ["a", "fire", "hydrant", "near", "two", "cars"]


@pytest.mark.parametrize(
    ("caption", "marked"),
    [
        # whole names, the longest first
        ("two teddy bears and a bear", "two [teddy bears:teddy bear] and a [bear:bear]"),
        ("a hot dog for the dog", "a [hot dog:hot dog] for the [dog:dog]"),
        ("a tennis racket and a stop sign", "a [tennis racket:tennis racket] and a [stop sign:stop sign]"),
        ("a glass of wine by a glass", "a [glass of wine:wine glass] by a glass"),
        # words that describe what follows
        ("a train at the train station", "a [train:train] at the train station"),
        ("a bus driver at a bus stop", "a [bus driver:person] at a bus stop"),
        ("a motorcycle rider", "a motorcycle [rider:person]"),
        ("a baby elephant and a baby", "a baby [elephant:elephant] and a [baby:person]"),
        ("a passenger train", "a passenger [train:train]"),
        ("a tabby cat on a dog bed", "a [tabby cat:cat] on a dog bed"),
        ("a clock tower with a clock", "a clock tower with a [clock:clock]"),
        ("a giraffe stands by a man", "a [giraffe:giraffe] stands by a [man:person]"),
        # verbs
        ("a man skis down a hill on skis", "a [man:person] skis down a hill on [skis:skis]"),
        ("he likes to ski", "he likes to ski"),
        ("she bikes next to bikes", "she bikes next to [bikes:bicycle]"),
        ("the boy skateboards on a skateboard", "the [boy:person] skateboards on a [skateboard:skateboard]"),
        ("he parks the car in the park", "he parks the [car:car] in the park"),
        # colours, sports, toys
        ("an orange wall with an orange on it", "an orange wall with an [orange:orange] on it"),
        ("an orange and white cat", "an orange and white [cat:cat]"),
        ("an orange and a banana", "an [orange:orange] and a [banana:banana]"),
        (
            "boys playing baseball with a baseball",
            "[boys:person] playing baseball with a [baseball:sports ball]",
        ),
        ("a toy train and a stuffed dog", "a toy train and a stuffed dog"),
        # lists without their commas
        ("a man woman and child", "a [man:person] [woman:person] and [child:person]"),
        ("a sink mirror and toilet", "a [sink:sink] mirror and [toilet:toilet]"),
        # not part of longer words
        ("a minibus and a scarf", "a [minibus:bus] and a scarf"),
    ],
)
def test_rules(caption: str, marked: str) -> None:
    found = split(caption.split())
    names = iter(zip(found.objects, found.classes, strict=True))
    words = []
    for word in found.context:
        if word in ("<s>", "<s+>"):
            text, index = next(names)
            word = f"[{text}:{COCO.classes[index].name}]"
        words.append(word)
    assert " ".join(words) == marked


@pytest.mark.parametrize(
    ("caption", "context"),
    [
        ("a sheep", "a <s>"),
        ("a white fluffy sheep", "a white fluffy <s>"),
        ("a herd of sheep", "a herd of <s+>"),
        ("two sheep", "two <s+>"),
        ("a bus and buses", "a <s> and <s+>"),
        ("a man with luggage", "a <s> with <s+>"),
        ("people with scissors", "<s+> with <s+>"),
    ],
)
def test_number(caption: str, context: str) -> None:
    assert " ".join(split(caption.split()).context) == context


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text()), max_size=25))
def test_nothing_is_lost(tokens: list[str]) -> None:
    found = split(tokens)
    assert found.join() == tokens
    assert len(found.units) == len(found.context)
    slots = [unit for unit, word in zip(found.units, found.context, strict=True) if word in ("<s>", "<s+>")]
    assert tuple(slots) == found.objects and len(found.classes) == len(slots)


def test_nothing_is_lost_of_real_captions() -> None:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        for row in file:
            tokens = json.loads(row)[1]
            assert split(tokens).join() == tokens


def test_a_literal_slot_is_no_slot() -> None:
    found = split(["<s>", "dog", "<s+>"])
    assert found.context == ("<unk>", "<s>", "<unk>") and found.objects == ("dog",)
    assert found.join() == ["<s>", "dog", "<s+>"]


def test_fill() -> None:
    context = ["a", "<s>", "with", "two", "<s+>", "and", "an", "<s>"]
    indices = [COCO.index(name) for name in ("elephant", "sheep", "fire hydrant")]
    assert fill(context, indices) == ["an", "elephant", "with", "two", "sheep", "and", "a", "fire hydrant"]
    with pytest.raises(ValueError, match="3 slots, and 2 classes"):
        fill(context, indices[:2])


@given(st.lists(st.integers(0, 79), max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_what_was_filled_is_found_again(indices: list[int], many: list[bool]) -> None:
    context = [
        word for number, _ in enumerate(indices) for word in ("near", "the", ("<s>", "<s+>")[many[number]])
    ]
    units = fill(context, indices)
    found = split([token for unit in units for token in unit.split(" ")])
    assert list(found.classes) == indices and list(found.units) == units
