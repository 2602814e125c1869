"""Models as folders: there and back, and what is refused with one clear sentence."""

import hashlib
import json
import random
import re
import subprocess
import sys

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from coscap.errors import UserError
from coscap.export.onnx import add_graphs
from coscap.models import CosCvae, ModelConfig, UpDown, build_model, hub, load_pretrained, read_config
from coscap.shipped import SHIPPED, model_folder
from coscap.text.objects import load_classes
from coscap.text.vocabulary import SPECIAL, Vocabulary
from coscap.vision.regions import Recipe
from models_batch import make_batch
from test_models_reference import SIZES

VOCABULARY = Vocabulary((*SPECIAL, *(f"word{i}" for i in range(14))))
RECIPE = Recipe("made-up/1", 6, ("cat", "dog"), 10, 2)
KEYS = torch.arange(4)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = build_model(
        ModelConfig(**{**SIZES, "decoder_word_width": 0, "output_width": 5, "tie_words": True})
    )
    folder = tmp_path / "model"
    model.save_pretrained(
        folder, vocabulary=VOCABULARY, recipe=RECIPE, classes=load_classes("coco"), notes={"epochs": 3}
    )
    return model, folder


def test_there_and_back(saved):
    model, folder = saved
    loaded = load_pretrained(folder)
    batch = make_batch()
    for name in ("reconstruction", "kl_context", "kl_object"):
        assert torch.equal(
            getattr(loaded.model.loss(batch, keys=KEYS), name),
            getattr(model.eval().loss(batch, keys=KEYS), name),
        )
    assert loaded.vocabulary == VOCABULARY and loaded.recipe == RECIPE and loaded.notes == {"epochs": 3}
    assert loaded.classes == load_classes("coco")
    assert loaded.model.output.weight is loaded.model.words.weight  # still tied
    assert not loaded.model.training
    loaded.check_recipe(RECIPE)
    loaded.check_vocabulary(VOCABULARY)


def test_half_precision_on_disk(saved, tmp_path):
    model, folder = saved
    model.save_pretrained(tmp_path / "half", vocabulary=VOCABULARY, dtype="float16")
    size = [(path / "model.safetensors").stat().st_size for path in (folder, tmp_path / "half")]
    assert size[1] < 0.7 * size[0]
    half = CosCvae.from_pretrained(tmp_path / "half")
    assert all(p.dtype == torch.float32 for p in half.parameters())
    batch = make_batch()
    torch.testing.assert_close(
        half.loss(batch, keys=KEYS).reconstruction,
        model.eval().loss(batch, keys=KEYS).reconstruction,
        rtol=0.01,
        atol=0.01,
    )


def test_whole_numbers_on_disk(tmp_path, monkeypatch):
    """Each row of a large matrix is rounded by itself; the graphs read the same weights."""
    monkeypatch.setattr(hub, "LARGE", 30)
    torch.manual_seed(0)
    model = build_model(
        ModelConfig(**{**SIZES, "decoder_word_width": 0, "output_width": 5, "tie_words": True})
    ).eval()
    with torch.no_grad():
        model.decoder.language_hidden[3] *= 50
        model.decoder.language_hidden[4] = 0
    folder = tmp_path / "whole"
    model.save_pretrained(folder, vocabulary=VOCABULARY, dtype="int8")
    loaded = load_pretrained(folder).model
    rounded = 0
    for name, value in model.state_dict().items():
        found = loaded.state_dict()[name]
        step = value.abs().amax(-1, keepdim=True) / 127 if value.ndim == 2 and value.numel() >= 30 else None
        if step is None:
            torch.testing.assert_close(found, value.half().float() if value.is_floating_point() else value)
        else:
            assert bool(((found - value).abs() <= 0.5001 * step + 1e-20).all()), name
            rounded += not torch.equal(found, value)
    assert rounded > 20
    assert hub.smallest_type(loaded) == "int8" and hub.smallest_type(model) == "float32"
    loaded.save_pretrained(tmp_path / "again", vocabulary=VOCABULARY, dtype="int8")
    again = load_pretrained(tmp_path / "again").model
    torch.testing.assert_close(
        again.decoder.language_hidden, loaded.decoder.language_hidden, rtol=1e-6, atol=0
    )
    made = add_graphs(load_pretrained(folder), folder, int8=True)
    assert made.difference < 1e-3 and made.files["step.onnx"] < 300_000
    stored = {
        each.name: each
        for each in onnx.load(folder / "step.onnx", load_external_data=False).graph.initializer
    }
    kinds = [each.data_type for name, each in stored.items() if name.endswith(".stored")]
    assert kinds.count(onnx.TensorProto.INT8) > 5
    assert made.int8_difference < 0.5


