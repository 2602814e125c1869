"""Input projections of recurrent cells. The part of the picture is computed once a picture, not once a word."""

import math

import torch
from torch import Tensor, nn

from coscap.models.kernels.rows import TransposedCopies, UniqueTokens


def uniform(*shape: int, width: int) -> nn.Parameter:
    """Weights between -1/sqrt(width) and 1/sqrt(width)."""
    bound = 1 / math.sqrt(width)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


class InputGates(nn.Module):
    """gates_n = W_step step_n + W_picture v-bar + b: all that enters a recurrent cell from outside."""

    def __init__(self, step: int, picture: int, hidden: int, count: int = 4) -> None:
        super().__init__()
        self.step = uniform(count * hidden, step, width=hidden)
        self.picture = uniform(count * hidden, picture, width=hidden) if picture else None
        self.bias = nn.Parameter(torch.zeros(count * hidden))
        if count == 4:
            with torch.no_grad():
                self.bias[hidden : 2 * hidden] = 1  # an LSTM that remembers at first learns sooner

    def pictures(self, mean: Tensor) -> Tensor:
        """mean: (P, F) v-bar -> (P, G); (1, G) if the cell does not see the picture."""
        if self.picture is None:
            return self.bias[None]
        return torch.addmm(self.bias, mean, self.picture.t())

    def forward(self, step: Tensor, pictures: Tensor, owners: Tensor) -> Tensor:
        """step: (N, D), pictures: (P, G) from `pictures`, owners: (N,) the picture of each word -> (N, G)"""
        spread = pictures[0] if pictures.shape[0] == 1 else pictures.index_select(0, owners)
        return torch.addmm(spread, step, self.step.t())

    def rows(
        self,
        tokens: UniqueTokens,
        words: Tensor,
        z: Tensor | None,
        pictures: Tensor,
        owners: Tensor,
        transposed: TransposedCopies,
    ) -> Tensor:
        """The same for one word of each row. words: (U, D) embedded `tokens.ids`, z: (N, Z) -> (N, G)"""
        weight = transposed(self.step)  # (D + Z, G)
        total = tokens.spread(words @ weight[: words.shape[1]])
        total = total + (pictures[0] if pictures.shape[0] == 1 else pictures.index_select(0, owners))
        return total if z is None else torch.addmm(total, z, weight[words.shape[1] :])
