"""The analyses of the two latents: the noise is the search's own, held values reproduce captions, parts add up."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from coscap.analysis.run import _photographs
from coscap.analysis.steer import CONTEXT, OBJECTS, Writer
from coscap.analysis.swap import swap, take
from coscap.analysis.traverse import Activity, between, move, turn
from coscap.analysis.variance import Table, shares, tf_idf, two_way, write_grid
from coscap.cli.main import app
from coscap.data import open_prepared
from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.metrics import cider_plain
from coscap.models import build_model, load_pretrained, preset, save_pretrained
from coscap.models.stepper import TorchStepper
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text import Vocabulary
from coscap.vision.store import RegionStore
from search_tiny import one_thread as one_thread
from tiny_captioner import save_tiny_model
from training_world import TINY, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    prepared, store = open_prepared(folder / "data"), RegionStore.open(folder / "regions.h5")
    sizes = {key: value for key, value in TINY.items() if key != "preset"}
    for kind in ("cos_cvae", "updown"):
        torch.manual_seed(2)
        model = build_model(
            preset(
                "small", vocabulary=len(prepared.vocabulary), region_width=8, classes=4, **sizes, kind=kind
            )
        )
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(2.5)  # far from uniform, so that draws differ
        save_pretrained(model, folder / kind, vocabulary=prepared.vocabulary, recipe=store.recipe)
    return folder


@pytest.fixture(scope="module")
def writer(world: Path) -> Writer:
    return Writer.open(str(world / "cos_cvae"), max_length=8)


@pytest.fixture(scope="module")
def regions(world: Path, writer: Writer) -> RegionBatch:
    store = RegionStore.open(world / "regions.h5")
    return writer.batch([store.get(image) for image in (1, 2, 3)])


def test_the_noise_is_that_of_a_search_with_the_same_seed(writer: Writer, regions: RegionBatch) -> None:
    noises = [writer.noise(regions, 4, stream, 7) for stream in (CONTEXT, OBJECTS)]
    steered = writer.steered(regions, *noises)
    drawn = generate(
        TorchStepper(writer.model), regions, writer.vocabulary, 4, SearchSettings(seed=7, max_length=8)
    )
    assert [[c.tokens for c in row] for row in steered] == [[c.tokens for c in row] for row in drawn]
    assert len({c.tokens for row in steered for c in row}) > 4


def test_the_cross_of_draws_has_them_on_its_diagonal(writer: Writer, regions: RegionBatch) -> None:
    grid = write_grid(writer, regions, 3, 7)
    drawn = generate(
        TorchStepper(writer.model), regions, writer.vocabulary, 3, SearchSettings(seed=7, max_length=8)
    )
    for cells, captions in zip(grid, drawn, strict=True):
        assert [cells[4 * i].tokens for i in range(3)] == [caption.tokens for caption in captions]


def test_latents_that_were_read_write_the_caption_again(writer: Writer, regions: RegionBatch) -> None:
    captions = writer.drawn(regions, 5)
    latents = writer.read(regions, captions, 5)
    assert latents.lengths.tolist() == [len(caption.tokens) + 1 for caption in captions]
    again = writer.held(regions, latents, seed=99)  # another seed: all noise is replaced by the values
    assert [caption.tokens for caption in again] == [caption.tokens for caption in captions]
    other = writer.drawn(regions, 99)
    assert [caption.tokens for caption in other] != [caption.tokens for caption in captions]
    turned = take(latents, [1, 2, 0])
    assert torch.equal(turned.context[0], latents.context[1])  # type: ignore[index]
    held = swap(writer, regions, captions, turned, 6)
    assert set(held) == {"context", "objects", "neither"}
    assert [c.tokens for c in held["neither"]] == [c.tokens for c in writer.drawn(regions, 6)]
    assert [c.tokens for c in held["context"]] != [c.tokens for c in held["neither"]]


def test_ways_begin_and_end_at_draws(writer: Writer, regions: RegionBatch) -> None:
    drawn = generate(
        TorchStepper(writer.model), regions, writer.vocabulary, 2, SearchSettings(seed=3, max_length=8)
    )
    both = turn(writer, regions, ("context", "objects"), 5, 3)
    for way, (first, second) in zip(both, drawn, strict=True):
        assert way[0].tokens == first.tokens and way[-1].tokens == second.tokens
    still = generate(
        TorchStepper(writer.model),
        regions,
        writer.vocabulary,
        1,
        SearchSettings(latent_temperature=0, max_length=8),
    )
    moved = move(writer, regions, "objects", 1, (-2.0, 0.0, 2.0))
    assert [way[1].tokens for way in moved] == [row[0].tokens for row in still]


def test_noise_between_two_noises_is_as_large_as_they_are() -> None:
    one, other = torch.randn(2, 1, 20, 500, generator=torch.Generator().manual_seed(1))
    way = between(one, other, 5)
    assert torch.allclose(way[:, 0], one) and torch.allclose(way[:, -1], other, atol=1e-6)
    assert torch.all((way.std(dim=(2, 3)) - 1).abs() < 0.03)


def test_the_parts_of_a_variance_are_found_without_bias() -> None:
    """f = a_i + b_j + c_ij with variances 4, 1 and 2 in each of 3 components."""
    chance = np.random.default_rng(0)
    tables = []
    for _ in range(4000):
        a, b = 2 * chance.normal(size=(4, 1, 3)), chance.normal(size=(1, 4, 3))
        tables.append(a + b + np.sqrt(2) * chance.normal(size=(4, 4, 3)) + 5 * chance.normal(size=3))
    mean = np.mean([two_way(table) for table in tables], axis=0)
    assert mean == pytest.approx([12, 3, 6], rel=0.05)
    found = shares([Table(np.arange(3), table) for table in tables[:400]], rounds=200)
    assert found.within["context"][0] == pytest.approx(12 / 21, abs=0.05)
    assert found.picture[0] == pytest.approx(75 / 96, abs=0.03)
    for value, low, high in (*found.within.values(), found.picture):
        assert low < value < high


def test_a_part_that_is_not_there_is_zero() -> None:
    rows = np.arange(4.0)[:, None, None] * np.ones((4, 4, 2))
    context, objects, both = two_way(rows)
    assert context > 0 and objects == pytest.approx(0) and both == pytest.approx(0)
    context, objects, both = two_way(rows.transpose(1, 0, 2))
    assert objects > 0 and context == pytest.approx(0)


def test_the_vector_of_a_caption_is_ciders() -> None:
    documents = [
        ["a dog runs on grass", "a dog"],
        ["a red bus on a street"],
        ["a cat sleeps", "the cat on a bed"],
    ]
    captions = ["a dog on grass", "a dog runs on grass"]
    ((_, table),) = tf_idf([captions], documents)
    references = [[captions[1]], *documents[1:]]
    # document frequencies must be the same, so the reference stands in for its own document
    ((_, again),) = tf_idf([captions], references)
    _, each = cider_plain([captions[0], "a red bus", "a cat"], references)
    assert 10 * float(again[0] @ again[1]) == pytest.approx(each[0], rel=1e-5)
    assert float(table[0] @ table[0]) == pytest.approx(1, rel=1e-5)


def test_the_command_writes_page_numbers_and_figures(world: Path, tmp_path: Path) -> None:
    arguments = [
        "--data",
        str(world / "data"),
        "--regions",
        str(world / "regions.h5"),
        "--out",
        str(tmp_path),
    ]
    more = ["--pictures", "4", "--draws", "3", "--device", "cpu"]
    done = CliRunner().invoke(app, ["analyse", str(world / "cos_cvae"), *arguments, *more])
    assert done.exception is None, done.exception
    told = json.loads((tmp_path / "analysis.json").read_text())
    assert told["pictures"] == 4 and set(told["swaps"]) == {"context", "objects", "neither"}
    for each in told["shares"].values():
        whole = sum(part[0] for part in each["within"].values())
        assert whole == pytest.approx(1) or whole == 0
    assert sum(part[0] for part in told["shares"]["caption"]["within"].values()) == pytest.approx(1)
    page = (tmp_path / "analysis.md").read_text()
    assert "z^m alone" in page and "| z^m of A |" in page
    linked = re.findall(r"\]\((images/[^)]+)\)", page)
    assert linked and all((tmp_path / name).is_file() for name in linked), "every figure of the page is there"
    for name in ("variance", "activity"):
        assert (tmp_path / "images" / f"analysis-{name}.png").stat().st_size > 5000
    for name in ("vocabulary", "regions"):
        done = CliRunner().invoke(
            app, ["analyse", str(other_model(world, tmp_path / name, name)), *arguments, *more]
        )
        assert isinstance(done.exception, UserError), name
        said = {"vocabulary": "another vocabulary", "regions": "was trained on regions of the recipe other/1"}
        assert said[name] in str(done.exception)
    done = CliRunner().invoke(app, ["analyse", str(world / "cos_cvae"), *arguments, *more, "--ways", "cat"])
    assert isinstance(done.exception, UserError) and "--ways cat: no --photo" in str(done.exception)
    done = CliRunner().invoke(app, ["analyse", str(world / "updown"), *arguments, *more])
    assert isinstance(done.exception, UserError) and "only a COS-CVAE" in str(done.exception)


def other_model(world: Path, folder: Path, other: str) -> Path:
    """The model of the world as if it had been trained with another vocabulary or on other regions."""
    loaded = load_pretrained(world / "cos_cvae")
    assert loaded.recipe is not None
    units, recipe = loaded.vocabulary.units, loaded.recipe
    if other == "vocabulary":
        units = (*units[:-1], "zzz")
    else:
        recipe = replace(recipe, name="other/1")
    save_pretrained(loaded.model, folder, vocabulary=Vocabulary(units), recipe=recipe)
    return folder


def test_figures_of_photographs(tmp_path: Path) -> None:
    writer = Writer.open(str(save_tiny_model(tmp_path / "model")), max_length=6)
    examples = Path(__file__).parents[1] / "examples"
    active = {
        name: Activity(np.arange(width, dtype=float), np.zeros(width), np.zeros(width))
        for name, width in zip(("context", "objects"), writer.widths, strict=True)
    }
    paths = [examples / "cat.jpg", examples / "coffee.jpg"]
    _photographs(writer, paths, ["cat"], active, 0, tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "analysis-swap.png", "analysis-dimensions-cat.png", "analysis-turn-cat.png"
    }  # fmt: skip
