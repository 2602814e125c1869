"""A sequential prior (eq. 4): p(z_t | what was drawn and said before, I)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.models.gaussian import Gaussian
from coscap.models.layers import Gates, uniform
from coscap.models.packing import Packing
from coscap.models.recurrent import lstm, lstm_cell
from coscap.models.rows import Turned


@dataclass(frozen=True)
class PriorState:
    """Rows of a prior that is run word by word."""

    h: Tensor  # (N, H)
    c: Tensor  # (N, H)


class Prior(nn.Module):
    """[v-bar, x_{t-1}, latents] ─▶ LSTM ─▶ linear ─▶ mean_t, log variance_t

    `latents` is all of z that this prior may see at word t: z^m_{t-1} for p(z^m), and z^m_t (or z^m_{t-1})
    with z^o_{t-1} for p(z^o).
    """

    def __init__(self, words: int, latents: int, picture: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.gates = Gates(words + latents, picture, hidden)
        self.hidden = uniform(4 * hidden, hidden, width=hidden)
        self.out = nn.Linear(hidden, 2 * latent)
        nn.init.zeros_(self.out.bias)

    def expect(
        self, words: Tensor, latents: Tensor, mean: Tensor, owners: Tensor, packing: Packing
    ) -> Gaussian:
        """words: (N, D) embedded x_{t-1}, latents: (N, L), mean: (P, F), owners: (N,)"""
        inputs = self.gates(torch.cat([words, latents], dim=1), self.gates.pictures(mean), owners)
        return Gaussian.of(self.out(lstm(inputs, self.hidden, packing)))

    def start(self, rows: int) -> PriorState:
        zeros = self.hidden.new_zeros(rows, self.hidden.shape[1])
        return PriorState(zeros, zeros)

    def step(self, inputs: Tensor, state: PriorState, turned: Turned) -> tuple[Gaussian, PriorState]:
        """The same for one word of each row; inputs: (N, 4 H) from `gates`."""
        h, c = lstm_cell(torch.addmm(inputs, state.h, turned(self.hidden)), state.c)
        return Gaussian.of(self.out(h)), PriorState(h, c)
