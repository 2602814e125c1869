"""Pseudo captions in training: for every picture of a batch a context of a similar scene (eq. 8)."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coscap.contexts.folder import Neighbours
from coscap.data.batch import Batch
from coscap.data.collate import caption_arrays, region_batch
from coscap.data.prepared import Prepared
from coscap.errors import UserError
from coscap.models.base import LossTerms
from coscap.models.cos_cvae import CosCvae
from coscap.models.noise import mix
from coscap.models.pseudo import Feed, SlotTokens, detected_tokens, pseudo_loss
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import UNK, Vocabulary
from coscap.vision.published import Store
from coscap.vision.regions import Recipe

SHARES = 1 << 20  # how finely captions can be shared out
SHARE = 4  # a picture without captions for every fourth caption
MEANS = ("context_dimensions", "object_dimensions")  # terms that are no sums over captions


def slot_tokens(recipe: Recipe, classes: ObjectClasses, vocabulary: Vocabulary) -> SlotTokens:
    """How a detected class is called in a slot; the detector's classes are matched by name."""
    by_name = {known.name: known for known in classes.classes}

    def token(text: str) -> int:
        number = vocabulary.encode([text])[0]
        return -1 if number == UNK else number

    singular, plural = [], []
    for name in recipe.classes:
        known = by_name.get(name)
        singular.append(token(known.singular if known else name))
        plural.append(token(known.plural) if known else -1)
    ones = {word for each in classes.classes for word in each.words}
    many = {word for each in classes.classes for word in each.plurals}
    for word in recipe.words:  # a word region fills a slot with its own word, where that names an object
        singular.append(token(word) if word in ones else -1)
        plural.append(token(word) if word in many else -1)
    if max(singular, default=-1) < 0:
        raise UserError(
            f"None of the classes of {recipe.name} is in the vocabulary; prepare the data with its class list."
        )
    return SlotTokens(torch.tensor(singular), torch.tensor(plural))


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
    ) -> None:
        self.prepared, self.neighbours, self.names, self.feed = prepared, neighbours, names, feed
        self.share = share  # of the captions, which count for the others too

    def __call__(self, model: CosCvae, batch: Batch, keys: Tensor) -> LossTerms:
        """keys: (B,) int64, one for each caption of the batch."""
        exchanged = self.exchange(batch, keys)
        if exchanged is None:  # a small share of a batch may have none; it then adds nothing
            return _nothing(batch)
        terms, _ = self.pseudo(model, *exchanged)
        return terms.times(1 / self.share)

    def pseudo(self, model: CosCvae, batch: Batch, keys: Tensor) -> tuple[LossTerms, Tensor]:
        return pseudo_loss(model, batch, self.names.to(batch.rows.device), feed=self.feed, keys=keys)

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
    ) -> None:
        super().__init__(prepared, neighbours, names, feed)
        self.store, self.top = store, top
        there = [i for i in prepared.images("unpaired").tolist() if int(prepared.image_ids[i]) in store]
        self.images = np.array([i for i in there if len(neighbours.of(i))], np.int64)
        if not len(self.images):
            raise UserError(
                f"{prepared.path} has no pictures without captions that have regions and neighbours; "
                "leave out pseudo.unpaired, or prepare the data with such pictures."
            )

    def __call__(self, model: CosCvae, batch: Batch, keys: Tensor) -> LossTerms:
        unpaired = self.draw(batch, keys)
        exchanged = None if unpaired is None else self.exchange(*unpaired)
        if exchanged is None:
            return _nothing(batch)
        terms, _ = self.pseudo(model, *exchanged)
        return terms

    def draw(self, batch: Batch, keys: Tensor) -> tuple[Batch, Tensor] | None:
        """Pictures without captions, one for each of some of the keys."""
        chosen = keys[keys % SHARE == 0]
        if not len(chosen):
            return None
        images = self.images[(chosen // SHARE).cpu().numpy() % len(self.images)]
        ids = self.prepared.image_ids[images]
        rows = torch.arange(len(images))
        blank = torch.zeros(len(images), 1, dtype=torch.long)
        pictures = region_batch([self.store.get(int(image_id)) for image_id in ids])
        unpaired = Batch(pictures, rows, blank, blank, blank, blank[:, 0], torch.from_numpy(np.array(ids)))
        return unpaired.to(batch.rows.device), chosen

    def pseudo(self, model: CosCvae, batch: Batch, keys: Tensor) -> tuple[LossTerms, Tensor]:
        names = self.names.to(batch.rows.device)
        objects = detected_tokens(batch.pictures, names, self.top)[batch.rows]
        batch = replace(batch, objects=objects)
        return pseudo_loss(model, batch, names, feed=self.feed, objects="posterior", keys=keys)


class BothTerms:
    """Pseudo captions of captioned pictures and of those that nobody captioned."""

    def __init__(self, paired: PseudoTerm, novel: NovelTerm) -> None:
        self.paired, self.novel = paired, novel

    def __call__(self, model: CosCvae, batch: Batch, keys: Tensor) -> LossTerms:
        one, other = self.paired(model, batch, keys), self.novel(model, batch, mix(keys))
        joined = {
            name: torch.cat([getattr(one, name), getattr(other, name)])
            for name in vars(one)
            if name not in MEANS
        }
        return LossTerms(**joined, **{name: getattr(one, name) for name in MEANS})


def _nothing(batch: Batch) -> LossTerms:
    """The terms of no caption."""
    none = torch.zeros(0, device=batch.rows.device)
    return LossTerms(none, none, none, none, none, none, none.long(), none, none)
