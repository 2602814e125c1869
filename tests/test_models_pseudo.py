"""Pseudo captions (eq. 7, 8): what fills a slot, and what is learnt from it."""

from dataclasses import replace

import pytest
import torch

from coscap.models import CosCvae, ModelConfig
from coscap.models.pseudo import Fill, _decode, detected_units, pseudo_loss
from coscap.text.vocabulary import SLOT, SLOTS
from models_batch import make_batch, make_regions

SIZES = dict(
    vocabulary=20, region_width=6, word_width=8, decoder_word_width=0, attention_lstm=7, language_lstm=9,
    attention_width=5, context_latent=4, object_latent=3, context_posterior=6, object_posterior=6,
    context_prior=6, object_prior=5, grid=True,
)  # fmt: skip
FILL = Fill(torch.tensor([6, 7, 8, -1]), torch.tensor([10, 11, 12, -1]))
KEYS = torch.arange(4)


def make_model() -> CosCvae:
    torch.manual_seed(0)
    return CosCvae(ModelConfig(**SIZES))


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


@pytest.mark.parametrize("sure", [0, 1])
def test_slots_are_filled_as_the_plain_rule_says(sure: int) -> None:
    """The detector is sure of one region only, so that attention alone would choose otherwise."""
    model, batch = make_model(), make_batch()
    scores = torch.full_like(batch.pictures.scores, 0.01)
    scores[:, sure] = 0.9
    labels = torch.tensor([0, 1, 2, -1, -1]).expand(scores.shape)
    mask = torch.ones_like(batch.pictures.mask)
    batch = replace(batch, pictures=replace(batch.pictures, scores=scores, labels=labels, mask=mask))
    context = batch.context.clone()
    context[-1, 4] = SLOTS  # a second slot, plural
    batch = replace(batch, context=context)
    with torch.no_grad():
        done = _decode(model, batch, FILL, "prior", KEYS)
        fed = model.decoder_words(done.teacher.previous)
        looked = model.decoder.look(done.teacher.memory)
        z = done.inferred
        _, attention = model.decoder(fed, z.z(), z.objects, looked, batch.rows, done.teacher.packing)
    owners = batch.rows[done.teacher.packing.captions]
    padded = done.teacher.packing.unpack(attention * scores[owners][:, : attention.shape[1]])
    filled = 0
    for row in range(len(batch.rows)):
        length = int(batch.lengths[row])
        labels = batch.pictures.labels[batch.rows[row]].tolist()[: attention.shape[1]]
        expected = plain_fill(padded[row, :length].tolist(), batch.context[row, :length].tolist(), labels)
        for step, unit in enumerate(expected):
            want = int(batch.words[row, step]) if unit is None else unit
            assert int(done.words[row, step]) == want
            filled += unit is not None
    assert filled >= 3, "the test met too few slots"


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
    objects = detected_units(batch.pictures, FILL, 2)[batch.rows]
    parts, _ = pseudo_loss(model, replace(batch, objects=objects), FILL, objects="posterior", keys=KEYS)
    assert (parts.kl_object > 0).all()


def test_detected_units_are_the_best_of_each_class_in_order() -> None:
    regions = make_regions(pictures=2, regions=5)
    labels = torch.tensor([[2, 2, 3, 0, -1], [1, -1, -1, -1, -1]])
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    found = detected_units(replace(regions, labels=labels, mask=mask), FILL, 2)
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
