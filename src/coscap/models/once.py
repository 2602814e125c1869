"""One latent for a whole caption, drawn before the first word: what such kinds of model share."""

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn

from coscap.models.base import CONTEXT_NOISE, CaptionModel, LatentStart, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import DecodeState
from coscap.models.kernels import UniqueTokens
from coscap.models.latents import Latents, LatentState, RecurrentEncoder
from coscap.models.regions import RegionValues
from coscap.text.vocabulary import START


class CaptionLatentModel(CaptionModel):
    """z is the same at every word of a caption; its cost is counted at the first one."""

    @abstractmethod
    def condition(self, regions: RegionValues) -> Tensor:
        """What the draws of a picture depend on, (P, D)."""

    @property
    @abstractmethod
    def condition_width(self) -> int:
        """D"""

    @abstractmethod
    def draw_caption(self, condition: Tensor, noise: Tensor, temperature: float) -> Tensor:
        """z ~ p(z | I) of each row. condition: (N, D), noise: (N, Z) normals -> (N, Z)"""

    def choices(self) -> Tensor | None:
        """The values that z can have, (K, Z), where `condition` is log p of each; None where z is continuous."""
        return None

    def start_latents(
        self, regions: RegionValues, context_keys: Tensor, object_keys: Tensor, given: Latents
    ) -> LatentStart:
        condition = self.condition(regions)
        condition = condition.repeat_interleave(len(context_keys) // len(condition), dim=0)  # (N, D)
        width = self.latent_widths(self.config)[0]
        return LatentStart(LatentState.once(condition, width, context_keys, given.context, given.lengths))

    def draw(self, tokens: UniqueTokens, state: DecodeState) -> tuple[LatentState | None, LatentState | None]:
        """z before the first word, the same from then on."""
        latent, shared = state.context, state.shared
        if state.step:
            return latent, None
        assert latent is not None and latent.condition is not None
        noise = latent.noise_of(CONTEXT_NOISE, 0, latent.condition.dtype)
        z = self.draw_caption(latent.condition, noise, shared.temperatures[0])
        after = latent.next(z, latent.prior, 0)
        if torch.compiler.is_exporting():  # a graph does not know its step, but its tokens
            first = tokens.spread(tokens.ids == START)
            after = replace(after, z=torch.where(first[:, None], after.z, latent.z))
        return replace(after, condition=None), None

    @property
    def posterior_words(self) -> nn.Embedding:
        assert self.words is not None
        return self.words

    def caption_noise(self, forced: TeacherForcedBatch, width: int, stream: int = CONTEXT_NOISE) -> Tensor:
        """The noise of each caption, (B, width): that of its first word."""
        first = forced.packing.sizes[0]
        noise = forced.noise.normals(stream, width)[:first]  # (B, width), by falling length
        return noise.new_zeros(noise.shape).index_copy(0, forced.packing.captions[:first], noise)

    def at_first_words(self, forced: TeacherForcedBatch, cost: Tensor) -> tuple[Tensor, Tensor]:
        """The cost (B, Z) of each caption as one of words, (N, Z), and at which of them it is, (N,)."""
        drawn = forced.packing.positions == 0
        return cost[forced.packing.captions] * drawn[:, None], drawn


class CaptionEncoder(nn.Module):
    """x (, v-bar) ─▶ LSTM ─▶ h_T, the last hidden state of each caption"""

    def __init__(self, config: ModelConfig, sees_picture: bool) -> None:
        super().__init__()
        picture = config.value_width if sees_picture else 0
        self.encoder = RecurrentEncoder(
            config.encoder_cell, config.word_width, picture, config.context_posterior
        )

    def forward(self, words: Tensor, forced: TeacherForcedBatch) -> Tensor:
        """words: (N, D) embedded x -> (B, H)"""
        hidden = self.encoder(words, forced.regions.mean, forced.owners, forced.packing)  # (N, H)
        padded = forced.packing.unpack(hidden)  # (B, T, H)
        last = (forced.batch.lengths - 1)[:, None, None].expand(-1, 1, padded.shape[2])
        return padded.gather(1, last)[:, 0]
