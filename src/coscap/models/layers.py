"""Layers that the posteriors, priors and the decoder are made of."""

import math

import torch
from torch import Tensor, nn

from coscap.models.packing import Packing
from coscap.models.recurrent import gru, lstm
from coscap.models.rows import Said, Turned


def uniform(*shape: int, width: int) -> nn.Parameter:
    """Weights between -1/sqrt(width) and 1/sqrt(width)."""
    bound = 1 / math.sqrt(width)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


class Words(nn.Embedding):
    """Word embeddings of unit variance whose weights are small, so that a tied vocabulary layer can share them."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__(count, width)
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = super().forward(ids)
        scaled: Tensor = embedded * self.embedding_dim**0.5
        return scaled


class Gates(nn.Module):
    """What enters a recurrent cell from outside: a part for each word and a part for each picture.

    gates_n = W_step step_n + W_picture v-bar + b
    The picture's part is computed once a picture and spread over its words.
    """

    def __init__(self, step: int, picture: int, hidden: int, count: int = 4) -> None:
        super().__init__()
        self.step = uniform(count * hidden, step, width=hidden)
        self.picture = uniform(count * hidden, picture, width=hidden) if picture else None
        self.bias = nn.Parameter(torch.zeros(count * hidden))
        if count == 4:
            with torch.no_grad():
                self.bias[hidden : 2 * hidden] = 1  # an LSTM that remembers at first learns sooner

    def pictures(self, mean: Tensor) -> Tensor:
        """mean: (P, F) v-bar -> (P, G); (1, G) if the picture is not seen."""
        if self.picture is None:
            return self.bias[None]
        return torch.addmm(self.bias, mean, self.picture.t())

    def forward(self, step: Tensor, pictures: Tensor, owners: Tensor) -> Tensor:
        """step: (N, D), pictures: (P, G), owners: (N,) the picture of each word -> (N, G)."""
        spread = pictures[0] if len(pictures) == 1 else pictures.index_select(0, owners)
        return torch.addmm(spread, step, self.step.t())

    def say(
        self, said: Said, words: Tensor, z: Tensor | None, pictures: Tensor, owners: Tensor, turned: Turned
    ) -> Tensor:
        """The same for one word of each row. words: (U, D) embedded `said.ids`, z: (N, Z) -> (N, G)"""
        weight = turned(self.step)  # (D + Z, G)
        total = said.spread(words @ weight[: words.shape[1]])
        total = total + (pictures[0] if len(pictures) == 1 else pictures.index_select(0, owners))
        return total if z is None else torch.addmm(total, z, weight[words.shape[1] :])


class Encoder(nn.Module):
    """A recurrent cell over packed sequences whose inputs are all known."""

    def __init__(self, cell: str, step: int, picture: int, hidden: int) -> None:
        super().__init__()
        self.cell = cell
        count = 4 if cell == "lstm" else 3
        self.gates = Gates(step, picture, hidden, count)
        self.hidden = uniform(count * hidden, hidden, width=hidden)
        if cell == "gru":
            self.new_bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, step: Tensor, mean: Tensor, owners: Tensor, packing: Packing) -> Tensor:
        """step: (N, D), mean: (P, F), owners: (N,) -> (N, H)"""
        inputs = self.gates(step, self.gates.pictures(mean), owners)
        if self.cell == "gru":
            return gru(inputs, self.hidden, self.new_bias, packing)
        return lstm(inputs, self.hidden, packing)
