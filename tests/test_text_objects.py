"""Class lists: the built-in one, the user's own, plurals, and what is wrong with a file."""

import sys
from pathlib import Path

import pytest

from coscap.errors import UserError
from coscap.text import load_classes, split
from coscap.text.plurals import plural

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from check_split import READ, score

COCO = load_classes("coco")


def test_coco_is_in_its_order() -> None:
    names = [each.name for each in COCO.classes]
    assert len(names) == len(set(names)) == 80
    assert names[:5] == ["person", "bicycle", "car", "motorcycle", "airplane"]
    assert names[10] == "fire hydrant" and names[-1] == "toothbrush" and COCO.index("bus") == 5


def test_slots_can_be_filled() -> None:
    forms = {each.name: (each.singular, each.plural) for each in COCO.classes}
    assert forms["person"] == ("person", "people")
    assert forms["bus"] == ("bus", "buses")
    assert forms["sheep"] == ("sheep", "sheep")
    assert forms["knife"] == ("knife", "knives")
    assert forms["mouse"] == ("mouse", "mice")
    assert forms["scissors"] == ("pair of scissors", "scissors")
    assert forms["skis"] == ("ski", "skis")
    assert forms["tv"] == ("tv", "tvs")


@pytest.mark.parametrize(
    "word", ["tail", "tire", "tires", "tennis", "park", "parks", "wall", "computer", "couple"]
)
def test_these_name_nothing(word: str) -> None:
    assert not any(word in (*each.words, *each.plurals) for each in COCO.classes)
    assert split([word]).objects == ()


def test_three_hundred_captions_read_by_hand() -> None:
    correct, found, true = score(READ, COCO)
    assert true == 428
    assert correct / found >= 0.97 and correct / true >= 0.98


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("car", "cars"), ("bus", "buses"), ("box", "boxes"), ("bench", "benches"), ("cherry", "cherries"),
        ("toy", "toys"), ("policeman", "policemen"), ("human", "humans"), ("woman", "women"), ("wolf", "wolves"),
        ("tomato", "tomatoes"), ("photo", "photos"), ("sheep", "sheep"), ("teddy bear", "teddy bears"),
        ("cup of tea", "cups of tea"), ("paper knife", "paper knives"), ("grandchild", "grandchildren"),
    ],
)  # fmt: skip
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many


def test_a_plain_list(tmp_path: Path) -> None:
    path = tmp_path / "genome.txt"
    path.write_text("# names\nWindow\nwindows\ncouch,sofa\nDrill (Tool)\nfire hydrant\n", encoding="utf-8")
    classes = load_classes(path)
    assert classes.name == "genome"
    assert [each.name for each in classes.classes] == ["window", "windows", "couch", "drill", "fire hydrant"]
    assert classes.classes[1].singular == "window" and classes.classes[1].plural == "windows"
    found = split(
        ["a", "sofa", "two", "windows", "a", "window", "fire", "hydrants", "and", "drills"], classes
    )
    assert found.classes == (2, 1, 0, 4, 3)
    assert found.context == ("a", "<s>", "two", "<s+>", "a", "<s>", "<s+>", "and", "<s+>")


def test_a_list_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "classes:\n  wombat:\n  cattle: [ox/oxen, -/cattle]\nnot_objects: [ox tail]\n", encoding="utf-8"
    )
    classes = load_classes(path)
    assert classes.name == "mine" and classes.classes[0].plural == "wombats"
    assert classes.classes[1].words == ("ox",) and classes.classes[1].plurals == ("oxen", "cattle")
    assert split(["ox", "tail", "and", "ox"], classes).context == ("ox", "tail", "and", "<s>")
    assert "station" in classes.rules.heads  # the rules of English hold for every list


def test_a_list_is_saved_with_its_rules(tmp_path: Path) -> None:
    COCO.save(tmp_path / "classes.json")
    assert load_classes(tmp_path / "classes.json") == COCO


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "classes: [", "not valid YAML"),
        ("a.json", "{", "not valid JSON"),
        ("a.yaml", "- person", "no mapping `classes`"),
        ("a.yaml", "classes: {}", "no class"),
        ("a.yaml", "classes: {dog: 3}", "class `dog`"),
        ("a.yaml", "classes: {dog: [dog/-]}", "plural word"),
        ("a.yaml", "classes: {dog: [pup], seal: [pup]}", "`pup` is a word of `dog` and of `seal`"),
        ("a.yaml", "classes: {dog: }\nhead: [house]", "unknown key `head`"),
        ("a.yaml", "classes: {dog: }\nheads: [on]", "`heads` must be a list of words"),
        ("a.yaml", "classes: {dog: }\nonly_after: [on]", "`only_after` must map"),
        ("a.txt", "# nothing\n\n", "names no class"),
        ("a.txt", "dog\n(Animal)\n", "`(Animal)`"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_classes(path)
    assert message in str(error.value) and name in str(error.value)


def test_no_such_list(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cocoo is no list of object classes"):
        load_classes("cocoo")
    with pytest.raises(UserError, match="does not exist"):
        load_classes(tmp_path / "none.yaml")
