"""The vocabulary: its numbers, its file, and files that are none."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coscap.errors import UserError
from coscap.text import Vocabulary, load_classes, split
from coscap.text.vocabulary import END, PAD, SLOT, SLOTS, SPECIAL, START, UNK

CAPTIONS = ["a dog near a fire hydrant", "a dog and dogs", "two dogs near a wombat"]
UNITS = [split(caption.split()).units for caption in CAPTIONS]


def test_the_special_units_have_fixed_numbers() -> None:
    assert (PAD, START, END, UNK, SLOT, SLOTS) == (0, 1, 2, 3, 4, 5)
    vocabulary = Vocabulary.build(UNITS, minimum=1)
    assert vocabulary.units[:6] == SPECIAL == ("<pad>", "<start>", "<end>", "<unk>", "<s>", "<s+>")
    assert vocabulary.encode(SPECIAL) == [0, 1, 2, 3, 4, 5]


def test_by_falling_frequency_then_by_letter() -> None:
    vocabulary = Vocabulary.build(UNITS, minimum=2)
    assert vocabulary.units[6:] == ("a", "dog", "dogs", "near")
    assert vocabulary.encode(["a", "wombat", "fire hydrant", "<s>"]) == [6, UNK, UNK, SLOT]
    assert Vocabulary.build(reversed(UNITS), minimum=2) == vocabulary


def test_object_names_are_always_known() -> None:
    classes = load_classes("coco")
    vocabulary = Vocabulary.build(UNITS, minimum=2, objects=classes)
    for each in classes.classes:
        assert each.singular in vocabulary and each.plural in vocabulary
    assert "fire hydrant" in vocabulary and "wombat" not in vocabulary


def test_a_literal_special_word_takes_no_second_place() -> None:
    vocabulary = Vocabulary.build([["<s>", "<unk>", "a"]] * 9)
    assert vocabulary.units == (*SPECIAL, "a")


def test_decode_stops_at_the_end() -> None:
    vocabulary = Vocabulary.build(UNITS, minimum=1)
    ids = vocabulary.encode(["a", "fire hydrant"])
    assert vocabulary.decode([START, *ids, PAD, END, *ids, PAD]) == "a fire hydrant"
    assert vocabulary.decode([]) == "" and vocabulary.decode([UNK]) == "<unk>"


units = st.lists(st.text(st.characters(exclude_characters=" "), min_size=1), unique=True, max_size=20)


@given(units)
def test_what_is_encoded_is_decoded(words: list[str]) -> None:
    words = [word for word in words if word not in SPECIAL]
    vocabulary = Vocabulary.build([words], minimum=1)
    assert vocabulary.decode(vocabulary.encode(words)) == " ".join(words)
    assert len(vocabulary) == len(SPECIAL) + len(words)


def test_the_file(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(UNITS, minimum=1, objects=load_classes("coco"))
    vocabulary.save(tmp_path / "vocabulary.json")
    again = Vocabulary.load(tmp_path / "vocabulary.json")
    assert again == vocabulary and again.digest == vocabulary.digest and len(again.digest) == 64
    assert Vocabulary.build(UNITS, minimum=2).digest != vocabulary.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"units": ["<pad>"', "not valid JSON"),
        ("[]", "must hold a list `units`"),
        ('{"units": [1, 2]}', "must hold a list `units`"),
        ('{"units": ["a", "b"]}', "begins with <pad>"),
        ('{"units": ["<pad>", "<start>", "<end>", "<unk>", "<s>", "<s+>", "a", "a"]}', "each unit once"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        Vocabulary.load(path)
    assert str(path) in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        Vocabulary.load(tmp_path / "none.json")
