"""COS-CVAE: the context-object split of the latent space.

x^m ─▶ q(z^m) ─▶ z^m ─────────────┬─▶ decoder ─▶ x           posteriors, eq. 3; ELBO, eq. 6
x^o ─▶ q(z^o | z^m) ─▶ z^o ───────┘
x_{<t} ─▶ p(z^m), p(z^o | z^m)                               priors, eq. 4
"""

import torch
from torch import Tensor

from coscap.data.batch import Batch
from coscap.models.base import OBJECT_NOISE, Inferred, Teacher
from coscap.models.config import ModelConfig
from coscap.models.gaussian import Gaussian, kl
from coscap.models.latents import Latents
from coscap.models.object_head import ObjectHead
from coscap.models.posteriors import ObjectPosterior
from coscap.models.prior import Prior, PriorState
from coscap.models.regions import Memory
from coscap.models.rows import Said, Straight
from coscap.models.sequential import SequentialModel, padded, start_chain
from coscap.models.state import Chain, DecodeState
from coscap.text.vocabulary import PAD


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
        named = self._named(teacher)
        read, words, listed = self._embed(teacher.context, teacher.previous, named)
        z_m, q_m = self._infer_context(teacher, read)
        p_m = self._expect_context(teacher, words, z_m)
        if objects == "prior":
            z_o = self._draw_objects(teacher, words, z_m)
            return Inferred(context=z_m, objects=z_o, kl_context=kl(q_m, p_m))
        z_o, q_o = self._infer_objects(teacher, named, listed, z_m)
        p_o = self._expect_objects(teacher, words, z_m, z_o)
        extra = None if self.object_head is None else self.object_head(z_o, teacher)
        return Inferred(
            context=z_m, objects=z_o, kl_context=kl(q_m, p_m), kl_object=kl(q_o, p_o), extra=extra
        )

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
        seen = context if self.config.object_prior_sees == "current" else packing.shift(context)
        latents = torch.cat([seen, packing.shift(objects)], dim=1)
        return self.object_prior.expect(words, latents, teacher.memory.mean, teacher.owners, packing)

    def _draw_objects(self, teacher: Teacher, words: Tensor, context: Tensor) -> Tensor:
        """z^o from its prior under teacher forcing: each draw is an input of the next. (N, Zo)"""
        packing, prior = teacher.packing, self.object_prior
        noise = teacher.noise.normals(OBJECT_NOISE, self.config.object_latent)
        seen = context if self.config.object_prior_sees == "current" else packing.shift(context)
        gates = prior.gates.pictures(teacher.memory.mean)
        state, z = prior.start(packing.sizes[0]), noise.new_zeros(packing.sizes[0], noise.shape[1])
        drawn, plain = [], Straight()
        for start, end in packing.blocks:
            n = end - start
            step = torch.cat([words[start:end], seen[start:end], z[:n]], dim=1)
            inputs = prior.gates(step, gates, teacher.owners[start:end])
            p, state = prior.step(inputs, PriorState(state.h[:n], state.c[:n]), plain)
            z = p.sample(noise[start:end], self.config.pseudo_temperature, self.config.temperature_mode)
            drawn.append(z)
        return torch.cat(drawn)

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        teacher = self._teacher(batch, generator, keys)
        named = self._named(teacher)
        read, listed = self._embed(teacher.context, named)
        z_m, q_m = self._infer_context(teacher, read)
        z_o, q_o = self._infer_objects(teacher, named, listed, z_m)
        unpack = teacher.packing.unpack
        return Latents(
            lengths=batch.lengths,
            context=unpack(z_m),
            objects=unpack(z_o),
            context_posterior=padded(q_m, teacher),
            object_posterior=padded(q_o, teacher),
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
