"""`coscap evaluate` and `coscap rerank`: what they print and write, and one sentence for each kind of bad input."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coscap.cli.main import main
from coscap.errors import UserError
from coscap.metrics import evaluate, spice
from coscap.metrics.meteor import scorer
from coscap.metrics.references import coco_captions, read_references, read_samples

DEMO = Path(__file__).parent / "data" / "metrics_demo.json.gz"
FAST = ["--metrics", "bleu,rouge,cider,diversity,novel_objects"]


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["coscap", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rows(*pairs: tuple[object, object]) -> list[dict[str, object]]:
    return [{"image_id": image, "caption": caption} for image, caption in pairs]


@pytest.fixture
def demo(tmp_path: Path) -> tuple[Path, Path]:
    """The demo results and their references as COCO writes them."""
    images = json.loads(gzip.decompress(DEMO.read_bytes()))["images"]
    results = write(tmp_path / "results.json", rows(*((i["image_id"], i["caption"]) for i in images)))
    annotations = rows(*((i["image_id"], caption) for i in images for caption, _ in i["references"]))
    captions = {"images": [{"id": i["image_id"]} for i in images], "annotations": annotations}
    return results, write(tmp_path / "captions.json", captions)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    samples = rows((1, "a dog runs"), (1, "a brown dog"), (2, "a bus"), (2, "a red bus on a street"))
    references = rows((1, "a dog running"), (1, "the dog runs fast"), (2, "a red bus"), (3, "a zebra"))
    return write(tmp_path / "samples.json", samples), write(tmp_path / "references.json", references)


def test_demo_numbers_from_one_command(
    demo: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(
        capsys, monkeypatch, "evaluate", demo[0], "-r", demo[1], "--metrics", "bleu,rouge,cider"
    )
    assert code == 0
    for number in ("0.5794", "0.4044", "0.2785", "0.1908", "0.3963", "0.5998"):
        assert number in out, out
    assert "1,000 captions of 1,000 images" in out


def test_json_has_the_names_of_the_field(
    small: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = write(tmp_path / "train.jsonl", "\n".join(map(json.dumps, rows((7, "A bus."), (8, "a cat")))))
    code, out, err = run(
        capsys,
        monkeypatch,
        "evaluate",
        small[0],
        "-r",
        small[1],
        "--train",
        train,
        *FAST,
        "--json",
        "-",
        "--curves",
    )
    assert code == 0, err
    values = json.loads(out)
    names = {"BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "CIDEr-plain"}
    assert names <= set(values)
    assert set(values["oracle"]) == set(values["average"]) == set(values["worst"]) == names
    assert values["diversity"]["novel"] == 3
    assert values["diversity"]["unique"] == 100
    assert values["novel_objects"]["first"]["bus"] == 100
    assert values["novel_objects"]["first"]["zebra"] is None
    assert (values["images"], values["captions"], values["samples"]) == (2, 4, 2)
    assert len(values["curves"]["CIDEr"]["oracle"]) == 2
    assert values["curves"]["CIDEr"]["oracle"][1] == values["oracle"]["CIDEr"]
    assert "no reference names bottle" in err


def test_first_and_file(
    small: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "scores.json"
    code, out, _ = run(
        capsys, monkeypatch, "evaluate", small[0], "-r", small[1], *FAST, "--first", "1", "--json", target
    )
    assert code == 0
    assert "BLEU-4" in out
    assert "oracle" not in json.loads(target.read_text())


def test_objects_of_the_user(
    small: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = write(tmp_path / "objects.json", {"dog": ["dog", "dogs"], "street": ["street"]})
    options = ["evaluate", small[0], "-r", small[1], "--metrics", "cider", "--objects"]
    code, out, _ = run(capsys, monkeypatch, *options, objects, "--json", "-")
    assert code == 0
    assert json.loads(out)["novel_objects"]["any"] == {"average": 100, "dog": 100, "street": None}
    code, _, err = run(capsys, monkeypatch, *options, write(objects, {"dog": "dogs"}))
    assert (code, "does not list objects" in err) == (2, True)


BAD = {
    "an image that the references do not have": (
        rows((1, "a"), (5, "b"), (6, "c")),
        "2 of 3 images of samples.json are not in references.json (first: 5)",
    ),
    "another split": (
        rows((8, "a"), (9, "b")),
        "none of the 2 images of samples.json is in references.json (first: 8)",
    ),
    "an image without references": (
        rows((1, "a"), (4, "b")),
        "1 of 2 images of samples.json have no reference",
    ),
    "an empty caption": (
        rows((1, "a"), (1, ""), (2, " . ")),
        "2 of 3 captions of samples.json are empty or have no words (first: image 1)",
    ),
    "a caption that is no string": (
        rows((1, "a"), (2, 5)),
        "1 of 2 rows of samples.json are not captions (first: row 2",
    ),
    "no image id": ([{"caption": "a"}], "1 of 1 rows of samples.json are not captions (first: row 1"),
    "mixed ids": (
        rows((1, "a"), ("2", "b")),
        "samples.json mixes types of image_id: 1 of 2 are strings (first: '2')",
    ),
    "ids of another type": (rows(("1", "a")), "all 1 image ids of samples.json are strings (first: '1')"),
    "no captions": ([], "samples.json holds no captions"),
    "not a list": ("3", "samples.json is not a list of captions"),
    "half a file": ('[{"image_id": 1,', "samples.json is not valid JSON"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_sentence(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, sentence = BAD[kind]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "samples.json", content)
    references = {"images": [{"id": n} for n in (1, 2, 4)], "annotations": rows((1, "a"), (2, "b"))}
    write(tmp_path / "references.json", references)
    code, out, err = run(capsys, monkeypatch, "evaluate", "samples.json", "-r", "references.json", *FAST)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""


def test_unknown_names_are_told(
    small: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, "evaluate", small[0], "-r", small[1], "--metrics", "bleu,bluey")
    assert (code, "metric 'bluey' is not known; choose from bleu" in err) == (2, True)
    code, _, err = run(capsys, monkeypatch, "evaluate", small[0], "-r", "coco:val2099")
    assert (code, "coco:val2099 is not known" in err) == (2, True)
    code, _, err = run(capsys, monkeypatch, "evaluate", small[0], "-r", "nowhere.json")
    assert (code, "nowhere.json does not exist" in err) == (2, True)


def test_empty_captions_score_nothing_where_allowed() -> None:
    found = evaluate(
        {1: ["a dog"], 2: [""]}, {1: ["a dog"], 2: ["a cat"]}, metrics=["bleu", "rouge"], allow_empty=True
    )
    assert found.accuracy["ROUGE-L"] == pytest.approx(0.5)


def test_what_is_not_installed_is_a_note_unless_it_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Any:
        raise UserError("install it.")

    monkeypatch.setattr(scorer, "open_tables", missing)
    monkeypatch.setattr(spice, "check_installed", missing)
    samples, references = {1: ["a dog"], 2: ["a cat"]}, {1: ["a dog"], 2: ["a cat"]}
    found = evaluate(samples, references)
    assert found.notes == ("METEOR is left out: install it.", "SPICE is left out: install it.")
    assert found.accuracy["CIDEr"] > 0
    with pytest.raises(UserError, match="install it"):
        evaluate(samples, references, metrics=["spice"])


def test_metrics_on_lists_score_equal_captions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def score(captions: list[str], references: list[list[str]], cache: None) -> tuple[float, list[float]]:
        asked.extend(captions)
        assert len(captions) == len(references)
        return 0.25, [float(len(caption)) for caption in captions]

    monkeypatch.setattr(spice, "score", score)
    found = evaluate({1: ["aa", "b", "aa"], 2: ["b", "b", "ccc"]}, {1: ["aa"], 2: ["b"]}, metrics=["spice"])
    assert sorted(asked) == ["aa", "b", "b", "ccc"]
    assert found.accuracy["SPICE"] == pytest.approx((2 + 1) / 2)
    assert found.average["SPICE"] == pytest.approx(((2 + 1 + 2) / 3 + (1 + 1 + 3) / 3) / 2)
    assert found.oracle["SPICE"] == pytest.approx((2 + 3) / 2)


def test_evaluate_takes_rows_and_mappings() -> None:
    samples, references = (
        rows((1, "a dog"), (2, "two cats")),
        {1: ["a dog runs"], 2: ["cats", "two cats here"]},
    )
    pairs = [(image, caption) for image, group in references.items() for caption in group]
    found = evaluate(samples, {"annotations": rows(*pairs)}, metrics=["cider"])
    assert found.values == evaluate({1: ["a dog"], 2: ["two cats"]}, references, metrics=["cider"]).values
    with pytest.raises(UserError, match="the samples have no list of captions"):
        evaluate({1: "a dog"}, references)


def test_captions_come_in_several_forms(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.json", {"1": ["a", "b"], "22": ["c"]})
    assert read_references(plain) == {1: ["a", "b"], 22: ["c"]}
    named = write(tmp_path / "named.json", {"x.jpg": ["a"]})
    assert read_references(named) == {"x.jpg": ["a"]}
    lists = write(tmp_path / "lists.json", [{"image_id": 3, "captions": ["a", "b"], "draw": 1}])
    assert [(row.image_id, row.caption, row.fields) for row in read_samples(lists)] == [
        (3, "a", {"draw": 1}),
        (3, "b", {"draw": 1}),
    ]


def test_coco_captions_come_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = coco_captions("coco:val2014")
    assert (len(found), sum(map(len, found.values()))) == (40_504, 202_654)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'coscap\[coco\]'"):
        coco_captions("coco:val2014")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Regions of pictures 1 (like 11 and 12) and 2 (like 13), and of the training pictures 11, 12, 13."""
    from coscap.vision.regions import Recipe, Regions
    from coscap.vision.store import StoreWriter

    path = tmp_path / "regions.h5"
    with StoreWriter(path, Recipe("test/1", 2, ("thing",), 2, 0)) as writer:
        for image, place in ((1, 0.0), (2, 9.0), (11, 1.0), (12, 0.5), (13, 8.0)):
            features = np.array([[place, place + 1], [place, place - 1]], np.float16)
            boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (2, 1))
            writer.add(image, Regions(features, boxes, np.zeros(2, np.int16), np.ones(2, np.float32)))
    return path


