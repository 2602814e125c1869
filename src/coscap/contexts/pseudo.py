"""Pseudo captions in training: for every picture of a batch a context of a similar scene (eq. 8)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coscap.contexts.folder import Neighbours
from coscap.contexts.slots import words_beside
from coscap.data.batch import Batch
from coscap.data.collate import caption_arrays, region_batch
from coscap.data.prepared import Prepared
from coscap.errors import UserError
from coscap.models.base import LossTerms
from coscap.models.cos_cvae import CosCvae
from coscap.models.noise import mix
from coscap.models.pseudo import Asked, Feed, SlotRule, SlotTokens, detected_tokens, pseudo_loss
from coscap.models.regions import name_tokens
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import Vocabulary
from coscap.vision.published import Store
from coscap.vision.regions import Recipe

SHARES = 1 << 20  # how finely captions can be shared out
SHARE = 4  # a picture without captions for every fourth caption
MEANS = ("context_dimensions", "object_dimensions")  # terms that are no sums over captions


def slot_tokens(recipe: Recipe, classes: ObjectClasses, vocabulary: Vocabulary) -> SlotTokens:
    """How a detected class is called in a slot; the detector's classes are matched by name."""
    tokens = name_tokens(recipe, classes, vocabulary)
    if not (tokens[:, 0] >= 0).any():
        raise UserError(
            f"None of the classes of {recipe.name} is in the vocabulary; prepare the data with its class list."
        )
    return SlotTokens(tokens[:, 0].clone(), tokens[:, 1].clone())


