"""Pseudo captions (eq. 7, 8): what fills a slot, and what is learnt from it."""

from dataclasses import replace

import pytest
import torch

from coscap.data.batch import Batch
from coscap.models import CosCvae, ModelConfig
from coscap.models.cos_cvae import ObjectDraws
from coscap.models.pseudo import SlotFiller, SlotTokens, detected_tokens, pseudo_loss
from coscap.text.vocabulary import SLOT, SLOTS
from models_batch import make_batch, make_regions

SIZES = dict(
    vocabulary=20, region_width=6, word_width=8, decoder_word_width=0, attention_lstm=7, language_lstm=9,
    attention_width=5, context_latent=4, object_latent=3, context_posterior=6, object_posterior=6,
    context_prior=6, object_prior=5, grid=True,
)  # fmt: skip
FILL = SlotTokens(torch.tensor([6, 7, 8, -1]), torch.tensor([10, 11, 12, -1]))
KEYS = torch.arange(4)


def make_model(**more: object) -> CosCvae:
    torch.manual_seed(0)
    return CosCvae(ModelConfig(**{**SIZES, **more}))


def plain_fill(attention: list[list[float]], contexts: list[int], labels: list[int]) -> list[int | None]:
    """One caption, slot by slot: the most attended region with a name, unused ones first."""
    used: set[int] = set()
    chosen: list[int | None] = []
    for weights, kind in zip(attention, contexts, strict=True):
        if kind not in (SLOT, SLOTS):
            chosen.append(None)
            continue
        table = FILL.singular if kind == SLOT else FILL.plural
        named = [r for r, label in enumerate(labels) if label >= 0 and table[label] >= 0]
        if not named:
            chosen.append(None)
            continue
        best = max(named, key=lambda r: (r not in used, weights[r]))
        used.add(best)
        chosen.append(int(table[labels[best]]))
    return chosen


def sure_of(region: int) -> Batch:
    """The detector is sure of one region only, so that attention alone would choose otherwise."""
    batch = make_batch()
    scores = torch.full_like(batch.pictures.scores, 0.01)
    scores[:, region] = 0.9
    labels = torch.tensor([0, 1, 2, -1, -1]).expand(scores.shape)
    mask = torch.ones_like(batch.pictures.mask)
    batch = replace(batch, pictures=replace(batch.pictures, scores=scores, labels=labels, mask=mask))
    context = batch.context.clone()
    context[-1, 4] = SLOTS  # a second slot, plural
    return replace(batch, context=context)


@torch.no_grad()
def attended(model: CosCvae, batch: Batch, objects: str) -> torch.Tensor:
    """Attention times score at every word of captions that are read as they stand, (B, T, R)."""
    forced = model.teacher_force(batch, None, KEYS)
    latents = model.infer(forced, objects)
    words = model.decoder_words(model.input_tokens(forced))
    regions = model.decoder.encode(forced.regions)
    _, attention = model.decoder(words, latents.z, latents.objects, regions, batch.rows, forced.packing)
    scores = batch.pictures.scores[forced.owners][:, : attention.shape[1]]
    return forced.packing.unpack(attention * scores)


def plain_words(model: CosCvae, batch: Batch, feed: str, objects: str) -> tuple[torch.Tensor, int]:
    """The filled captions by one whole pass for every word, and how many slots they had."""
    words, count = batch.words.clone(), 0
    for step in range(batch.words.shape[1]):
        read = batch if feed == "neighbour" else replace(batch, words=words)
        weights = attended(model, read, objects)[:, : step + 1]
        if step >= weights.shape[1]:
            break
        for row in range(len(batch.rows)):
            if step >= int(batch.lengths[row]):
                continue
            labels = batch.pictures.labels[batch.rows[row]].tolist()[: weights.shape[2]]
            contexts = batch.context[row, : step + 1].tolist()
            unit = plain_fill(weights[row].tolist(), contexts, labels)[step]
            if unit is not None:
                words[row, step] = unit
                count += 1
    return words, count


@pytest.mark.parametrize("sure", [0, 1])
@pytest.mark.parametrize("feed", ["filled", "neighbour"])
@pytest.mark.parametrize("objects", ["prior", "posterior"])
def test_slots_are_filled_as_the_plain_rule_says(sure: int, feed: str, objects: str) -> None:
    model, batch = make_model(), sure_of(sure)
    expected, slots = plain_words(model, batch, feed, objects)
    _, words = pseudo_loss(model, batch, FILL, feed=feed, objects=objects, keys=KEYS)
    assert torch.equal(words, expected)
    assert slots >= 3, "the test met too few slots"


