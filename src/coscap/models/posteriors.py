"""The two posteriors (eq. 3c), each a sequence of Gaussians with z_{t-1} in the mean and variance of z_t."""

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.models.config import ModelConfig
from coscap.models.gaussian import Gaussian
from coscap.models.layers import Encoder, uniform
from coscap.models.packing import Packing
from coscap.models.recurrent import chain

MEAN_LIFT = (
    4.0  # as the lifts in decoder.py: a mean that is lost in the noise teaches the decoder not to listen
)


class LatentChain(nn.Module):
    """[mean_t, log variance_t] = W_known known_t + W_z z_{t-1} + b;  z_t = mean_t + deviation_t * noise_t"""

    def __init__(self, known: int, latent: int, initial_log_variance: float) -> None:
        super().__init__()
        self.known = nn.Linear(known, 2 * latent)
        self.previous = uniform(2 * latent, latent, width=known + latent)
        with torch.no_grad():
            self.known.weight[:latent].mul_(MEAN_LIFT)
            self.known.bias[:latent] = 0
            self.known.bias[latent:] = initial_log_variance

    def run(self, known: Tensor, noise: Tensor, packing: Packing) -> tuple[Tensor, Gaussian]:
        """known: (N, D), noise: (N, Z) -> z (N, Z) and the distributions it was drawn from."""
        z, parameters = chain(self.known(known), self.previous, noise, packing)
        return z, Gaussian.of(parameters)


class ContextPosterior(nn.Module):
    """q(z^m_t | z^m_{<t}, x^m, I): reads the context in both directions, never an object's name.

    x^m, v-bar ─▶ forward ──┐
    x^m, v-bar ─▶ backward ─┼─▶ linear ─▶ z^m_t
                 z^m_{t-1} ─┘
    A seq_cvae has it read the whole caption instead.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.context_posterior
        picture = config.value_width if config.context_posterior_sees_picture else 0
        self.forwards = Encoder(config.encoder_cell, config.word_width, picture, hidden)
        self.backwards = Encoder(config.encoder_cell, config.word_width, picture, hidden)
        self.chain = LatentChain(2 * hidden, config.context_latent, config.initial_log_variance)

    def infer(
        self, words: Tensor, mean: Tensor, owners: Tensor, noise: Tensor, packing: Packing
    ) -> tuple[Tensor, Gaussian]:
        """words: (N, D) embedded x^m, mean: (P, F), owners: (N,), noise: (N, Z)"""
        turn = packing.reverse  # the same lengths, so the reversed captions are packed alike
        forwards = self.forwards(words, mean, owners, packing)  # (N, H)
        backwards = self.backwards(words.index_select(0, turn), mean, owners, packing)  # from the end
        backwards = backwards.index_select(0, turn)  # (N, H)
        return self.chain.run(torch.cat([forwards, backwards], dim=1), noise, packing)


class ObjectPosterior(nn.Module):
    """q(z^o_t | z^o_{<t}, z^m_{<=t}, x^o, I): reads the objects; of the context only z^m.

    x^o, v-bar (, z^m) ─▶ LSTM ─▶ h, the same for every word ─┐
                                                      z^m_t ──┼─▶ linear ─▶ z^o_t
                                                  z^o_{t-1} ──┘
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, context = config.object_posterior, config.context_latent
        step = config.word_width + (0 if config.object_posterior_sees == "objects" else context)
        self.encoder = Encoder(config.encoder_cell, step, config.value_width, hidden)
        self.query = nn.Linear(context, hidden) if config.object_reader == "attend" else None
        self.chain = LatentChain(hidden + context, config.object_latent, config.initial_log_variance)

    def infer(
        self,
        objects: Tensor,
        counts: Tensor,
        mean: Tensor,
        batch: Batch,
        context: Tensor,
        noise: Tensor,
        packing: Packing,
    ) -> tuple[Tensor, Gaussian]:
        """objects: (B, K, D) embedded x^o, counts: (B,) how many each caption has, mean: (P, F),
        context: (N, Zm) the drawn z^m, noise: (N, Zo)"""
        read = self._read(objects, counts, mean, batch, context, packing)  # (N, H)
        return self.chain.run(torch.cat([read, context], dim=1), noise, packing)

    def _read(
        self, objects: Tensor, counts: Tensor, mean: Tensor, batch: Batch, context: Tensor, packing: Packing
    ) -> Tensor:
        listed = Packing.of(counts, objects.shape[1])  # a caption without objects is one of padding
        step = [listed.pack(objects)]
        if self.config.object_posterior_sees != "objects":
            step.append(listed.pack(self._beside(context, packing, objects.shape[1])))
        hidden = self.encoder(torch.cat(step, dim=1), mean, batch.rows[listed.captions], listed)
        hidden = listed.unpack(hidden)  # (B, K, H)
        if self.query is None:
            return self._fixed(hidden, counts).index_select(0, packing.captions)
        here = torch.arange(hidden.shape[1], device=counts.device) < counts.clamp(min=1)[:, None]  # (B, K)
        asked = packing.unpack(self.query(context)) @ hidden.transpose(1, 2)  # (B, T, K)
        asked = (asked / hidden.shape[2] ** 0.5).masked_fill(~here[:, None], float("-inf"))
        return packing.pack(torch.softmax(asked, dim=2) @ hidden)

    def _beside(self, context: Tensor, packing: Packing, objects: int) -> Tensor:
        """What of z^m stands beside each object, (B, K, Zm)."""
        padded = packing.unpack(context)  # (B, T, Zm)
        if self.config.object_posterior_sees == "mean":
            lengths = torch.bincount(packing.captions, minlength=len(padded))
            return (padded.sum(1) / lengths[:, None])[:, None].expand(-1, objects, -1)
        beside = padded[:, :objects]
        return nn.functional.pad(beside, (0, 0, 0, objects - beside.shape[1]))

    def _fixed(self, hidden: Tensor, counts: Tensor) -> Tensor:
        """One vector for the whole caption, (B, H)."""
        counts = counts.clamp(min=1)
        if self.config.object_reader == "mean":
            return hidden.sum(1) / counts[:, None]  # zeros after the last object
        return hidden[torch.arange(len(hidden), device=counts.device), counts - 1]
