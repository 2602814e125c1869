"""LNFMM: flows with exact determinants, shared and text's own latents, learning without pairs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributions import Normal

from coscap.errors import UserError
from coscap.models import read_config
from coscap.models.base import CONTEXT_NOISE, OBJECT_NOISE
from coscap.models.flows import Flow
from coscap.models.lnfmm import HIDDEN_PAIRS
from coscap.models.noise import normals, uniforms
from coscap.report.runs import open_run
from coscap.training.config import read_config as read_run
from coscap.training.pieces import split
from coscap.training.run import train_run
from models_batch import make_batch, make_regions
from models_kinds import (
    KEYS,
    files_give_the_model_back,
    learns,
    nothing_depends_on_the_batch,
    steps_give_the_reconstruction,
    tiny,
)
from models_plain import cell
from test_models_reference import SIZES, doubled
from training_world import make_world

WIDTHS = {"context_latent": 4, "text_latent": 2, "flow_width": 7, "flow_layers": 3}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def bent(module, size=0.5):
    """Away from the identity at which flows begin."""
    chance = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if ".out." in name or name == "no_picture":
                weight.copy_(torch.randn(weight.shape, generator=chance) * size)
    return module


def lnfmm(**changes):
    return bent(tiny("lnfmm", **{**WIDTHS, **changes}))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_determinants_are_those_of_the_jacobian_and_the_flow_turns_back(layers):
    torch.manual_seed(0)
    flow = bent(Flow(6, 3, 8, layers)).double()
    z, c = torch.randn(4, 6).double(), torch.randn(4, 3).double()
    e, determinant = flow(z, c)
    back, turned = flow.inverse(e, c)
    torch.testing.assert_close(back, z)
    torch.testing.assert_close(turned, -determinant)
    assert not torch.allclose(e, z)
    for row in range(4):
        jacobian = torch.autograd.functional.jacobian(
            lambda x, c=c[row]: flow(x[None], c[None])[0][0], z[row]
        )
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, determinant[row])
        jacobian = torch.autograd.functional.jacobian(
            lambda x, c=c[row]: flow.inverse(x[None], c[None])[0][0], e[row]
        )
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, turned[row])
    if layers > 1:
        assert bool((e != z).all()), "every dimension is changed"


def test_the_density_of_a_flow_has_mass_one():
    torch.manual_seed(1)
    flow, step = bent(Flow(2, 1, 8, 3), 0.25).double(), 0.05
    line = torch.arange(-15, 15, step).double()
    grid = torch.cartesian_prod(line, line)
    mass = flow.log_probability(grid, torch.full((len(grid), 1), 0.7).double()).exp().sum() * step**2
    assert mass.item() == pytest.approx(1, abs=1e-3)


def test_a_flow_learns_what_no_gaussian_is():
    """Two bumps, on the side that the condition says."""
    torch.manual_seed(0)
    flow = Flow(2, 1, 32, 4)
    optimiser = torch.optim.Adam(flow.parameters(), 0.01)
    for _ in range(250):
        c = torch.randint(0, 2, (256, 1)).float() * 2 - 1
        bump = (torch.randint(0, 2, (256, 1)).float() * 2 - 1) * 1.5
        z = torch.cat([3 * c, bump], 1) + 0.3 * torch.randn(256, 2)
        loss = -flow.log_probability(z, c).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    gaussian = 0.5 * math.log(2 * math.pi * math.e * 0.09) + 0.5 * math.log(
        2 * math.pi * math.e * (1.5**2 + 0.09)
    )
    assert loss.item() < gaussian - 0.2  # nats below the best Gaussian
    drawn, _ = flow.inverse(torch.randn(500, 2), torch.ones(500, 1))
    assert drawn[:, 0].mean() > 2.5


def plain_posterior(model, batch):
    """Word by word: z_s, z_t and the densities of their posteriors."""
    e = model.encoder.encoder
    h = c = torch.zeros(len(batch.rows), e.hidden.shape[1], dtype=torch.float64)
    for t in range(batch.words.shape[1]):
        gates = model.words(batch.words[:, t]) @ e.gates.step.t() + e.gates.bias
        after = cell(gates + h @ e.hidden.t(), c)
        here = (t < batch.lengths)[:, None]
        h, c = torch.where(here, after[0], h), torch.where(here, after[1], c)
    noise = normals(KEYS, CONTEXT_NOISE, 0, 6).double()
    mean, log_variance = model.shared_posterior(h).chunk(2, 1)
    q_s = Normal(mean, torch.exp(0.5 * log_variance))
    z_s = q_s.mean + q_s.stddev * noise[:, :4]
    mean, log_variance = model.text_posterior(torch.cat([h, z_s], 1)).chunk(2, 1)
    q_t = Normal(mean, torch.exp(0.5 * log_variance))
    z_t = q_t.mean + q_t.stddev * noise[:, 4:]
    return z_s, z_t, q_s.log_prob(z_s).sum(1), q_t.log_prob(z_t).sum(1)


def plain_density(flow, z, condition):
    """By change of variables, with autograd's Jacobian."""
    found = []
    for x, c in zip(z, condition, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda x, c=c: flow(x[None], c[None])[0][0], x)
        e = flow(x[None], c[None])[0][0]
        found.append(Normal(0.0, 1.0).log_prob(e).sum() + torch.linalg.slogdet(jacobian).logabsdet)
    return torch.stack(found)