def test_scales_that_do_not_fit_are_refused(saved, tmp_path):
    _, folder = saved
    tensors = load_file(folder / "model.safetensors")
    for name, shape in (
        ("words.weight.scale", (3, 1)),
        ("nothing.scale", (5, 1)),
        ("output.bias.scale", (20, 1)),
    ):
        save_file({**tensors, name: torch.ones(shape)}, folder / "model.safetensors")
        with pytest.raises(UserError, match=f"first difference: {re.escape(name)}"):
            load_pretrained(folder)


def test_saving_again_replaces_a_model_but_nothing_else(saved, tmp_path):
    model, folder = saved
    model.save_pretrained(folder, vocabulary=VOCABULARY)
    assert load_pretrained(folder).recipe is None
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"photo")
    with pytest.raises(UserError, match="other files than a model"):
        model.save_pretrained(tmp_path / "photos", vocabulary=VOCABULARY)
    assert (tmp_path / "photos" / "a.jpg").exists()
    with pytest.raises(UserError, match="tokens"):
        model.save_pretrained(tmp_path / "x", vocabulary=Vocabulary((*SPECIAL, "one")))


def change(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(folder, what):
    with pytest.raises(UserError) as caught:
        load_pretrained(folder)
    sentence = str(caught.value)
    assert what in sentence and "\n" not in sentence and sentence.endswith("."), sentence


def test_refusals(saved, tmp_path):
    _, folder = saved
    refused(tmp_path / "nowhere", "nowhere")
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    refused(folder, "damaged")
    weights.write_bytes(good[: len(good) // 2])
    refused(folder, "damaged")
    weights.unlink()
    refused(folder, "model.safetensors")
    weights.write_bytes(good)
    Vocabulary((*SPECIAL, *(f"other{i}" for i in range(14)))).save(folder / "vocabulary.json")
    refused(folder, "vocabulary.json")
    VOCABULARY.save(folder / "vocabulary.json")
    settings = json.loads((folder / "config.json").read_text())["model"]
    change(folder, model={**settings, "wings": 2})
    refused(folder, "wings")
    change(folder, model={**settings, "language_lstm": 10})
    refused(folder, "decoder.")
    change(folder, model=settings, format="other")
    refused(folder, "config.json")
    (folder / "config.json").write_text("{")
    refused(folder, "not valid JSON")
    (folder / "config.json").unlink()
    refused(folder, "config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"region_width": 100_000_000},  # a layer of 2 GB
        {"attention_lstm": 10**6, "language_lstm": 10**6},
        {"region_width": 2**62},  # more than a tensor can have
        {"region_width": 10**30},
        {"kind": "lnfmm", "context_latent": 8, "text_latent": 8, "flow_layers": 10**9},
    ],
)
def test_a_model_that_claims_gigabytes_gets_none(saved, changes) -> None:
    _, folder = saved
    settings = json.loads((folder / "config.json").read_text())["model"]
    if "kind" in changes:
        settings = {name: settings[name] for name in ("vocabulary", "region_width")}
    change(folder, model={**settings, **changes})
    assert "config.json describes" in load_with_little_memory(folder)


def test_weights_that_claim_gigabytes_get_none(saved) -> None:
    _, folder = saved
    header = b'{"words.weight": {"dtype": "F32", "shape": [1000000000, 8], "data_offsets": [0, 32000000000]}}'
    content = len(header).to_bytes(8, "little") + header + bytes(1000)
    (folder / "model.safetensors").write_bytes(content)
    change(folder, weights=hashlib.sha256(content).hexdigest())
    assert "model.safetensors is damaged" in load_with_little_memory(folder)
    (folder / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    assert "model.safetensors is damaged" in load_with_little_memory(folder)


ODD = [None, True, -1, 0, 2**70, 1.5, float("nan"), "", "x", "\udc80", [], {}, [[1]], {"a": {"b": 1}}]


def places(value, path=()):
    """The paths of all values inside of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def test_changed_model_folders_load_or_are_one_sentence(saved) -> None:
    _, folder = saved
    whole = {
        name: (folder / name).read_bytes() for name in ("config.json", "vocabulary.json", "classes.json")
    }
    weights = (folder / "model.safetensors").read_bytes()
    chance = random.Random(1)
    for _ in range(300):
        name = chance.choice(["config.json", "config.json", "vocabulary.json", "classes.json"])
        content = json.loads(whole[name])
        *above, last = chance.choice(list(places(content)))
        owner = content
        for key in above:
            owner = owner[key]
        if chance.random() < 0.2:
            del owner[last]
        else:
            owner[last] = chance.choice(ODD)
        (folder / name).write_text(json.dumps(content))
        loaded_or_refused(folder, name, above, last, owner)
        (folder / name).write_bytes(whole[name])
    for _ in range(200):  # with the checksum of the changed weights
        changed = bytearray(weights)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(min(len(changed), 4000))] = chance.randrange(256)
        (folder / "model.safetensors").write_bytes(changed)
        change(folder, weights=hashlib.sha256(changed).hexdigest())
        loaded_or_refused(folder, "model.safetensors")


def loaded_or_refused(folder, *what) -> None:
    try:
        load_pretrained(folder)
    except UserError as error:
        assert "\n" not in str(error) and str(error).endswith("."), what
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error


def load_with_little_memory(folder) -> str:
    """The sentence with which a model is refused by a process that may take 1.5 GB more than it has."""
    code = """
import resource, sys
from coscap.errors import UserError
from coscap.models import load_pretrained

taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 1_500_000_000,) * 2)
try:
    load_pretrained(sys.argv[1])
except UserError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return done.stdout


def test_another_vocabulary_recipe_or_kind_is_refused(saved):
    _, folder = saved
    with pytest.raises(UserError, match="another vocabulary"):
        CosCvae.from_pretrained(folder, vocabulary=Vocabulary((*SPECIAL, *(f"x{i}" for i in range(14)))))
    with pytest.raises(UserError, match=r"recipe made-up/1 .* other/1"):
        CosCvae.from_pretrained(folder, recipe=Recipe("other/1", 6, ("cat", "dog"), 10, 2))
    with pytest.raises(UserError, match=r"grid 2.*grid 4"):
        CosCvae.from_pretrained(folder, recipe=Recipe("made-up/1", 6, ("cat", "dog"), 10, 4))
    with pytest.raises(UserError, match="cos_cvae"):
        UpDown.from_pretrained(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 5},
        {"width": "6"},
        {"width": -6},
        {"width": True},
        {"classes": "cat"},
        {"classes": ["cat", 5]},
        {"grid": 2.5},
        {"words": {"a": 1}},
        {"wings": 2},
    ],
)
def test_a_recipe_of_other_types_is_refused(saved, changes) -> None:
    _, folder = saved
    change(folder, recipe={**RECIPE.fields(), **changes})
    refused(folder, "recipe")


def test_a_wrong_setting_is_named():
    with pytest.raises(UserError, match=r"run\.yaml: word_dropout"):
        read_config({"word_dropout": 1.5}, "run.yaml")
    with pytest.raises(UserError, match="class_embedding needs classes"):
        read_config({"class_embedding": 5}, "run.yaml")
    with pytest.raises(UserError, match="tie_words needs output_width"):
        read_config({"tie_words": True}, "run.yaml")


def test_the_shipped_model_names_no_place_of_the_machine_that_made_it() -> None:
    notes = load_pretrained(model_folder(SHIPPED)).notes
    assert notes["training"]["reward"]["unlike"] == 1.0
    assert not re.search(r'"/|:\\\\', json.dumps(notes)), "a path"
