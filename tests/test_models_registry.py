"""A kind of model and a decoder are one entry each."""

import pytest
import torch

from coscap.errors import UserError
from coscap.export.graphs import graphs_of
from coscap.models import DECODERS, KINDS, ModelConfig, UpDown, build_model, load_pretrained, read_config
from coscap.models.decoder import UpDownDecoder
from coscap.models.registry import PRESETS, preset
from models_batch import make_batch
from test_models_files import VOCABULARY
from test_models_reference import SIZES


class Toy(UpDown):
    title = "toy"


class HalvedDecoder(UpDownDecoder):
    """Reads words at half their size."""

    def forward(self, words, *rest):
        return super().forward(words / 2, *rest)


def test_a_new_kind_and_a_new_decoder_are_one_entry_each(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "toy", Toy)
    monkeypatch.setitem(DECODERS, "halved", HalvedDecoder)
    batch, keys = make_batch(), torch.arange(4)
    losses = []
    for decoder in ("updown", "halved"):
        torch.manual_seed(0)
        model = build_model(ModelConfig(**SIZES, kind="toy", decoder=decoder))
        assert type(model) is Toy and type(model.decoder) is DECODERS[decoder]
        losses.append(model.loss(batch, keys=keys).reconstruction)
    assert not torch.allclose(*losses)
    model.save_pretrained(tmp_path / "toy", vocabulary=VOCABULARY)
    again = load_pretrained(tmp_path / "toy").model
    assert type(again) is Toy and torch.equal(again.loss(batch, keys=keys).reconstruction, losses[1])


def test_what_is_not_registered_is_refused_by_name():
    with pytest.raises(
        UserError, match=r"run\.yaml: there is no model of the kind 'vae'; choose one of cos_cvae, "
    ):
        read_config({"kind": "vae"}, "run.yaml")
    with pytest.raises(
        UserError, match=r"run\.yaml: there is no decoder 'lstm'; choose one of updown, mean, first, text\."
    ):
        read_config({"decoder": "lstm"}, "run.yaml")


def test_latents_that_no_graph_draws_are_not_exported(monkeypatch):
    monkeypatch.setattr(Toy, "draws", True)
    with pytest.raises(UserError, match="a toy cannot be exported"):
        graphs_of(Toy(ModelConfig(**SIZES, kind="updown")))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_preset_is_one_of_every_kind(name, kind):
    decoder = "text" if KINDS[kind].reads_text else "updown"
    assert preset(name, kind=kind, classes=80, decoder=decoder).kind == kind
