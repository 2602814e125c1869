"""Intervals: every metric on a resample is what it is on those pictures; comparing systems; domains."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coscap.errors import UserError
from coscap.metrics import bleu, compare, div_n, evaluate, mbleu4, measure, object_f1, unique
from coscap.metrics.intervals import (
    Bootstrap,
    Statistics,
    interval,
    mean,
    paired_difference,
    unpaired_difference,
)
from coscap.metrics.table import METRICS
from test_metrics_command import rows, run, write

DEMO = Path(__file__).parent / "data" / "metrics_demo.json.gz"


@pytest.fixture(scope="module")
def demo() -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Three captions of each of 60 pictures (its own, and those of the two next pictures), and references."""
    images = json.loads(gzip.decompress(DEMO.read_bytes()))["images"][:62]
    captions = [image["caption"] for image in images]
    samples = {image["image_id"]: captions[n : n + 3] for n, image in enumerate(images[:60])}
    references = {image["image_id"]: [text for text, _ in image["references"]] for image in images[:60]}
    return samples, references


def test_a_resample_is_scored_as_those_pictures_are(demo: Any) -> None:
    """Sums of each picture's terms against the plain functions on the resampled pictures themselves."""
    samples, references = demo
    metrics = "bleu,meteor,cider,diversity,chair,novel_objects"
    found = evaluate(samples, references, metrics=metrics, train={1: ["a dog"]})
    bootstrap = Bootstrap(found.images, 3, seed=5)
    values = bootstrap.values(
        {name: one for name, one in found.figures.items() if isinstance(one, Statistics)}
    )
    (counts,) = bootstrap._counts()  # (I, 3)
    for number in range(3):
        drawn = np.repeat(np.arange(found.images), counts[:, number].astype(int))
        pictures = [samples[found.ids[place]] for place in drawn]
        wanted = [references[found.ids[place]] for place in drawn]
        first = [captions[0] for captions in pictures]
        plain = {
            "BLEU-4": bleu(first, wanted)[0][3],
            "unique": unique(pictures),
            "Div-2": div_n(pictures, 2),
            "mBLEU-4-corpus": mbleu4(pictures)[0],
            "mBLEU-4-picture": mbleu4(pictures)[1],
            "F1-any": object_f1(pictures, wanted).average[-1],
            **measure(
                [
                    *(["METEOR", "oracle/METEOR"] if number == 0 else []),
                    "CHAIR-i",
                    "CHAIR-s",
                    "CHAIR-free",
                    "length",
                ],
                pictures,
                wanted,
            ),
        }
        for name, value in plain.items():
            assert values[name][number] == pytest.approx(value, abs=1e-12), name


def test_every_metric_of_sets_and_captions_has_an_interval_around_it(demo: Any) -> None:
    samples, references = demo
    groups = "bleu,rouge,cider,diversity,chair,content"
    found = evaluate(samples, references, metrics=groups, train={1: ["a dog"]})
    intervals = found.intervals(500)
    assert set(found.figures) - set(intervals) == {"vocabulary"}
    for name in (
        "BLEU-4",
        "CIDEr",
        "oracle/CIDEr",
        "worst/ROUGE-L",
        "Div-1",
        "self-CIDEr-references",
        "CHAIR-i",
    ):
        low, high = intervals[name]
        assert low < found.values[name] < high, name
    assert found.intervals(500) == intervals != found.intervals(500, seed=1)
    assert {metric.name for metric in METRICS if metric.group in groups.split(",")} <= set(found.figures)