@pytest.mark.parametrize("objects", ["prior", "posterior"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_filled_caption_is_learnt_as_any_other_caption(objects: str, dropout: float) -> None:
    """Loss and gradient are those of `model.loss` on the filled captions, though the decoder ran once."""
    model, batch = make_model(word_dropout=dropout).double(), sure_of(0)
    pictures = replace(batch.pictures, features=batch.pictures.features.double())
    batch = replace(batch, pictures=pictures)
    parts, words = pseudo_loss(model, batch, FILL, objects=objects, keys=KEYS)
    plain = model.loss(replace(batch, words=words), objects=objects, keys=KEYS)
    torch.testing.assert_close(parts.objective(), plain.objective())
    names, weights = zip(*model.named_parameters(), strict=True)
    got = torch.autograd.grad(parts.objective(), weights, allow_unused=True)
    expected = torch.autograd.grad(plain.objective(), weights, allow_unused=True)
    for name, one, other in zip(names, got, expected, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("feed", ["filled", "neighbour"])
def test_words_outside_slots_stay_and_the_object_posterior_is_not_used(feed: str) -> None:
    model, batch = make_model(), make_batch()
    parts, words = pseudo_loss(model, batch, FILL, feed=feed, keys=KEYS)
    outside = (batch.context != SLOT) & (batch.context != SLOTS)
    assert torch.equal(words[outside], batch.words[outside])
    assert (words[~outside] != batch.words[~outside]).any()
    assert not parts.kl_object.any(), "eq. 8 has no KL of z^o"
    parts.objective().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.object_posterior.parameters())
    assert any(p.grad is not None and p.grad.any() for p in model.context_posterior.parameters())


def test_novel_objects_use_the_weaker_posterior() -> None:
    model, batch = make_model(), make_batch()
    objects = detected_tokens(batch.pictures, FILL, 2)[batch.rows]
    parts, _ = pseudo_loss(model, replace(batch, objects=objects), FILL, objects="posterior", keys=KEYS)
    assert (parts.kl_object > 0).all()


def test_detected_tokens_are_the_best_of_each_class_in_order() -> None:
    regions = make_regions(pictures=2, regions=5)
    labels = torch.tensor([[2, 2, 3, 0, -1], [1, -1, -1, -1, -1]])
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    found = detected_tokens(replace(regions, labels=labels, mask=mask), FILL, 2)
    assert found.tolist() == [[8, 6], [7, 0]]


def test_pseudo_captions_do_not_depend_on_the_batch() -> None:
    model, batch = make_model().eval(), make_batch()
    parts, words = pseudo_loss(model, batch, FILL, keys=KEYS)
    order = torch.tensor([2, 0, 3, 1])
    turned = replace(
        batch, rows=batch.rows[order], words=batch.words[order], context=batch.context[order],
        objects=batch.objects[order], lengths=batch.lengths[order],
    )  # fmt: skip
    others, other_words = pseudo_loss(model, turned, FILL, keys=KEYS[order])
    assert torch.equal(other_words, words[order])
    torch.testing.assert_close(others.reconstruction, parts.reconstruction[order])


def test_the_region_that_z_o_stands_for_fills_the_slot() -> None:
    batch = sure_of(0)
    context = torch.full_like(batch.context, SLOT)  # every word a slot
    model = make_model(object_latent_per="object", object_prior_over="regions")
    forced = model.teacher_force(replace(batch, context=context), None, KEYS)
    filler = SlotFiller(forced, FILL, batch.pictures.mask.shape[1])
    attention = torch.tensor([0.9, 0.05, 0.03, 0.01, 0.01]).expand(len(KEYS), -1)

    def filled(t: int, chosen: int) -> set[int]:
        n = forced.packing.sizes[t]
        return set(filler.fill(t, attention[:n], torch.full((n,), chosen)).tolist())

    assert filled(0, 2) == {8}  # though the detector is sure of region 0, and it is attended to
    assert filled(1, 2) == {6}  # region 2 has filled a slot already
    assert filled(2, 3) == {7}  # region 3 has no name, region 0 is in use by now


def test_pseudo_captions_name_what_a_prior_over_regions_chose() -> None:
    model = make_model(object_latent_per="object", object_prior_over="regions").eval()
    batch = sure_of(0)
    model.object_tokens[6:13] = True
    forced = model.teacher_force(batch, None, KEYS)
    known = model.posteriors(forced, "prior")
    draws, chosen = ObjectDraws(model, forced, known.context, 1.0), []
    for t, (start, end) in enumerate(forced.packing.blocks):
        tokens = forced.previous[start:end]
        draws.step(t, tokens, model.prior_words(tokens))
        chosen.append(draws.chosen)
    slots = [[t for t, unit in enumerate(row) if unit in (SLOT, SLOTS)] for row in batch.context.tolist()]
    first = {row: places[0] for row, places in enumerate(slots) if places}
    terms, words = pseudo_loss(model, batch, FILL, keys=KEYS)
    rows = forced.packing.order.tolist()
    seen = 0
    for place, row in ((place, row) for place, row in enumerate(rows) if row in first):
        region = int(chosen[first[row]][place])
        if 0 <= region < 3:  # the others have no name
            table = FILL.singular if batch.context[row, first[row]] == SLOT else FILL.plural
            assert int(words[row, first[row]]) == int(table[region])
            seen += 1
    assert seen and torch.isfinite(terms.reconstruction).all()


@pytest.mark.parametrize("over", ["gaussian", "regions"])
def test_the_latents_of_an_uncaptioned_picture_are_those_of_the_caption_filled_in(over: str) -> None:
    """Once slots are filled it is a caption like others: the same terms as those of a paired caption with its words."""
    model = make_model(object_latent_per="object", object_prior_over=over)
    model.object_tokens[6:13] = True
    batch = sure_of(1)
    terms, words = pseudo_loss(model, batch, FILL, objects="posterior", keys=KEYS)
    named = [[w for w in row.tolist() if 6 <= w < 13] for row in words]
    width = max(map(len, named))
    objects = torch.tensor([row + [0] * (width - len(row)) for row in named])
    paired = model.loss(replace(batch, words=words, objects=objects), keys=KEYS)
    for field in ("reconstruction", "kl_context", "kl_object", "extra"):
        torch.testing.assert_close(getattr(terms, field), getattr(paired, field))
    assert (terms.kl_object > 0).all()
