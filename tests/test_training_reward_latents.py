"""The reward stage of models with latents: z is made anew as it was drawn, and priors learn."""

import pytest
import torch

from coscap.models.noise import row_keys
from coscap.models.region_prior import RegionMixture
from coscap.text.vocabulary import END, START, UNK
from test_training_reward import every_caption, term_and_model
from test_training_reward import world as world
from training_world import TINY

LATENT = {
    "seq_cvae": {**TINY, "kind": "seq_cvae"},
    "each word": TINY,
    "each object": {**TINY, "object_latent_per": "object"},
    "regions": {**TINY, "object_latent_per": "object", "object_prior_over": "regions"},
}


@pytest.mark.parametrize("kind", LATENT)
def test_latents_are_redrawn_as_they_were_when_the_caption_was_written(world, kind):
    """-log p of the words given z is what the search summed up, at any temperature and in any batch."""
    for temperature in (1.0, 0.6):
        term, model = term_and_model(world, LATENT[kind], temperature=temperature)
        model.eval()
        regions, ids = term.draw(torch.arange(6) * 9_999_991)
        samples = term.sample(model, regions, 4)
        assert len({each.text for one in samples for each in one}) > 12
        batch, keys = term.batch_of(regions, ids, samples), row_keys(0, regions.keys, 4)
        forced = model.teacher_force(batch, None, keys)
        terms = model.loss_given(forced, model.redraw(forced, temperature))
        logs = torch.tensor([each.log_probability for one in samples for each in one])
        whole = torch.tensor([len(each.tokens) < term.prepared.max_length for one in samples for each in one])
        torch.testing.assert_close(terms.reconstruction[whole], -logs[whole].float(), rtol=1e-3, atol=1e-3)
        assert bool((terms.extra > 0).all()) == (kind == "regions")
        torch.testing.assert_close(
            model.surprise(batch, keys, temperature), terms.reconstruction + terms.extra
        )


def test_words_that_were_drawn_colder_are_scored_colder(world):
    """-log softmax(logits / T) of each word, on the plain decoder step by step."""
    term, model = term_and_model(world, draws=2, word_temperature=0.5)
    model.eval()
    with torch.no_grad():
        model.output.bias[UNK] = -1e9  # it has a share of p, but is never drawn
    regions, ids = term.draw(torch.arange(3) * 9_999_991)
    samples = term.sample(model, regions, 2)
    batch, keys = term.batch_of(regions, ids, samples), row_keys(0, regions.keys, 2)
    state, tokens, expected = model.start(regions, 2), torch.full((6,), START), torch.zeros(6)
    for t in range(batch.words.shape[1]):
        logs, state, _ = model.step(tokens, state)
        colder = torch.log_softmax(logs / 0.5, dim=1)
        tokens = batch.words[:, t].clone()
        lives = t < batch.lengths
        expected -= torch.where(lives, colder[torch.arange(6), tokens], 0)
        tokens[~lives] = END
    found = model.surprise(batch, keys, word_temperature=0.5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert float((model.surprise(batch, keys) - expected).abs().min()) > 0.1


@pytest.mark.parametrize("kind", LATENT)
def test_the_gradient_of_a_model_with_latents_is_that_of_the_expected_reward(world, monkeypatch, kind):
    """All captions of at most two of three words, and each region that z^o may choose, at fixed noise of the latents:
    the mean of the loss's gradient, and finite differences of E[r], for weights of decoder and priors."""
    term, model = term_and_model(world, LATENT[kind], draws=2)
    model = model.double().eval()
    words = ("a", "grass", "here")  # no object: one choice
    regions, ids, samples = every_caption(term, model, monkeypatch, words)
    rewards = torch.from_numpy(term.rewards(regions, ids, samples)[0][0]).double() + torch.arange(13)
    batch = term.batch_of(regions, ids, samples)
    keys = torch.full((len(batch.words),), 11)
    choices = range(-1, int(regions.mask.sum())) if kind == "regions" else [None]

    def surprises() -> list[torch.Tensor]:
        found = []
        for choice in choices:
            if choice is not None:
                monkeypatch.setattr(
                    RegionMixture,
                    "choose",
                    lambda self, noise, temperature, k=choice: torch.full((len(noise),), k),
                )
            found.append(model.surprise(batch, keys))
        return found

    def expected() -> torch.Tensor:
        p = torch.stack([torch.exp(-each) for each in surprises()])
        assert float(p.sum()) == pytest.approx(1.0)
        return (p * rewards).sum()

    for each in surprises():
        (torch.exp(-each.detach()) * (rewards - 0.7) * each).sum().backward(retain_graph=True)
    weights = [model.decoder.attention_hidden, model.context_prior.hidden, model.context_prior.out.weight]
    if kind != "seq_cvae":
        weights += [model.object_prior.out.weight]
    if kind == "regions":
        weights += [model.object_prior.query, model.object_prior.key.weight, model.object_prior.means.weight]
    step, close = (3e-3, 2e-2) if kind == "regions" else (1e-5, 1e-4)  # a mixture is float32
    for weight in weights:
        assert float(weight.grad.abs().max()) > 0
        place = divmod(int(weight.grad.abs().argmax()), weight.shape[1])
        with torch.no_grad():
            kept = float(weight[place])
            weight[place] = kept + step
            above = expected()
            weight[place] = kept - step
            below = expected()
            weight[place] = kept
        assert float(-weight.grad[place]) == pytest.approx(
            float((above - below) / (2 * step)), rel=close, abs=close / 100
        )
