"""Models as folders: there and back, and what is refused with one clear sentence."""

import json
import re

import pytest
import torch

from coscap.errors import UserError
from coscap.models import CosCvae, ModelConfig, UpDown, build_model, load_pretrained, read_config
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


def test_a_wrong_setting_is_named():
    with pytest.raises(UserError, match=r"run\.yaml: word_dropout"):
        read_config({"word_dropout": 1.5}, "run.yaml")
    with pytest.raises(UserError, match="class_embedding needs classes"):
        read_config({"class_embedding": 5}, "run.yaml")
    with pytest.raises(UserError, match="tie_words needs output_width"):
        read_config({"tie_words": True}, "run.yaml")


def test_the_shipped_model_names_no_place_of_the_machine_that_made_it() -> None:
    notes = load_pretrained(model_folder(SHIPPED)).notes
    assert notes["training"]["pseudo"]["weight"] == 0.2
    assert not re.search(r'"/|:\\\\', json.dumps(notes)), "a path"
