"""`coscap sample`, with a random model of the real kind, and its options."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from coscap.cli.sample import sample
from coscap.errors import UserError
from coscap.models import ModelConfig, build_model
from coscap.models.hub import save_pretrained
from coscap.search.config import SearchSettings, settings_from
from coscap.text import load_classes
from data_made import WIDTH, made_prepared, made_store
from search_tiny import one_thread as one_thread


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/, regions.h5 and run/best/."""
    folder = tmp_path_factory.mktemp("world")
    prepared = made_prepared(folder / "data")
    store = made_store(folder / "regions.h5", [int(i) for i in prepared.image_ids])
    torch.manual_seed(1)
    names = ("attention_lstm", "language_lstm", "attention_width", "context_latent", "object_latent")
    sizes = dict.fromkeys(names, 8)
    config = ModelConfig(vocabulary=len(prepared.vocabulary), region_width=WIDTH, region_scale=0.01, **sizes)
    model = build_model(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(2.0)  # far from uniform, so that draws differ
    save_pretrained(model, folder / "run" / "best", vocabulary=prepared.vocabulary, recipe=store.recipe)
    return folder


def run(world: Path, *arguments: str) -> list[dict[str, object]]:
    app = typer.Typer()
    app.command()(sample)
    out = world / "samples.json"
    place = ["--data", str(world / "data"), "--regions", str(world / "regions.h5"), "--out", str(out)]
    done = CliRunner().invoke(app, [str(world / "run"), *place, "--device", "cpu", *arguments])
    if done.exception is not None:
        raise done.exception
    rows: list[dict[str, object]] = json.loads(out.read_text())
    return rows


def test_a_results_file_with_n_captions_of_each_picture(world: Path) -> None:
    rows = run(world, "-n", "3", "--seed", "4", "--max-length", "8")
    assert len(rows) == 15  # five pictures of the test split
    assert set(rows[0]) == {"image_id", "caption", "log_probability", "draw"}
    assert [row["draw"] for row in rows[:3]] == [0, 1, 2]
    assert all(isinstance(row["caption"], str) and row["caption"] for row in rows)
    again = run(world, "-n", "3", "--seed", "4", "--max-length", "8", "--batch", "2", "--max-rows", "4")
    assert [row["caption"] for row in again] == [row["caption"] for row in rows]
    drawn = run(world, "-n", "3", "--seed", "4", "--max-length", "8", "--do-sample")
    assert run(world, "-n", "3", "--seed", "5", "--max-length", "8", "--do-sample") != drawn
    assert len(run(world, "-n", "2", "--limit", "2", "--split", "train")) == 4


@pytest.mark.parametrize("search", ["beam", "diverse", "constrained"])
def test_the_other_searches(world: Path, search: str) -> None:
    wish = ["--must", "dog", "--must", "horse|bus"] if search == "constrained" else ["--without", "dog"]
    rows = run(world, "-n", "2", "--search", search, "--num-beams", "2", "--max-length", "8", *wish)
    assert len(rows) == 10
    dogs = next(each for each in load_classes("coco").classes if each.name == "dog")
    for row in rows:
        named = any(f" {form} " in f" {row['caption']} " for form in (*dogs.words, *dogs.plurals))
        assert named == (search == "constrained")
        assert row.get("satisfied", True) is True


def test_published_features_are_taken_as_training_takes_them(world: Path, tmp_path: Path) -> None:
    """A folder of .npz files, and a model that was trained on such regions."""
    from coscap.data import open_prepared

    prepared = open_prepared(world / "data")
    (tmp_path / "features").mkdir()
    random = np.random.default_rng(0)
    for image_id in prepared.image_ids[prepared.images("test")].tolist():
        boxes = np.tile(np.array([0.1, 0.1, 0.9, 0.8], np.float32), (5, 1))
        features = random.normal(size=(5, WIDTH)).astype(np.float32)
        np.savez(
            tmp_path / "features" / f"{image_id}.npz", features=features, boxes=boxes, image_w=1, image_h=1
        )
    config = json.loads((world / "run" / "best" / "config.json").read_text())
    shutil.copytree(world / "run", tmp_path / "run")
    (tmp_path / "run" / "best" / "config.json").write_text(json.dumps({**config, "recipe": None}))
    app = typer.Typer()
    app.command()(sample)
    out = tmp_path / "samples.json"
    options = ["--data", world / "data", "--regions", tmp_path / "features", "--out", out, "-n", "2"]
    arguments = [tmp_path / "run", *options, "--device", "cpu", "--max-length", "6"]
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0 and len(json.loads(out.read_text())) == 10


def test_regions_that_are_missing_are_told_or_skipped(world: Path, tmp_path: Path) -> None:
    from coscap.data import open_prepared

    prepared = open_prepared(world / "data")
    ids = [int(i) for i in prepared.image_ids[prepared.images("test")]]
    few = made_store(tmp_path / "few.h5", ids[:3])
    with pytest.raises(UserError, match=f"2 of the 5 pictures of 'test' .the first is {ids[3]}"):
        run(world, "--regions", str(few.path))
    rows = run(world, "--regions", str(few.path), "--skip-missing", "-n", "1", "--max-length", "4")
    assert [row["image_id"] for row in rows] == ids[:3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--search", "constrained"], "--must zebra"),
        (["--must", "zebra", "--search", "beam"], "--search constrained"),
        (["--top-k", "5"], "--do-sample"),
        (["--min-length", "9", "--max-length", "8"], "above max_length"),
        (["--must", "zebra", "--at-least", "2"], "at_least is 2 and must is given 1 times"),
        (["--latent-temperature", "-1"], "latent_temperature is -1.0"),
        (["--split", "nowhere"], "no split"),
        (["--search", "beam", "--do-sample"], "latent search"),
    ],
)
def test_wrong_settings_are_one_sentence(world: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run(world, *arguments)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_the_command_says_it_without_a_traceback(world: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "coscap",
        "sample",
        str(world / "nothing"),
        "--data",
        str(world / "data"),
    ]
    options = ["--regions", str(world / "regions.h5"), "--out", str(world / "no.json"), "--device", "cpu"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and "nothing" in done.stderr and "Traceback" not in done.stderr
    assert not (world / "no.json").exists()


def test_every_field_is_an_option_with_a_help_text() -> None:
    app = typer.Typer()
    app.command()(sample)
    options = {p.name: p for p in typer.main.get_command(app).params}
    for name, field in SearchSettings.model_fields.items():
        assert options[name].opts == ["--" + name.replace("_", "-")]
        assert field.description and options[name].help == " ".join(field.description.split())


def test_settings_are_frozen_and_refuse_what_they_do_not_know() -> None:
    with pytest.raises(UserError, match="beams"):
        settings_from(beams=3)
    with pytest.raises(ValueError, match="frozen"):
        SearchSettings().seed = 3  # type: ignore[misc]
