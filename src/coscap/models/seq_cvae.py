"""Seq-CVAE (attn): one latent sequence whose posterior sees the whole caption."""

import torch
from torch import Tensor

from coscap.data.batch import Batch
from coscap.models.base import Inferred, Teacher
from coscap.models.gaussian import kl
from coscap.models.latents import Latents
from coscap.models.rows import Said
from coscap.models.sequential import SequentialModel, padded
from coscap.models.state import Chain, DecodeState


class SeqCvae(SequentialModel):
    """q(z_t | z_{<t}, x, I), p(z_t | z_{<t}, x_{<t}, I), p(x_t | x_{<t}, z_{<=t}, I)   (eq. 1, 2)"""

    def _infer(self, teacher: Teacher, objects: str) -> Inferred:
        read, before = self._embed(teacher.targets, teacher.previous)
        z, q = self._infer_context(teacher, read)
        p = self._expect_context(teacher, before, z)
        return Inferred(context=z, kl_context=kl(q, p))

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        teacher = self._teacher(batch, generator, keys)
        z, q = self._infer_context(teacher, self.known_words(teacher.targets))
        return Latents(
            lengths=batch.lengths, context=teacher.packing.unpack(z), context_posterior=padded(q, teacher)
        )

    def _draw(self, said: Said, state: DecodeState) -> tuple[Chain | None, Chain | None]:
        return self._draw_context(said, self.known_words(said.ids), state), None
