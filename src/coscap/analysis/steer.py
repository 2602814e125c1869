"""Captions under noise that is given, not drawn: the handle by which every analysis turns the latents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.data.collate import region_batch
from coscap.errors import UserError
from coscap.models import CosCvae, DecodeState, Latents, Pretrained, load_pretrained
from coscap.models.base import CONTEXT_NOISE, OBJECT_NOISE
from coscap.models.noise import normals, row_keys
from coscap.models.stepper import TorchState, TorchStepper
from coscap.seam import Caption, RegionArrays
from coscap.search import sampling
from coscap.search.config import SearchSettings
from coscap.search.constraints import token_constraints
from coscap.text import ObjectClasses, Vocabulary, load_classes
from coscap.text.vocabulary import END, START
from coscap.vision.regions import Regions

CONTEXT, OBJECTS = CONTEXT_NOISE, OBJECT_NOISE  # streams of noise, one a latent
ROWS = 1024  # captions written at once


@dataclass(frozen=True)
class Writer:
    """A COS-CVAE with what is needed to write captions under chosen latents."""

    loaded: Pretrained
    model: CosCvae
    objects: ObjectClasses
    settings: SearchSettings

    @classmethod
    def open(cls, place: str, device: str = "cpu", max_length: int = 20) -> "Writer":
        loaded = load_pretrained(place)
        if not loaded.model.splits_objects:
            raise UserError(
                f"{place} holds a {loaded.model.config.kind}; only a COS-CVAE keeps context and objects apart."
            )
        model = cast(CosCvae, loaded.model.to(device))
        objects = loaded.classes or load_classes("coco")
        return cls(loaded, model, objects, SearchSettings(max_length=max_length))

    @property
    def vocabulary(self) -> Vocabulary:
        return self.loaded.vocabulary

    @property
    def steps(self) -> int:
        """Words that noise is needed for, the end included."""
        return self.settings.max_length + 1

    @property
    def widths(self) -> tuple[int, int]:
        """How many numbers the noise of z^m and of z^o has."""
        return self.model.noise_widths

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def batch(self, pictures: Sequence[Regions]) -> RegionBatch:
        return region_batch(pictures).to(self.device)

    def noise(self, regions: RegionBatch, draws: int, stream: int, seed: int) -> Tensor:
        """The noise that a search with this seed draws, (P, draws, T, Z)."""
        width = self.widths[stream - 1]
        keys = row_keys(seed, regions.keys, draws)
        steps = [normals(keys, stream, step, width) for step in range(self.steps)]
        return torch.stack(steps, dim=1).view(len(regions.keys), draws, self.steps, width)

    @torch.inference_mode()
    def steered(self, regions: RegionBatch, context: Tensor, objects: Tensor) -> list[list[Caption]]:
        """Greedy captions under given noise; context: (P, K, T, Zm), objects: (P, K, T, Zo)."""
        found: list[list[Caption]] = []
        draws = context.shape[1]
        at_once = max(1, ROWS // draws)
        for first in range(0, len(context), at_once):
            here = slice(first, first + at_once)
            part = part_of(regions, first, first + at_once)
            state = self.model.start(part, draws)
            assert state.context is not None and state.objects is not None
            state = replace(
                state,
                context=replace(state.context, noise=context[here].flatten(0, 1)),
                objects=replace(state.objects, noise=objects[here].flatten(0, 1)),
            )
            found += self._write(part, draws, state)
        return found

    @torch.inference_mode()
    def held(self, regions: RegionBatch, latents: Latents, seed: int) -> list[Caption]:
        """One caption of each picture under given values of z^m or z^o; the other is drawn."""
        state = self.model.start(regions, 1, seed=seed, latents=latents)
        return [captions[0] for captions in self._write(regions, 1, state)]

    @torch.inference_mode()
    def drawn(self, regions: RegionBatch, seed: int) -> list[Caption]:
        """One caption of each picture."""
        state = self.model.start(regions, 1, seed=seed)
        return [captions[0] for captions in self._write(regions, 1, state)]

    @torch.inference_mode()
    def read(self, regions: RegionBatch, captions: Sequence[Caption], seed: int) -> Latents:
        """The values of z^m and z^o at each word of the captions that `drawn` wrote with this seed."""
        words = [[*self.vocabulary.encode(caption.tokens), END] for caption in captions]
        lengths = torch.tensor([len(each) for each in words], device=self.device)
        longest = int(lengths.max())
        fed = torch.tensor(
            [[START, *each, *[END] * (longest - len(each))][:longest] for each in words], device=self.device
        )
        state = self.model.start(regions, 1, seed=seed, record=True)
        for step in range(longest):
            _, state, _ = self.model.step(fed[:, step], state)
        return replace(state.latents(), lengths=lengths)

    def _write(self, regions: RegionBatch, draws: int, state: DecodeState) -> list[list[Caption]]:
        rules = token_constraints(self.settings, self.vocabulary, self.objects)
        arrays, started = RegionArrays.of(regions), TorchState(state, self.device)
        trace, ended = sampling.write(
            TorchStepper(self.model), arrays, range(draws), self.settings, rules, started
        )
        return trace.captions(ended, arrays, self.vocabulary.units)


def part_of(regions: RegionBatch, first: int, last: int) -> RegionBatch:
    """The pictures first .. last - 1."""
    return RegionBatch(**{name: value[first:last] for name, value in vars(regions).items()})
