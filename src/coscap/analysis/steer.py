"""Captions under noise that is given, not drawn: the handle by which every analysis turns the latents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.data.collate import region_batch
from coscap.errors import UserError
from coscap.models.cos_cvae import CosCvae
from coscap.models.gaussian import Gaussian
from coscap.models.latents import Latents
from coscap.models.noise import normals, row_keys
from coscap.models.pretrained import load_pretrained
from coscap.models.prior import PriorState
from coscap.models.state import Chain, DecodeState
from coscap.models.stepper import TorchState, TorchStepper
from coscap.search import Caption, SearchSettings, sampling
from coscap.search.constraints import token_constraints
from coscap.search.model import RegionArrays
from coscap.text import ObjectClasses, Vocabulary, load_classes
from coscap.text.vocabulary import END, START
from coscap.vision.regions import Regions

CONTEXT, OBJECTS = 1, 2  # streams of noise, one a latent
ROWS = 1024  # captions written at once


@dataclass(frozen=True)
class Steered(Chain):
    """A latent sequence whose noise is given: z_t = mean_t + deviation_t * noise_t."""

    noise: Tensor  # (N, T, Z)

    def draw(
        self, p: Gaussian, prior: PriorState, stream: int, step: int, temperature: float, mode: str
    ) -> "Steered":
        return replace(self, prior=prior, z=p.sample(self.noise[:, step], temperature, mode))


@dataclass(frozen=True)
class Writer:
    """A COS-CVAE with what is needed to write captions under chosen latents."""

    model: CosCvae
    vocabulary: Vocabulary
    objects: ObjectClasses
    settings: SearchSettings

    @classmethod
    def open(cls, place: str, device: str = "cpu", max_length: int = 20) -> "Writer":
        loaded = load_pretrained(place)
        if not isinstance(loaded.model, CosCvae):
            raise UserError(
                f"{place} holds a {loaded.model.config.kind}; only a COS-CVAE keeps context and objects apart."
            )
        objects = loaded.classes or load_classes("coco")
        return cls(loaded.model.to(device), loaded.vocabulary, objects, SearchSettings(max_length=max_length))

    @property
    def steps(self) -> int:
        """Words that noise is needed for, the end included."""
        return self.settings.max_length + 1

    @property
    def widths(self) -> tuple[int, int]:
        """Of z^m and z^o."""
        return self.model.config.context_latent, self.model.config.object_latent

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
                context=_steer(state.context, context[here].flatten(0, 1)),
                objects=_steer(state.objects, objects[here].flatten(0, 1)),
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


def _steer(chain: Chain, noise: Tensor) -> Steered:
    return Steered(chain.prior, chain.z, chain.keys, chain.given, chain.lengths, noise)


def part_of(regions: RegionBatch, first: int, last: int) -> RegionBatch:
    """The pictures first .. last - 1."""
    return RegionBatch(**{name: value[first:last] for name, value in vars(regions).items()})
