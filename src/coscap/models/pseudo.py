"""Pseudo supervision (eq. 7, 8): a context of another picture, its slots filled with what this picture shows.

y^m ─▶ q(z^m) ─▶ z^m ┬─▶ decoder ─▶ attention at each slot ─▶ class of the region ─▶ y^
p(z^o | z^m) ─▶ z^o ─┘        └───▶ -log p(y^ | z, I) + KL(q(z^m) || p(z^m))  =  -L^(y^, I)
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coscap.data.batch import Batch, OnDevice, RegionBatch
from coscap.models.attention_loop import Tape
from coscap.models.base import Teacher
from coscap.models.cos_cvae import CosCvae, Posteriors
from coscap.models.decoder import Looked
from coscap.models.parts import Parts
from coscap.text.vocabulary import SLOT, SLOTS, UNK

Feed = Literal["filled", "neighbour"]
Objects = Literal["prior", "posterior"]


@dataclass(frozen=True)
class Fill(OnDevice):
    """The unit that names each class of the detector in a slot; -1 where the vocabulary has none."""

    singular: Tensor  # (C,) for <s>
    plural: Tensor  # (C,) for <s+>


def pseudo_loss(
    model: CosCvae,
    batch: Batch,
    fill: Fill,
    *,
    feed: Feed = "filled",
    objects: Objects = "prior",
    keys: Tensor | None = None,
) -> tuple[Parts, Tensor]:
    """The parts of -L^ and the filled captions (B, T).

    `batch` holds the pictures with captions of *other* pictures: their words and their context x^m. `feed`
    says what is read after a slot: the object that was filled in, or the neighbour's own word (the authors'
    code). With objects="posterior" the latents z^o come from the weaker posterior q(z^o | C_k(I));
    `batch.objects` are then the classes that were detected in the picture.
    """
    if keys is None:
        keys = torch.randint(2**62, (len(batch.rows),), device=batch.rows.device)
    teacher = model._teacher(batch, None, keys)
    looked = model.decoder.look(teacher.memory)
    known = model._posteriors(teacher, objects)
    tape: Tape | None = None
    if feed == "filled":
        filled, tape = _write(model, teacher, known, looked, fill)
        teacher = teacher.saying(filled)
    inferred = model._expect(teacher, known)
    fed = model.decoder_words(model._drop(teacher))
    hidden, attention = model.decoder(
        fed, inferred.z(), inferred.objects, looked, batch.rows, teacher.packing, tape
    )
    if feed == "neighbour":
        slots = Slots(teacher, fill, attention.shape[1])
        blocks = enumerate(teacher.packing.blocks)
        filled = torch.cat([slots.fill(t, attention[start:end]) for t, (start, end) in blocks])
        if inferred.extra is not None and inferred.objects is not None and model.object_head is not None:
            named = model.object_head(inferred.objects, teacher.saying(filled))
            inferred = replace(inferred, extra=named)
    negative = model.output(hidden, inferred.objects, filled)
    return model._parts(teacher, inferred, negative), teacher.packing.unpack(filled)


@torch.no_grad()
def _write(
    model: CosCvae, teacher: Teacher, known: Posteriors, looked: Looked, fill: Fill
) -> tuple[Tensor, Tape]:
    """The filled captions (N,), each word read after the slots before it were filled, and the decoder's
    tape, so that the pass with gradients need not run it again."""
    packing, rows = teacher.packing, teacher.batch.rows
    tape = model.decoder.tape(looked, rows, packing)
    slots = Slots(teacher, fill, looked.keys.shape[1])
    draws = model.object_draws(teacher, known.context) if known.objects is None else None
    dropped = model._dropped(teacher)
    filled = teacher.targets.clone()  # (N,)
    previous = teacher.previous[: packing.sizes[0]]  # START
    for t, (start, end) in enumerate(packing.blocks):
        previous, here = previous[: end - start], slice(start, end)
        if draws is None:
            assert known.objects is not None
            objects = known.objects[here]
        else:
            objects = draws.step(t, model.known_words(previous))
        read = previous if dropped is None else previous.masked_fill(dropped[here], UNK)
        z = torch.cat([known.context[here], objects], dim=1)
        owners = teacher.owners[here]
        attention = model.decoder.say(tape, t, model.decoder_words(read), z, objects, looked, owners)
        previous = filled[here] = slots.fill(t, attention)
    return filled, tape


class Slots:
    """Fills the slots of a batch's captions, word by word, with the region attended to that has a name.

    Regions are compared by attention times the detector's score: 84 % of the objects filled in are then
    named by people who captioned the picture, 83 % by attention alone (`scripts/slot_study.py`). A region
    fills one slot of a caption; only when a picture has no other left does one serve again. A slot
    that nothing can fill keeps the neighbour's own word.
    """

    def __init__(self, teacher: Teacher, fill: Fill, regions: int) -> None:
        pictures, self.teacher = teacher.batch.pictures, teacher
        self.units = region_units(pictures, fill)[..., :regions]  # (2, P, R)
        self.scores = pictures.scores[:, :regions]  # (P, R)
        captions = teacher.packing.sizes[0]
        self.used = torch.zeros(captions, regions, dtype=torch.bool, device=self.scores.device)

    def fill(self, t: int, attention: Tensor) -> Tensor:
        """attention: (n, R) at word t of the captions that have one -> their words, (n,)"""
        start, end = self.teacher.packing.blocks[t]
        n, kind = end - start, self.teacher.context[start:end]
        owners = self.teacher.owners[start:end]
        names = torch.where((kind == SLOTS)[:, None], self.units[1][owners], self.units[0][owners])  # (n, R)
        weight = attention * self.scores[owners] - 2.0 * self.used[:n]  # regions in use come last
        best = weight.masked_fill(names < 0, -4.0).argmax(1)  # (n,)
        name = names.gather(1, best[:, None])[:, 0]
        here = ((kind == SLOT) | (kind == SLOTS)) & (name >= 0)
        self.used[:n] |= here[:, None] & torch.nn.functional.one_hot(best, self.used.shape[1]).bool()
        return torch.where(here, name, self.teacher.targets[start:end])


def region_units(regions: RegionBatch, fill: Fill) -> Tensor:
    """The units that name each region, singular and plural: (2, P, R), -1 where none does."""
    known = (regions.labels >= 0) & regions.mask
    labels = regions.labels.clamp(min=0)
    return torch.stack([fill.singular[labels], fill.plural[labels]]).masked_fill(~known, -1)


def detected_units(regions: RegionBatch, fill: Fill, most: int) -> Tensor:
    """C_k(I): the names of the `most` best detected classes of each picture, (P, most), PAD after the last.

    Regions come by falling score, so the first of a class is its best.
    """
    names = region_units(regions, fill)[0]  # (P, R)
    earlier = (names[:, :, None] == names[:, None, :]).tril(-1).any(2)
    fresh = (names >= 0) & ~earlier
    place = fresh.cumsum(1) - 1
    kept = fresh & (place < most)
    found = names.new_zeros(len(names), most)
    rows, columns = kept.nonzero(as_tuple=True)
    found[rows, place[rows, columns]] = names[rows, columns]
    return found
