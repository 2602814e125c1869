"""AG-CVAE: one latent a caption, its prior from the detected categories."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from coscap.errors import UserError
from coscap.models import ModelConfig, read_config
from coscap.models.ag_cvae import category_weights
from coscap.models.base import CONTEXT_NOISE
from coscap.models.decoder import NEVER
from coscap.models.noise import normals
from coscap.report.runs import open_run
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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def plain_weights(labels, scores, mask, classes):
    """c, picture by picture and region by region."""
    table = []
    for row in range(len(labels)):
        best = [0.0] * (classes + 1)
        for label, score, here in zip(
            labels[row].tolist(), scores[row].tolist(), mask[row].tolist(), strict=True
        ):
            if here and 0 <= label < classes:
                best[label] = max(best[label], score)
        if sum(best) == 0:
            best[classes] = 1.0
        table.append([value / sum(best) for value in best])
    return torch.tensor(table)


def test_weights_of_categories_are_those_counted_one_by_one():
    regions = make_regions(pictures=6, classes=6)
    regions.labels[2] = -1  # nothing detected
    regions.scores[4] = 0  # detected without any score
    model = tiny("ag_cvae", classes=4)  # labels 4 and 5 stand for words, not for categories
    found = category_weights(model.regions(regions), 4)
    torch.testing.assert_close(found, plain_weights(regions.labels, regions.scores, regions.mask, 4))
    assert found[2, 4] == found[4, 4] == 1


def test_loss_equals_a_plain_one():
    model, batch = tiny("ag_cvae").double(), doubled(make_batch(captions=5))
    with torch.no_grad():
        model.posterior.weight.mul_(3)
    found = model.loss(batch, keys=KEYS)
    regions, rows = batch.pictures, batch.rows
    mask = regions.mask[rows]
    mean = (regions.features[rows] * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    weights = plain_weights(regions.labels, regions.scores, regions.mask, 4).double()[rows]
    prior = weights @ model.means
    # z is a weighted sum of one draw for each category, so that variances add up with the squares of the weights.
    deviations = [sum((0.1 * w) ** 2 for w in row) ** 0.5 for row in weights.tolist()]
    assert min(deviations) < 0.09
    deviation = torch.tensor(deviations, dtype=torch.double)[:, None].expand_as(prior)
    e = model.encoder.encoder
    h = c = torch.zeros(5, e.hidden.shape[1], dtype=mean.dtype)
    for t in range(batch.words.shape[1]):
        gates = model.words(batch.words[:, t]) @ e.gates.step.t() + mean @ e.gates.picture.t() + e.gates.bias
        after = cell(gates + h @ e.hidden.t(), c)
        here = (t < batch.lengths)[:, None]
        h, c = torch.where(here, after[0], h), torch.where(here, after[1], c)
    shift, change = model.posterior(torch.cat([h, prior], 1)).chunk(2, 1)
    q = Normal(prior + deviation * shift, deviation * torch.exp(0.5 * change))
    p = Normal(prior, deviation)
    torch.testing.assert_close(found.kl_context, kl_divergence(q, p).sum(1))
    assert bool((found.kl_context > 0.01).all())
    z = q.mean + q.stddev * normals(KEYS, CONTEXT_NOISE, 0, 4).double()
    torch.testing.assert_close(model.encode(batch, keys=KEYS).context[:, 0], z)
    assert float(found.kl_object.sum() + found.extra.sum()) == 0


def test_the_decoder_that_is_fed_first_equals_a_plain_one():
    """v-bar, z, START and the words, one after the other, through one LSTM; gradients too."""
    model, batch = tiny("ag_cvae", decoder="first").double(), doubled(make_batch(captions=5))
    found = model.loss(batch, keys=KEYS).reconstruction
    d, mask = model.decoder, batch.pictures.mask[batch.rows]
    mean = (batch.pictures.features[batch.rows] * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    z, width = model.encode(batch, keys=KEYS).context[:, 0], model.own_words.embedding_dim
    word, latent = d.gates.step[:, :width], d.gates.step[:, width:]
    h = c = torch.zeros(5, d.hidden.shape[1], dtype=mean.dtype)
    for each in (mean @ d.gates.picture.t(), z @ latent.t()):
        h, c = cell(each + d.gates.bias + h @ d.hidden.t(), c)
    before, total = torch.full((5,), 1), torch.zeros(5, dtype=mean.dtype)
    for t in range(batch.words.shape[1]):
        h, c = cell(model.own_words(before) @ word.t() + d.gates.bias + h @ d.hidden.t(), c)
        logits = h @ model.output.weight.t() + model.output.bias
        logits[:, list(NEVER)] = float("-inf")
        before = batch.words[:, t]
        scored = torch.log_softmax(logits, 1).gather(1, before.clamp(min=2)[:, None])[:, 0]
        total = total - torch.where(t < batch.lengths, scored, 0)
    torch.testing.assert_close(found, total)
    weights = [*d.parameters(), *model.posterior.parameters()]
    for one, other in zip(
        torch.autograd.grad(found.sum(), weights), torch.autograd.grad(total.sum(), weights), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("decoder", ["first", "mean", "updown"])
def test_holds_what_every_model_holds(decoder, tmp_path):
    model = tiny("ag_cvae", decoder=decoder, category_deviation=1.0)
    steps_give_the_reconstruction(model)
    nothing_depends_on_the_batch(model)
    files_give_the_model_back(model, tmp_path / "model")


def test_the_latent_is_drawn_once_from_the_prior_of_the_picture():
    model, regions = tiny("ag_cvae", category_deviation=0.5), make_regions(pictures=2)
    drawn = []
    for draws in range(3):
        state = model.start(regions, 400, seed=draws, temperature=2.0, record=True)
        for _ in range(3):
            _, state, _ = model.step(torch.full((800,), 7), state)
        values = state.latents().context  # (N, 3, Z)
        assert torch.equal(values[:, 0], values[:, 1]) and torch.equal(values[:, 0], values[:, 2])
        drawn.append(values[:, 0].view(2, 400, -1))
    drawn = torch.cat(drawn, 1)
    p = model.expect(model.regions(regions))
    assert (drawn.mean(1) - p.mean).abs().max() < 5 / 1200**0.5
    expected = 2.0 * torch.exp(0.5 * p.log_variance)  # temperature 2
    assert (drawn.std(1) / expected - 1.0).abs().max() < 0.1 and expected.max() <= 1.0
    assert torch.equal(
        greedy(model, regions, 2, temperature=0.0)[1][:, 0],
        greedy(model, regions, 1, temperature=0.0)[1][:, 0],
    )


def test_other_categories_give_another_prior():
    model, regions = tiny("ag_cvae"), make_regions(pictures=2)
    other = replace(regions, labels=torch.where(regions.labels >= 0, (regions.labels + 1) % 4, -1))
    one, two = (model.expect(model.regions(each)).mean for each in (regions, other))
    assert not torch.allclose(one, two)


def test_free_bits_are_granted_once():
    model = tiny("ag_cvae", free_bits_context=3.0)
    terms = model.loss(make_batch(captions=5), keys=KEYS)
    torch.testing.assert_close(terms.free_context, terms.kl_context.clamp(min=3.0))


@pytest.mark.parametrize(
    ("decoder", "name"), [("first", "AG-CVAE"), ("mean", "AG-CVAE"), ("updown", "AG-CVAE (attn)")]
)
def test_learns_and_is_called_as_the_paper_calls_it(world, tmp_path, decoder, name):
    changes = ["model.kind=ag_cvae", f"model.decoder={decoder}", "model.category_deviation=0.3"]
    model = learns(world, tmp_path / "run", *changes)
    assert (model.means.norm(dim=1) - 1).abs().max() > 0.01, "the means are learnt"
    assert open_run(str(tmp_path / "run")).name == name


def test_bad_configurations_are_refused_in_a_sentence():
    for settings, said in (
        (
            {"classes": 0},
            "run.yaml: an ag_cvae needs regions with classes, and the recipe of these has none.",
        ),
        ({"detections": 0, "classes": 4}, "run.yaml: an ag_cvae needs detections, "),
        ({"classes": 4, "category_deviation": 0}, "run.yaml: category_deviation: "),
        (
            {"kind": "seq_cvae", "decoder": "first"},
            "run.yaml: decoder: first reads a latent once, and a seq_cvae draws one at each word; ",
        ),
    ):
        with pytest.raises(UserError, match=said):
            read_config({**SIZES, "kind": "ag_cvae", **settings}, "run.yaml")
    with pytest.raises(
        UserError, match="category_deviation is a setting of ag_cvae; a seq_cvae does not know it"
    ):
        read_config({**SIZES, "kind": "seq_cvae", "category_deviation": 0.2}, "run.yaml")
    assert ModelConfig(**SIZES, kind="seq_cvae", category_deviation=0.1).category_deviation == 0.1
