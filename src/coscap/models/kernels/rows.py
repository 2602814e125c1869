"""What rows that are decoded together share: the regions of their picture, their tokens, transposed weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

MANY = 32  # rows from which on a transposed copy of a weight pays


@dataclass(frozen=True)
class RowGroups:
    """N rows grouped by picture: P pictures, none of which has more than `size` rows."""

    pictures: int
    size: int  # D
    owners: Tensor  # (N,) the picture of each row
    places: Tensor | None  # (N,) the place of each row in (P * D); None if the rows are in that order already

    @classmethod
    def even(cls, pictures: int, draws: int, device: torch.device) -> "RowGroups":
        """`draws` rows for each picture, picture-major."""
        owners = torch.arange(pictures, device=device).repeat_interleave(draws, dim=0)
        return cls(pictures, draws, owners, None)

    @classmethod
    def of(cls, owners: Tensor, pictures: int) -> "RowGroups":
        counts = torch.bincount(owners, minlength=pictures)
        size = int(counts.max())
        by_picture = torch.argsort(owners, stable=True)
        starts = torch.cumsum(counts, 0) - counts
        ranks = torch.empty_like(owners)
        ranks[by_picture] = torch.arange(len(owners), device=owners.device) - starts[owners[by_picture]]
        places = owners * size + ranks
        in_order = len(owners) == pictures * size and bool((places[1:] > places[:-1]).all())
        return cls(pictures, size, owners, None if in_order else places)

    def select(self, rows: Tensor) -> "RowGroups":
        return RowGroups.of(self.owners[rows], self.pictures)

    def spread(self, rows: Tensor) -> Tensor:
        """(N, X) -> (P, D, X), zeros where a picture has fewer rows."""
        if self.places is not None:
            padded = rows.new_zeros(self.pictures * self.size, rows.shape[1])
            rows = padded.index_copy(0, self.places, rows)
        return rows[:, None] if self.size == 1 else rows.view(self.pictures, self.size, rows.shape[1])

    def collect(self, spread: Tensor) -> Tensor:
        """(P, D, X) -> (N, X)"""
        flat = spread[:, 0] if self.size == 1 else spread.flatten(0, 1)
        return flat if self.places is None else flat[self.places]


@dataclass(frozen=True)
class UniqueTokens:
    """The last tokens of N rows, each different one once, so that it is embedded and projected once."""

    ids: Tensor  # (U,)
    places: Tensor | None  # (N,) the token of each row among them; None: one for each row

    @classmethod
    def of(cls, tokens: Tensor) -> "UniqueTokens":
        ids, places = torch.unique(tokens, return_inverse=True)
        return cls(tokens, None) if len(ids) == len(tokens) else cls(ids, places)

    def spread(self, values: Tensor) -> Tensor:
        """(U, X) -> (N, X)"""
        return values if self.places is None else values.index_select(0, self.places)


class TransposedCopies:
    """Transposed weights, copied. Multiplying a few dozen rows is a fifth faster with a weight that is stored
    transposed, so a model that decodes many rows copies each of its weights once."""

    def __init__(self, low: bool = False) -> None:
        self.low = low  # in bfloat16
        self.copies: dict[int, tuple[Tensor, int, Tensor]] = {}  # weight, its version, its transpose

    def __call__(self, weight: Tensor) -> Tensor:
        """weight: (G, D) -> (D, G); copied anew when the weight was changed in place."""
        known = self.copies.get(id(weight))
        if known is None or known[0] is not weight or known[1] != weight._version:
            transpose = weight.detach().t()
            transpose = (transpose.to(torch.bfloat16) if self.low else transpose).contiguous()
            known = self.copies[id(weight)] = weight, weight._version, transpose
        return known[2]

    def __deepcopy__(self, memo: object) -> "TransposedCopies":
        return TransposedCopies(self.low)  # a copied model has weights of its own


class TransposedViews(TransposedCopies):
    """Transposed weights as views: for few rows, and wherever gradients are needed."""

    def __call__(self, weight: Tensor) -> Tensor:
        return weight.t()
