"""A study's parts: what it shows and in which order, the database, the statistics, the figure."""

import json
import sqlite3
import threading
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.errors import UserError
from coscap.serve.study.answers import Answers, Rating
from coscap.serve.study.figure import draw
from coscap.serve.study.material import Study, read_study
from coscap.serve.study.results import agreement, mean_of, results

METHODS = ("ours", "theirs")


def write_samples(folder: Path, pictures: int = 4, captions: int = 5) -> list[Path]:
    """Two files of captions, and the pictures that they are about."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{method}.json" for method in METHODS]
    for method, path in zip(METHODS, paths, strict=True):
        rows = [
            {"image_id": number, "caption": f"a {method[0]} thing {number} {place}"}
            for number in range(1, pictures + 1)
            for place in range(captions + 2)
        ]
        path.write_text(json.dumps(rows))
    for number in range(1, pictures + 1):
        name = f"{number:012d}.jpg" if number % 2 else f"COCO_val2014_{number:012d}.png"
        Image.new("RGB", (40, 30), (number * 20, 90, 60)).save(folder / name)
    return paths


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return read_study(write_samples(tmp_path / "material"))


def test_a_study_has_the_first_captions_of_the_common_pictures(tmp_path: Path) -> None:
    paths = write_samples(tmp_path / "material")
    rows = json.loads(paths[1].read_text())
    paths[1].write_text(json.dumps([row for row in rows if row["image_id"] != 3]))
    study = read_study(paths)
    assert study.methods == METHODS
    assert study.pictures == ("1", "2", "4")
    assert [path.name for path in study.files][:2] == ["000000000001.jpg", "COCO_val2014_000000000002.png"]
    assert study.captions["ours"][2] == tuple(f"a o thing 4 {place}" for place in range(5))
    assert len(read_study(paths, captions=2, pictures=2).captions["theirs"]) == 2
    assert read_study(paths, captions=2).digest != study.digest


def test_bad_material_is_one_sentence(tmp_path: Path) -> None:
    paths = write_samples(tmp_path / "material")
    with pytest.raises(UserError, match="No picture has 9 captions"):
        read_study(paths, captions=9)
    with pytest.raises(UserError, match="same name"):
        read_study([paths[0], paths[0]])
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "empty" / "other.png")
    with pytest.raises(UserError, match=r"no picture of 4 of the 4 image ids \(the first is 1\)"):
        read_study(paths, tmp_path / "empty")
    (tmp_path / "material" / "000000000001.jpg").write_bytes(b"\xff\xd8 nothing")
    with pytest.raises(UserError, match=r"000000000001\.jpg"):
        read_study(paths)


def test_files_and_the_option_belong_together(tmp_path: Path) -> None:
    for arguments in (["serve", "--study"], ["serve", "a.json"]):
        done = CliRunner().invoke(app, arguments)
        assert isinstance(done.exception, UserError) and "belong together" in str(done.exception)


def test_each_annotator_has_an_order_of_their_own(study: Study) -> None:
    order = study.order("Ann")
    assert order == study.order("Ann") != study.order("Ben")
    assert len(order) == len(study) == len({(item.picture, item.method) for item in order})
    half = len(study.pictures)
    for part in (order[:half], order[half:]):  # every picture once before any comes again
        assert sorted(item.picture for item in part) == list(range(half))
    for stop in range(0, len(order), len(METHODS)):  # whoever stops has rated all methods equally often
        assert len(set(Counter(item.method for item in order[:stop]).values())) <= 1
    for item in order:
        assert sorted(item.captions) == sorted(study.captions[item.method][item.picture])
    assert any(item.captions != study.captions[item.method][item.picture] for item in order)
    firsts = Counter(study.order(f"annotator {number}")[0].method for number in range(60))
    assert min(firsts[method] for method in METHODS) > 12


def test_a_rating_replaces_the_earlier_one(study: Study, tmp_path: Path) -> None:
    answers = Answers(tmp_path / "study.sqlite", study)
    assert answers.join("Ann") == "Ann" and answers.join("ann") == "Ann"
    answers.rate(Rating("Ann", "1", "ours", 3, 4))
    answers.rate(Rating("Ann", "1", "ours", 9, 10))
    answers.close()
    answers = Answers(tmp_path / "study.sqlite", study)  # a server that was started again
    (rating,) = answers.ratings()
    assert (rating.accuracy, rating.diversity) == (9, 10) and rating.given
    with pytest.raises(sqlite3.IntegrityError):
        answers.rate(Rating("Ann", "1", "ours", 11, 4))
    with pytest.raises(sqlite3.IntegrityError):
        answers.rate(Rating("nobody", "1", "ours", 1, 4))
    answers.close()


def test_a_database_belongs_to_one_study(study: Study, tmp_path: Path) -> None:
    Answers(tmp_path / "study.sqlite", study).close()
    other = read_study(write_samples(tmp_path / "other", pictures=2))
    with pytest.raises(UserError, match="another study"):
        Answers(tmp_path / "study.sqlite", other)
    (tmp_path / "no.sqlite").write_text("this is no database, and long enough to be seen as none " * 20)
    with pytest.raises(UserError, match="cannot be used"):
        Answers(tmp_path / "no.sqlite", study)


def test_annotators_write_at_once(study: Study, tmp_path: Path) -> None:
    """Two servers on one file, four annotators each."""
    desks = [Answers(tmp_path / "study.sqlite", study) for _ in range(2)]

    def rate(answers: Answers, name: str) -> None:
        answers.join(name)
        for item in study.order(name):
            answers.rate(Rating(name, study.pictures[item.picture], item.method, 5, 6))

    threads = [
        threading.Thread(target=rate, args=(desks[number % 2], f"annotator {number}")) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(desks[0].ratings()) == 8 * len(study)
    for desk in desks:
        desk.close()


def rated(values: dict[str, dict[str, list[int | None]]]) -> list[Rating]:
    """Ratings of accuracy: method, annotator, a value for each picture."""
    return [
        Rating(annotator, str(picture), method, value, value)
        for method, people in values.items()
        for annotator, given in people.items()
        for picture, value in enumerate(given)
        if value is not None
    ]


def test_agreement_is_krippendorffs() -> None:
    """The example of Krippendorff's "Computing Krippendorff's Alpha-Reliability": alpha = 0.849 for interval data."""
    n = None
    ratings = rated(
        {
            "one": {
                "A": [1, 2, 3, 3, 2, 1, 4, 1, 2, n, n, n],
                "B": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, n, 3],
                "C": [n, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, n],
                "D": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, n],
            }
        }
    )
    assert agreement(ratings, "accuracy") == pytest.approx(0.849, abs=5e-4)
    assert agreement([one for one in ratings if one.annotator == "A"], "accuracy") is None


