"""AG-CVAE (Wang et al. 2017): one latent a caption, whose prior is put together from the detected categories.

x, v-bar ─▶ LSTM ─▶ h_T ┐
classes, scores ─▶ c ─▶ sum_k c_k mu_k ┬─▶ linear ─▶ q(z | x, c, I) ─▶ z ─▶ decoder, at each word ─▶ x
                                       └─▶ p(z | c) = N(sum_k c_k mu_k, sum_k c_k^2 sigma^2)

z = sum_k c_k z_k with z_k ~ N(mu_k, sigma^2): many categories make a narrow prior. The means are learnt. Published are
fixed ones and a decoder that reads c too; the KL does not change when q and p are moved together, so that a learnt
sum_k c_k mu_k is both at once.
"""

import math

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.models.base import InferredLatents, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import UpDownDecoder
from coscap.models.latents import Gaussian, Latents, kl
from coscap.models.once import CaptionEncoder, CaptionLatentModel
from coscap.models.regions import RegionValues, greatest_scores


class AgCvae(CaptionLatentModel):
    """q(z | x, c, I), p(z | c), p(x_t | x_{<t}, z, I)"""

    title = "AG-CVAE"
    own_settings = ("category_deviation",)

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__(config, decoder)
        width = config.context_latent
        directions = torch.randn(config.classes + 1, width)  # the last one is for pictures without a category
        self.means = nn.Parameter(directions / directions.norm(dim=1, keepdim=True))  # (C + 1, Z) mu_k
        self.encoder = CaptionEncoder(config, config.context_posterior_sees_picture)
        self.posterior = nn.Linear(config.context_posterior + width, 2 * width)
        with torch.no_grad():  # begins around the prior's mean, with the prior's deviation or a part of it
            self.posterior.bias[:width] = 0
            self.posterior.bias[width:] = config.initial_log_variance

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        if not config.classes:
            raise ValueError("an ag_cvae needs regions with classes, and the recipe of these has none")
        if config.detections == 0:
            raise ValueError(
                "an ag_cvae needs detections, from which its prior is made; leave out detections: 0"
            )

    @classmethod
    def latent_widths(cls, config: ModelConfig) -> tuple[int, int]:
        return config.context_latent, 0

    def expect(self, regions: RegionValues) -> Gaussian:
        """p(z | c) of each picture, (P, Z)."""
        weights = category_weights(regions, self.config.classes).to(self.means.dtype)
        mean = weights @ self.means
        log_variance = 2 * math.log(self.config.category_deviation) + weights.square().sum(1).log()  # (P,)
        return Gaussian(mean, log_variance[:, None].expand_as(mean))

    def infer_caption(self, forced: TeacherForcedBatch) -> tuple[Tensor, Gaussian, Gaussian]:
        """A draw z (B, Z), q and p of each caption."""
        expected, rows = self.expect(forced.regions), forced.batch.rows
        p = Gaussian(expected.mean[rows], expected.log_variance[rows])
        read = self.encoder(self.posterior_words(forced.targets), forced)  # (B, H)
        shift, change = self.posterior(torch.cat([read, p.mean], dim=1)).chunk(2, dim=1)
        q = Gaussian(p.mean + torch.exp(0.5 * p.log_variance) * shift, p.log_variance + change)
        return q.sample(self.caption_noise(forced, shift.shape[1]).to(shift.dtype)), q, p

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        z, q, p = self.infer_caption(forced)
        cost, drawn = self.at_first_words(forced, kl(q, p))
        return InferredLatents(context=z[forced.packing.captions], kl_context=cost, context_draws=drawn)

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        """The posterior of each caption's latent and a draw from it, (B, 1, Z)."""
        z, q, _ = self.infer_caption(self.teacher_force(batch, generator, keys))
        posterior = Gaussian(q.mean[:, None], q.log_variance[:, None])
        return Latents(lengths=batch.lengths, context=z[:, None], context_posterior=posterior)

    def condition(self, regions: RegionValues) -> Tensor:
        p = self.expect(regions)
        return torch.cat([p.mean, p.log_variance], dim=1)  # (P, 2 Z)

    @property
    def condition_width(self) -> int:
        return 2 * self.config.context_latent

    def draw_caption(self, condition: Tensor, noise: Tensor, temperature: float) -> Tensor:
        return Gaussian.of(condition).sample(noise, temperature, self.config.temperature_mode)


def category_weights(regions: RegionValues, classes: int) -> Tensor:
    """c (P, C + 1): the greatest score of each detected category, divided by their sum; the last weight is 1 where
    nothing was detected, otherwise 0."""
    best = greatest_scores(regions, classes)
    nothing = (best.sum(1, keepdim=True) <= 0).to(best.dtype)
    best = torch.cat([best, nothing], dim=1)
    return best / best.sum(1, keepdim=True)
