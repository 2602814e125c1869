"""PS3 (Anderson, Gould and Johnson 2018): what is detected in a picture without captions is a caption partly specified.

detected classes ─▶ automaton ┬─▶ constrained search with the model as it is ─▶ completed caption ─▶ loss of the model
picture ──────────────────────┘        (complete)                                                    (train; repeat)

Captions are completed anew at each step, so that nothing has to be kept: a run that was broken off goes on to the same
weights. It is a way to train, not a network: it goes with every kind of model, as published with the up-down captioner.
"""

import numpy as np
import torch
from torch import Tensor

from coscap.data import Prepared
from coscap.data.batch import Batch, RegionBatch
from coscap.data.collate import object_array
from coscap.errors import UserError
from coscap.models import CaptionModel
from coscap.models.base import LossTerms
from coscap.models.regions import name_tokens
from coscap.models.stepper import TorchStepper
from coscap.seam import Caption, RegionArrays
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text import split, tokenise
from coscap.text.vocabulary import END, PAD
from coscap.training.config import Partial
from coscap.training.unpaired import UnpairedPictures
from coscap.vision.published import Store

SHARES = 1 << 20  # how finely captions can be shared out


class PartialTerm:
    """The loss of completed captions. Which pictures are drawn follows from the captions' keys."""

    def __init__(self, settings: Partial, prepared: Prepared, store: Store) -> None:
        self.settings, self.prepared, self.store = settings, prepared, store
        self.pictures = UnpairedPictures(prepared, store)
        if not len(self.pictures):
            raise UserError(
                f"{prepared.path} has no pictures without captions that have regions; leave out partial, or prepare "
                "the data with such pictures."
            )
        self.names = self._names()

    def _names(self) -> dict[int, str]:
        """What a caption can be asked to name, by label."""
        recipe, wanted = self.store.recipe, self.settings.classes
        unknown = [name for name in wanted if name not in recipe.classes]
        if unknown:
            raise UserError(
                f"field partial.classes: {recipe.name} does not know {unknown[0]!r}; its classes are "
                f"{', '.join(recipe.classes[:5])}, ..."
            )
        tokens = name_tokens(recipe, self.prepared.classes, self.prepared.vocabulary)
        return {
            label: name
            for label, name in enumerate(recipe.classes)
            if int(tokens[label, 0]) >= 0 and (name in wanted or not wanted)
        }

    def __call__(self, model: CaptionModel, batch: Batch, keys: Tensor) -> LossTerms:
        """keys: (B,) int64, one for each caption of the batch."""
        chosen = keys[keys % SHARES < self.settings.share * SHARES] // SHARES
        completed = self.completed(model, *self.pictures.draw(chosen)) if len(chosen) else None
        if completed is None:
            none = torch.zeros(0, device=keys.device)
            return LossTerms(none, none, none, none, none, none, none.long(), none, none)
        return model.loss(completed, keys=chosen[completed.rows])

    def completed(self, model: CaptionModel, regions: RegionBatch, ids: Tensor) -> Batch | None:
        """The pictures with captions that name what was detected in them; None where no search found one."""
        with torch.autocast(ids.device.type, enabled=False):  # captions are searched in float32
            found = self.search(model, regions)
        rows = [row for row, caption in enumerate(found) if caption is not None and caption.satisfied]
        parts = [split(tokenise(each.text), self.prepared.classes) for row in rows if (each := found[row])]
        if not parts:
            return None
        words = self._padded([list(each.units) for each in parts])
        context = self._padded([list(each.context) for each in parts])
        lengths = np.array([len(each.units) + 1 for each in parts])
        device = ids.device
        return Batch(
            regions,
            torch.tensor(rows, device=device),
            torch.from_numpy(words).to(device),
            torch.from_numpy(context).to(device),
            torch.from_numpy(object_array(words, context)).to(device),
            torch.from_numpy(lengths).to(device),
            ids,
        )

    def search(self, model: CaptionModel, regions: RegionBatch) -> list[Caption | None]:
        """The best caption of each picture that its automaton accepts, or the nearest to one; None for a picture in
        which nothing sure was detected."""
        learning = model.training
        model.eval()
        found: list[Caption | None] = [None] * len(regions.keys)
        every, arrays = self.required(regions), RegionArrays.of(regions)
        try:
            for names in sorted(set(every) - {()}):  # pictures that must name the same are searched together
                rows = np.array([row for row, each in enumerate(every) if each == names])
                settings = self._settings(names)
                captions = generate(
                    TorchStepper(model),
                    arrays.take(rows),
                    self.prepared.vocabulary,
                    1,
                    settings,
                    objects=self.prepared.classes,
                )
                for row, each in zip(rows.tolist(), captions, strict=True):
                    found[row] = each[0]
        finally:
            model.train(learning)
        return found

    def required(self, regions: RegionBatch) -> list[tuple[str, ...]]:
        """The surest classes of each picture that have a name and are asked for, at most `constraints` of them."""
        found = []
        for labels, scores in zip(regions.labels.tolist(), regions.scores.tolist(), strict=True):
            order = sorted(range(len(labels)), key=lambda at: -scores[at])
            sure = [labels[at] for at in order if scores[at] >= self.settings.score]
            names = [self.names[label] for label in sure if label in self.names]
            found.append(tuple(dict.fromkeys(names))[: self.settings.constraints])
        return found

    def _settings(self, names: tuple[str, ...]) -> SearchSettings:
        return SearchSettings(
            search="constrained",
            must=names,
            num_beams=self.settings.num_beams,
            latent_temperature=0.0,
            max_length=self.prepared.max_length,
        )

    def _padded(self, units: list[list[str]]) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
        """(B, T) the numbers of the units, END and then PAD"""
        rows = np.full((len(units), max(map(len, units)) + 1), PAD, np.int64)
        for row, each in zip(rows, units, strict=True):
            row[: len(each)] = self.prepared.vocabulary.encode(each)
            row[len(each)] = END
        return rows
