"""LNFMM (Mahajan et al. 2020): a latent that picture and text share, one of the text's own, priors by flows.

x ─▶ LSTM ─▶ q(z_s | x) ─▶ z_s ┬─▶ q(z_t | x, z_s) ─▶ z_t ┬─▶ decoder, at each word ─▶ x
                               └─▶ g(z_s) ~ v-bar         │
v-bar ─▶ flow p(z_s | I) ─▶ z_s ─▶ flow p(z_t | z_s) ─────┘

Pictures and captions whose pairs are hidden (`unpaired_share`) are learnt from as well: a caption under the prior
p(z_s) of no picture, its decoder looking at g(z_s) alone; a picture by z_s ~ p(z_s | I), from which g gives it back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.models.base import OBJECT_NOISE, InferredLatents, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import UpDownDecoder
from coscap.models.flows import Flow, standard_normal
from coscap.models.latents import MEAN_LIFT, Gaussian, Latents
from coscap.models.noise import uniforms
from coscap.models.once import CaptionEncoder, CaptionLatentModel
from coscap.models.regions import RegionValues

HIDDEN_PAIRS = 101  # names the choice of pictures whose pairs are hidden


@dataclass(frozen=True)
class CaptionPosterior:
    """The posterior of B captions and a draw from it."""

    shared: Tensor  # (B, Zs) z_s
    text: Tensor  # (B, Zt) z_t
    q_shared: Gaussian
    q_text: Gaussian


class Lnfmm(CaptionLatentModel):
    """q(z_s | x) q(z_t | x, z_s), p(z_s | I) p(z_t | z_s), p(x_t | x_{<t}, z_s, z_t, I), p(v-bar | z_s)"""

    title = "LNFMM"
    own_settings = ("text_latent", "flow_layers", "flow_width", "picture_weight", "unpaired_share")

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__(config, decoder)
        shared, text, picture = config.context_latent, config.text_latent, config.value_width
        self.encoder = CaptionEncoder(config, sees_picture=False)
        self.shared_posterior = _posterior(config.context_posterior, shared, config)
        self.text_posterior = _posterior(config.context_posterior + shared, text, config)
        self.shared_prior = Flow(shared, picture, config.flow_width, config.flow_layers)
        self.text_prior = Flow(text, shared, config.flow_width, config.flow_layers)
        self.no_picture = nn.Parameter(torch.zeros(picture))  # what p(z_s) is given instead of v-bar
        self.picture = nn.Sequential(
            nn.Linear(shared, config.flow_width), nn.ReLU(), nn.Linear(config.flow_width, picture)
        )  # g

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        for name in ("context_latent", "text_latent"):
            width = getattr(config, name)
            if width % 2:
                raise ValueError(
                    f"{name} is {width}, and an lnfmm needs an even width, of which its flow changes one half at a "
                    f"time; set it to {width + 1}"
                )

    @classmethod
    def latent_widths(cls, config: ModelConfig) -> tuple[int, int]:
        return config.context_latent + config.text_latent, 0

    # Teacher forcing

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        known, rows, hidden = self.posterior(forced), forced.batch.rows, self.hidden_pairs(forced)
        v = forced.regions.mean[rows]  # (B, F)
        seen = torch.where(hidden[:, None], self.no_picture, v)
        cost = torch.stack(
            [
                _log_density(known.q_shared, known.shared)
                - self.shared_prior.log_probability(known.shared, seen),
                _log_density(known.q_text, known.text)
                - self.text_prior.log_probability(known.text, known.shared),
            ],
            dim=1,
        )  # (B, 2): one draw's estimate of KL(q || p) of z_s and of z_t
        kl, drawn = self.at_first_words(forced, cost)
        extra = self.picture_cost(v, known.shared)
        if bool(hidden.any()):
            extra = torch.where(hidden, self.unpaired_picture_cost(forced, v), extra)
        z = torch.cat([known.shared, known.text], dim=1)
        return InferredLatents(z[forced.packing.captions], kl_context=kl, extra=extra, context_draws=drawn)

    def posterior(self, forced: TeacherForcedBatch) -> CaptionPosterior:
        config = self.config
        read = self.encoder(self.posterior_words(forced.targets), forced)  # (B, H)
        noise = self.caption_noise(forced, config.context_latent + config.text_latent).to(read.dtype)
        q_shared = Gaussian.of(self.shared_posterior(read))
        shared = q_shared.sample(noise[:, : config.context_latent])
        q_text = Gaussian.of(self.text_posterior(torch.cat([read, shared], dim=1)))
        text = q_text.sample(noise[:, config.context_latent :])
        return CaptionPosterior(shared, text, q_shared, q_text)

    def picture_cost(self, v: Tensor, shared: Tensor) -> Tensor:
        """-log p(v-bar | z_s) up to a constant, times its weight. v: (B, F), shared: (B, Zs) -> (B,)"""
        missed: Tensor = (v.detach() - self.picture(shared)).square().sum(1)
        return 0.5 * self.config.picture_weight * missed

    def unpaired_picture_cost(self, forced: TeacherForcedBatch, v: Tensor) -> Tensor:
        """The bound of pictures without captions: -log p(v-bar | z_s) + log p(z_s | I) - log p(z_s), (B,).

        z_s ~ p(z_s | I) is the posterior of a picture, p(z_s) that of no picture.
        """
        e = self.caption_noise(forced, self.config.context_latent, OBJECT_NOISE).to(v.dtype)
        shared, log_determinant = self.shared_prior.inverse(e, v)
        q = standard_normal(e) - log_determinant
        p = self.shared_prior.log_probability(shared, self.no_picture.expand_as(v))
        return self.picture_cost(v, shared) + q - p

    def hidden_pairs(self, forced: TeacherForcedBatch) -> Tensor:
        """Whose caption and picture count as unpaired in training, (B,): a share of pictures, always the same ones."""
        keys, rows = forced.batch.pictures.keys, forced.batch.rows
        if not self.training or not self.config.unpaired_share:
            return torch.zeros_like(rows, dtype=torch.bool)
        return (uniforms(keys, HIDDEN_PAIRS, 0, 1)[:, 0] < self.config.unpaired_share)[rows]

    def looked_at(self, forced: TeacherForcedBatch, latents: InferredLatents) -> tuple[RegionValues, Tensor]:
        """A caption without its picture is decoded with g(z_s) as the only region."""
        regions, rows = forced.regions, forced.batch.rows
        alone = self.hidden_pairs(forced).nonzero()[:, 0]  # (U,)
        if not len(alone) or latents.context is None:
            return regions, rows
        first = forced.packing.sizes[0]
        z = latents.context.new_zeros(first, latents.context.shape[1])
        z = z.index_copy(0, forced.packing.captions[:first], latents.context[:first])  # (B, Z)
        imagined = self.picture(z[alone, : self.config.context_latent])  # (U, F)
        most = regions.mask.shape[1]
        values = nn.functional.pad(imagined[:, None], (0, 0, 0, most - 1))  # (U, R, F)
        mask = torch.zeros_like(regions.mask[:1]).index_fill(1, alone.new_zeros(1), True)
        joint = RegionValues(
            values=torch.cat([regions.values, values]),
            mask=torch.cat([regions.mask, mask.expand(len(alone), -1)]),
            mean=torch.cat([regions.mean, imagined]),
        )
        places = len(regions.mean) + torch.arange(len(alone), device=rows.device)
        return joint, rows.index_copy(0, alone, places)

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        """A draw [z_s, z_t] from the posterior of each caption, (B, 1, Zs + Zt)."""
        known = self.posterior(self.teacher_force(batch, generator, keys))
        q = Gaussian(
            torch.cat([known.q_shared.mean, known.q_text.mean], dim=1)[:, None],
            torch.cat([known.q_shared.log_variance, known.q_text.log_variance], dim=1)[:, None],
        )
        z = torch.cat([known.shared, known.text], dim=1)
        return Latents(lengths=batch.lengths, context=z[:, None], context_posterior=q)

    # Decoding, word by word

    def condition(self, regions: RegionValues) -> Tensor:
        return regions.mean

    @property
    def condition_width(self) -> int:
        return self.config.value_width

    def draw_caption(self, condition: Tensor, noise: Tensor, temperature: float) -> Tensor:
        """z_s ~ p(z_s | I) and z_t ~ p(z_t | z_s)"""
        nothing = torch.zeros_like(noise)
        e = Gaussian(nothing, nothing).sample(noise, temperature, self.config.temperature_mode)
        e_s, e_t = e.split([self.config.context_latent, self.config.text_latent], dim=1)
        z_s, _ = self.shared_prior.inverse(e_s, condition)
        z_t, _ = self.text_prior.inverse(e_t, z_s)
        return torch.cat([z_s, z_t], dim=1)


def _posterior(known: int, latent: int, config: ModelConfig) -> nn.Linear:
    layer = nn.Linear(known, 2 * latent)
    with torch.no_grad():
        layer.weight[:latent].mul_(MEAN_LIFT)
        layer.bias[:latent] = 0
        layer.bias[latent:] = config.initial_log_variance
    return layer


def _log_density(q: Gaussian, z: Tensor) -> Tensor:
    """log q(z), (B,)"""
    e = (z - q.mean) * torch.exp(-0.5 * q.log_variance)
    return standard_normal(e) - 0.5 * q.log_variance.sum(1)
