"""The latents: what each may depend on, against torch.distributions, and how noise is named."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from coscap.models import Gaussian, ModelConfig, build_model, kl
from coscap.models.noise import normals, row_keys, uniforms
from coscap.text.vocabulary import SLOT, UNK
from models_batch import make_batch
from test_models_reference import SIZES

KEYS = torch.arange(4)


def model_of(**changes):
    torch.manual_seed(0)
    return build_model(ModelConfig(**{**SIZES, **changes}))


def other_objects(batch):
    """The same captions with every object named by another word."""
    named = batch.context == SLOT
    words = torch.where(named, (batch.words - 6 + 3) % 14 + 6, batch.words)
    objects = torch.where(batch.objects > 0, (batch.objects - 6 + 3) % 14 + 6, 0)
    assert bool((words != batch.words).any())
    return replace(batch, words=words, objects=objects)


def test_kl_and_sampling_agree_with_torch_distributions():
    torch.manual_seed(0)
    q, p = (Gaussian(torch.randn(50, 7), torch.randn(50, 7)) for _ in range(2))
    normal = [Normal(g.mean, torch.exp(0.5 * g.log_variance)) for g in (q, p)]
    torch.testing.assert_close(kl(q, p), kl_divergence(*normal), rtol=1e-5, atol=1e-5)
    noise = torch.randn(50, 7)
    torch.testing.assert_close(q.sample(noise), normal[0].mean + normal[0].stddev * noise)
    torch.testing.assert_close(q.sample(noise, 0.5), normal[0].mean + 0.5 * normal[0].stddev * noise)
    torch.testing.assert_close(
        q.sample(noise, 0.7, "power"), normal[0].mean + normal[0].stddev ** 0.7 * noise
    )


def test_kl_of_a_distribution_with_itself_is_exactly_zero():
    q = Gaussian(torch.randn(20, 5) * 10, torch.randn(20, 5) * 5)
    assert bool((kl(q, q) == 0).all())


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_context_posterior_does_not_see_object_words(cell):
    model, batch = model_of(encoder_cell=cell), make_batch()
    a, b = model.encode(batch, keys=KEYS), model.encode(other_objects(batch), keys=KEYS)
    assert torch.equal(a.context, b.context)
    assert torch.equal(a.context_posterior.mean, b.context_posterior.mean)
    assert torch.equal(a.context_posterior.log_variance, b.context_posterior.log_variance)
    assert not torch.equal(a.object_posterior.mean, b.object_posterior.mean)


@pytest.mark.parametrize("sees", ["objects", "aligned", "mean"])
@pytest.mark.parametrize("reader", ["final", "mean", "attend"])
def test_object_posterior_sees_the_context_only_through_its_latent(sees, reader):
    """Eq. 3c: with z^m held, another context changes nothing. z^m is held by cutting what makes it depend on x^m."""
    model, batch = model_of(object_posterior_sees=sees, object_reader=reader), make_batch()
    with torch.no_grad():
        model.context_posterior.chain.known.weight.zero_()
    context = torch.where(batch.context == SLOT, SLOT, (batch.context - 6 + 5) % 14 + 6)
    changed = replace(batch, context=torch.where(batch.context > 5, context, batch.context))
    a, b = model.encode(batch, keys=KEYS), model.encode(changed, keys=KEYS)
    assert torch.equal(a.context, b.context)
    assert torch.equal(a.objects, b.objects)


@pytest.mark.parametrize("sees", ["objects", "aligned", "mean"])
def test_object_posterior_does_see_the_context_latent_and_the_objects(sees):
    model, batch = model_of(object_posterior_sees=sees), make_batch()
    a = model.encode(batch, keys=KEYS)
    b = model.encode(batch, keys=KEYS + 1)
    assert not torch.equal(a.object_posterior.mean, b.object_posterior.mean)


def test_context_prior_does_not_depend_on_the_object_latent():
    model, batch = model_of(), make_batch()
    regions = batch.pictures
    state = [model.start(regions, 2, seed=1, object_seed=seed, record=True) for seed in (1, 2)]
    tokens = torch.ones(6, dtype=torch.long)
    for token in (1, 7, 9):  # the same words whatever was drawn
        state = [model.step(tokens * token, one)[1] for one in state]
    first, second = (one.latents() for one in state)
    assert torch.equal(first.context, second.context)
    assert not torch.equal(first.objects, second.objects)


def test_one_latent_is_held_while_the_other_is_drawn_anew():
    model, batch = model_of(), make_batch()
    tokens = torch.full((6,), 7)
    held = model.start(batch.pictures, 2, seed=1, context_seed=5, record=True)
    plain = model.start(batch.pictures, 2, seed=1, record=True)
    for _ in range(3):
        held, plain = model.step(tokens, held)[1], model.step(tokens, plain)[1]
    assert not torch.equal(held.latents().context, plain.latents().context)
    values = plain.latents()
    again = model.start(batch.pictures, 2, seed=9, latents=replace(values, objects=None), record=True)
    for _ in range(4):
        again = model.step(tokens + 1, again)[1]
    assert torch.equal(again.latents().context[:, :3], values.context)
    assert not torch.equal(again.latents().objects[:, :3], values.objects)


def test_object_prior_sees_the_current_or_the_previous_context_latent():
    """With one word the previous z^m is zero, so only `current` lets z^m reach z^o."""
    for sees, reaches in (("current", True), ("previous", False)):
        model, batch = model_of(object_prior_sees=sees), make_batch()
        drawn = [
            model.step(
                torch.ones(3, dtype=torch.long),
                model.start(batch.pictures, 1, context_seed=seed, record=True),
            )[1].latents()
            for seed in (1, 2)
        ]
        assert torch.equal(drawn[0].objects, drawn[1].objects) is not reaches


def test_temperature_zero_gives_the_mean_and_pairs_are_apart():
    model, batch = model_of(), make_batch()
    tokens = torch.ones(3, dtype=torch.long)

    def drawn(seed, temperature):
        state = model.start(batch.pictures, 1, seed=seed, temperature=temperature, record=True)
        return model.step(tokens, state)[1].latents()

    assert torch.equal(drawn(1, 0.0).context, drawn(2, 0.0).context)
    assert torch.equal(drawn(1, (0.0, 1.0)).context, drawn(2, (0.0, 1.0)).context)
    assert not torch.equal(drawn(1, (0.0, 1.0)).objects, drawn(2, (0.0, 1.0)).objects)


def test_pseudo_captions_draw_the_object_latent_from_its_prior():
    """With temperature 0 the draw is the prior's mean: the noise no longer matters, and no KL(z^o) is counted."""
    batch = make_batch()
    for temperature, same in ((0.0, True), (1.0, False)):
        model = model_of(pseudo_temperature=temperature)
        with torch.no_grad():
            drawn = []
            for keys in (KEYS, KEYS + 50):
                forced = model.teacher_force(batch, None, keys)
                words = model.prior_words(forced.previous)
                drawn.append(model.draw_objects(forced, words, torch.zeros(len(words), 4)))
        assert torch.equal(*drawn) is same
        parts = model.loss(batch, keys=KEYS, objects="prior")
        assert bool((parts.kl_object == 0).all()) and bool((parts.kl_context > 0).all())


