"""The tuned map network: equal to its ONNX graph, learns words, resumes to the same bits, and comes back as ONNX."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.data.word_targets import choose_words, word_targets
from coscap.errors import UserError
from coscap.text.content import FUNCTION_WORDS
from coscap.training import backbone as training
from coscap.training.backbone import BackboneConfig, average_precision, calibrate, nats, tune_backbone
from coscap.vision.backbone import Backbone, WordHead
from coscap.vision.builtin import MAP_SIDE, WEIGHTS, BuiltinDetector, squash
from coscap.vision.pictures import open_picture
from coscap.vision.words import WordReader
from data_made import made_prepared

CAT = Path(__file__).parents[1] / "examples" / "cat.jpg"
SMALL = dict(
    words=20, epochs=1.0, side=64, batch_size=8, validation=5, validations=1, frozen=40, precision="fp32"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pictures, whose colour is that of their first caption's noise."""
    folder = tmp_path_factory.mktemp("eyes")
    data = made_prepared(folder / "data")
    (folder / "pictures").mkdir()
    for image in range(len(data)):
        chance = np.random.default_rng(image)
        pixels = chance.integers(0, 255, (48, 64, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{int(data.image_ids[image])}.jpg")
    return folder


def config(world: Path, **changes: object) -> BackboneConfig:
    fields = SMALL | {"data": str(world / "data"), "pictures": str(world / "pictures")} | changes
    return BackboneConfig(**fields)  # type: ignore[arg-type]


def test_torch_gives_the_map_of_the_onnx_graph() -> None:
    picture = squash(open_picture(CAT), MAP_SIDE)[None].copy()
    session = onnxruntime.InferenceSession(WEIGHTS / "pplcnetv2.onnx", providers=["CPUExecutionProvider"])
    (expected,) = session.run(["map"], {"picture": picture})
    with torch.no_grad():
        plain = Backbone(WEIGHTS / "pplcnetv2.onnx", precision="fp32")(torch.from_numpy(picture)).numpy()
        low = Backbone(WEIGHTS / "pplcnetv2.onnx", frozen=10)(torch.from_numpy(picture)).numpy()
    assert np.abs(plain - expected).max() < 1e-3 * np.abs(expected).max()
    assert np.abs(low - expected).mean() < 0.02 * np.abs(expected).max()


def test_frozen_convolutions_learn_nothing() -> None:
    network = Backbone(WEIGHTS / "pplcnetv2.onnx", frozen=10)
    network(torch.zeros(1, 64, 64, 3, dtype=torch.uint8)).sum().backward()
    learnt = [p for p in network.parameters() if p.requires_grad]
    assert len([p for p in network.parameters() if not p.requires_grad]) == 20  # ten weights, ten biases
    assert learnt and all(p.grad is not None for p in learnt)
    with pytest.raises(UserError, match="45 convolutions"):
        Backbone(WEIGHTS / "pplcnetv2.onnx", frozen=45)


def test_head_pools_as_written_out() -> None:
    torch.manual_seed(0)
    head = WordHead(6, torch.tensor([0.1, 0.5, 0.2]))
    torch.nn.init.normal_(head.weight)
    torch.nn.init.normal_(head.mixture)
    maps = torch.randn(2, 6, 3, 4)
    logits = head(maps)
    for row in range(2):
        for word in range(3):
            places = [
                float((head.weight[word] @ maps[row, :, y, x] + head.bias[word]).detach())
                for y in range(3)
                for x in range(4)
            ]
            share = 1 / (1 + np.exp(-head.mixture[word].item()))
            plain = share * np.mean(places) + (1 - share) * np.log(np.mean(np.exp(places)))
            assert logits[row, word].item() == pytest.approx(plain, abs=1e-5)


def test_average_precision_equals_its_definition() -> None:
    chance = np.random.default_rng(0)
    scores, truth = chance.random((30, 4)), chance.random((30, 4)) < 0.3
    truth[:, 3] = False
    found = average_precision(scores, truth)
    for word in range(3):
        order = sorted(range(30), key=lambda i, w=word: -scores[i, w])
        hits, total = 0, 0.0
        for rank, image in enumerate(order, 1):
            if truth[image, word]:
                hits += 1
                total += hits / rank
        assert found[word] == pytest.approx(total / hits)
    assert np.isnan(found[3])


def test_calibration_undoes_a_scale_and_a_shift() -> None:
    chance = np.random.default_rng(0)
    logits = chance.normal(-2, 2, (4000, 5))
    truth = chance.random(logits.shape) < 1 / (1 + np.exp(-(0.5 * logits + 1)))
    scale, shift = calibrate(logits, truth)
    assert (scale, shift) == pytest.approx((0.5, 1.0), abs=0.05)
    assert nats(scale * logits + shift, truth) < nats(logits, truth)
    p = 1 / (1 + np.exp(-logits))
    plain = -np.where(truth, np.log(p), np.log(1 - p)).sum() / len(logits)
    assert nats(logits, truth) == pytest.approx(plain)


def test_words_are_content_words_of_any_caption(world: Path) -> None:
    data = made_prepared(world / "again")
    images = data.images("train")
    words = choose_words(data, images, 50)
    assert not FUNCTION_WORDS & set(words) and "fire hydrant" in words
    targets = word_targets(data, images, words)
    rows = targets.rows(np.arange(len(images)))
    for row, image in zip(rows, images.tolist(), strict=True):
        said = {token for caption in data.captions_of(image) for token in data.units(caption)}
        assert {words[number] for number in np.flatnonzero(row)} == said & set(words)
    assert targets.frequencies() == pytest.approx(rows.mean(axis=0))


def test_an_interrupted_run_resumes_to_the_same_bits_and_gives_an_onnx_file(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = config(world)
    assert tune_backbone(asked, tmp_path / "whole") == "finished"

    @contextmanager
    def soon() -> Iterator[object]:
        calls = iter([False, False, True, True])
        yield lambda: next(calls)

    monkeypatch.setattr(training, "stop_on_signals", soon)
    assert tune_backbone(asked, tmp_path / "cut") == "interrupted"
    monkeypatch.undo()
    with pytest.raises(UserError, match="--resume"):
        tune_backbone(asked, tmp_path / "cut")
    with pytest.raises(UserError, match="begun with lr"):
        tune_backbone(config(world, lr=0.1), tmp_path / "cut", resume=True)
    assert tune_backbone(asked, tmp_path / "cut", resume=True) == "finished"
    last = [max((tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "cut")]
    for file in ("model", "optimiser", "average"):
        one, other = (load_file(folder / f"{file}.safetensors") for folder in last)
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    best = tmp_path / "cut" / "best"
    assert (best / "backbone.onnx").read_bytes() == (
        tmp_path / "whole" / "best" / "backbone.onnx"
    ).read_bytes()
    figures = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert "nats" in figures[-1]

    detector = BuiltinDetector(eyes=tmp_path / "cut")
    (regions,) = detector.regions([open_picture(CAT)])
    recipe = detector.recipe
    kinds = np.where(
        regions.labels < 0, "grid", np.where(regions.labels < len(recipe.classes), "object", "word")
    )
    words = int((kinds == "word").sum())
    assert 1 <= words <= recipe.most_words and kinds[-1] == "grid"
    assert list(kinds) == sorted(kinds, key=["object", "word", "grid"].index)
    assert regions.features.shape == (len(kinds), 1024)
    again = type(recipe).of(json.loads(json.dumps(recipe.fields())))
    assert again == recipe
    tuned = tune_backbone(config(world, start=str(tmp_path / "cut")), tmp_path / "further")
    assert tuned == "finished"


def test_reader_finds_the_place_of_a_word(tmp_path: Path) -> None:
    file = tmp_path / "words.json"
    file.write_text(
        json.dumps({"words": ["cat", "room"], "mean_share": [0.0, 1.0], "frequencies": [0.1, 0.1]})
    )
    reader = WordReader(file)
    evidence = np.full((2, 8, 8), -6, np.float32)
    evidence[0, 1, 6] = 8  # a cat at the top right
    evidence[1] = 0.5
    seen = reader.best(evidence, 2)
    assert [reader.words[number] for number in seen.numbers] == ["cat", "room"]
    assert seen.boxes[0] == pytest.approx([6 / 8, 1 / 8, 7 / 8, 2 / 8], abs=0.02)
    assert seen.boxes[1] == pytest.approx([0, 0, 1, 1], abs=0.1)
    assert seen.probabilities[1] == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert seen.places.sum(axis=1) == pytest.approx([1, 1])
    file.write_text(json.dumps({"words": ["cat"], "mean_share": [], "frequencies": [0.1]}))
    with pytest.raises(UserError, match="1 words and 0 shares"):
        WordReader(file)


def test_bad_input_is_one_sentence(world: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of the train pictures"):
        tune_backbone(config(world, pictures=str(tmp_path)), tmp_path / "run")
    with pytest.raises(UserError, match="is not a folder"):
        tune_backbone(config(world, pictures=str(tmp_path / "no")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    options = ["backbone", str(world / "data"), "--pictures", str(tmp_path), "--out", str(tmp_path / "run")]
    refused = CliRunner().invoke(app, [*options, "--precision", "int8"])
    assert isinstance(refused.exception, UserError) and "bf16 or fp32" in str(refused.exception)
