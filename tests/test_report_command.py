"""`coscap report` on a small world with random models of every kind."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.contexts.bank import Bank
from coscap.contexts.judge import bank_folder
from coscap.data import open_prepared
from coscap.errors import UserError
from coscap.metrics import spice
from coscap.metrics.intervals import mean
from coscap.metrics.words import token_groups
from coscap.models import build_model, preset, save_pretrained
from coscap.report import figures as figures_of_page
from coscap.report import order, sampling, tables
from coscap.report.build import Measured
from coscap.report.measure import Measurer, Ranker
from coscap.report.methods import WORDS, methods
from coscap.report.runs import open_run, open_runs
from coscap.vision.store import RegionStore
from coscap.vision.stores import Stores
from search_tiny import one_thread as one_thread
from training_world import TINY, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/, regions.h5 and the runs paired, pseudo, seq and updown."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    prepared, store = open_prepared(folder / "data"), RegionStore.open(folder / "regions.h5")
    kinds = {"paired": "cos_cvae", "pseudo": "cos_cvae", "seq": "seq_cvae", "updown": "updown"}
    for seed, (name, kind) in enumerate(kinds.items()):
        torch.manual_seed(seed)
        sizes = {key: value for key, value in TINY.items() if key != "preset"}
        config = preset(
            "small", vocabulary=len(prepared.vocabulary), region_width=8, classes=4, **{**sizes, "kind": kind}
        )
        model = build_model(config)
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(2.5)  # far from uniform, so that draws differ
        save_pretrained(
            model,
            folder / name / "best",
            vocabulary=prepared.vocabulary,
            recipe=store.recipe,
            notes={"step": 10, "epoch": 0.5},
        )
        setup = {"batch_size": 8, "pseudo": {"weight": 0.2} if name == "pseudo" else None}
        setup["start"] = "runs/first" if name == "paired" else None
        (folder / name / "config.yaml").write_text(yaml.safe_dump(setup))
    return folder


def report(world: Path, out: Path, runs: list[str], *more: str) -> str:
    arguments = [str(world / run) for run in runs]
    arguments += ["--data", str(world / "data"), "--regions", str(world / "regions.h5"), "--out", str(out)]
    arguments += [
        "--split",
        "validation",
        "--samples",
        "6",
        "--seeds",
        "2",
        "--latent-temperature",
        "0.8",
        "--work",
        str(out / "work"),
    ]
    done = CliRunner().invoke(app, ["report", *arguments, "--no-meteor", "--device", "cpu", *more])
    if done.exception is not None:
        raise done.exception
    return (out / "README.md").read_text()


@pytest.fixture(scope="module")
def made(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    before, sys.argv = sys.argv, ["coscap", "report", str(world / "paired"), "--seeds", "2"]
    report(world, out, ["pseudo", "paired", "seq", "updown"], "--random", "3", "--goal", "oracle/6/CIDEr=-1",
           "--goal", "consensus/6/CIDEr=99")  # fmt: skip
    sys.argv = before
    return out


def test_tables_figures_and_numbers_of_every_kind_of_run(made: Path) -> None:
    page = (made / "README.md").read_text()
    rows = ["COS-CVAE", "COS-CVAE (paired)", "Seq-CVAE (attn)", "UpDown, beam", "UpDown, diverse beam"]
    for row in (*rows, *(f"UpDown, {words}" for words in WORDS)):
        assert f"| **{row}** |" in page
    assert "without those of the models that COS-CVAE (paired) began with" in page and "| + 10 |" in page
    assert "steps after those of the model that the run began with" in page
    assert "temperature 0.8" in page and "-n 6 --latent-temperature 0.8 --seed 0 --out" in page
    assert "COS-CVAE, paper" in page and "| **COS-CVAE** | 6 |" in page
    for name in ("best-ten.png", "best-ten.svg", "cider-by-samples.png", "cider-by-samples.svg"):
        assert (made / name).stat().st_size > 1000
    assert not (made / "f1-by-samples.png").exists()  # the data is not held-out COCO
    assert "Novel objects" not in page
    lines = page.splitlines()
    reached = next(line for line in lines if line.startswith("| `oracle/6/CIDEr` | -1 |"))
    assert reached.count("✓") == 5 + len(WORDS)
    assert "✓" not in next(line for line in lines if line.startswith("| `consensus/6/CIDEr` | 99 |"))
    told = json.loads((made / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    roles = ["pseudo", "paired", "seq_cvae", "beam", "diverse", *WORDS]
    assert [each["role"] for each in told["methods"]] == roles
    first = told["methods"][0]
    assert len(first["seeds"]) == 2 and first["training"]["pseudo weight"] == 0.2
    one, other = (seed["oracle/6/CIDEr"] for seed in first["seeds"])
    assert first["mean"]["oracle/6/CIDEr"] == pytest.approx((one + other) / 2)
    assert first["deviation"]["oracle/6/CIDEr"] == pytest.approx(abs(one - other) / 2**0.5)
    assert told["methods"][3]["deviation"] == {}  # a beam has no seeds
    unique = {each["role"]: each["mean"]["all/6/unique"] for each in told["methods"] if each["role"] in WORDS}
    assert unique["words at 0.3"] < unique["words at 1"] and len(told["methods"][5]["seeds"]) == 2
    assert "-n 6 --do-sample --temperature 0.3 --top-p 1 --seed 0 --out samples.json" in page
    assert "-n 6 --do-sample --temperature 1 --top-p 0.9 --seed 0 --out samples.json" in page
    low, high = first["intervals"]["oracle/6/CIDEr"]
    assert low < first["mean"]["oracle/6/CIDEr"] < high
    assert f"{first['mean']['oracle/6/CIDEr']:.3f} ± {(high - low) / 2:.3f}" in page
    assert '<span style="color:gray">' in page and "| best 5 of 6 |" in page
    assert len(told["order"]) == 3


def test_no_absolute_path_is_told(made: Path, world: Path) -> None:
    for name in ("README.md", "results.json", "random.md"):
        assert str(world) not in (made / name).read_text()
        assert "/tmp" not in (made / name).read_text()


def test_the_commands_on_the_page_give_its_numbers(made: Path, world: Path, tmp_path: Path) -> None:
    """`coscap sample`, `rerank` and `evaluate` one after the other agree with the report to the last digits."""
    place = ["--data", str(world / "data"), "--regions", str(world / "regions.h5")]
    samples, best = tmp_path / "samples.json", tmp_path / "best.json"
    references = f"{world / 'data'}:validation"

    def run(*arguments: str) -> None:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exception is None, done.exception

    run("sample", str(world / "pseudo"), *place, "--split", "validation", "-n", "6", "--seed", "1",
        "--latent-temperature", "0.8", "--out", str(samples), "--device", "cpu")  # fmt: skip
    run("evaluate", str(samples), "-r", references, "--metrics", "bleu,cider,rouge,diversity,chair",
        "--json", str(tmp_path / "all.json"))  # fmt: skip
    run("rerank", str(samples), "--regions", str(world / "regions.h5"), "--train", str(world / "data"),
        "--distinct", "--keep", "5", "--out", str(best))  # fmt: skip
    run("evaluate", str(best), "-r", references, "--train", str(world / "data"),
        "--metrics", "bleu,cider,rouge,diversity", "--json", str(tmp_path / "best5.json"))  # fmt: skip
    figures = json.loads((made / "results.json").read_text())["methods"][0]["seeds"][1]
    everything, five = (json.loads((tmp_path / name).read_text()) for name in ("all.json", "best5.json"))
    for metric in ("BLEU-4", "BLEU-1", "CIDEr", "ROUGE-L"):
        assert figures[f"oracle/6/{metric}"] == pytest.approx(everything["oracle"][metric], abs=1e-12)
        assert figures[f"worst/6/{metric}"] == pytest.approx(everything["worst"][metric], abs=1e-12)
        assert figures[f"consensus/6/{metric}"] == pytest.approx(five[metric], abs=1e-12)
    assert figures["all/6/unique"] == pytest.approx(everything["diversity"]["unique"])
    for metric in ("Div-1", "Div-2", "novel", "mBLEU-4-corpus", "mBLEU-4-picture"):
        assert figures[f"best5/6/{metric}"] == pytest.approx(five["diversity"][metric], abs=1e-12)
    assert figures["best5/6/self-CIDEr-references"] == pytest.approx(
        five["diversity"]["self-CIDEr-references"]
    )
    for metric in ("CHAIR-i", "CHAIR-s", "CHAIR-free"):
        assert figures[f"all/6/{metric}"] == pytest.approx(
            everything["chair"][metric], abs=1e-12, nan_ok=True
        )


def test_random_pictures_are_told_with_people_and_every_run(made: Path) -> None:
    page = (made / "random.md").read_text()
    assert page.count("\n## ") == 3 and page.count("**People**") == 3
    assert page.count("**COS-CVAE (paired)**") == 3 and page.count("**UpDown**") == 3


def test_what_was_drawn_is_kept_and_gone_on_with(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = report(world, tmp_path, ["paired"])
    drawn: list[int] = []
    search = sampling.Sampler._search

    def counted(self: sampling.Sampler, wanted: sampling.SampleSet, pictures: list[int]) -> list[list[str]]:
        drawn.extend(pictures)
        return search(self, wanted, pictures)

    monkeypatch.setattr(sampling.Sampler, "_search", counted)
    assert report(world, tmp_path, ["paired"]) == page
    assert not drawn
    kept = sorted((tmp_path / "work").glob("*seed1*.jsonl"))[0]
    whole = kept.read_bytes()
    lines = whole.splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:2]) + lines[2][:20])  # killed in the middle of a line
    assert report(world, tmp_path, ["paired"]) == page
    assert len(drawn) == len(lines) - 2
    assert kept.read_bytes() == whole
    report(world, tmp_path, ["seq"])  # another model: other files, so nothing is mixed up
    assert len(drawn) == len(lines) - 2 + 2 * len(lines)


def test_a_kind_that_the_paper_does_not_have_is_called_by_its_own_name(world: Path, tmp_path: Path) -> None:
    """Tables, figures and the order take any kind of model; only the paper's rows are missing."""
    (tmp_path / "swin").mkdir()
    config = json.loads((world / "updown" / "best" / "config.json").read_text())
    config["model"]["kind"] = "swin"
    (tmp_path / "swin" / "config.json").write_text(json.dumps(config))
    run = open_run(str(tmp_path / "swin"))
    assert (run.name, run.role) == ("swin", "swin")
    measured = []
    for method in methods([run, replace(run, name="swin, beam", has_latents=False)], 2, 1):
        figures = {f"{kind}/2/CIDEr": mean(np.arange(4.0)) for kind in ("oracle", "average", "worst")}
        measured.append(Measured.of(method, [figures], 4))
    assert [each.method.role for each in measured] == [
        *("swin", "swin, beam", "swin, diverse"),
        *(f"swin, {words}" for words in WORDS),
    ]
    assert "| **swin** |" in tables.oracle(measured, 2) and "COS-CVAE, paper" in tables.oracle(measured, 20)
    assert order.checks(measured, 2) == []
    assert figures_of_page.by_samples(measured, (2,), tmp_path / "cider").is_file()


