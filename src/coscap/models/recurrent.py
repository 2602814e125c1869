"""LSTM and GRU over packed captions. Input projections come ready; only the recurrence is here.

Gates lie as i, f, o, g, so that the three sigmoids are one block.
"""

import torch
from torch import Tensor

from coscap.models.packing import Packing


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """gates: (n, 4 H) all that is added up before the non-linearities; c: (n, H). Gives h and c."""
    i, f, o = torch.sigmoid(gates[:, : 3 * c.shape[1]]).chunk(3, dim=1)
    g = torch.tanh(gates[:, 3 * c.shape[1] :])
    c = f * c + i * g
    return o * torch.tanh(c), c


def lstm(inputs: Tensor, weight: Tensor, packing: Packing) -> Tensor:
    """inputs: (N, 4 H), weight: (4 H, H) of the recurrence -> hidden states (N, H)."""
    h = c = inputs.new_zeros(packing.sizes[0], weight.shape[1])
    hidden = []
    for start, end in packing.blocks:
        n = end - start
        h, c = lstm_cell(inputs[start:end] + h[:n] @ weight.t(), c[:n])
        hidden.append(h)
    return torch.cat(hidden)


def gru(inputs: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> Tensor:
    """inputs: (N, 3 H) as r, u, n; weight: (3 H, H); bias: (H,) of n's recurrent part -> (N, H)."""
    size = weight.shape[1]
    h = inputs.new_zeros(packing.sizes[0], size)
    hidden = []
    for start, end in packing.blocks:
        h = h[: end - start]
        given, recurrent = inputs[start:end], h @ weight.t()
        r, u = torch.sigmoid(given[:, : 2 * size] + recurrent[:, : 2 * size]).chunk(2, dim=1)
        new = torch.tanh(given[:, 2 * size :] + r * (recurrent[:, 2 * size :] + bias))
        h = new + u * (h - new)
        hidden.append(h)
    return torch.cat(hidden)


def chain(base: Tensor, weight: Tensor, noise: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """The posterior's recurrence: [mean_t, log variance_t] = base_t + W z_{t-1}, z_t drawn with the noise.

    base: (N, 2 Z), weight: (2 Z, Z), noise: (N, Z) -> z (N, Z), parameters (N, 2 Z).
    """
    size = weight.shape[1]
    z = base.new_zeros(packing.sizes[0], size)
    drawn, parameters = [], []
    for start, end in packing.blocks:
        both = base[start:end] + z[: end - start] @ weight.t()
        z = both[:, :size] + torch.exp(0.5 * both[:, size:]) * noise[start:end]
        drawn.append(z)
        parameters.append(both)
    return torch.cat(drawn), torch.cat(parameters)
