"""`coscap report --captions`: captions that are at hand, as rows of their own, and what is refused beforehand."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.data import open_prepared
from coscap.errors import UserError
from test_report_command import report
from test_report_command import world as world


def drawn(work: Path) -> dict[int, list[str]]:
    """What a report drew."""
    (file,) = work.glob("*-latent-*.jsonl")
    return {row["image_id"]: row["captions"] for row in map(json.loads, file.read_text().splitlines())}


def test_captions_of_a_file_have_the_figures_of_the_run_that_wrote_them(world: Path, tmp_path: Path) -> None:
    report(world, tmp_path / "run", ["paired"], "--seeds", "1", "--samples", "4")
    captions = drawn(tmp_path / "run" / "work")
    rows = [{"image_id": image, "caption": each} for image, group in captions.items() for each in group]
    (tmp_path / "coco.json").write_text(json.dumps(rows))
    chosen = [
        {"photo": f"photos/{image:012d}.jpg", "captions": [{"text": each, "support": 0.5} for each in group]}
        for image, group in captions.items()
    ]
    (tmp_path / "chosen.json").write_text(json.dumps(chosen))
    files = ["--captions", f"Another={tmp_path / 'coco.json'}", "--captions", str(tmp_path / "chosen.json")]
    page = report(world, tmp_path / "given", ["paired"], "--seeds", "1", "--samples", "4", *files)
    found = {
        each["name"]: each
        for each in json.loads((tmp_path / "given" / "results.json").read_text())["methods"]
    }
    assert list(found) == ["COS-CVAE (paired)", "Another", "chosen"]
    own = found["COS-CVAE (paired)"]["mean"]
    assert own["all/4/unique"] > 0 and "consensus/4/CIDEr" in own
    assert found["Another"]["mean"] == own == found["chosen"]["mean"]
    assert "| **Another** |" in page
    alone = report(world, tmp_path / "alone", [], "--samples", "4", *files)
    assert "| **chosen** |" in alone and "COS-CVAE (paired)**" not in alone


def test_evaluate_reads_what_caption_wrote(tmp_path: Path) -> None:
    people = {"7": ["a dog runs", "the dog runs fast"], "9": ["a red bus", "a bus on a street"]}
    (tmp_path / "people.json").write_text(json.dumps(people))
    said = {7: ["a dog runs", "a cat"], 9: ["a bus", "a red bus"]}
    chosen = [
        {"photo": f"{image:012d}.jpg", "captions": [{"text": each} for each in group]}
        for image, group in said.items()
    ]
    (tmp_path / "chosen.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
    (tmp_path / "plain.json").write_text(json.dumps(said))
    for name in ("chosen.jsonl", "plain.json"):
        words = ["evaluate", str(tmp_path / name), "-r", str(tmp_path / "people.json"), "--metrics", "cider"]
        done = CliRunner().invoke(app, [*words, "--json", str(tmp_path / f"{name}.scores")])
        assert done.exception is None, done.output
    one, other = (
        json.loads((tmp_path / f"{name}.scores").read_text()) for name in ("chosen.jsonl", "plain.json")
    )
    assert one["oracle"] == other["oracle"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "holds no captions"),
        ([{"photo": "1.jpg", "captions": ["a dog"]}], "are not captions"),
        ([{"image_id": 424242, "captions": ["a dog", "a cat"]}], "have no captions"),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(
    world: Path, tmp_path: Path, rows: list[object], words: str
) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(rows))
    with pytest.raises(UserError, match=words):
        report(world, tmp_path / "out", [], "--captions", str(tmp_path / "bad.json"))


def test_nothing_to_report_on_and_rows_of_one_name_are_refused(world: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to report on"):
        report(world, tmp_path / "out", [])
    prepared = open_prepared(world / "data")
    rows = [
        {"image_id": int(prepared.image_ids[image]), "captions": ["a dog", "a cat"]}
        for image in prepared.images("validation")
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    twice = ["--captions", str(tmp_path / "a.json")] * 2
    with pytest.raises(UserError, match="Two rows are called 'a'"):
        report(world, tmp_path / "out", [], "--no-rerank", *twice)
    (tmp_path / "single.json").write_text(json.dumps([row | {"captions": ["a dog"]} for row in rows]))
    with pytest.raises(UserError, match="one caption"):
        report(world, tmp_path / "out", [], "--no-rerank", "--captions", str(tmp_path / "single.json"))


def test_spice_without_its_jars_is_refused_before_captions_are_drawn(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSCAP_SPICE_HOME", str(tmp_path / "none"))
    with pytest.raises(UserError, match="SPICE needs its jars"):
        report(world, tmp_path / "out", ["seq"], "--spice", "2")
    assert not (tmp_path / "out" / "work").exists()
