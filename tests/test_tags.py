"""Words of photographs: the package's tuned vision on real photographs, through the command and from Python."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.errors import UserError
from coscap.vision.builtin import EYES, BuiltinDetector
from coscap.vision.pictures import open_picture
from coscap.vision.tags import Tagger

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return Tagger()


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["tags", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_a_cat_and_a_cup_are_seen_where_they_are(tagger: Tagger) -> None:
    cat, coffee = tagger([open_picture(EXAMPLES / name) for name in ("cat.jpg", "coffee.jpg")])
    assert {tag.word: tag.probability for tag in cat}["cat"] > 0.5
    assert {"cup", "coffee", "table"} <= {tag.word for tag in coffee}
    for tags in (cat, coffee):
        assert [t.probability for t in tags] == sorted((t.probability for t in tags), reverse=True)
        assert all(0 <= t.box[0] < t.box[2] <= 1 and 0 <= t.box[1] < t.box[3] <= 1 for t in tags)


def test_words_do_not_depend_on_the_batch(tagger: Tagger) -> None:
    pictures = [open_picture(path) for path in sorted(EXAMPLES.glob("*.jpg"))]
    together = tagger(pictures)
    for picture, tags in zip(pictures, together, strict=True):
        (alone,) = tagger([picture])
        assert [tag.word for tag in alone] == [tag.word for tag in tags]
        assert [tag.probability for tag in alone] == pytest.approx(
            [tag.probability for tag in tags], abs=1e-4
        )


def test_floor_and_number(tagger: Tagger) -> None:
    picture = open_picture(EXAMPLES / "coffee.jpg")
    assert len(tagger([picture], n=3)[0]) == 3
    assert all(tag.probability >= 0.6 for tag in tagger([picture], floor=0.6)[0])
    with pytest.raises(UserError, match="at least 1 tag"):
        tagger([picture], n=0)
    with pytest.raises(UserError, match="0 to 1"):
        tagger([picture], floor=2)


def test_the_command_prints_json_and_writes_beside_photographs(tmp_path: Path) -> None:
    photo = tmp_path / "cup.jpg"
    shutil.copy(EXAMPLES / "coffee.jpg", photo)
    (row,) = json.loads(run(str(photo), "--json", "-n", "5"))
    assert row["photo"] == str(photo) and len(row["tags"]) == 5
    assert set(row["tags"][0]) == {"word", "probability", "box"}
    run(str(photo), "--sidecar", "-n", "2")
    assert len((tmp_path / "cup.txt").read_text().strip().split(", ")) == 2
    with pytest.raises(UserError, match=r"cup\.txt"):
        run(str(photo), "--sidecar")
    assert "table" in run(str(photo))


def test_a_bad_photograph_is_named_and_the_others_are_tagged(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "cat.jpg", tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    done = CliRunner().invoke(app, ["tags", str(tmp_path), "--jsonl"])
    assert isinstance(done.exception, UserError) and "1 of 2" in str(done.exception)
    good, bad = (json.loads(line) for line in done.stdout.splitlines())
    assert good["tags"] and "error" in bad
    with pytest.raises(UserError, match=r"no words\.json"):
        Tagger(tmp_path)


def test_a_truncated_network_is_one_sentence(tmp_path: Path) -> None:
    for file in EYES.glob("*.json"):
        shutil.copy(file, tmp_path / file.name)
    (tmp_path / "backbone.onnx").write_bytes((EYES / "backbone.onnx").read_bytes()[:3000])
    with pytest.raises(UserError, match=r"backbone\.onnx is damaged"):
        Tagger(tmp_path).look([Image.new("RGB", (8, 8))])
    (tmp_path / "backbone.onnx").unlink()
    with pytest.raises(UserError, match=r"backbone\.onnx cannot be read"):
        Tagger(tmp_path)


def test_a_detector_with_the_same_eyes_sees_what_the_tagger_sees() -> None:
    picture = open_picture(EXAMPLES / "coffee.jpg", least_side=768)
    detector, tagger = BuiltinDetector(eyes=EYES), Tagger()
    assert detector.eyes_digest == tagger.digest
    regions, (seen,) = detector.see([picture])
    (expected,) = tagger.look([picture])
    assert np.array_equal(seen.vector, expected.vector) and np.array_equal(seen.words, expected.words)
    assert np.array_equal(regions[0].features, detector.regions([picture])[0].features)