def means(batch):
    regions = batch.pictures
    return (regions.features * regions.mask[:, :, None]).sum(1) / regions.mask.sum(1, keepdim=True)


def test_loss_equals_a_plain_one():
    model, batch = lnfmm(picture_weight=0.7).double(), doubled(make_batch(captions=5))
    found = model.loss(batch, keys=KEYS)
    z_s, z_t, q_s, q_t = plain_posterior(model, batch)
    v = means(batch)[batch.rows]
    expected = (
        q_s - plain_density(model.shared_prior, z_s, v) + q_t - plain_density(model.text_prior, z_t, z_s)
    )
    torch.testing.assert_close(found.kl_context, expected)
    torch.testing.assert_close(found.extra, 0.35 * ((v - model.picture(z_s)) ** 2).sum(1))
    torch.testing.assert_close(model.encode(batch, keys=KEYS).context[:, 0], torch.cat([z_s, z_t], 1))


def test_hidden_pairs_equal_plain_bounds_of_caption_and_picture():
    model, batch = lnfmm(unpaired_share=0.5).double().train(), doubled(make_batch(captions=5, pictures=5))
    found = model.loss(batch, keys=KEYS)
    hidden = (uniforms(batch.pictures.keys, HIDDEN_PAIRS, 0, 1)[:, 0] < 0.5)[batch.rows]
    assert 0 < int(hidden.sum()) < 5
    z_s, z_t, q_s, q_t = plain_posterior(model, batch)
    v = means(batch)[batch.rows]
    nothing = model.no_picture.expand_as(v)
    p_s = torch.where(
        hidden, plain_density(model.shared_prior, z_s, nothing), plain_density(model.shared_prior, z_s, v)
    )
    torch.testing.assert_close(found.kl_context, q_s - p_s + q_t - plain_density(model.text_prior, z_t, z_s))
    e = normals(KEYS, OBJECT_NOISE, 0, 4).double()
    z, _ = model.shared_prior.inverse(e, v)
    picture = 0.5 * ((v - model.picture(z)) ** 2).sum(1)
    picture += plain_density(model.shared_prior, z, v) - plain_density(model.shared_prior, z, nothing)
    paired = 0.5 * ((v - model.picture(z_s)) ** 2).sum(1)
    torch.testing.assert_close(found.extra, torch.where(hidden, picture, paired))

    # The caption of a hidden pair is decoded as one of a picture whose only region is g(z_s).
    row = int(hidden.nonzero()[0, 0])
    regions = batch.pictures
    features, mask = regions.features.clone(), regions.mask.clone()
    place = int(batch.rows[row])
    features[place, 0], mask[place] = model.picture(z_s)[row].detach(), torch.arange(5) == 0
    other = replace(batch, pictures=replace(regions, features=features, mask=mask))
    expected = model.eval().loss(other, keys=KEYS).reconstruction[row]
    torch.testing.assert_close(found.reconstruction[row], expected)