def test_free_bits_per_step_and_per_caption():
    batch = make_batch()
    plain = model_of().loss(batch, keys=KEYS)
    assert torch.equal(plain.free_object, plain.kl_object)
    step = model_of(free_bits_object=100.0).loss(batch, keys=KEYS)
    torch.testing.assert_close(step.free_object, 100.0 * batch.lengths.float())
    whole = model_of(free_bits_object=100.0, free_bits_per="caption").loss(batch, keys=KEYS)
    torch.testing.assert_close(whole.free_object, torch.full((4,), 100.0))
    torch.testing.assert_close(step.kl_object, plain.kl_object)


def test_initial_log_variance_is_that_of_both_posteriors():
    batch = make_batch()
    with torch.no_grad():
        low = model_of(initial_log_variance=-4.0).encode(batch, keys=KEYS)
    assert -4.8 < float(low.object_posterior.log_variance[:, 0].mean()) < -3.2
    assert -4.8 < float(low.context_posterior.log_variance[:, 0].mean()) < -3.2


@pytest.mark.parametrize("head", ["mean", "max", "slots"])
def test_object_head_teaches_the_object_posterior(head):
    model, batch = model_of(object_head=head), make_batch()
    parts = model.loss(batch, keys=KEYS)
    named = (batch.objects > 0).any(1)
    assert bool((parts.extra[named] > 0).all()) and bool((parts.extra[~named] == 0).all())
    parts.extra.sum().backward()
    assert float(model.object_posterior.chain.known.weight.grad.abs().sum()) > 0
    assert model.decoder.query.grad is None  # nothing but z^o is read


def test_word_dropout_takes_object_words_apart():
    model, batch = model_of(word_dropout=0.0, object_word_dropout=1.0), make_batch()
    forced = model.teacher_force(batch, None, KEYS)
    fed = forced.packing.unpack(model.input_tokens(forced))
    after_object = torch.cat([torch.zeros(4, 1, dtype=torch.bool), batch.context[:, :-1] == SLOT], dim=1)
    alive = torch.arange(6) < batch.lengths[:, None]
    assert bool((fed[after_object & alive] == UNK).all())
    assert not bool((fed[~after_object & alive] == UNK).any())
    model.eval()
    assert torch.equal(model.input_tokens(forced), forced.previous)


def test_noise_is_standard_normal_and_named():
    keys = row_keys(3, torch.tensor([5, 9]), 500)
    assert len(set(keys.tolist())) == 1000
    draws = normals(keys, 1, 4, 64)
    assert abs(float(draws.mean())) < 0.02 and abs(float(draws.std()) - 1) < 0.02
    assert abs(float((draws**4).mean()) - 3) < 0.2
    assert abs(float(torch.corrcoef(draws.t())[0, 1:].abs().max())) < 0.15
    assert not torch.equal(draws, normals(keys, 2, 4, 64)) and not torch.equal(draws, normals(keys, 1, 5, 64))
    some = torch.tensor([7, 3, 900])
    assert torch.equal(draws[some], normals(keys[some], 1, torch.tensor([4, 4, 4]), 64))
    assert torch.equal(row_keys(3, torch.tensor([9]), 2), keys[500:502])
    u = uniforms(keys, 1, 0, 3)
    assert float(u.min()) > 0 and float(u.max()) < 1


def test_captions_keep_their_noise_in_any_batch():
    """With keys, the loss of a caption does not depend on the others: what several processes rely on."""
    model, batch = model_of(word_dropout=0.5), make_batch(captions=6)
    keys = torch.arange(6)
    whole = model.loss(batch, keys=keys)
    for part in (torch.tensor([0, 1, 2]), torch.tensor([5, 3, 4])):
        fields = {
            name: getattr(batch, name)[part] for name in ("rows", "words", "context", "objects", "lengths")
        }
        cut = model.loss(replace(batch, **fields), keys=keys[part])
        for name in ("reconstruction", "kl_context", "kl_object"):
            torch.testing.assert_close(getattr(cut, name), getattr(whole, name)[part], rtol=1e-4, atol=1e-5)