def caption_tensors(prepared: Prepared, captions: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
    """words (B, T), context (B, T) and lengths (B,) of these captions, END included."""
    words, context, lengths = (torch.from_numpy(array) for array in caption_arrays(prepared, captions))
    return words, context, lengths


class PseudoTerm:
    """The second term of the objective. All it draws follows from the captions' keys, which the loop gives
    anew each step: the same for one process and for several."""

    def __init__(
        self,
        prepared: Prepared,
        neighbours: Neighbours,
        names: SlotTokens,
        feed: Feed = "filled",
        share: float = 1.0,
        rule: SlotRule | None = None,
    ) -> None:
        self.prepared, self.neighbours, self.names, self.feed = prepared, neighbours, names, feed
        self.rule = rule  # which region fills a slot
        self.share = share  # of the captions, which count for the others too

    def __call__(self, model: CosCvae, batch: Batch, keys: Tensor) -> LossTerms:
        """keys: (B,) int64, one for each caption of the batch."""
        exchanged = self.exchange(batch, keys)
        if exchanged is None:  # a small share of a batch may have none; it then adds nothing
            return _nothing(batch)
        terms, _ = self.pseudo(model, *exchanged)
        return terms.times(1 / self.share)

    def pseudo(self, model: CosCvae, batch: Batch, keys: Tensor) -> tuple[LossTerms, Tensor]:
        device = batch.rows.device
        return pseudo_loss(
            model, batch, self.names.to(device), rule=self._rule(device), feed=self.feed, keys=keys
        )

    def _rule(self, device: torch.device) -> SlotRule | None:
        if self.rule is not None:
            self.rule = self.rule.to(device)
        return self.rule

    def exchange(self, batch: Batch, keys: Tensor) -> tuple[Batch, Tensor] | None:
        """The same pictures with captions of their neighbours; those without any are left out, and all but the
        share that is wanted; None if no one stays."""
        images = np.searchsorted(self.prepared.image_ids, batch.image_ids.cpu().numpy())
        found = [self.neighbours.of(images[row]) for row in batch.rows.tolist()]
        wanted = (mix(keys) % SHARES < self.share * SHARES).tolist()
        kept = [row for row, near in enumerate(found) if len(near) and wanted[row]]
        if not kept:
            return None
        picks = keys.cpu().numpy()
        captions = np.array([found[row][picks[row] % len(found[row])] for row in kept], np.int64)
        words, context, lengths = caption_tensors(self.prepared, captions)
        device = batch.rows.device
        rows = torch.tensor(kept, device=device)
        exchanged = replace(
            batch,
            rows=batch.rows[rows],
            words=words.to(device),
            context=context.to(device),
            objects=words.new_zeros(len(kept), 1).to(device),  # z^o comes from the prior
            lengths=lengths.to(device),
        )
        return exchanged, keys[rows]


class NovelTerm(PseudoTerm):
    """Pictures that nobody captioned: z^o from the weaker posterior q(z^o | C_k(I)), slots from C_k(I).

    Every `SHARE`-th caption of a batch brings one such picture with it, chosen by the caption's key.
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        neighbours: Neighbours,
        names: SlotTokens,
        feed: Feed = "filled",
        top: int = 5,
        rule: SlotRule | None = None,
        classes: Sequence[str] = (),
        score: float = 0.5,
    ) -> None:
        """`classes`: learn from pictures in which one of these has at least this score, from each class equally often,
        in captions that name it; none: from all pictures."""
        super().__init__(prepared, neighbours, names, feed, rule=rule)
        self.store, self.top = store, top
        there = [i for i in prepared.images("unpaired").tolist() if int(prepared.image_ids[i]) in store]
        self.images = np.array([i for i in there if len(neighbours.of(i))], np.int64)
        if not len(self.images):
            raise UserError(
                f"{prepared.path} has no pictures without captions that have regions and neighbours; "
                "leave out pseudo.unpaired, or prepare the data with such pictures."
            )
        self.labels = [self._label(name) for name in classes]  # what the pictures of each group must name
        self.beside = words_beside(prepared, store) if classes else None
        self.groups = self._with_classes(classes, score) if classes else [self.images]

    def _label(self, name: str) -> int:
        recipe = self.store.recipe
        if name not in recipe.classes:
            raise UserError(
                f"field pseudo.classes: {recipe.name} does not know {name!r}; use a detector that does, or one of "
                f"its classes ({', '.join(recipe.classes[:5])}, ...)."
            )
        return recipe.classes.index(name)

    def _with_classes(self, classes: Sequence[str], score: float) -> list[NDArray[np.int64]]:
        """The pictures in which each class was surely detected."""
        positions = self.store.positions(np.array(self.prepared.image_ids[self.images]))
        sure = [labels[scores >= score] for labels, scores in map(self.store.detected, positions.tolist())]
        groups = []
        for name, label in zip(classes, self.labels, strict=True):
            group = self.images[[label in found for found in sure]]
            if not len(group):
                raise UserError(
                    f"field pseudo.classes: {name!r} is detected in none of the {len(self.images)} pictures without "
                    "captions; add pictures that show it."
                )
            groups.append(group)
        return groups

    def __call__(self, model: CosCvae, batch: Batch, keys: Tensor) -> LossTerms:
        chosen = keys[keys % SHARE == 0]
        if not len(chosen):
            return _nothing(batch)
        unpaired, asked = self.draw(chosen)
        exchanged = self.exchange(unpaired, chosen)
        if exchanged is None:
            return _nothing(batch)
        terms, _ = self.pseudo(model, *exchanged, asked)
        return terms

    def draw(self, keys: Tensor) -> tuple[Batch, Asked | None]:
        """A picture without captions for each key, and what it must name."""
        numbers = (keys // SHARE).cpu().numpy()
        kinds, numbers = numbers % len(self.groups), numbers // len(self.groups)
        each = [self.groups[kind] for kind in kinds.tolist()]
        images = np.array([group[n % len(group)] for group, n in zip(each, numbers.tolist(), strict=True)])
        ids = self.prepared.image_ids[images]
        rows = torch.arange(len(images))
        blank = torch.zeros(len(images), 1, dtype=torch.long)
        pictures = region_batch([self.store.get(int(image_id)) for image_id in ids])
        unpaired = Batch(pictures, rows, blank, blank, blank, blank[:, 0], torch.from_numpy(np.array(ids)))
        if self.beside is None:
            return unpaired.to(keys.device), None
        left, right = map(torch.from_numpy, self.beside)
        asked = Asked(torch.tensor([self.labels[kind] for kind in kinds.tolist()]), left, right)
        return unpaired.to(keys.device), asked.to(keys.device)

    def pseudo(
        self, model: CosCvae, batch: Batch, keys: Tensor, asked: Asked | None = None
    ) -> tuple[LossTerms, Tensor]:
        names = self.names.to(batch.rows.device)
        objects = detected_tokens(batch.pictures, names, self.top)[batch.rows]
        batch = replace(batch, objects=objects)
        rule = self._rule(batch.rows.device)
        return pseudo_loss(
            model, batch, names, rule=rule, feed=self.feed, objects="posterior", asked=asked, keys=keys
        )


class BothTerms:
    """Pseudo captions of captioned pictures and of those that nobody captioned."""

    def __init__(self, paired: PseudoTerm, novel: NovelTerm) -> None:
        self.paired, self.novel = paired, novel

    def __call__(self, model: CosCvae, batch: Batch, keys: Tensor) -> LossTerms:
        one, other = self.paired(model, batch, keys), self.novel(model, batch, mix(keys))
        joined: dict[str, Any] = {
            name: torch.cat([value, getattr(other, name)])
            for name, value in vars(one).items()
            if name not in (*MEANS, "figures")
        }
        return replace(one, **joined)


def _nothing(batch: Batch) -> LossTerms:
    """The terms of no caption."""
    none = torch.zeros(0, device=batch.rows.device)
    return LossTerms(none, none, none, none, none, none, none.long(), none, none)
