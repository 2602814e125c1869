"""What many rows that are written together can share, besides their pictures."""

from dataclasses import dataclass

import torch
from torch import Tensor

MANY = 32  # rows from which on a turned copy of a weight pays


@dataclass(frozen=True)
class Said:
    """The words that N rows said last, every different word once: its projections are made once."""

    ids: Tensor  # (U,)
    places: Tensor | None  # (N,) the word of each row among them; None: row by row

    @classmethod
    def of(cls, tokens: Tensor) -> "Said":
        ids, places = torch.unique(tokens, return_inverse=True)
        return cls(tokens, None) if len(ids) == len(tokens) else cls(ids, places)

    def spread(self, words: Tensor) -> Tensor:
        """(U, X) -> (N, X)"""
        return words if self.places is None else words.index_select(0, self.places)


class Turned:
    """Transposes of weights. Multiplying a few dozen rows is a fifth faster with a weight that lies
    transposed in memory, so a model that writes many rows copies each of its weights once."""

    def __init__(self) -> None:
        self.copies: dict[int, tuple[Tensor, int, Tensor]] = {}  # weight, its version, its transpose

    def __call__(self, weight: Tensor) -> Tensor:
        """weight: (G, D) -> (D, G); copied anew when the weight was changed in place."""
        known = self.copies.get(id(weight))
        if known is None or known[0] is not weight or known[1] != weight._version:
            known = self.copies[id(weight)] = weight, weight._version, weight.detach().t().contiguous()
        return known[2]

    def __deepcopy__(self, memo: object) -> "Turned":
        return Turned()  # a copied model has weights of its own


class Straight(Turned):
    """The weights as they lie: for few rows, and wherever gradients are wanted."""

    def __call__(self, weight: Tensor) -> Tensor:
        return weight.t()
