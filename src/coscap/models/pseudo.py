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
from coscap.models.cos_cvae import CosCvae, Posteriors, PriorDraws
from coscap.models.decoder import EncodedRegions
from coscap.models.kernels import Tape
from coscap.text.vocabulary import SLOTS, UNK

Feed = Literal["filled", "neighbour"]
Objects = Literal["prior", "posterior"]


@dataclass(frozen=True)
class SlotTokens(OnDevice):
    """The token that names each class of the detector in a slot; -1 where the vocabulary has none."""

    singular: Tensor  # (C,) for <s>
    plural: Tensor  # (C,) for <s+>


def pseudo_loss(
    model: CosCvae,
    batch: Batch,
    names: SlotTokens,
    *,
    feed: Feed = "filled",
    objects: Objects = "prior",
    keys: Tensor | None = None,
) -> tuple[LossTerms, Tensor]:
    """The terms of -L^ (eq. 8) and the filled captions y^ (B, T).

    `batch` holds the pictures with captions of *other* pictures: their words and their context y^m. `feed` says what
    the decoder reads after a slot: the object that was filled in, or the neighbour's own word (the authors' code).
    With objects="posterior" the latents z^o come from the weaker posterior q(z^o | C_k(I)); `batch.objects` are then
    the classes that were detected in the picture.
    """
    if keys is None:
        keys = torch.randint(2**62, (len(batch.rows),), device=batch.rows.device)
    forced = model.teacher_force(batch, None, keys)
    regions = model.decoder.encode(forced.regions)
    dropout = model.attention_dropout(forced)
    known = model.posteriors(forced, objects)
    tape: Tape | None = None
    if feed == "filled":
        filled, tape = _fill_slots(model, forced, known, regions, names, dropout)
        forced = forced.with_targets(filled)
    latents = model.expect(forced, known)
    words = model.decoder_words(model.input_tokens(forced))
    hidden, attention = model.decoder(
        words, latents.z, latents.objects, regions, batch.rows, forced.packing, dropout, tape
    )
    scored = forced
    if feed == "neighbour":
        filler = SlotFiller(forced, names, attention.shape[1])
        blocks = enumerate(forced.packing.blocks)
        scored = forced.with_targets(
            torch.cat([filler.fill(t, attention[start:end]) for t, (start, end) in blocks])
        )
        if latents.extra is not None and latents.objects is not None and model.object_head is not None:
            latents = replace(latents, extra=model.object_head(latents.objects, scored))
    reconstruction = model.reconstruction(scored, hidden, latents)
    return model.loss_terms(forced, latents, reconstruction), forced.packing.unpack(scored.targets)


@torch.no_grad()
def _fill_slots(
    model: CosCvae,
    forced: TeacherForcedBatch,
    known: Posteriors,
    regions: EncodedRegions,
    names: SlotTokens,
    dropout: Tensor | None,
) -> tuple[Tensor, Tape]:
    """The filled captions (N,), each word read after the slots before it were filled, and the decoder's
    tape, so that the pass with gradients need not run it again."""
    packing = forced.packing
    tape = model.decoder.tape(regions, forced.batch.rows, packing)
    filler = SlotFiller(forced, names, regions.cell.keys.shape[1])
    draws = PriorDraws(model, forced, known.context) if known.objects is None else None
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
        previous = filled[here] = filler.fill(t, attention)
    return filled, tape


class SlotFiller:
    """Fills the slots of a batch's captions, word by word, with the region attended to that has a name.

    Regions are compared by attention times the detector's score: 84 % of the objects filled in are then
    named by people who captioned the picture, 83 % by attention alone (`scripts/slot_study.py`). A region
    fills one slot of a caption; only when a picture has no other left does one serve again. A slot
    that nothing can fill keeps the neighbour's own word.
    """

    def __init__(self, forced: TeacherForcedBatch, names: SlotTokens, regions: int) -> None:
        pictures, self.forced, self.slots = forced.batch.pictures, forced, forced.slots
        self.names = region_tokens(pictures, names)[..., :regions]  # (2, P, R)
        self.scores = pictures.scores[:, :regions]  # (P, R)
        captions = forced.packing.sizes[0]
        self.used = torch.zeros(captions, regions, dtype=torch.bool, device=self.scores.device)

    def fill(self, t: int, attention: Tensor) -> Tensor:
        """attention: (n, R) at word t of the captions that have one -> their words, (n,)"""
        start, end = self.forced.packing.blocks[t]
        n, owners = end - start, self.forced.owners[start:end]
        plural = (self.forced.context[start:end] == SLOTS)[:, None]
        names = torch.where(plural, self.names[1][owners], self.names[0][owners])  # (n, R)
        weight = attention * self.scores[owners] - 2.0 * self.used[:n]  # regions in use come last
        best = weight.masked_fill(names < 0, -4.0).argmax(1)  # (n,)
        name = names.gather(1, best[:, None])[:, 0]
        filled = self.slots[start:end] & (name >= 0)
        self.used[:n] |= filled[:, None] & torch.nn.functional.one_hot(best, self.used.shape[1]).bool()
        return torch.where(filled, name, self.forced.targets[start:end])


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
