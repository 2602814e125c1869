"""Seq-CVAE (attn): one latent sequence whose posterior sees the whole caption (eq. 1, 2).

x ─▶ q(z) ─▶ z ─▶ decoder ─▶ x
x_{<t} ─▶ p(z)
"""

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.models.base import (
    CONTEXT_NOISE,
    CaptionModel,
    InferredLatents,
    LatentStart,
    TeacherForcedBatch,
)
from coscap.models.config import ModelConfig
from coscap.models.decoder import DecodeState, UpDownDecoder
from coscap.models.kernels import Packing, TransposedViews, UniqueTokens
from coscap.models.latents import ContextPosterior, Gaussian, Latents, LatentState, Prior, kl
from coscap.models.regions import RegionValues


class SequentialModel(CaptionModel):
    """A latent for each word with its posterior and prior: z^m of a cos_cvae, z of a seq_cvae."""

    learns_from_reward = True

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__(config, decoder)
        self.context_posterior = ContextPosterior(config)
        self.context_prior = Prior(
            config.word_width,
            config.context_latent,
            config.value_width,
            config.context_prior,
            config.context_latent,
        )

    @classmethod
    def latent_widths(cls, config: ModelConfig) -> tuple[int, int]:
        return config.context_latent, 0

    @property
    def latent_priors(self) -> dict[str, Prior]:
        return {"context": self.context_prior}

    @property
    def prior_words(self) -> nn.Embedding:
        """The word embedding of posteriors and priors."""
        assert self.words is not None
        return self.words

    def embed(self, *ids: Tensor) -> tuple[Tensor, ...]:
        """Several looks into the word embedding as one, so that its gradient is written once."""
        joint = self.prior_words(torch.cat([part.flatten() for part in ids]))
        parts = joint.split([part.numel() for part in ids])
        return tuple(part.view(*each.shape, -1) for part, each in zip(parts, ids, strict=True))

    def infer_context(self, forced: TeacherForcedBatch, words: Tensor) -> tuple[Tensor, Gaussian]:
        """A draw z^m and q(z^m_t | z^m_{<t}, words, I); words: (N, D) embedded, all that the posterior may see."""
        noise = forced.noise.normals(CONTEXT_NOISE, self.config.context_latent)
        drawn: tuple[Tensor, Gaussian] = self.context_posterior(
            words, forced.regions.mean, forced.owners, noise, forced.packing
        )
        return drawn

    def expect_context(self, forced: TeacherForcedBatch, words: Tensor, context: Tensor) -> Gaussian:
        """p(z^m_t | z^m_{<t}, x_{<t}, I). words: (N, D) embedded x_{t-1}, context: (N, Zm)"""
        p: Gaussian = self.context_prior(
            words, forced.packing.shift(context), forced.regions.mean, forced.owners, forced.packing
        )
        return p

    def redraw_context(self, forced: TeacherForcedBatch, words: Tensor, temperature: float) -> Tensor:
        """z^m from its prior, with the noise of a draw. words: (N, D) embedded x_{t-1} -> (N, Zm)"""
        prior, packing = self.context_prior, forced.packing
        gates = prior.gates.pictures(forced.regions.mean)  # (P, 4 H)
        noise = forced.noise.normals(CONTEXT_NOISE, self.config.context_latent)  # (N, Zm)
        state, z = prior.start(packing.sizes[0]), noise.new_zeros(packing.sizes[0], noise.shape[1])
        drawn = []
        for start, end in packing.blocks:  # the captions that have a word t come first
            step = torch.cat([words[start:end], z[: end - start]], dim=1)
            inputs = prior.gates(step, gates, forced.owners[start:end])
            p, state = prior.step(inputs, state.first(end - start), TransposedViews())
            z = p.sample(noise[start:end], temperature, self.config.temperature_mode)
            drawn.append(z)
        return torch.cat(drawn)

    def start_latents(
        self, regions: RegionValues, context_keys: Tensor, object_keys: Tensor, given: Latents
    ) -> LatentStart:
        prior, width = self.context_prior, self.config.context_latent
        return LatentStart(
            context=LatentState.start(prior, width, context_keys, given.context, given.lengths),
            context_gates=prior.gates.pictures(regions.mean),
        )

    def draw_context(self, tokens: UniqueTokens, words: Tensor, state: DecodeState) -> LatentState:
        """z^m_t from its prior; words: (U, D) embedded `tokens.ids`"""
        latent, shared, prior = state.context, state.shared, self.context_prior
        assert latent is not None and shared.context_gates is not None
        inputs = prior.gates.rows(
            tokens, words, latent.z, shared.context_gates, state.groups.owners, shared.transposed
        )
        p, after = prior.step(inputs, latent.prior, shared.transposed)
        return latent.draw(p, after, CONTEXT_NOISE, state.step, shared.temperatures[0], shared.mode)


class SeqCvae(SequentialModel):
    """q(z_t | z_{<t}, x, I), p(z_t | z_{<t}, x_{<t}, I), p(x_t | x_{<t}, z_{<=t}, I)   (eq. 1, 2)"""

    title = "Seq-CVAE (attn)"

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        words, previous = self.embed(forced.targets, forced.previous)
        z, q = self.infer_context(forced, words)
        p = self.expect_context(forced, previous, z)
        return InferredLatents(context=z, kl_context=kl(q, p))

    def redraw(self, forced: TeacherForcedBatch, temperature: float) -> InferredLatents:
        return InferredLatents(self.redraw_context(forced, self.prior_words(forced.previous), temperature))

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        """The posterior of each caption's latents and a draw from it."""
        forced = self.teacher_force(batch, generator, keys)
        z, q = self.infer_context(forced, self.prior_words(forced.targets))
        return Latents(
            lengths=batch.lengths,
            context=forced.packing.unpack(z),
            context_posterior=unpacked(q, forced.packing),
        )

    def draw(self, tokens: UniqueTokens, state: DecodeState) -> tuple[LatentState | None, LatentState | None]:
        return self.draw_context(tokens, self.prior_words(tokens.ids), state), None


def unpacked(q: Gaussian, packing: Packing) -> Gaussian:
    return Gaussian(packing.unpack(q.mean), packing.unpack(q.log_variance))