def test_rerank_puts_first_what_similar_pictures_say(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = [
        (1, "two cats sleep"),
        (1, "a dog runs"),
        (2, "a dog runs"),
        (2, "two cats sleep"),
        (2, "two cats sleep"),
    ]
    samples = write(tmp_path / "samples.json", [{**row, "draw": 4} for row in rows(*captions)])
    training = rows(
        (11, "a dog runs fast"), (12, "the dog runs"), (13, "two cats asleep"), (14, "a car"), (1, "wrong")
    )
    train = write(tmp_path / "train.json", training)
    best = tmp_path / "best.json"
    options = ["--regions", store, "--train", train, "--out", best, "--neighbours", 1]
    for extra in ([], ["--by", "bleu"], ["--frequencies", train]):
        code, _, err = run(capsys, monkeypatch, "rerank", samples, *options, *extra)
        assert code == 0, err
        ranked = json.loads(best.read_text())
        texts = [row["caption"] for row in ranked]
        assert texts == ["a dog runs", "two cats sleep", "two cats sleep", "two cats sleep", "a dog runs"]
        assert [row["image_id"] for row in ranked] == [1, 1, 2, 2, 2]
        assert ranked[0]["consensus"] > ranked[1]["consensus"]
        assert ranked[0]["draw"] == 4
        assert "3 of 5 training pictures have regions" in err
    run(capsys, monkeypatch, "rerank", samples, *options, "--keep", 2, "--distinct")
    assert [row["caption"] for row in json.loads(best.read_text())][2:] == ["two cats sleep", "a dog runs"]


def test_rerank_by_what_people_would_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean features put picture 1 beside one of cats; what is detected says that people would write of a dog."""
    from coscap.contexts.bank import write_bank
    from coscap.contexts.phrases import Seen
    from coscap.vision.regions import Recipe, Regions
    from coscap.vision.store import StoreWriter

    random = np.random.default_rng(0)
    said = ["two cats sleep on a bed".split(), "a dog runs on the grass".split()]
    scene = np.arange(60) % 2
    vectors = random.normal(0, 1, (60, 2)).astype(np.float32)
    seen = Seen(vectors, np.eye(2, dtype=np.float32)[scene], np.zeros((60, 0), np.float32), ("cat", "dog"))
    captions = [[said[each]] for each in scene.tolist()]
    write_bank(tmp_path / "bank", vectors, captions, dimensions=2, seen=seen, learn_from=(seen, captions))
    store = tmp_path / "regions.h5"
    with StoreWriter(store, Recipe("test/1", 2, ("cat", "dog"), 2, 0)) as writer:
        for image, features, label in ((1, (1, 0), 1), (11, (0, 1), 1), (13, (1, 0), 0)):
            box, sure = np.array([[0, 0, 1, 1]], np.float32), np.ones(1, np.float32)
            writer.add(
                image, Regions(np.array([features], np.float16), box, np.array([label], np.int16), sure)
            )
    samples = write(tmp_path / "samples.json", rows((1, "two cats sleep"), (1, "a dog runs")))
    train = write(tmp_path / "train.json", rows((11, " ".join(said[1])), (13, " ".join(said[0]))))
    best = tmp_path / "best.json"
    options = ["rerank", samples, "--regions", store, "--train", train, "--out", best, "--neighbours", 1]
    for extra, first in (([], "two cats sleep"), (["--bank", tmp_path / "bank"], "a dog runs")):
        code, _, err = run(capsys, monkeypatch, *options, *extra)
        assert code == 0, err
        assert json.loads(best.read_text())[0]["caption"] == first
    code, _, err = run(capsys, monkeypatch, *options, "--bank", "shipped")
    assert code == 2 and "and these eyes give 4; make the bank again" in err


def test_rerank_names_pictures_without_regions(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = write(tmp_path / "samples.json", rows((1, "a dog"), (77, "a cat"), (77, "a bird")))
    train = write(tmp_path / "train.json", rows((11, "a dog"), (12, "a dog here")))
    best = tmp_path / "best.json"
    options = ["rerank", samples, "--regions", store, "--train", train, "--out", best]
    code, _, err = run(capsys, monkeypatch, *options)
    assert (code, "1 of 2 images" in err, "(first: 77)" in err) == (2, True, True)
    assert not best.exists()
    run(capsys, monkeypatch, *options, "--missing", "drop")
    assert [row["image_id"] for row in json.loads(best.read_text())] == [1]
    run(capsys, monkeypatch, *options, "--missing", "keep")
    assert [row["caption"] for row in json.loads(best.read_text())] == ["a dog", "a cat", "a bird"]


def test_rerank_by_likelihood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    likely = [
        {**row, "log_probability": -value}
        for row, value in zip(rows((1, "a"), (1, "b")), (9.0, 2.0), strict=True)
    ]
    samples = write(tmp_path / "samples.json", likely)
    best = tmp_path / "best.json"
    code, _, _ = run(capsys, monkeypatch, "rerank", samples, "--by", "likelihood", "--keep", 1, "--out", best)
    assert code == 0
    assert json.loads(best.read_text()) == [{"image_id": 1, "caption": "b", "log_probability": -2.0}]
    bare = write(tmp_path / "bare.json", rows((1, "a"), (1, "b")))
    code, _, err = run(capsys, monkeypatch, "rerank", bare, "--by", "likelihood", "--out", best)
    assert (code, "2 of 2 captions" in err and "log_probability" in err) == (2, True)
    code, _, err = run(capsys, monkeypatch, "rerank", bare, "--out", best)
    assert (code, "--by cider needs --regions and --train" in err) == (2, True)


@pytest.mark.parametrize(
    ("references", "words"), [({1: "a dog"}, "no list of captions"), ({1: ["a dog", 5]}, "not a string")]
)
def test_references_of_wrong_types_are_one_sentence(references: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"1 of 1 images of the references have .*{words}"):
        evaluate({1: ["a dog"]}, references, metrics="bleu")


def test_metrics_may_be_one_text_and_references_without_words_are_told() -> None:
    found = evaluate({1: ["a dog"]}, {1: ["a dog", " ... "]}, metrics="bleu, rouge")
    assert list(found.accuracy) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L"]
    assert found.notes == ("1 reference captions have no words (first: image 1); they stay references.",)


def test_rerank_refuses_an_infinite_likelihood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"image_id": 1, "caption": "a dog", "log_probability": float("-inf")}
    samples, out = write(tmp_path / "s.json", [row]), tmp_path / "best.json"
    code, _, complaint = run(capsys, monkeypatch, "rerank", samples, "--by", "likelihood", "--out", out)
    assert code == 2 and "1 of 1 captions" in complaint and not out.exists()


def test_an_output_that_is_an_input_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rerank s.json --keep 1 --out s.json` would turn many captions into few."""
    rated = [{**row, "log_probability": -1.0} for row in rows((1, "a dog"), (1, "a cat"))]
    samples = write(tmp_path / "s.json", rated)
    train = write(tmp_path / "train.json", rows((11, "a dog"), (12, "a dog here")))
    (tmp_path / "link.json").symlink_to(samples)
    before = {path: path.read_bytes() for path in (samples, train, store)}
    command = ["rerank", samples, "--keep", 1, "--by", "likelihood", "--regions", store, "--train", train]
    for out in (samples, tmp_path / "link.json", train, store, tmp_path / "." / "s.json"):
        code, _, err = run(capsys, monkeypatch, *command, "--out", out)
        assert (code, "would be written over" in err, err.count("\n")) == (2, True, 1)
    code, _, err = run(capsys, monkeypatch, "evaluate", samples, "-r", train, "--json", samples)
    assert (code, "would be written over" in err) == (2, True)
    assert {path: path.read_bytes() for path in before} == before
    assert run(capsys, monkeypatch, *command, "--out", tmp_path / "best.json")[0] == 0