def test_means_are_over_pictures_and_differences_over_common_ones() -> None:
    ratings = rated({"ours": {"A": [8, 6], "B": [10, None]}, "theirs": {"A": [5, None]}})
    found = results(ratings, ["ours", "theirs", "unrated"])
    ours = found.methods["ours"]["accuracy"]
    assert (ours.mean, ours.pictures, ours.least, ours.most) == (7.5, 2, 6, 9)
    assert ours.low == 6 and ours.high == 9
    assert found.methods["theirs"]["diversity"].low is None
    assert "unrated" not in found.methods
    (difference,) = found.differences
    assert difference.accuracy.mean == 4 and difference.accuracy.pictures == 1
    assert found.annotators["A"]["accuracy"] == pytest.approx(19 / 3)


def test_an_interval_covers_what_it_should() -> None:
    import numpy as np

    chance = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        mean = mean_of(chance.normal(6, 1.5, 40).tolist())
        assert mean.low is not None and mean.high is not None
        covered += mean.low <= 6 <= mean.high
    assert 88 <= covered <= 99


def test_the_figure_has_every_rating_and_every_mean() -> None:
    ratings = rated({"ours": {"A": [8, 6], "B": [9, 7]}, "<theirs> & co": {"A": [5, 4], "B": [3, 5]}})
    methods = ["ours", "<theirs> & co"]
    svg = draw(ratings, results(ratings, methods), methods)
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert "ours" in texts and "<theirs> & co" in texts
    circles = list(root.iter(f"{space}circle"))
    assert len(circles) == 2 + 2 + 4 + 1  # pictures, the mean and its edge, ratings, legend
    assert all(0 < float(circle.get("cx", 0)) < float(root.get("width", 0)) for circle in circles)
    assert "accuracy 7.50" in (root.find(f"{space}desc").text or "")  # type: ignore[union-attr]
    assert ElementTree.fromstring(draw([], results([], methods), methods)) is not None