def test_drawn_captions_of_a_picture_can_all_differ(world: Path, tmp_path: Path) -> None:
    """Draws of latents and of words; a row keeps its place beside the same run drawn as usual."""
    for folder, more in (("usual", ()), ("distinct", ("--distinct",))):
        report(
            world, tmp_path / folder, ["paired", "updown"], "--search", "draws", "--search", "words", *more
        )
    told = {
        folder: json.loads((tmp_path / folder / "results.json").read_text())["methods"]
        for folder in ("usual", "distinct")
    }
    assert [each["role"] for each in told["usual"]] == [each["role"] for each in told["distinct"]]
    unique = {name: [each["mean"]["all/6/unique"] for each in methods] for name, methods in told.items()}
    assert min(unique["usual"]) < 100 and set(unique["distinct"]) == {100}
    page = (tmp_path / "distinct" / "README.md").read_text()
    assert "its captions all differ" in page and "--latent-temperature 0.8 --distinct --seed 0" in page
    assert "--top-p 0.9 --distinct --seed 0" in page
    assert "all differ" not in (tmp_path / "usual" / "README.md").read_text()


def test_rows_of_an_earlier_report_stand_beside_new_ones(world: Path, made: Path, tmp_path: Path) -> None:
    """As they were, without their captions; what cannot be compared is refused in a sentence."""
    earlier = made / "results.json"
    with pytest.raises(UserError, match=r"has a row 'COS-CVAE' already; name the run, for example again="):
        report(world, tmp_path / "b", ["pseudo"], "--beside", str(earlier))
    arguments = [
        f"again={world / 'pseudo'}",
        "--data",
        str(world / "data"),
        "--regions",
        str(world / "regions.h5"),
    ]
    arguments += ["--split", "validation", "--samples", "6", "--seeds", "1", "--latent-temperature", "0.8"]
    arguments += [
        "--no-meteor",
        "--device",
        "cpu",
        "--work",
        str(tmp_path / "work"),
        "--out",
        str(tmp_path / "new"),
    ]
    done = CliRunner().invoke(app, ["report", *arguments, "--beside", str(earlier)])
    assert done.exception is None, done.output
    before = json.loads(earlier.read_text())["methods"]
    rows = json.loads((tmp_path / "new" / "results.json").read_text())["methods"]
    assert rows[:-1] == before and rows[-1]["name"] == "again"
    text = (tmp_path / "new" / "README.md").read_text()
    assert "**UpDown, words at 0.5**" in text and "are compared by the intervals of both rows" in text
    for change, sentence in (
        ({"pictures": 3}, "its pictures is 3 and that"),
        ({"format": "x"}, "expected the results"),
    ):
        other = tmp_path / "other.json"
        other.write_text(json.dumps(json.loads(earlier.read_text()) | change))
        refused = CliRunner().invoke(app, ["report", *arguments, "--beside", str(other)])
        assert isinstance(refused.exception, UserError) and sentence in str(refused.exception)


