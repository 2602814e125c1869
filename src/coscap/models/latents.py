"""Latents: Gaussians, the priors (eq. 4), the posteriors (eq. 3c), and the values that were drawn."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch, OnDevice
from coscap.models import kernels
from coscap.models.config import ModelConfig
from coscap.models.kernels import InputGates, Packing, TransposedCopies, uniform
from coscap.models.noise import normals

MEAN_LIFT = 4.0  # on initial weights, as in decoder.py: a mean lost in noise teaches the decoder to ignore it


class Distribution(Protocol):
    """What a latent is drawn from."""

    @property
    def noise_width(self) -> int: ...
    def sample(self, noise: Tensor, temperature: float = 1.0, mode: str = "scale") -> Tensor: ...


@dataclass(frozen=True)
class Gaussian(OnDevice):
    """Diagonal Gaussians."""

    mean: Tensor  # (..., Z)
    log_variance: Tensor  # (..., Z)

    @classmethod
    def of(cls, parameters: Tensor) -> "Gaussian":
        """parameters: (..., 2 Z), the mean and then the log variance, as a linear layer gives them."""
        latent = parameters.shape[-1] // 2
        mean, log_variance = parameters[..., :latent], parameters[..., latent:]
        return cls(mean, log_variance)

    @property
    def noise_width(self) -> int:
        """How many normals a draw takes."""
        return self.mean.shape[-1]

    def sample(self, noise: Tensor, temperature: float = 1.0, mode: str = "scale") -> Tensor:
        """mean + deviation * noise. The temperature multiplies the deviation (`scale`), or is an
        exponent of it (`power`, as in the authors' code)."""
        deviation = torch.exp(0.5 * self.log_variance)
        deviation = deviation**temperature if mode == "power" else deviation * temperature
        return self.mean + deviation * noise


def kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p) of each dimension, (..., Z). Exactly 0 where both are the same."""
    ratio = torch.exp(q.log_variance - p.log_variance)
    distance = (q.mean - p.mean).square() * torch.exp(-p.log_variance)
    return 0.5 * (p.log_variance - q.log_variance + ratio + distance - 1)


@dataclass(frozen=True)
class Latents(OnDevice):
    """Rows of latents, padded with zeros. What is None is left to the prior when a caption is decoded."""

    lengths: Tensor  # (N,) words that the values are given for; later ones come from the prior
    context: Tensor | None = None  # (N, T, Zm) z^m; z of a seq_cvae
    objects: Tensor | None = None  # (N, T, Zo) z^o of each word, or (N, K, Zo) of each object
    context_posterior: Gaussian | None = None  # (N, T, Zm) what `context` was drawn from, if encoded
    object_posterior: Gaussian | None = None  # (N, T, Zo) or (N, K, Zo)
    object_lengths: Tensor | None = None  # (N,) how many of K are given, where z^o is drawn for each object


# Priors


@dataclass(frozen=True)
class PriorState:
    """Rows of a prior that is run word by word."""

    h: Tensor  # (N, H)
    c: Tensor  # (N, H)

    def first(self, rows: int) -> "PriorState":
        return PriorState(self.h[:rows], self.c[:rows])


class Prior(nn.Module):
    """p(z_t | what was drawn and written before, I), eq. 4

    [v-bar, x_{t-1}, latents] ─▶ LSTM ─▶ linear ─▶ mean_t, log variance_t

    `latents` is all of z that this prior may see at word t: z^m_{t-1} for p(z^m), and z^m_t (or z^m_{t-1})
    with z^o_{t-1} for p(z^o).
    """

    def __init__(self, words: int, latents: int, picture: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.gates = InputGates(words + latents, picture, hidden)
        self.hidden = uniform(4 * hidden, hidden, width=hidden)
        self.out = nn.Linear(hidden, 2 * latent)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, words: Tensor, latents: Tensor, mean: Tensor, owners: Tensor, packing: Packing
    ) -> Gaussian:
        """Whole captions. words: (N, D) embedded x_{t-1}, latents: (N, L), mean: (P, F), owners: (N,)"""
        return Gaussian.of(self.out(self.read(words, latents, mean, owners, packing)))

    def read(self, words: Tensor, latents: Tensor, mean: Tensor, owners: Tensor, packing: Packing) -> Tensor:
        """The hidden states of whole captions, (N, H); arguments as in `forward`."""
        inputs = self.gates(torch.cat([words, latents], dim=1), self.gates.pictures(mean), owners)
        return kernels.lstm(inputs, self.hidden, packing)

    def start(self, rows: int) -> PriorState:
        zeros = self.hidden.new_zeros(rows, self.hidden.shape[1])
        return PriorState(zeros, zeros)

    def step(
        self, inputs: Tensor, state: PriorState, transposed: TransposedCopies
    ) -> tuple[Gaussian, PriorState]:
        """One word of each row; inputs: (N, 4 H) from `gates`."""
        after = self.advance(inputs, state, transposed)
        return Gaussian.of(self.out(after.h)), after

    def advance(self, inputs: Tensor, state: PriorState, transposed: TransposedCopies) -> PriorState:
        return PriorState(*kernels.lstm_cell(torch.addmm(inputs, state.h, transposed(self.hidden)), state.c))


@dataclass(frozen=True)
class LatentState:
    """One latent of N rows that is drawn word by word."""

    prior: PriorState
    z: Tensor  # (N, Z) the value at the word before
    keys: Tensor  # (N,) what the noise is seeded with
    given: Tensor | None = None  # (N, T, Z) values to use instead of draws
    lengths: Tensor | None = None  # (N,) for how many words they are given
    noise: Tensor | None = None  # (N, T, Z) noise to use instead of that of the keys
    drawn: Tensor | None = None  # (N,) values drawn so far, where that is not one for each word
    condition: Tensor | None = None  # (N, D) what the draw depends on, where there is one for a whole caption

    @classmethod
    def start(
        cls, prior: Prior, latent: int, keys: Tensor, given: Tensor | None, lengths: Tensor
    ) -> "LatentState":
        state = prior.start(len(keys))
        z = state.h.new_zeros(len(keys), latent)
        return cls(state, z, keys, given, None if given is None else lengths)

    @classmethod
    def once(
        cls, condition: Tensor, latent: int, keys: Tensor, given: Tensor | None, lengths: Tensor
    ) -> "LatentState":
        """A latent that is drawn before the first word and stays; condition: (N, D)"""
        nothing = condition.new_zeros(len(keys), 0)
        z = condition.new_zeros(len(keys), latent)
        lengths_given = None if given is None else lengths
        return cls(PriorState(nothing, nothing), z, keys, given, lengths_given, condition=condition)

    def draw_where(
        self, anew: Tensor, p: Distribution, prior: PriorState, stream: int, temperature: float, mode: str
    ) -> "LatentState":
        """The state one word on, with z drawn anew in the rows `anew` (N,) and kept in the others."""
        number = torch.zeros_like(self.keys) if self.drawn is None else self.drawn  # (N,)
        if self.noise is None:
            noise = normals(self.keys, stream, number, p.noise_width).to(self.z.dtype)
        else:
            noise = _each(self.noise, number)
        z = p.sample(noise, temperature, mode)
        if self.given is not None and self.lengths is not None:
            z = torch.where((number < self.lengths)[:, None], _each(self.given, number), z)
        z = torch.where(anew[:, None], z, self.z)
        return replace(self, prior=prior, z=z, drawn=number + anew)

    def draw(
        self, p: Gaussian, prior: PriorState, stream: int, step: int, temperature: float, mode: str
    ) -> "LatentState":
        """The state one word on, with z drawn from p or taken from what was given."""
        z = p.sample(self.noise_of(stream, step, p.mean.dtype), temperature, mode)
        return self.next(z, prior, step)

    def noise_of(self, stream: int, step: int, dtype: torch.dtype) -> Tensor:
        """(N, Z)"""
        if self.noise is not None:
            return self.noise[:, step]
        return normals(self.keys, stream, step, self.z.shape[1]).to(dtype)

    def next(self, z: Tensor, prior: PriorState, step: int) -> "LatentState":
        """The state one word on, with z or with what was given; z: (N, Z)"""
        if self.given is not None and self.lengths is not None and step < self.given.shape[1]:
            z = torch.where((self.lengths > step)[:, None], self.given[:, step], z)
        return replace(self, prior=prior, z=z)


def _each(values: Tensor, number: Tensor) -> Tensor:
    """Value `number` of each row, the last one where a row has fewer. values: (N, T, Z), number: (N,) -> (N, Z)"""
    if values.shape[1] == 1:
        return values[:, 0]
    number = number.clamp(max=values.shape[1] - 1)
    return values[torch.arange(values.shape[0], device=values.device), number]


# Posteriors


class RecurrentEncoder(nn.Module):
    """An LSTM or GRU over packed sequences whose inputs are all known."""

    def __init__(self, cell: str, step: int, picture: int, hidden: int) -> None:
        super().__init__()
        self.cell = cell
        count = 4 if cell == "lstm" else 3
        self.gates = InputGates(step, picture, hidden, count)
        self.hidden = uniform(count * hidden, hidden, width=hidden)
        if cell == "gru":
            self.new_bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, step: Tensor, mean: Tensor, owners: Tensor, packing: Packing) -> Tensor:
        """step: (N, D), mean: (P, F), owners: (N,) -> (N, H)"""
        inputs = self.gates(step, self.gates.pictures(mean), owners)
        if self.cell == "gru":
            return kernels.gru(inputs, self.hidden, self.new_bias, packing)
        return kernels.lstm(inputs, self.hidden, packing)


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

    def forward(self, known: Tensor, noise: Tensor, packing: Packing) -> tuple[Tensor, Gaussian]:
        """known: (N, D), noise: (N, Z) -> z (N, Z) and the distributions it was drawn from."""
        z, parameters = kernels.latent_recurrence(self.known(known), self.previous, noise, packing)
        return z, Gaussian.of(parameters)


class ContextPosterior(nn.Module):
    """q(z^m_t | z^m_{<t}, x^m, I): reads the context in both directions, never an object's name (eq. 3c).

    x^m, v-bar ─▶ forward ──┐
    x^m, v-bar ─▶ backward ─┼─▶ linear ─▶ z^m_t
                 z^m_{t-1} ─┘
    A seq_cvae gives it the whole caption instead.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.context_posterior
        picture = config.value_width if config.context_posterior_sees_picture else 0
        self.forwards = RecurrentEncoder(config.encoder_cell, config.word_width, picture, hidden)
        self.backwards = RecurrentEncoder(config.encoder_cell, config.word_width, picture, hidden)
        self.chain = LatentChain(2 * hidden, config.context_latent, config.initial_log_variance)

    def forward(
        self, words: Tensor, mean: Tensor, owners: Tensor, noise: Tensor, packing: Packing
    ) -> tuple[Tensor, Gaussian]:
        """words: (N, D) embedded x^m, mean: (P, F), owners: (N,), noise: (N, Z) -> z^m (N, Z), q(z^m)"""
        reverse = packing.reverse  # the same lengths, so the reversed captions are packed alike
        forwards = self.forwards(words, mean, owners, packing)  # (N, H)
        backwards = self.backwards(words.index_select(0, reverse), mean, owners, packing)  # from the end
        backwards = backwards.index_select(0, reverse)  # (N, H)
        drawn: tuple[Tensor, Gaussian] = self.chain(torch.cat([forwards, backwards], dim=1), noise, packing)
        return drawn


