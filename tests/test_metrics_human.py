"""Agreement with people: tau-c and accuracy by brute force, and every file of ratings."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from coscap.errors import UserError
from coscap.metrics.human import agreement, kendall_tau_c, read_ratings
from coscap.metrics.references import read_references
from test_metrics_command import rows, run, write


def plain_tau_c(x: list[float], y: list[float]) -> float:
    balance = sum(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i, j in combinations(range(len(x)), 2))
    m = min(len(set(x)), len(set(y)))
    return float(2 * balance * m / (len(x) ** 2 * (m - 1)))


def test_tau_c_is_the_sum_over_all_pairs() -> None:
    random = np.random.default_rng(0)
    for levels in (2, 4, 11):
        x, y = random.integers(0, 9, 80).astype(float), random.integers(0, levels, 80).astype(float)
        assert kendall_tau_c(x, y) == pytest.approx(plain_tau_c(x.tolist(), y.tolist()), abs=1e-12)
    stats = pytest.importorskip("scipy.stats")
    assert kendall_tau_c(x, y) == pytest.approx(stats.kendalltau(x, y, variant="c").statistic, abs=1e-12)
    assert np.isnan(kendall_tau_c(x, np.ones(80)))


def test_accuracy_counts_pairs_of_one_picture() -> None:
    scores = np.array([0.9, 0.5, 0.5, 0.1, 0.7])
    ratings = [[4, 3], [2], [1], [1, 1], [4]]
    found = agreement(scores, ratings, np.array([0, 3, 5]))
    # first picture: 3.5 > 2 right, 3.5 > 1 right, 2 > 1 but equal scores: half; second: 1 < 4 right
    assert (found.pairs, found.ratings) == (4, 7)
    assert found.accuracy == pytest.approx(3.5 / 4)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    lines = [
        "one.jpg#0\ta dog runs .",
        "one.jpg#1\ta brown dog",
        "two.jpg#0\ta red bus",
        "two.jpg#1\ta bus on a street",
    ]
    return write(tmp_path / "Flickr8k.token.txt", "\n".join(lines) + "\n")


def test_flickr8k_experts_and_crowd(
    token: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = write(
        tmp_path / "ExpertAnnotations.txt",
        "one.jpg\ttwo.jpg#0\t1\t1\t2\none.jpg\tone.jpg#1\t4\t4\t4\ntwo.jpg\tone.jpg#0\t1\t1\t1\n",
    )
    references = read_references(token)
    found = read_ratings(expert, references)
    assert found.captions == {"one.jpg": ["a red bus"], "two.jpg": ["a dog runs ."]}  # not the picture's own
    assert found.ratings == {"one.jpg": [[1, 1, 2]], "two.jpg": [[1, 1, 1]]}
    crowd = write(tmp_path / "CrowdFlowerAnnotations.txt", "one.jpg\ttwo.jpg#1\t0.3333\t1\t2\n")
    assert read_ratings(crowd, references).ratings == {"one.jpg": [[0.3333]]}
    code, out, err = run(
        capsys, monkeypatch, "evaluate", "--human", expert, "-r", token, "--metrics", "bleu,rouge"
    )
    assert code == 0, err
    assert "2 rated captions of 2 images" in out and "tau-c" in out and "ROUGE-L" in out
    bad = write(tmp_path / "bad.txt", "one.jpg\tthree.jpg#0\t1\t1\t2\n")
    with pytest.raises(UserError, match=r"line 1 names the caption .three"):
        read_ratings(bad, references)


def test_composite(tmp_path: Path) -> None:
    head = "HITId;Input.image_url;Input.text1;Input.text2;Answer.Q1Answer;Answer.Q2Answer"
    url = "http://somewhere/images/COCO_val2014_000000000042.jpg"
    file = write(tmp_path / "coco_correctness.csv", f"{head}\n1;{url};a dog;a cat;5;2\n2;{url};a cow;;1;\n")
    found = read_ratings(file, {42: ["a puppy"]})
    assert found.captions == {42: ["a dog", "a cat", "a cow"]}
    assert found.ratings == {42: [[5], [2], [1]]}


def test_rows_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(1, "a dog runs"), (1, "a cat"), (2, "a red bus"), (2, "a tree")]
    rated = [{**row, "rating": value} for row, value in zip(rows(*pairs), (5, 1, 4, 1), strict=True)]
    ratings = write(tmp_path / "ratings.json", rated)
    references = write(tmp_path / "references.json", rows((1, "a dog runs fast"), (2, "a red bus here")))
    options = ["evaluate", "--human", ratings, "-r", references, "--metrics", "rouge,cider", "--json", "-"]
    code, out, err = run(capsys, monkeypatch, *options)
    assert code == 0, err
    values = json.loads(out)
    assert set(values) == {"ROUGE-L", "CIDEr", "CIDEr-plain"}
    assert values["ROUGE-L"]["accuracy"] == 1 and values["ROUGE-L"]["pairs"] == 2
    assert values["ROUGE-L"]["tau_c"] > 0.5
    other = write(tmp_path / "other.json", rows((1, "a dog")))
    code, out, err = run(capsys, monkeypatch, "evaluate", "--human", ratings, "-r", other)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "1 of 2 rated pictures" in err and "(first: 2)" in err
    code, _, err = run(
        capsys, monkeypatch, "evaluate", "--human", write(other, rated[:1] + rows((1, "b"))), "-r", references
    )
    assert (code, "without a rating" in err) == (2, True)
    code, _, err = run(capsys, monkeypatch, "evaluate", "-r", references)
    assert (code, "No captions were named" in err) == (2, True)
    code, _, err = run(
        capsys, monkeypatch, "evaluate", "--human", write(tmp_path / "x.csv", "a,b\n1,2\n"), "-r", references
    )
    assert (code, "is not a file of ratings" in err) == (2, True)


def test_a_studys_own_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    references = write(tmp_path / "references.json", rows((1, "a dog runs fast"), (2, "a red bus here")))
    same = [(1, "a dog runs"), (1, "a dog runs"), (2, "a red bus"), (2, "a red bus")]
    mixed = [(1, "a tree"), (1, "some cats"), (2, "my food"), (2, "the sky")]
    good, wild = write(tmp_path / "good.json", rows(*same)), write(tmp_path / "wild.json", rows(*mixed))
    lines = ["annotator,image_id,method,accuracy,diversity,given"]
    lines += [f"ann,{image},good,9,1,now" for image in (1, 2)] + [
        f"ann,{image},wild,2,8,now" for image in (1, 2)
    ]
    study = write(tmp_path / "ratings.csv", "\n".join(lines) + "\n")
    options = ["evaluate", good, wild, "-r", references, "--metrics", "rouge,diversity", "--human", study]
    code, out, err = run(capsys, monkeypatch, *options, "--json", "-")
    assert code == 0, err
    values = json.loads(out)
    assert values["average/ROUGE-L"]["accuracy"]["accuracy"] == 1
    assert values["average/ROUGE-L"]["diversity"]["accuracy"] == 0
    assert values["mBLEU-4-picture"]["diversity"]["accuracy"] == 1  # less is more diverse
    code, out, _ = run(capsys, monkeypatch, *options)
    assert "4 ratings of 2 methods" in out and "diversity tau-c" in out
    code, _, err = run(capsys, monkeypatch, "evaluate", good, "-r", references, "--human", study)
    assert (code, "rates the method 'wild'" in err) == (2, True)
