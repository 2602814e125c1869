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
    transposed in memory, so with many rows each is copied once, when it is first used."""

    def __init__(self, rows: int) -> None:
        self.copies: dict[int, Tensor] | None = {} if rows >= MANY else None

    def __call__(self, weight: Tensor) -> Tensor:
        """weight: (G, D) -> (D, G)"""
        if self.copies is None:
            return weight.t()
        if id(weight) not in self.copies:
            self.copies[id(weight)] = weight.t().contiguous()
        return self.copies[id(weight)]
