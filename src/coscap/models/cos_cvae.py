"""COS-CVAE: the context-object split of the latent space.

x^m ─▶ q(z^m) ─▶ z^m ─────────────┬─▶ decoder ─▶ x           posteriors, eq. 3; ELBO, eq. 6
x^o ─▶ q(z^o | z^m) ─▶ z^o ───────┘
x_{<t} ─▶ p(z^m), p(z^o | z^m)                               priors, eq. 4
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coscap.data.batch import Batch
from coscap.models.base import OBJECT_NOISE, Inferred, Teacher
from coscap.models.config import ModelConfig
from coscap.models.gaussian import Gaussian, kl
from coscap.models.latents import Latents
from coscap.models.object_head import ObjectHead
from coscap.models.packing import Packing
from coscap.models.posteriors import ObjectPosterior
from coscap.models.prior import Prior, PriorState
from coscap.models.regions import Memory
from coscap.models.rows import Said, Straight
from coscap.models.sequential import SequentialModel, padded, start_chain
from coscap.models.state import Chain, DecodeState
from coscap.text.vocabulary import PAD


@dataclass(frozen=True)
class Posteriors:
    context: Tensor  # (N, Zm)
    context_posterior: Gaussian
    objects: Tensor | None = None  # (N, Zo)
    object_posterior: Gaussian | None = None


class CosCvae(SequentialModel):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.object_posterior = ObjectPosterior(config)
        self.object_prior = Prior(
            config.word_width,
            config.context_latent + config.object_latent,
            config.value_width,
            config.object_prior,
            config.object_latent,
        )
        self.object_head = ObjectHead(config) if config.object_head != "none" else None

    def _infer(self, teacher: Teacher, objects: str) -> Inferred:
        return self._expect(teacher, self._posteriors(teacher, objects))

    def _posteriors(self, teacher: Teacher, objects: str) -> Posteriors:
        """q(z^m), and with objects="posterior" q(z^o): all that does not depend on the words x."""
        named = self._named(teacher)
        read, listed = self._embed(teacher.context, named)
        z_m, q_m = self._infer_context(teacher, read)
        if objects == "prior":
            return Posteriors(z_m, q_m)
        return Posteriors(z_m, q_m, *self._infer_objects(teacher, named, listed, z_m))

    def _expect(self, teacher: Teacher, known: Posteriors) -> Inferred:
        """The priors given the words, and what the posteriors cost; z^o from its prior where it has no posterior."""
        words, z_m, z_o = self.known_words(teacher.previous), known.context, known.objects
        kl_context = kl(known.context_posterior, self._expect_context(teacher, words, z_m))
        if z_o is None or known.object_posterior is None:
            return Inferred(z_m, self._draw_objects(teacher, words, z_m), kl_context)
        p_o = self._expect_objects(teacher, words, z_m, z_o)
        extra = None if self.object_head is None else self.object_head(z_o, teacher)
        return Inferred(z_m, z_o, kl_context, kl(known.object_posterior, p_o), extra)

    def _named(self, teacher: Teacher) -> Tensor:
        """x^o, (B, K)"""
        most = self.config.object_words
        return teacher.batch.objects[:, :most] if most else teacher.batch.objects

    def _infer_objects(
        self, teacher: Teacher, named: Tensor, listed: Tensor, context: Tensor
    ) -> tuple[Tensor, Gaussian]:
        """q(z^o_t | z^o_{<t}, z^m_{<=t}, x^o, I). named: (B, K), listed: (B, K, D) embedded"""
        return self.object_posterior.infer(
            listed,
            (named != PAD).sum(1),
            teacher.memory.mean,
            teacher.batch,
            context,
            teacher.noise.normals(OBJECT_NOISE, self.config.object_latent),
            teacher.packing,
        )

    def _expect_objects(self, teacher: Teacher, words: Tensor, context: Tensor, objects: Tensor) -> Gaussian:
        """p(z^o_t | z^o_{<t}, z^m_{<=t}, x_{<t}, I). words: (N, D) embedded x_{t-1}"""
        packing = teacher.packing
        latents = torch.cat([self._seen(context, packing), packing.shift(objects)], dim=1)
        return self.object_prior.expect(words, latents, teacher.memory.mean, teacher.owners, packing)

    def _draw_objects(self, teacher: Teacher, words: Tensor, context: Tensor) -> Tensor:
        """z^o from its prior under teacher forcing. words: (N, D), context: (N, Zm) -> (N, Zo)"""
        draws = self.object_draws(teacher, context)
        return torch.cat(
            [draws.step(t, words[start:end]) for t, (start, end) in enumerate(teacher.packing.blocks)]
        )

    def object_draws(self, teacher: Teacher, context: Tensor) -> "ObjectDraws":
        return ObjectDraws(self, teacher, self._seen(context, teacher.packing))

    def _seen(self, context: Tensor, packing: Packing) -> Tensor:
        """What p(z^o_t) sees of z^m: z^m_t or z^m_{t-1}. context: (N, Zm) -> (N, Zm)"""
        return context if self.config.object_prior_sees == "current" else packing.shift(context)

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        teacher = self._teacher(batch, generator, keys)
        known = self._posteriors(teacher, "posterior")
        assert known.objects is not None and known.object_posterior is not None
        unpack = teacher.packing.unpack
        return Latents(
            lengths=batch.lengths,
            context=unpack(known.context),
            objects=unpack(known.objects),
            context_posterior=padded(known.context_posterior, teacher),
            object_posterior=padded(known.object_posterior, teacher),
        )

    def _start_objects(
        self, memory: Memory, keys: Tensor, given: Latents
    ) -> tuple[Chain | None, Tensor | None]:
        chain = start_chain(self.object_prior, self.config.object_latent, keys, given.objects, given.lengths)
        return chain, self.object_prior.gates.pictures(memory.mean)

    def _draw(self, said: Said, state: DecodeState) -> tuple[Chain | None, Chain | None]:
        words = self.known_words(said.ids)
        context = self._draw_context(said, words, state)
        chain, gates, turned = state.objects, state.shared.object_gates, state.shared.turned
        assert state.context is not None and chain is not None and gates is not None
        seen = context.z if self.config.object_prior_sees == "current" else state.context.z
        latents = torch.cat([seen, chain.z], dim=1)
        inputs = self.object_prior.gates.say(said, words, latents, gates, state.groups.owners, turned)
        p, prior = self.object_prior.step(inputs, chain.prior, turned)
        objects = chain.draw(
            p, prior, OBJECT_NOISE, state.step, state.shared.temperatures[1], state.shared.mode
        )
        return context, objects


class ObjectDraws:
    """z^o from its prior, word by word under teacher forcing: each draw is an input of the next."""

    def __init__(self, model: CosCvae, teacher: Teacher, seen: Tensor) -> None:
        self.config, self.prior = model.config, model.object_prior
        self.seen, self.teacher = seen, teacher  # (N, Zm) of z^m
        self.gates = self.prior.gates.pictures(teacher.memory.mean)  # (P, 4 H)
        self.noise = teacher.noise.normals(OBJECT_NOISE, self.config.object_latent)  # (N, Zo)
        self.state = self.prior.start(teacher.packing.sizes[0])
        self.z = self.noise.new_zeros(teacher.packing.sizes[0], self.noise.shape[1])

    def step(self, t: int, words: Tensor) -> Tensor:
        """words: (n, D) embedded x_{t-1} of the captions that have a word t -> (n, Zo)"""
        start, end = self.teacher.packing.blocks[t]
        n = end - start
        step = torch.cat([words, self.seen[start:end], self.z[:n]], dim=1)
        inputs = self.prior.gates(step, self.gates, self.teacher.owners[start:end])
        before = PriorState(self.state.h[:n], self.state.c[:n])
        p, self.state = self.prior.step(inputs, before, Straight())
        config = self.config
        self.z = p.sample(self.noise[start:end], config.pseudo_temperature, config.temperature_mode)
        return self.z