def test_a_difference_inside_its_interval_is_grey(world: Path) -> None:
    run = open_run(str(world / "paired"))
    values = np.random.default_rng(0).normal(size=200)
    (method,) = methods([run], 2, 1)
    base, same, better = (
        Measured.of(method, [{"x": mean(each)}], 200)
        for each in (values, values[::-1].copy(), values + 0.1 + 0.01 * values[::-1])
    )
    assert tables.figure(same, "x", 3, base).startswith('<span style="color:gray">')
    assert "≈" in tables.figure(same, "x", 3, base) and "≈" not in tables.figure(better, "x", 3, base)
    assert "≈" not in tables.figure(base, "x", 3, base)


def test_all_methods_stand_in_order_beside_the_papers(world: Path) -> None:
    """Three roles that the paper has: the first two here the other way round, clearly; the third cannot be told."""
    values = np.random.default_rng(0).normal(1.5, 0.3, size=300)
    found = []
    for name, each in (("pseudo", values), ("paired", values + 0.1), ("seq", values[::-1].copy() + 0.001)):
        (method,) = methods([open_run(str(world / name))], 20, 1)
        found.append(Measured.of(method, [{"oracle/20/CIDEr": mean(each)}], 300))
    page = order.places(found, (20,))
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert [row.split("|")[2].strip("* ") for row in rows] == [
        "COS-CVAE (paired)",
        "Seq-CVAE (attn)",
        "COS-CVAE",
    ]
    assert [row.split("|")[5].strip() for row in rows] == ["2 (1.604)", "3 (1.599)", "1 (1.624)"]
    assert "≈" not in rows[0] and "≈" in rows[1] and rows[2].split("|")[4].strip() == ""
    assert "Of 3 pairs" in page and "1 stand in it here, 1 stand the other way round, and 1 cannot" in page
    assert order.places(found[:2], (20,)) == ""


