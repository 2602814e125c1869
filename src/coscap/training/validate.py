"""Validation: the loss on captions that training does not see, and what the model's own captions are worth.

loss            the negative evidence lower bound in nats a caption: KL weights 1, no free bits, no extra
                part, so that figures of different schedules can be compared
cider_greedy    CIDEr-D of the likeliest words under the latents' means
cider_draw      mean CIDEr-D of a draw; cider_oracle: of the best draw of each picture
unique          the share of draws of a picture that differ from each other
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from coscap.data import Prepared
from coscap.data.batch import Batch, RegionBatch
from coscap.data.collate import region_batch
from coscap.data.loader import Loader
from coscap.errors import UserError
from coscap.models import CaptionModel
from coscap.models.stepper import TorchStepper
from coscap.seam import Caption
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text.vocabulary import Vocabulary
from coscap.training.config import TrainConfig, Validation
from coscap.training.interrupt import StopRequest
from coscap.training.objective import Objective, figures
from coscap.training.pieces import caption_keys
from coscap.vision.published import Store

AT_ONCE = 30  # pictures that are captioned together
BOUND = {"reconstruction": 1.0, "kl_context": 1.0, "kl_object": 1.0, "extra": 0.0}


@dataclass(frozen=True)
class Pictures:
    """Validation pictures with their references, as many as are captioned."""

    batches: list[RegionBatch]
    references: list[list[str]]  # tokenised, in the order of the pictures


@dataclass(frozen=True)
class Validator:
    config: Validation
    batches: Callable[[], Iterable[Batch]]  # the same ones at each call
    pictures: Pictures | None
    vocabulary: Vocabulary
    device: torch.device
    seed: int

    def __call__(self, model: nn.Module, stop: StopRequest) -> dict[str, float] | None:
        """Figures by name, or None if an end was requested in between."""
        model.eval()
        try:
            found = self._loss(model, stop) if self.config.captions else {}
            if self.pictures is not None and not stop():
                assert isinstance(model, CaptionModel)
                found |= self._captions(model, self.pictures, stop)
        finally:
            model.train()
        return None if stop() else found

    @torch.no_grad()
    def _loss(self, model: nn.Module, stop: StopRequest) -> dict[str, float]:
        objective = Objective(model)
        sums: dict[str, torch.Tensor] = {}
        captions = 0
        for batch in _first(self.batches(), self.config.captions):
            if stop():
                return {}
            keys = caption_keys(batch, self.seed, 0).to(self.device)
            _, more = objective(batch.to(self.device), keys, BOUND)
            sums = {name: sums[name] + value if sums else value for name, value in more.items()}
            captions += len(batch.rows)
        return figures({name: value.double().cpu() for name, value in sums.items()}, captions)

    def _captions(self, model: CaptionModel, pictures: Pictures, stop: StopRequest) -> dict[str, float]:
        from coscap.metrics.oracle import curves
        from coscap.metrics.overlap import overlap

        greedy: list[list[str]] = []
        drawn: list[list[str]] = []
        likeliest = SearchSettings(latent_temperature=0.0)
        sampled = SearchSettings(seed=self.seed)
        for regions in pictures.batches:
            if stop():
                return {}
            stepper = TorchStepper(model)
            greedy += _texts(generate(stepper, regions, self.vocabulary, 1, likeliest))
            drawn += _texts(generate(stepper, regions, self.vocabulary, self.config.draws, sampled))
        best = overlap(greedy, pictures.references).cider_d
        scores = overlap(drawn, pictures.references)
        curve = curves(scores.cider_d, scores.starts)
        return {
            "cider_greedy": float(best.mean()),
            "cider_draw": float(curve.average[-1]),
            "cider_oracle": float(curve.best[-1]),
            "unique": sum(len(set(texts)) / len(texts) for texts in drawn) / len(drawn),
        }


def _first(batches: Iterable[Batch], captions: int) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        captions -= len(batch.rows)
        if captions <= 0:
            return


def _texts(found: Sequence[Sequence[Caption]]) -> list[list[str]]:
    return [[caption.text for caption in captions] for captions in found]


def build_validator(
    config: TrainConfig, prepared: Prepared, store: Store, device: torch.device
) -> Validator | None:
    """The validation that a configuration asks for, on the data set's validation split."""
    validation = config.validation
    if validation is None:
        return None
    known = prepared.images("validation")
    if not len(known):
        raise UserError(
            f"{config.data} holds no picture out for validation; prepare it without --split train or with "
            "--validation N, or set validation: null to train without."
        )
    known = known[store.positions(np.array(prepared.image_ids[known])) >= 0]
    if not len(known):
        raise UserError(
            f"{config.regions} has no regions of validation pictures of {config.data}; make them with "
            "`coscap features`, or set validation: null to train without."
        )

    loader = Loader(prepared, store, "validation", config.batch_size, seed=0, prefetch=1)
    start = loader.state()

    def batches() -> Iterable[Batch]:
        loader.restore(start)  # shuffled, so that the first captions are not the shortest
        return loader

    pictures = _pictures(prepared, store, known, validation.pictures) if validation.pictures else None
    return Validator(validation, batches, pictures, prepared.vocabulary, device, seed=0)


def _pictures(prepared: Prepared, store: Store, known: NDArray[np.int64], most: int) -> Pictures:
    """`most` pictures, evenly from all; those without references would count for nothing."""
    from coscap.metrics.words import token_groups

    images = [int(image) for image in known if len(prepared.captions_of(int(image)))]
    chosen = [images[place] for place in np.linspace(0, len(images) - 1, min(most, len(images))).astype(int)]
    positions = store.positions(np.array(prepared.image_ids[chosen]))
    regions = [store.at(int(position)) for position in positions]
    references = [[prepared.text(caption) for caption in prepared.captions_of(image)] for image in chosen]
    return Pictures(
        [region_batch(regions[start : start + AT_ONCE]) for start in range(0, len(regions), AT_ONCE)],
        token_groups(references),
    )
