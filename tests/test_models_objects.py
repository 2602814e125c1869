"""z^o drawn once for each object: segments by brute force, the same alone and in a batch, the same word by word."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from coscap.data.batch import Batch
from coscap.errors import UserError
from coscap.models import CosCvae, build_model, preset
from coscap.models.cos_cvae import Segments
from coscap.models.latents import Gaussian, Latents, kl
from coscap.models.region_prior import RegionMixture, mixture_kl
from coscap.text.vocabulary import END, PAD, SLOT, START
from models_batch import make_batch

VOCABULARY = 20
PRIORS = pytest.mark.parametrize("over", ["gaussian", "regions"])
NAMED = torch.arange(VOCABULARY) >= 14  # these tokens name objects


def tiny(**changes: object) -> CosCvae:
    torch.manual_seed(0)
    sizes = dict(
        vocabulary=VOCABULARY, region_width=6, classes=4, class_embedding=3, region_projection=8, word_width=8,
        attention_lstm=8, language_lstm=8, attention_width=6, output_width=8, context_latent=3, object_latent=4,
        context_posterior=5, object_posterior=6, context_prior=5, object_prior=6, word_dropout=0.0,
        object_word_dropout=0.0, object_latent_per="object",
    )  # fmt: skip
    model = build_model(preset("small", **{**sizes, **changes}))
    assert isinstance(model, CosCvae)
    model.object_tokens.copy_(NAMED)
    return model.eval()


def batch() -> Batch:
    """Captions whose objects are the tokens that name one; one caption has none, one ends with one."""
    made = make_batch(captions=5, words=7, vocabulary=VOCABULARY)
    words = made.words.clone()
    words[0, : made.lengths[0] - 1] = 7  # no object
    words[1, made.lengths[1] - 2] = 15  # the last word before END
    named = NAMED[words]
    objects = torch.zeros(5, int(named.sum(1).max()), dtype=torch.long)
    for row in range(5):
        objects[row, : int(named[row].sum())] = words[row][named[row]]
    return replace(made, words=words, context=torch.where(named, SLOT, words), objects=objects)


def test_segments_are_those_of_a_loop() -> None:
    model, given = tiny(), batch()
    forced = model.teacher_force(given, None, torch.arange(5))
    found = Segments.of(forced, model.names_object(forced.previous), given.objects)
    unpacked = forced.packing.unpack(found.of_word + 1) - 1  # -1 after the end
    for row in range(5):
        segment, begins, expected = 0, [0], []
        for t in range(int(given.lengths[row])):
            if t and NAMED[given.words[row, t - 1]]:
                segment += 1
                begins.append(t)
            expected.append(segment)
        mine = [int(place) for place in unpacked[row] if place >= 0]
        assert [int(found.packing.positions[place]) for place in mine] == expected
        assert {int(found.packing.captions[place]) for place in mine} == {row}
        for segment, t in enumerate(begins):
            place = next(p for p in mine if int(found.packing.positions[p]) == segment)
            start = int(found.starts[place])
            assert int(forced.packing.positions[start]) == t and int(forced.packing.captions[start]) == row
        named = [int(token) for token in given.objects[row] if token != PAD]
        assert found.objects[row, : len(named) + 1].tolist() == [*named, END]


@PRIORS
def test_a_caption_costs_the_same_alone_and_in_a_batch(over: str) -> None:
    model, given = tiny(object_prior_over=over), batch()
    keys = torch.arange(5) * 7 + 3
    whole = model.loss(given, keys=keys)
    assert (whole.kl_object > 0).all()
    for row in range(5):
        alone = replace(
            given,
            rows=given.rows[row : row + 1],
            words=given.words[row : row + 1, : given.lengths[row]],
            context=given.context[row : row + 1, : given.lengths[row]],
            objects=given.objects[row : row + 1],
            lengths=given.lengths[row : row + 1],
        )
        one = model.loss(alone, keys=keys[row : row + 1])
        for name in ("reconstruction", "kl_context", "kl_object", "extra"):
            assert getattr(one, name)[0].item() == pytest.approx(getattr(whole, name)[row].item(), rel=1e-4)


@PRIORS
def test_word_by_word_under_given_latents_gives_the_teacher_forced_probabilities(over: str) -> None:
    model, given = tiny(object_prior_over=over), batch()
    keys = torch.arange(5)
    terms = model.loss(given, keys=keys)
    known = model.encode(given, keys=keys)
    assert known.object_lengths is not None and known.objects is not None
    for row in range(5):
        pictures = type(given.pictures)(
            *(value[given.rows[row] : given.rows[row] + 1] for value in vars(given.pictures).values())
        )
        one = Latents(
            lengths=known.lengths[row : row + 1],
            context=known.context[row : row + 1],  # type: ignore[index]
            objects=known.objects[row : row + 1],
            object_lengths=known.object_lengths[row : row + 1],
        )
        state, total = model.start(pictures, 1, latents=one, record=True), 0.0
        tokens = [START, *given.words[row, : given.lengths[row]].tolist()]
        for token, following in pairwise(tokens):
            logs, state, _ = model.step(torch.tensor([token]), state)
            total -= float(logs[0, following])
        assert total == pytest.approx(float(terms.reconstruction[row]), rel=1e-4)
        read = state.latents()  # what was recorded is what was given
        assert read.object_lengths is not None and int(read.object_lengths[0]) == int(
            known.object_lengths[row]
        )
        assert torch.allclose(
            read.objects[0], known.objects[row, : int(known.object_lengths[row])], atol=1e-6
        )  # type: ignore[index]


@PRIORS
def test_z_of_objects_stays_until_the_object_was_named(over: str) -> None:
    model, given = tiny(object_prior_over=over), batch()
    state = model.start(given.pictures, 2, seed=3)
    values = []
    for token in (START, 7, 8, 15, 9):
        _, state, _ = model.step(torch.full((6,), token), state)
        assert state.objects is not None
        values.append(state.objects.z)
    assert torch.equal(values[0], values[1]) and torch.equal(values[1], values[2])
    assert not torch.isclose(values[2], values[3]).any()  # 15 names an object
    assert torch.equal(values[3], values[4])


@PRIORS
def test_gradients_reach_posterior_prior_and_words(over: str) -> None:
    model = tiny(object_head="slots", object_prior_over=over).train()
    terms = model.loss(batch(), keys=torch.arange(5))
    terms.objective().backward()
    for part in (model.object_posterior, model.object_prior, model.object_head, model.decoder):
        assert part is not None and all(
            p.grad is not None and bool(p.grad.abs().sum() > 0) for p in part.parameters() if p.dim() > 1
        )


def mixtures(rows: int = 3, regions: int = 4, latent: int = 2) -> RegionMixture:
    """Of rows that belong to two pictures, the second of which has a region less."""
    torch.manual_seed(1)
    scores = torch.randn(rows, 1 + regions)
    owners = torch.arange(rows) % 2
    scores[owners == 1, -1] = float("-inf")
    return RegionMixture(
        log_weights=torch.log_softmax(scores, dim=1),
        other=Gaussian(torch.randn(rows, latent), torch.randn(rows, latent)),
        means=3 * torch.randn(2, regions, latent),
        log_variance=torch.tensor([-0.5, 0.3]),
        owners=owners,
    )


def components(p: RegionMixture, row: int) -> list[tuple[float, torch.distributions.Distribution]]:
    """Weight and distribution of each component of a row."""
    normal = torch.distributions.Normal
    found = [(p.other.mean[row], p.other.log_variance[row])]
    found += [(mean, p.log_variance) for mean in p.means[p.owners[row]]]
    return [
        (float(weight.exp()), torch.distributions.Independent(normal(mean, (variance / 2).exp()), 1))
        for weight, (mean, variance) in zip(p.log_weights[row], found, strict=True)
    ]


def test_the_cost_of_a_mixture_bounds_its_divergence_and_is_exact_for_one_component() -> None:
    p = mixtures()
    q = Gaussian(p.means[p.owners, 1] + 0.3, torch.full((3, 2), -1.0))
    found = mixture_kl(q, p)
    assert found.shape == (3, 3)
    for row in range(3):
        parts = components(p, row)
        mine = torch.distributions.Independent(
            torch.distributions.Normal(q.mean[row], (q.log_variance[row] / 2).exp()), 1
        )
        each = [
            weight * torch.exp(-torch.distributions.kl_divergence(mine, other)) for weight, other in parts
        ]
        assert float(found[row].sum()) == pytest.approx(-float(torch.stack(each).sum().log()), rel=1e-5)
        drawn = mine.sample((20_000,))
        density = sum(weight * other.log_prob(drawn).exp() for weight, other in parts if weight)
        divergence = float((mine.log_prob(drawn) - density.log()).mean())
        assert float(found[row].sum()) >= divergence - 0.03  # by 20,000 draws
    alone = replace(p, log_weights=torch.full((3, 5), -torch.inf).index_fill(1, torch.tensor([0]), 0.0))
    expected = torch.cat([kl(q, p.other), torch.zeros(3, 1)], dim=1)
    assert torch.allclose(mixture_kl(q, alone), expected, atol=1e-5)


def test_draws_of_a_mixture_follow_its_weights_and_sharpen_with_the_temperature() -> None:
    p = mixtures(rows=1)
    p = replace(p, other=Gaussian(torch.full((1, 2), 50.0), p.other.log_variance), means=10 * p.means)
    torch.manual_seed(2)
    many = 4_000
    row = torch.zeros(many, dtype=torch.long)
    other = Gaussian(p.other.mean[row], p.other.log_variance[row])
    wide = replace(p, log_weights=p.log_weights[row], other=other, owners=row)
    noise = torch.randn(many, p.noise_width)
    places = torch.cat([p.other.mean, p.means[0]])  # far apart, so that a draw tells its component
    for temperature in (1.0, 0.5):
        drawn = wide.sample(noise, temperature)
        shares = torch.bincount(torch.cdist(drawn, places).argmin(1), minlength=5) / many
        expected = torch.softmax(p.log_weights[0] / temperature, dim=0)
        assert torch.allclose(shares, expected, atol=0.03)
    likeliest = int(p.log_weights[0].argmax())
    assert torch.allclose(p.sample(torch.zeros(1, p.noise_width), 0.0), places[likeliest : likeliest + 1])


def test_a_prior_over_regions_needs_a_latent_for_each_object() -> None:
    with pytest.raises(UserError, match="object_latent_per: object"):
        tiny(object_prior_over="regions", object_latent_per="word")