def test_the_interval_of_a_mean_is_the_known_one() -> None:
    values = np.random.default_rng(1).normal(3, 2, 400)
    low, high = interval(Bootstrap(400, 4000).values({"x": mean(values)})["x"])
    error = values.std() / 400**0.5
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_pairs_see_what_two_intervals_cannot() -> None:
    """The same hard and easy pictures: a small steady gain is clear, though the intervals overlap."""
    values = np.random.default_rng(2).normal(0, 5, 300)
    better = values + 0.2 + np.random.default_rng(3).normal(0, 0.2, 300)
    drawn = Bootstrap(300).values({"one": mean(better), "other": mean(values)})
    found = paired_difference(better.mean(), values.mean(), drawn["one"], drawn["other"])
    assert found.clear and found.share == 1 and found.low < found.difference < found.high
    assert interval(drawn["one"])[0] < interval(drawn["other"])[1]
    same = paired_difference(values.mean(), values.mean(), drawn["other"], drawn["other"])
    assert not same.clear and (same.difference, same.share) == (0, 0.5)


def test_the_order_of_a_file_does_not_matter(demo: Any) -> None:
    samples, references = demo
    turned = dict(reversed(samples.items()))
    found = compare(*(evaluate(each, references, metrics="cider,diversity") for each in (samples, turned)))
    assert all(not each.clear and abs(each.difference) < 1e-12 for each in found.values())


@pytest.fixture
def files(tmp_path: Path, demo: Any) -> tuple[Path, Path, Path]:
    """Captions of the pictures themselves, of their neighbours, and the references with domains."""
    samples, references = demo
    good = write(tmp_path / "good.json", rows(*((i, c[0]) for i, c in samples.items())))
    bad = write(tmp_path / "bad.json", rows(*((i, c[1]) for i, c in reversed(samples.items()))))
    images = [{"id": i, "domain": ("in-domain", "out-domain")[n % 2]} for n, i in enumerate(references)]
    content = {"images": images, "annotations": rows(*((i, c) for i, g in references.items() for c in g))}
    return good, bad, write(tmp_path / "references.json", content)


