"""What COS-CVAE and Seq-CVAE share: a context latent with its posterior and prior."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.models.base import CONTEXT_NOISE, CaptionModel, Teacher
from coscap.models.config import ModelConfig
from coscap.models.gaussian import Gaussian
from coscap.models.latents import Latents
from coscap.models.posteriors import ContextPosterior
from coscap.models.prior import Prior
from coscap.models.regions import Memory
from coscap.models.rows import Said
from coscap.models.state import Chain, DecodeState


class SequentialModel(CaptionModel):
    """A model with the latent sequence z^m (z in a seq_cvae)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.context_posterior = ContextPosterior(config)
        self.context_prior = Prior(
            config.word_width,
            config.context_latent,
            config.value_width,
            config.context_prior,
            config.context_latent,
        )

    @property
    def known_words(self) -> nn.Embedding:
        assert self.words is not None
        return self.words

    def _embed(self, *ids: Tensor) -> tuple[Tensor, ...]:
        """Several looks into the word embedding as one, so that its gradient is written once."""
        joint = self.known_words(torch.cat([part.flatten() for part in ids]))
        parts = joint.split([part.numel() for part in ids])
        return tuple(part.view(*each.shape, -1) for part, each in zip(parts, ids, strict=True))

    def _infer_context(self, teacher: Teacher, read: Tensor) -> tuple[Tensor, Gaussian]:
        """read: (N, D) the embedded words that the posterior may see."""
        noise = teacher.noise.normals(CONTEXT_NOISE, self.config.context_latent)
        return self.context_posterior.infer(read, teacher.memory.mean, teacher.owners, noise, teacher.packing)

    def _expect_context(self, teacher: Teacher, words: Tensor, context: Tensor) -> Gaussian:
        """p(z^m_t | z^m_{<t}, x_{<t}, I). words: (N, D) embedded x_{t-1}, context: (N, Zm)"""
        return self.context_prior.expect(
            words, teacher.packing.shift(context), teacher.memory.mean, teacher.owners, teacher.packing
        )

    def _start_context(
        self, memory: Memory, keys: Tensor, given: Latents
    ) -> tuple[Chain | None, Tensor | None]:
        chain = start_chain(
            self.context_prior, self.config.context_latent, keys, given.context, given.lengths
        )
        return chain, self.context_prior.gates.pictures(memory.mean)

    def _draw_context(self, said: Said, words: Tensor, state: DecodeState) -> Chain:
        """words: (U, D) embedded `said.ids`"""
        chain, gates, turned = state.context, state.shared.context_gates, state.shared.turned
        assert chain is not None and gates is not None
        inputs = self.context_prior.gates.say(said, words, chain.z, gates, state.groups.owners, turned)
        p, prior = self.context_prior.step(inputs, chain.prior, turned)
        return chain.draw(
            p, prior, CONTEXT_NOISE, state.step, state.shared.temperatures[0], state.shared.mode
        )

    @abstractmethod
    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        """The posteriors of each caption's latents and a draw from them."""


def start_chain(prior: Prior, latent: int, keys: Tensor, given: Tensor | None, lengths: Tensor) -> Chain:
    state = prior.start(len(keys))
    return Chain(
        prior=state,
        z=state.h.new_zeros(len(keys), latent),
        keys=keys,
        given=given,
        lengths=None if given is None else lengths,
    )


def padded(q: Gaussian, teacher: Teacher) -> Gaussian:
    unpack = teacher.packing.unpack
    return Gaussian(unpack(q.mean), unpack(q.log_variance))