def test_runs_have_names_and_roles(world: Path) -> None:
    assert open_run(str(world / "pseudo")).role == "pseudo"
    assert open_run(str(world / "pseudo" / "best")).role == "pseudo"
    assert open_run(f"mine={world / 'paired'}").name == "mine"
    twice = open_runs([str(world / "paired"), str(world / "paired" / "best")])
    assert len({run.name for run in twice}) == 2
    with pytest.raises(UserError, match="neither a run"):
        open_run(str(world / "data"))
    with pytest.raises(UserError, match="Two runs are called"):
        open_runs([f"a={world / 'paired'}", f"a={world / 'paired'}"])


def test_a_run_may_have_a_temperature_of_its_own(world: Path, tmp_path: Path) -> None:
    warm, usual = open_runs([f"mine={world / 'paired'}@0.7", str(world / "pseudo")])
    assert (warm.name, warm.given, warm.temperature, usual.temperature) == (
        "mine",
        str(world / "paired"),
        0.7,
        None,
    )
    drawn = [each.sets[2][0].settings.latent_temperature for each in methods([warm, usual], 2, 1, 0.9)]
    assert drawn == [0.7, 0.9]
    wanted = sampling.Constraints(1, num_beams=3, score=0.4)
    (constrained,) = methods([warm], 2, 1, 0.9, searches=["beam"], constraints=wanted)
    asked = constrained.sets[2][0].settings
    assert (asked.latent_temperature, asked.beams, asked.detected_score) == (0.7, 3, 0.4)
    shutil.copytree(world / "paired", tmp_path / "run@0.5")  # a folder of that name is that folder
    assert open_run(str(tmp_path / "run@0.5")).temperature is None
    with pytest.raises(UserError, match="the temperature behind @ is -1"):
        open_run(f"{world / 'paired'}@-1")
    with pytest.raises(UserError, match="neither a run"):
        open_run(f"{world / 'paired'}@warm")