def test_two_systems_in_one_command(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, references = files
    options = ["-r", references, "--metrics", "rouge,cider,chair"]
    code, out, err = run(capsys, monkeypatch, "evaluate", bad, good, *options)
    assert code == 0, err
    assert "change" in out and "95 % interval" in out and "good" in out
    code, out, _ = run(capsys, monkeypatch, "evaluate", bad, good, *options, "--json", "-", "--seed", "3")
    values = json.loads(out)
    change = values["differences"][str(good)]["CIDEr"]
    both = [values["systems"][str(path)]["CIDEr"] for path in (good, bad)]
    assert change["difference"] == pytest.approx(both[0] - both[1])
    assert change["clear"] and change["low"] > 0 and change["share"] == 1
    assert len(values["systems"][str(bad)]["intervals"]["CHAIR-s"]) == 2
    assert (
        json.loads(run(capsys, monkeypatch, "evaluate", bad, good, *options, "--json", "-", "--seed", "3")[1])
        == values
    )


def test_what_is_inside_its_interval_is_grey(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, references = files
    monkeypatch.setenv("FORCE_COLOR", "1")
    grey = "\x1b[90m"
    _, out, _ = run(capsys, monkeypatch, "evaluate", bad, good, "-r", references, "--metrics", "cider,chair")
    assert grey not in next(line for line in out.splitlines() if "CIDEr " in line)
    again = write(good.with_name("again.json"), json.loads(good.read_text()))
    _, out, _ = run(capsys, monkeypatch, "evaluate", again, good, "-r", references, "--metrics", "cider")
    assert grey in next(line for line in out.splitlines() if "CIDEr " in line)


def test_files_of_different_pictures_are_refused(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, references = files
    short = write(good.with_name("short.json"), json.loads(good.read_text())[2:])
    code, out, err = run(capsys, monkeypatch, "evaluate", short, bad, "-r", references)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "do not cover the same pictures: 2 of the 60 of" in err


def test_requests_that_make_no_sense_are_one_sentence(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, references = files
    code, _, err = run(capsys, monkeypatch, "evaluate", good, good, "-r", references)
    assert (code, "is given twice" in err, err.count("\n")) == (2, True, 1)
    code, _, err = run(capsys, monkeypatch, "evaluate", good, bad, "-r", references, "--domains")
    assert (code, "--domains takes one file" in err, err.count("\n")) == (2, True, 1)


@pytest.mark.filterwarnings("error")
def test_what_is_not_defined_is_null_and_a_dash(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, references = files
    options = ["-r", references, "--metrics", "diversity"]  # one caption an image has no mBLEU
    code, out, err = run(capsys, monkeypatch, "evaluate", good, bad, *options, "--json", "-")
    assert code == 0, err
    values = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert values["differences"][str(bad)]["mBLEU-4-corpus"]["difference"] is None
    assert values["systems"][str(good)]["intervals"]["self-CIDEr-references"] == [None, None]
    code, out, _ = run(capsys, monkeypatch, "evaluate", good, *options)
    assert re.search(r"mBLEU-4-corpus +│ +- │", out)


def test_domains_are_parts_of_the_whole(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, _, references = files
    options = ["evaluate", good, "-r", references, "--domains", "--metrics", "bleu,cider"]
    code, out, err = run(capsys, monkeypatch, *options)
    assert code == 0, err
    assert "in-domain (30)" in out and "out-domain (30)" in out
    values = json.loads(run(capsys, monkeypatch, *options, "--json", "-")[1])
    parts = values["domains"]
    assert (parts["in-domain"]["CIDEr"] + parts["out-domain"]["CIDEr"]) / 2 == pytest.approx(values["CIDEr"])
    assert len(parts["in-domain"]["intervals"]["BLEU-4"]) == 2
    plain = write(good.with_name("plain.json"), json.loads(references.read_text())["annotations"])
    code, _, err = run(capsys, monkeypatch, "evaluate", good, "-r", plain, "--domains")
    assert (code, "has no domains" in err, err.count("\n")) == (2, True, 1)


def test_pictures_without_a_domain_are_named(demo: Any) -> None:
    found = evaluate(*demo, metrics="cider")
    with pytest.raises(UserError, match="59 of 60 images have no domain"):
        found.by_domain({found.ids[0]: "in-domain"})


def test_a_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch, demo: Any) -> None:
    """What is added to the table is evaluated, has an interval, and can be measured by its name."""
    from coscap.cli.evaluate_tables import _tables
    from coscap.metrics import evaluation, table

    longest = table.Metric(
        "longest", "mine", (), lambda m: mean([max(map(len, captions)) for captions in m.pictures]), True
    )
    extended = (*METRICS, longest)
    for module in (table, evaluation):
        monkeypatch.setattr(module, "METRICS", extended)
        monkeypatch.setattr(module, "GROUPS", (*table.GROUPS, "mine"))
        monkeypatch.setattr(module, "BY_NAME", {metric.name: metric for metric in extended})
    found = evaluate(*demo, metrics="mine")
    assert found.json(resamples=10)["mine"] == {"longest": found.values["longest"]}
    assert "longest" in found.intervals(10)
    assert [printed.title for printed in _tables(found, {})] == ["mine"]
    assert measure(["longest"], [["ab cd", "a"]]) == {"longest": 5.0}


def test_the_intervals_of_two_systems_give_that_of_their_difference() -> None:
    """As two independent samples of normals do; a paired one of systems that rise and fall together is narrower."""
    drawn = np.random.default_rng(0).normal([[1.0], [0.8]], [[0.03], [0.04]], (2, 200_000))
    ends = [interval(each) for each in drawn]
    found = unpaired_difference(1.0, 0.8, *ends)
    plain = drawn[0] - drawn[1]
    assert (found.low, found.high) == pytest.approx(interval(plain), abs=1e-3) and found.clear
    assert found.share == pytest.approx(float(np.mean(plain > 0)), abs=1e-3)
    together = drawn[0] + 0.1, drawn[0]
    paired = paired_difference(1.1, 1.0, *together)
    assert unpaired_difference(1.1, 1.0, interval(together[0]), ends[0]).low < paired.low
    assert unpaired_difference(1.0, 1.0, (1.0, 1.0), (1.0, 1.0)).share == 0.5
