"""`coscap export`: graphs that give what torch gives, and a program without torch that captions with them."""

import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from coscap import Captioner
from coscap.cli.main import app
from coscap.data.collate import region_batch
from coscap.errors import UserError
from coscap.export import onnx as exporting
from coscap.models import Pretrained, build_model, preset
from coscap.models.noise import normals, row_keys
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text import Vocabulary
from coscap.vision.builtin import session
from coscap.vision.pictures import open_picture
from tiny_captioner import WORDS

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.jpg"))
SIZES = dict(
    vocabulary=30, region_width=12, classes=4, word_width=8, attention_lstm=8, language_lstm=8, attention_width=6,
    context_posterior=6, object_posterior=6, context_prior=8, object_prior=6, context_latent=4, object_latent=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped captioner, exported by the command."""
    folder = tmp_path_factory.mktemp("export") / "onnx"
    done = CliRunner().invoke(app, ["export", "shipped", "--onnx", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    told = re.search(r"largest difference is (\S+)", done.stdout)
    assert told and float(told[1]) < 1e-4
    return folder


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner.from_pretrained(runtime="torch")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("onnx_caption", ROOT / "examples" / "onnx_caption.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_folder_is_complete_and_described(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    written = {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert written == set(manifest["sha256"])
    assert set(manifest["graphs"]) == {"regions", "start", "step"}
    assert manifest["latents"] == {"context": 32, "object": 33}  # the last one chooses a region
    assert max((folder / name).stat().st_size for name in ("start.onnx", "step.onnx")) < 400_000  # no weights
    assert len(Vocabulary.load(folder / "vocabulary.json")) == 6404


def test_example_gives_the_captions_of_the_means(
    folder: Path, captioner: Captioner, example: ModuleType
) -> None:
    plain = SearchSettings(latent_temperature=0.0)
    for result in captioner(EXAMPLES, n=1, settings=plain):
        said = example.caption(folder, result.photo, 1, lambda step, name, shape: np.zeros(shape, np.float32))
        assert said == [result.captions[0].text]


def test_example_gives_the_captions_of_the_same_draws(
    folder: Path, captioner: Captioner, example: ModuleType
) -> None:
    for photo in EXAMPLES[:3]:
        picture = open_picture(photo, least_side=captioner.detector.least_side)
        batch = region_batch(captioner.detector.regions([picture]))
        ours = generate(captioner.model, batch, captioner.vocabulary, 4, SearchSettings(seed=5))[0]
        keys = row_keys(5, batch.keys, 4)

        def noise(number, name: str, shape: tuple[int, int], keys=keys):  # type: ignore[no-untyped-def]
            number = torch.as_tensor(number)  # of the word, or of the object of each row
            return normals(keys, {"context": 1, "object": 2}[name], number, shape[1]).numpy()

        assert example.caption(folder, photo, 4, noise) == [caption.text for caption in ours]


def test_example_is_short_and_needs_neither_coscap_nor_torch(folder: Path) -> None:
    script = ROOT / "examples" / "onnx_caption.py"
    assert len(script.read_text().splitlines()) <= 70
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['coscap'] = None; "
        f"sys.argv = ['onnx_caption.py', {str(folder)!r}, {str(EXAMPLES[0])!r}]; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 5
    assert done.stderr == "", "onnxruntime has nothing to warn of"


def test_regions_are_those_of_the_detector(
    folder: Path, captioner: Captioner, example: ModuleType, tmp_path: Path
) -> None:
    Image.new("RGB", (300, 200), "white").save(tmp_path / "nothing.png")
    names = ("picodet-s", "map", "regions")
    graphs = {name: session((folder / f"{name}.onnx").read_bytes(), threads=1) for name in names}

    def run(name: str, feed: dict) -> None:
        ports = [port.name for port in graphs[name].get_inputs()]
        values = graphs[name].run(None, {port: feed[port] for port in ports})
        outputs = (port.name.removeprefix("next_") for port in graphs[name].get_outputs())
        feed.update(zip(outputs, values, strict=True))

    for photo in (*EXAMPLES, tmp_path / "nothing.png"):
        feed = {}
        for name, sides in (("picodet-s", (384,)), ("map", (384, 256))):
            feed["picture"] = example.squash(photo, *sides)
            run(name, feed)
        run("regions", feed)
        seen = feed["mask"][0]
        (regions,) = captioner.detector.regions(
            [open_picture(photo, least_side=captioner.detector.least_side)]
        )
        assert feed["labels"][0, seen].tolist() == regions.labels.tolist()
        np.testing.assert_allclose(
            feed["boxes"][0, seen], regions.boxes, atol=3e-5
        )  # words: roots of differences
        np.testing.assert_allclose(feed["scores"][0, seen], regions.scores, atol=1e-5)
        np.testing.assert_allclose(feed["features"][0, seen], regions.features, atol=1e-3)


def test_what_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary.build([WORDS], minimum=1)
    model = build_model(preset("paper", kind="updown", **{**SIZES, "vocabulary": len(vocabulary)}))
    pretrained = Pretrained("made", model, vocabulary, None, None, {})
    monkeypatch.setattr(exporting, "write_graph", lambda graph, path: path.write_bytes(b""))
    monkeypatch.setattr(exporting, "share_weights", lambda path, weights, tied: None)
    monkeypatch.setattr(exporting, "largest_difference", lambda model, folder, manifest: 0.5)
    with pytest.raises(UserError, match=r"was not written: its graphs differ from torch by 5.0e-01"):
        exporting.export(pretrained, tmp_path / "onnx")
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        exporting.export(pretrained, tmp_path)
    with pytest.raises(UserError, match="is a file"):
        exporting.export(pretrained, tmp_path / "notes.txt")
