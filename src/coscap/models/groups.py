"""Rows by picture: the layout in which the captions of a picture share its regions."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """N rows of P pictures, of which none has more than `size`."""

    pictures: int
    size: int  # D
    owners: Tensor  # (N,) the picture of each row
    places: Tensor | None  # (N,) where each row lies in (P * D); None if the rows lie there as they are

    @classmethod
    def even(cls, pictures: int, draws: int, device: torch.device) -> "Groups":
        """`draws` rows for each picture, picture-major."""
        owners = torch.arange(pictures, device=device).repeat_interleave(draws)
        return cls(pictures, draws, owners, None)

    @classmethod
    def of(cls, owners: Tensor, pictures: int) -> "Groups":
        counts = torch.bincount(owners, minlength=pictures)
        size = int(counts.max())
        by_picture = torch.argsort(owners, stable=True)
        starts = torch.cumsum(counts, 0) - counts
        ranks = torch.empty_like(owners)
        ranks[by_picture] = torch.arange(len(owners), device=owners.device) - starts[owners[by_picture]]
        places = owners * size + ranks
        straight = len(owners) == pictures * size and bool((places[1:] > places[:-1]).all())
        return cls(pictures, size, owners, None if straight else places)

    def select(self, rows: Tensor) -> "Groups":
        return Groups.of(self.owners[rows], self.pictures)

    def spread(self, rows: Tensor) -> Tensor:
        """(N, X) -> (P, D, X), zeros where a picture has fewer rows."""
        if self.places is not None:
            padded = rows.new_zeros(self.pictures * self.size, rows.shape[1])
            rows = padded.index_copy(0, self.places, rows)
        return rows.view(self.pictures, self.size, rows.shape[1])

    def collect(self, spread: Tensor) -> Tensor:
        """(P, D, X) -> (N, X)"""
        flat = spread.flatten(0, 1)
        return flat if self.places is None else flat[self.places]