def test_a_hidden_picture_tells_its_caption_nothing():
    model, batch = lnfmm(unpaired_share=1.0).train(), make_batch(captions=5)
    other = replace(batch, pictures=make_regions(seed=9))
    one, two = (model.loss(each, keys=KEYS) for each in (batch, other))
    torch.testing.assert_close(one.reconstruction, two.reconstruction)
    torch.testing.assert_close(one.kl_context, two.kl_context)
    assert not torch.allclose(one.extra, two.extra)
    whole = model.loss(batch, keys=KEYS)
    parts = [model.loss(part, keys=KEYS[2 * n : 2 * n + 2]) for n, part in enumerate(split(batch, 3))]
    torch.testing.assert_close(torch.cat([part.extra for part in parts]), whole.extra)
    torch.testing.assert_close(torch.cat([part.reconstruction for part in parts]), whole.reconstruction)


@pytest.mark.parametrize("decoder", ["mean", "updown", "text"])
def test_holds_what_every_model_holds(decoder, tmp_path):
    model = lnfmm(decoder=decoder)
    steps_give_the_reconstruction(model)
    nothing_depends_on_the_batch(model)
    files_give_the_model_back(model, tmp_path / "model")


def test_latents_are_drawn_through_the_flows_once():
    model, regions = lnfmm().double(), doubled(make_batch()).pictures
    state = model.start(regions, 4, seed=2, temperature=0.5, record=True)
    keys, v = state.context.keys, model.regions(regions).mean.repeat_interleave(4, 0)
    for _ in range(3):
        _, state, _ = model.step(torch.full((12,), 7), state)
    values = state.latents().context  # (12, 3, 6)
    assert torch.equal(values[:, 0], values[:, 1]) and torch.equal(values[:, 0], values[:, 2])
    e_s, _ = model.shared_prior(values[:, 0, :4], v)
    e_t, _ = model.text_prior(values[:, 0, 4:], values[:, 0, :4])
    torch.testing.assert_close(torch.cat([e_s, e_t], 1), 0.5 * normals(keys, CONTEXT_NOISE, 0, 6).double())


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_learns_with_and_without_all_pairs(world, tmp_path, share):
    changes = [
        "model.kind=lnfmm",
        "model.text_latent=4",
        "model.flow_width=16",
        f"model.unpaired_share={share}",
    ]
    learns(world, tmp_path / "run", *changes)
    assert open_run(str(tmp_path / "run")).name == "LNFMM"


def test_bad_configurations_are_refused_in_a_sentence(world, tmp_path):
    for settings, said in (
        (
            {"context_latent": 5},
            "run.yaml: context_latent is 5, and an lnfmm needs an even width, .* set it to 6",
        ),
        ({"text_latent": 3}, "run.yaml: text_latent is 3, and an lnfmm needs an even width"),
        ({"unpaired_share": 1.5}, "run.yaml: unpaired_share: "),
        ({"templates": 9}, "templates is a setting of pos; a lnfmm does not know it"),
    ):
        with pytest.raises(UserError, match=said):
            read_config({**SIZES, "kind": "lnfmm", **settings}, "run.yaml")
    with pytest.raises(UserError, match="text_latent is 3"):
        changes = ["model.kind=lnfmm", "model.text_latent=3"]
        train_run(read_run(world, changes), tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="a lnfmm cannot learn from pseudo captions"):
        train_run(read_run(world, ["model.kind=lnfmm", "pseudo.contexts=x"]), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