def test_spice_of_some_pictures_is_the_mean_over_these_and_has_an_interval(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def lengths(hypotheses, references, cache=None):  # type: ignore[no-untyped-def]  # stands in for the program
        asked.extend(tuple(each) for each in references)
        scores = [len(text) / 100 for text in hypotheses]
        return float(np.mean(scores)), scores

    monkeypatch.setattr(spice, "score", lengths)
    monkeypatch.setattr(spice, "check_installed", lambda: ("java", tmp_path))
    page = report(world, tmp_path / "out", ["seq"], "--spice", "6", "--spice-pictures", "5", "--seeds", "1")
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    drawn = [json.loads(line) for line in next((tmp_path / "out" / "work").glob("*.jsonl")).open()]
    places = [number * len(drawn) // 5 for number in range(5)]
    longest = [max(len(text) for text in token_groups([drawn[at]["captions"]])[0]) / 100 for at in places]
    method = found["methods"][0]
    assert method["mean"]["oracle/6/SPICE"] == pytest.approx(np.mean(longest))
    low, high = method["intervals"]["oracle/6/SPICE"]
    assert low <= np.mean(longest) <= high and min(longest) <= low and high <= max(longest)
    assert len(asked) == len(drawn) + 6 * 5  # the best after re-ranking of every picture, six draws of five
    assert "SPICE of the best of several captions (oracle) is that of 5 pictures" in page


def test_bad_requests_are_one_sentence(world: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of the pictures of 'test'"):
        report(world, tmp_path, ["paired"], "--split", "test")
    with pytest.raises(UserError, match="needs --random and --pictures"):
        report(world, tmp_path, ["paired"], "--html", str(tmp_path / "x.html"))
    with pytest.raises(UserError, match="not NAME=NUMBER"):
        report(world, tmp_path, ["paired"], "--goal", "oracle/20/CIDEr")
    with pytest.raises(UserError, match="--spice 20"):
        report(world, tmp_path, ["paired"], "--spice-pictures", "3")


def test_constrained_rows_are_called_as_the_papers_and_say_their_commands(
    world: Path, tmp_path: Path
) -> None:
    page = report(
        world, tmp_path, ["pseudo", "seq", "updown"], "--search", "beam", "--constrained", "2",
        "--constrained-beams", "2", "--no-rerank",
    )  # fmt: skip
    told = json.loads((tmp_path / "results.json").read_text())
    assert [each["name"] for each in told["methods"]] == [
        "COS-CVAE (CBS)", "Seq-CVAE (attn, CBS)", "UpDown, beam", "UpDown (CBS)",
    ]  # fmt: skip
    assert [len(each["seeds"]) for each in told["methods"]] == [2, 2, 1, 1]
    assert (
        "-n 6 --search constrained --detected 2 --num-beams 2 --latent-temperature 0.8 --seed 0 --out samples.json"
        in page
    )
    assert "-n 6 --search constrained --detected 2 --num-beams 2 --out samples.json" in page
    rows = [
        json.loads(line) for path in (tmp_path / "work").glob("*constrained*.jsonl") for line in path.open()
    ]
    data, store = open_prepared(world / "data"), RegionStore.open(world / "regions.h5")
    named = 0
    for row in rows:  # the surest class of each picture is named, or the plain caption had named it already
        label = store.recipe.classes[int(store.get(row["image_id"]).labels[0])]
        words = {label, *next((*c.words, *c.plurals) for c in data.classes.classes if c.name == label)}
        named += any(words & set(caption.split()) for caption in row["captions"])
    assert len(rows) == 6 * (2 + 2 + 1) and named >= 0.8 * len(rows)
    done = CliRunner().invoke(app, ["report", str(world / "seq"), "--data", str(world / "data"), "--regions",
                                    str(world / "regions.h5"), "--search", "cbs"])  # fmt: skip
    assert isinstance(done.exception, UserError) and "--search cbs is none of draws, beam" in str(
        done.exception
    )


def test_the_table_of_novel_objects_has_every_row_and_single_captions(world: Path) -> None:
    runs = [open_run(str(world / name)) for name in ("pseudo", "updown")]
    runs[1] = replace(runs[1], has_latents=False)
    found = []
    for method in methods(runs, 20, 1, searches=("draws", "beam"), constraints=sampling.Constraints(2)):
        figures = {f"f1/{n}/{name}": mean(np.arange(4.0)) for n in (1, 20) for name in tables.OBJECTS}
        found.append(Measured.of(method, [figures | {"oracle/1/CIDEr": mean(np.ones(4))}], 4))
    lines = tables.novel_objects(found, (20,)).splitlines()
    assert lines[0].count("METEOR") == 1
    ours = [line for line in lines if line.startswith("| **")]
    assert [line.split("|")[1].strip() for line in ours] == [
        f"**{name}**, any of {n}"
        for name in ("COS-CVAE", "COS-CVAE (CBS)", "UpDown, beam", "UpDown (CBS)")
        for n in (1, 20)
    ]
    assert "1.000" in ours[0] and "1.000" not in ours[1]
    ranked = {f"consensus-f1/20/{name}": mean(np.full(4, 7.0)) for name in tables.OBJECTS}
    more = tables.novel_objects([Measured.of(found[0].method, [figures | ranked], 4)], (20,)).splitlines()
    assert more[4].startswith("| **COS-CVAE**, the first of 20 by consensus | 7.0 ")
    assert {line.count("|") for line in lines} == {14} and "| COS-CVAE (CBS), paper |" in "\n".join(lines)


def test_what_consensus_puts_first_is_counted_as_one_caption(world: Path, tmp_path: Path) -> None:
    data, stores = open_prepared(world / "data"), Stores([world / "regions.h5"])
    references = {image: texts for image, texts in data.references("validation").items() if image in stores}
    ranker = Ranker(data, stores, list(references), tmp_path)
    with pytest.raises(UserError, match="make the bank again"):
        Ranker(data, stores, list(references), tmp_path, Bank.open(bank_folder("shipped")))
    measurer = Measurer.of(references, ranker, data.classes, meteor=False, objects=True)
    samples = {image: ["a zebra in a field", *texts[:2], "a bus"] for image, texts in references.items()}
    figures = measurer.measure(samples, (4,))
    order = ranker.order(token_groups(list(samples.values()))).best_of(4)
    first = {image: [samples[image][places[0]]] for image, places in zip(samples, order, strict=True)}
    alone = measurer.measure(first, (1,))
    for name in (*tables.OBJECTS, "average"):
        assert np.array_equal(figures[f"consensus-f1/4/{name}"].terms, alone[f"f1/1/{name}"].terms)
