"""One latent for a whole caption, drawn before the first word: what such kinds of model share."""

from torch import Tensor, nn

from coscap.models.base import CONTEXT_NOISE, CaptionModel, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.latents import RecurrentEncoder


class CaptionLatentModel(CaptionModel):
    """z is the same at every word of a caption; its cost is counted at the first one."""

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
