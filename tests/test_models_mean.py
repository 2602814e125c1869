"""Seq-CVAE without attention: the decoder on the mean feature."""

from pathlib import Path

import pytest
import torch

from coscap.errors import UserError
from coscap.models import build_model, read_config
from coscap.models.config import ModelConfig
from coscap.models.decoder import NEVER
from coscap.report.runs import open_run
from coscap.training.config import read_config as read_run
from coscap.training.run import train_run
from models_batch import make_batch, make_regions
from models_kinds import (
    KEYS,
    files_give_the_model_back,
    greedy,
    learns,
    nothing_depends_on_the_batch,
    steps_give_the_reconstruction,
    tiny,
)
from models_plain import cell
from test_models_reference import SIZES, doubled
from training_world import make_world

KINDS = ("cos_cvae", "seq_cvae", "updown")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def test_loss_and_gradients_equal_a_plain_lstm_on_the_mean():
    model, batch = tiny("updown", decoder="mean").double(), doubled(make_batch(captions=5))
    fast = model.loss(batch, keys=KEYS).reconstruction

    d, mask = model.decoder, batch.pictures.mask[batch.rows]
    values = batch.pictures.features[batch.rows]
    mean = (values * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    h = c = torch.zeros(5, d.hidden.shape[1], dtype=mean.dtype)
    before, total = torch.full((5,), 1), torch.zeros(5, dtype=mean.dtype)
    for t in range(batch.words.shape[1]):
        gates = model.own_words(before) @ d.gates.step.t() + mean @ d.gates.picture.t() + d.gates.bias
        h, c = cell(gates + h @ d.hidden.t(), c)
        logits = h @ model.output.weight.t() + model.output.bias
        logits[:, list(NEVER)] = float("-inf")
        before = batch.words[:, t]
        scored = torch.log_softmax(logits, 1).gather(1, before.clamp(min=2)[:, None])[:, 0]
        total = total - torch.where(t < batch.lengths, scored, 0)
    torch.testing.assert_close(fast, total)
    weights = [*d.parameters(), *model.own_words.parameters()]
    for one, other in zip(
        torch.autograd.grad(fast.sum(), weights), torch.autograd.grad(total.sum(), weights), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_holds_what_every_model_holds(kind, tmp_path):
    model = tiny(kind, decoder="mean")
    steps_give_the_reconstruction(model)
    nothing_depends_on_the_batch(model)
    files_give_the_model_back(model, tmp_path / "model")


def test_nothing_but_the_mean_is_seen():
    """Other regions with the same mean give the same captions, as they do not with attention."""
    regions = make_regions(pictures=1)
    turned = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1)))[0]
    ones = torch.ones(5, 1) / 5**0.5
    turned = turned - ones @ (ones.T @ turned)
    turned = torch.linalg.qr(torch.cat([ones, turned[:, 1:]], 1))[0]
    spread = (
        turned @ torch.diag(torch.tensor([1.0, 3, 3, 3, 3])) @ turned.T
    )  # keeps what is equal in all regions
    other = type(regions)(**{**vars(regions), "features": spread @ regions.features})
    torch.testing.assert_close(other.features.mean(1), regions.features.mean(1))
    for decoder, same in (("mean", True), ("updown", False)):
        model = tiny("seq_cvae", decoder=decoder)
        one, two = greedy(model, regions, 2)[1], greedy(model, other, 2)[1]
        assert torch.allclose(one, two, atol=1e-5) == same


def test_learns_and_is_called_as_the_paper_calls_it(world, tmp_path):
    model = learns(world, tmp_path / "run", "model.kind=seq_cvae", "model.decoder=mean")
    assert not hasattr(model.decoder, "query")
    assert open_run(str(tmp_path / "run")).name == "Seq-CVAE"


def test_what_it_does_not_know_is_refused_before_training(world, tmp_path):
    for settings, said in (
        ({"object_latent_to": ["query"]}, r"run.yaml: decoder: mean has no query that z\^o could enter; "),
        (
            {"attention_dropout": 0.1},
            "run.yaml: decoder: mean has no attention LSTM; set attention_dropout to 0",
        ),
    ):
        with pytest.raises(UserError, match=said):
            read_config({**SIZES, "decoder": "mean", **settings}, "run.yaml")
    assert build_model(ModelConfig(**SIZES, decoder="mean", kind="seq_cvae", object_latent_to=("query",)))
    changes = ["model.decoder=mean", "model.object_latent_to=[output]", f"pseudo.contexts={tmp_path}"]
    with pytest.raises(UserError, match="field pseudo: the decoder mean looks at no region"):
        train_run(read_run(world, changes), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