class ObjectPosterior(nn.Module):
    """q(z^o_t | z^o_{<t}, z^m_{<=t}, x^o, I): reads the objects; of the context only z^m (eq. 3c).

    x^o, v-bar (, z^m) ─▶ LSTM ─▶ h, the same for every word ─┐
                                                      z^m_t ──┼─▶ linear ─▶ z^o_t
                                                  z^o_{t-1} ──┘
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, context = config.object_posterior, config.context_latent
        step = config.word_width + (0 if config.object_posterior_sees == "objects" else context)
        self.encoder = RecurrentEncoder(config.encoder_cell, step, config.value_width, hidden)
        attends = config.object_reader == "attend" and config.object_latent_per == "word"
        self.query = nn.Linear(context, hidden) if attends else None
        self.chain = LatentChain(hidden + context, config.object_latent, config.initial_log_variance)

    def forward(
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
        context: (N, Zm) the drawn z^m, noise: (N, Zo) -> z^o (N, Zo), q(z^o)"""
        read = self._read(objects, counts, mean, batch, context, packing)  # (N, H)
        drawn: tuple[Tensor, Gaussian] = self.chain(torch.cat([read, context], dim=1), noise, packing)
        return drawn

    def _read(
        self, objects: Tensor, counts: Tensor, mean: Tensor, batch: Batch, context: Tensor, packing: Packing
    ) -> Tensor:
        """The objects as each word sees them, (N, H)."""
        listed = Packing.of(counts, objects.shape[1])  # a caption without objects is one of padding
        step = [listed.pack(objects)]
        if self.config.object_posterior_sees != "objects":
            step.append(listed.pack(self._context_of_objects(context, packing, objects.shape[1])))
        hidden = self.encoder(torch.cat(step, dim=1), mean, batch.rows[listed.captions], listed)
        hidden = listed.unpack(hidden)  # (B, K, H)
        if self.query is None:
            return self._pooled(hidden, counts).index_select(0, packing.captions)
        here = torch.arange(hidden.shape[1], device=counts.device) < counts.clamp(min=1)[:, None]  # (B, K)
        scores = packing.unpack(self.query(context)) @ hidden.transpose(1, 2)  # (B, T, K)
        scores = (scores / hidden.shape[2] ** 0.5).masked_fill(~here[:, None], float("-inf"))
        return packing.pack(torch.softmax(scores, dim=2) @ hidden)

    def each_object(
        self, objects: Tensor, counts: Tensor, mean: Tensor, batch: Batch, context: Tensor, noise: Tensor
    ) -> tuple[Tensor, Gaussian]:
        """The same once for each object, which h_k has just read, and once for the end of the list.

        objects: (B, K + 1, D) embedded x^o and END, counts: (B,) with END, context: (M, Zm) z^m where each object
        begins to matter, noise: (M, Zo) -> z^o (M, Zo), q(z^o), packed by `Packing.of(counts, K + 1)`
        """
        listed = Packing.of(counts, objects.shape[1])
        step = [listed.pack(objects)]
        if self.config.object_posterior_sees != "objects":
            step.append(context)
        hidden = self.encoder(torch.cat(step, dim=1), mean, batch.rows[listed.captions], listed)
        drawn: tuple[Tensor, Gaussian] = self.chain(torch.cat([hidden, context], dim=1), noise, listed)
        return drawn

    def _context_of_objects(self, context: Tensor, packing: Packing, objects: int) -> Tensor:
        """The z^m that the encoder reads with each object, (B, K, Zm)."""
        padded = packing.unpack(context)  # (B, T, Zm)
        if self.config.object_posterior_sees == "mean":
            lengths = torch.bincount(packing.captions, minlength=len(padded))
            return (padded.sum(1) / lengths[:, None])[:, None].expand(-1, objects, -1)
        aligned = padded[:, :objects]
        return nn.functional.pad(aligned, (0, 0, 0, objects - aligned.shape[1]))

    def _pooled(self, hidden: Tensor, counts: Tensor) -> Tensor:
        """One vector for the whole caption, (B, H)."""
        counts = counts.clamp(min=1)
        if self.config.object_reader == "mean":
            return hidden.sum(1) / counts[:, None]  # zeros after the last object
        return hidden[torch.arange(len(hidden), device=counts.device), counts - 1]
