"""CHAIR by hand, and against the published script's recorded output on real captions."""

import gzip
import json
from pathlib import Path

import pytest

from coscap.errors import UserError
from coscap.metrics import ObjectWords, evaluate, measure, read_instances
from coscap.metrics.chair import chair_statistics, in_pictures
from coscap.text import load_classes
from test_metrics_command import rows, run, write

DATA = Path(__file__).parent / "data"


def test_the_published_scripts_output_on_real_captions() -> None:
    recorded = json.loads((DATA / "chair_demo.json").read_text())
    images = json.loads(gzip.decompress((DATA / "metrics_demo.json.gz").read_bytes()))["images"]
    words = ObjectWords.official()
    pictures = [[image["tokens"]] for image in images]
    there = in_pictures([[tokens for _, tokens in image["references"]] for image in images], words)
    found = chair_statistics(pictures, there, words)
    hallucinated, mentions = found["CHAIR-i"].terms
    assert "".join(f"{value:.0f}" for value in mentions) == recorded["mentions"]
    assert "".join(f"{value:.0f}" for value in hallucinated) == recorded["hallucinated"]
    assert found["CHAIR-i"].value() == pytest.approx(recorded["CHAIR-i"], abs=1e-12)
    assert found["CHAIR-s"].value() == pytest.approx(recorded["CHAIR-s"], abs=1e-12)


@pytest.mark.parametrize(
    ("caption", "classes"),
    [
        ("a man on a toilet seat", ["person", "toilet"]),
        ("the seat of the toilet", ["toilet"]),  # not a chair
        ("a seat by the wall", ["chair"]),
        ("a baby elephant and an adult cow", ["elephant", "cow"]),  # no person
        ("a baby with a passenger train", ["person", "train"]),
        ("train tracks at home plate", []),
        ("a man in a bow tie with a bow", ["person", "tie", "tie"]),
        ("two wine glasses and a hot dog", ["wine glass", "hot dog"]),
        ("a stop light and a street light", ["traffic light", "traffic light"]),
        ("a bus behind two buses", ["bus"]),  # the script's singular of "bus" is "bu"
        ("a laptop computer", ["laptop"]),
        ("women and children", ["person", "person"]),
    ],
)
def test_words_as_the_script_takes_them(caption: str, classes: list[str]) -> None:
    assert ObjectWords.official().mentions(caption) == classes


def test_words_of_a_list_are_all_counted() -> None:
    words = ObjectWords.of(load_classes("coco"))
    assert words.mentions("a double decker bus beside a motor bike") == ["bus", "motorcycle"]


def test_worked_by_hand() -> None:
    references = [["a dog on a couch"], ["a man"], ["the sky"]]
    samples = [["a dog and a cat", "a dog"], ["a woman", "a man with a dog and a dog"], ["clouds", "blue"]]
    found = measure(["CHAIR-i", "CHAIR-s", "CHAIR-free"], samples, references)
    # dog, cat* | dog | person | person, dog*, dog*
    assert found["CHAIR-i"] == pytest.approx(100 * 3 / 7)
    assert found["CHAIR-s"] == pytest.approx(100 * 2 / 6)
    assert found["CHAIR-free"] == pytest.approx(100 / 3)


@pytest.fixture
def instances(tmp_path: Path) -> Path:
    content = {
        "images": [{"id": 1}, {"id": 2}],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
        "annotations": [{"image_id": 1, "category_id": 17}, {"image_id": 1, "category_id": 17}],
    }
    return write(tmp_path / "instances.json", content)


def test_what_annotations_show_is_there(
    instances: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = read_instances(instances, ObjectWords.official())
    assert seen == {1: {"cat"}, 2: set()}
    samples, references = {1: ["a dog and a cat"], 2: ["a cat"]}, {1: ["a dog"], 2: ["a bird"]}
    assert evaluate(samples, references, metrics="chair").values["CHAIR-i"] == pytest.approx(200 / 3)
    assert evaluate(samples, references, metrics="chair", instances=seen).values["CHAIR-i"] == pytest.approx(
        100 / 3
    )
    files = [write(tmp_path / name, rows(*((i, c) for i, g in groups.items() for c in g)))
             for name, groups in (("s.json", samples), ("r.json", references))]  # fmt: skip
    options = ["evaluate", files[0], "-r", files[1], "--metrics", "chair", "--instances", instances]
    code, out, err = run(capsys, monkeypatch, *options, "--json", "-")
    assert code == 0, err
    assert json.loads(out)["chair"]["CHAIR-free"] == 50
    code, out, _ = run(capsys, monkeypatch, *options)
    assert "Hallucinated objects in %" in out and "33.3" in out


def test_bad_annotations_and_lists_are_one_sentence(instances: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a COCO instances file"):
        read_instances(write(tmp_path / "x.json", {"annotations": [{"image_id": 1}]}), ObjectWords.official())
    content = json.loads(instances.read_text())
    content["categories"][0]["name"] = "unicorn"
    with pytest.raises(UserError, match="has the category 'unicorn'"):
        read_instances(write(tmp_path / "y.json", content), ObjectWords.official())
    with pytest.raises(UserError, match="1 of 1 images are not in the instance annotations"):
        evaluate({3: ["a dog"]}, {3: ["a dog"]}, metrics="chair", instances={1: {"dog"}})


def test_synonyms_that_clash_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = write(tmp_path / "s.json", rows((1, "a dog")))
    (tmp_path / "classes.yaml").write_text("classes:\n  dog: [dog, pup]\n  seal: [seal, pup]\n")
    options = ["evaluate", samples, "-r", samples, "--chair-words", tmp_path / "classes.yaml"]
    code, out, err = run(capsys, monkeypatch, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "`pup` is a word of `dog` and of `seal`" in err
