"""Pseudo supervision (eq. 7, 8): a context of another picture, its slots filled with what this picture shows.

y^m ─▶ q(z^m) ─▶ z^m ┬─▶ decoder ─▶ attention at each slot ─▶ class of the region ─▶ y^
p(z^o | z^m) ─▶ z^o ─┘        └───▶ -log p(y^ | z, I) + KL(q(z^m) || p(z^m))  =  -L^(y^, I)
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coscap.data.batch import Batch, OnDevice, RegionBatch
from coscap.models.base import LossTerms, TeacherForcedBatch
from coscap.models.cos_cvae import CosCvae, ObjectDraws, Posteriors
from coscap.models.decoder import EncodedRegions
from coscap.models.kernels import Tape
from coscap.models.regions import or_else
from coscap.text.vocabulary import PAD, SLOTS, START, UNK

SLOT_NOISE = 6  # of a row: which class fills a slot, where it is drawn
KEPT_NOISE = 7  # which slot is kept for what is asked, where all fit alike
Feed = Literal["filled", "neighbour"]
Objects = Literal["prior", "posterior"]


@dataclass(frozen=True)
class SlotTokens(OnDevice):
    """The token that names each class of the detector in a slot; -1 where the vocabulary has none."""

    singular: Tensor  # (C,) for <s>
    plural: Tensor  # (C,) for <s+>


@dataclass(frozen=True)
class Calibration(OnDevice):
    """Scores as probabilities that people name what was detected: sigmoid(slope logit(rank) + intercept of the label).

    The rank is a score's place among the scores of its label, 0..1, so that what a detector is unsure of counts too.
    """

    knots: Tensor  # (L, Q) rising quantiles of each label's scores
    slope: Tensor  # ()
    intercepts: Tensor  # (L,)

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """scores, labels: (P, R) -> (P, R); a label below 0 keeps its score"""
        known = labels.clamp(min=0)
        below = (self.knots[known] < scores[..., None]).sum(-1)
        rank = (below + 0.5) / (self.knots.shape[1] + 1)
        found = torch.sigmoid(self.slope * torch.logit(rank) + self.intercepts[known])
        return torch.where(labels >= 0, found.to(scores.dtype), scores)


@dataclass(frozen=True)
class SlotRule(OnDevice):
    """How the regions that could fill a slot are compared. L labels: classes, then words of the recipe.

    A region's weight is attention x score, times the factors that there are. With `draw` attention only chooses
    among regions of the same label, and one of the labels is drawn by score and factors: a large thing that is always
    attended to then leaves slots to others.
    """

    draw: bool = False
    calibration: Calibration | None = None  # of the scores
    rarity: Tensor | None = None  # (L,) factor of a label
    left: Tensor | None = None  # (L, V) factor of a label beside the word (or slot) before
    right: Tensor | None = None  # (L, V) the same of the word behind


@dataclass(frozen=True)
class Asked(OnDevice):
    """A label of each picture that its captions must name: once, in the slot whose words on both sides fit it best."""

    labels: Tensor  # (P,) -1 for none
    left: Tensor  # (L, V) factor of a label beside the word (or slot) before
    right: Tensor  # (L, V) the same of the word behind


def pseudo_loss(
    model: CosCvae,
    batch: Batch,
    names: SlotTokens,
    *,
    rule: SlotRule | None = None,
    feed: Feed = "filled",
    objects: Objects = "prior",
    asked: Asked | None = None,
    keys: Tensor | None = None,
) -> tuple[LossTerms, Tensor]:
    """The terms of -L^ (eq. 8) and the filled captions y^ (B, T).

    `batch` holds the pictures with captions of *other* pictures: their words and their context y^m. `feed` says what
    the decoder reads after a slot: the object that was filled in, or the neighbour's own word (the authors' code).
    With objects="posterior" the latents z^o come from the weaker posterior q(z^o | C_k(I)); `batch.objects` are then
    the classes that were detected in the picture. `rule` says which region fills a slot; None: attention x score.
    `asked`: what captions must name.
    """
    if keys is None:
        keys = torch.randint(2**62, (len(batch.rows),), device=batch.rows.device)
    forced = model.teacher_force(batch, None, keys)
    regions = model.decoder.encode(forced.regions)
    dropout = model.attention_dropout(forced)
    known = model.posteriors(forced, objects)
    tape: Tape | None = None
    if feed == "filled":
        filled, tape = _fill_slots(model, forced, known, regions, names, dropout, rule, asked)
        forced = forced.with_targets(filled)
        if objects == "posterior" and model.config.object_latent_per == "object":
            # What is named, in its order, is known now: z^o_k stands for the k-th, not for the k-th detection.
            forced = replace(forced, batch=replace(batch, objects=named_objects(model, forced)))
            known, tape = model.posteriors(forced, objects), None
    latents = model.expect(forced, known)
    words = model.decoder_words(model.input_tokens(forced))
    hidden, attention = model.decoder(
        words, latents.z, latents.objects, regions, batch.rows, forced.packing, dropout, tape
    )
    scored = forced
    if feed == "neighbour":
        filler = SlotFiller(forced, names, attention.shape[1], rule, asked)
        blocks = enumerate(forced.packing.blocks)
        scored = forced.with_targets(
            torch.cat([filler.fill(t, attention[start:end]) for t, (start, end) in blocks])
        )
        if latents.extra is not None and latents.objects is not None and model.object_head is not None:
            latents = replace(latents, extra=model.object_head(latents.objects, scored))
    reconstruction = model.reconstruction(scored, model.drop_output(scored, hidden), latents)
    return model.loss_terms(forced, latents, reconstruction), forced.packing.unpack(scored.targets)


def named_objects(model: CosCvae, forced: TeacherForcedBatch) -> Tensor:
    """x^o, the words of each caption that name an object, (B, K), PAD after the last."""
    named = forced.packing.unpack(model.names_object(forced.targets))  # (B, T)
    objects = forced.packing.unpack(forced.targets).masked_fill(~named, PAD)
    first = torch.argsort((~named).long(), dim=1, stable=True)[:, : max(1, int(named.sum(1).max()))]
    return objects.gather(1, first)


@torch.no_grad()
def _fill_slots(
    model: CosCvae,
    forced: TeacherForcedBatch,
    known: Posteriors,
    regions: EncodedRegions,
    names: SlotTokens,
    dropout: Tensor | None,
    rule: SlotRule | None = None,
    asked: Asked | None = None,
) -> tuple[Tensor, Tape]:
    """The filled captions (N,), each word read after the slots before it were filled, and the decoder's
    tape, so that the pass with gradients need not run it again."""
    packing = forced.packing
    tape = model.decoder.tape(regions, forced.batch.rows, packing)
    filler = SlotFiller(forced, names, regions.cell.keys.shape[1], rule, asked)
    temperature = model.config.pseudo_temperature
    draws = ObjectDraws(model, forced, known.context, temperature) if known.objects is None else None
    dropped = model.dropped_words(forced)
    filled = forced.targets.clone()  # (N,)
    previous = forced.previous[: packing.sizes[0]]  # START
    for t, (start, end) in enumerate(packing.blocks):
        previous, here = previous[: end - start], slice(start, end)
        if draws is None:
            assert known.objects is not None
            objects = known.objects[here]
        else:
            objects = draws.step(t, previous, model.prior_words(previous))
        read = previous if dropped is None else previous.masked_fill(dropped[here], UNK)
        attention = model.decoder.tape_step(
            tape,
            t,
            model.decoder_words(read),
            torch.cat([known.context[here], objects], dim=1),
            objects,
            regions,
            forced.owners[here],
            None if dropout is None else dropout[here],
        )
        previous = filled[here] = filler.fill(t, attention, None if draws is None else draws.chosen)
    return filled, tape


class SlotFiller:
    """Fills the slots of a batch's captions, word by word, with the region attended to that has a name.

    Where z^o stands for a region (a prior over regions) and there is no rule, that region fills the slot: what z^o says
    is named.
    Otherwise regions are compared by attention times the detector's score: 84 % of the objects filled in are then
    named by people who captioned the picture, 83 % by attention alone (`scripts/slot_study.py`). A region
    fills one slot of a caption; only when a picture has no other left does one serve again. A slot
    that nothing can fill keeps the neighbour's own word. What is asked for is named by its region with the best score.
    """

    def __init__(
        self,
        forced: TeacherForcedBatch,
        names: SlotTokens,
        regions: int,
        rule: SlotRule | None = None,
        asked: Asked | None = None,
    ) -> None:
        pictures, self.forced, self.slots, self.rule = forced.batch.pictures, forced, forced.slots, rule
        self.names = region_tokens(pictures, names)[..., :regions]  # (2, P, R)
        self.labels = pictures.labels[:, :regions]  # (P, R)
        self.scores = pictures.scores[:, :regions]  # (P, R)
        captions = forced.packing.sizes[0]
        self.used = torch.zeros(captions, regions, dtype=torch.bool, device=self.scores.device)
        self.kept: Tensor | None = None  # (N,) the slot that each caption keeps for what is asked
        self.chance: Tensor | None = None  # (N,)
        if rule is not None and rule.calibration is not None:
            self.scores = rule.calibration(self.scores, self.labels)
        if rule is not None or asked is not None:
            packing, context = forced.packing, forced.context
            first = context.new_full((captions,), START)
            self.before = torch.cat([first, context[packing.previous]])  # (N,) the word or slot before
            self.behind = torch.full_like(context, PAD).index_copy(0, packing.previous, context[captions:])
        if rule is not None and rule.draw:
            self.chance = forced.noise.uniforms(SLOT_NOISE, 1)[:, 0]
        if asked is not None:
            self.wanted = (self.labels == asked.labels[:, None]) & (asked.labels[:, None] >= 0)  # (P, R)
            self.wanted &= self.names[0] >= 0
            self.used |= self.wanted[forced.owners[:captions]]  # they come last in other slots
            self.kept = self._keep(asked)

    def fill(self, t: int, attention: Tensor, chosen: Tensor | None = None) -> Tensor:
        """attention: (n, R) at word t of the captions that have one, chosen: (n,) the region that z^o stands for, or -1
        -> their words, (n,)"""
        start, end = self.forced.packing.blocks[t]
        n, owners = end - start, self.forced.owners[start:end]
        plural = (self.forced.context[start:end] == SLOTS)[:, None]
        names = torch.where(plural, self.names[1][owners], self.names[0][owners])  # (n, R)
        if self.rule is None:
            weight = attention * self.scores[owners] - 2.0 * self.used[:n]  # regions in use come last
            if chosen is not None:
                weight = weight + (torch.arange(weight.shape[1], device=weight.device) == chosen[:, None])
            best = weight.masked_fill(names < 0, -4.0).argmax(1)  # (n,)
        else:
            best = self._choose(self.rule, slice(start, end), attention, names >= 0)
        if self.kept is not None:
            wanted = self.wanted[owners] & (names >= 0)  # (n, R)
            here = self.kept[start:end] & wanted.any(1)
            best = torch.where(here, self.scores[owners].masked_fill(~wanted, -1.0).argmax(1), best)
        name = names.gather(1, best[:, None])[:, 0]
        filled = self.slots[start:end] & (name >= 0)
        self.used[:n] |= filled[:, None] & torch.nn.functional.one_hot(best, self.used.shape[1]).bool()
        return torch.where(filled, name, self.forced.targets[start:end])

    def _keep(self, asked: Asked) -> Tensor:
        """The slot of each caption that is kept for what is asked: (N,)"""
        labels = asked.labels[self.forced.owners]  # (N,)
        known = labels.clamp(min=0)
        chance = self.forced.noise.uniforms(KEPT_NOISE, 1)[:, 0]
        fit = asked.left[known, self.before] * asked.right[known, self.behind]
        fit = fit * (1 + 0.001 * chance)  # chance decides where nothing says which slot fits
        fit = self.forced.packing.unpack(fit.masked_fill(~self.slots | (labels < 0), 0.0))  # (B, T)
        best = torch.nn.functional.one_hot(fit.argmax(1), fit.shape[1]).bool() & (fit > 0)
        return self.forced.packing.pack(best)

    def _choose(self, rule: SlotRule, here: slice, attention: Tensor, named: Tensor) -> Tensor:
        """The region for each row by a rule; attention, named: (n, R) -> (n,)"""
        owners = self.forced.owners[here]
        labels, scores = self.labels[owners], self.scores[owners]  # (n, R)
        free = or_else(named & ~self.used[: len(owners)], named)  # regions in use come last
        known = labels.clamp(min=0)
        factor = torch.ones_like(scores)
        if rule.rarity is not None:
            factor = factor * rule.rarity[known]
        if rule.left is not None:
            factor = factor * rule.left[known, self.before[here, None]]
        if rule.right is not None:
            factor = factor * rule.right[known, self.behind[here, None]]
        looked_at = (attention * scores).masked_fill(~free, -1.0)
        if self.chance is None:
            return (looked_at * factor).masked_fill(~free, -1.0).argmax(1)
        same = labels[:, :, None] == labels[:, None, :]  # (n, R, R)
        places = torch.arange(labels.shape[1], device=labels.device)
        ahead = looked_at[:, None, :] > looked_at[:, :, None]
        ahead |= (looked_at[:, None, :] == looked_at[:, :, None]) & (places[None] < places[:, None])
        first = free & ~(same & ahead).any(2)  # the most attended region of each label
        total = (scores * factor).masked_fill(~first, 0.0).double().cumsum(1)
        wanted = self.chance[here, None].double() * total[:, -1:]
        return (total <= wanted).sum(1).clamp(max=labels.shape[1] - 1)


def region_tokens(regions: RegionBatch, names: SlotTokens) -> Tensor:
    """The tokens that name each region, singular and plural: (2, P, R), -1 where none does."""
    known = (regions.labels >= 0) & regions.mask
    labels = regions.labels.clamp(min=0)
    return torch.stack([names.singular[labels], names.plural[labels]]).masked_fill(~known, -1)


def detected_tokens(regions: RegionBatch, names: SlotTokens, most: int) -> Tensor:
    """C_k(I): the names of the `most` best detected classes of each picture, (P, most), PAD after the last.

    Regions come by falling score, so the first of a class is its best.
    """
    tokens = region_tokens(regions, names)[0]  # (P, R)
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)
    first = (tokens >= 0) & ~earlier
    place = first.cumsum(1) - 1
    kept = first & (place < most)
    best = tokens.new_zeros(len(tokens), most)
    rows, columns = kept.nonzero(as_tuple=True)
    best[rows, place[rows, columns]] = tokens[rows, columns]
    return best
