"""Captions of different lengths without padding.

Captions are sorted by falling length and stored word by word: all first words, all second words, ...
Word t then belongs to a prefix of the sorted captions, so a recurrence works on prefixes, and everything
else is one multiplication over the N words that exist.

    lengths 3, 2, 2:   a1 b1 c1 | a2 b2 c2 | a3          sizes (3, 3, 1), N = 7
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    sizes: tuple[int, ...]  # captions that have a word t, never rising
    steps: int  # T of the padded layout
    order: Tensor  # (B,) the caption in each sorted place
    captions: Tensor  # (N,) the caption of each packed word
    positions: Tensor  # (N,) its t
    previous: Tensor  # (N - B,) for words after the first: the place of the word before it
    reverse: Tensor  # (N,) the place of the word as far from the other end; its own inverse

    @classmethod
    def of(cls, lengths: Tensor, steps: int) -> "Packing":
        """lengths: (B,) int64, each from 1 to `steps`."""
        lengths = lengths.clamp(1, steps)
        order = torch.argsort(lengths, descending=True, stable=True)  # (B,)
        ordered = lengths[order]
        times = torch.arange(int(ordered[0]), device=lengths.device)
        alive = times[:, None] < ordered[None, :]  # (T, B)
        sizes = tuple(alive.sum(1).tolist())
        offsets = torch.tensor([0, *accumulate(sizes)], device=lengths.device)[:-1]
        positions, places = alive.nonzero(as_tuple=True)  # (N,), word by word
        later = positions > 0
        return cls(
            sizes=sizes,
            steps=steps,
            order=order,
            captions=order[places],
            positions=positions,
            previous=offsets[positions[later] - 1] + places[later],
            reverse=offsets[ordered[places] - 1 - positions] + places,
        )

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """(start, end) of each t among the packed words."""
        ends = tuple(accumulate(self.sizes))
        return tuple(zip((0, *ends[:-1]), ends, strict=True))

    @cached_property
    def cells(self) -> Tensor:
        """(N,) the place of each word in the flattened (B, T)."""
        return self.captions * self.steps + self.positions

    @property
    def words(self) -> int:
        return len(self.captions)

    def pack(self, padded: Tensor) -> Tensor:
        """(B, T, ...) -> (N, ...)"""
        return padded.flatten(0, 1).index_select(0, self.cells)

    def unpack(self, packed: Tensor) -> Tensor:
        """(N, ...) -> (B, T, ...) with zeros after the end."""
        padded = packed.new_zeros(len(self.order) * self.steps, *packed.shape[1:])
        padded = padded.index_put((self.cells,), packed)
        return padded.view(len(self.order), self.steps, *packed.shape[1:])

    def sums(self, packed: Tensor) -> Tensor:
        """(N,) -> (B,) the sum over each caption's words."""
        return self.unpack(packed).sum(1)

    def shift(self, packed: Tensor) -> Tensor:
        """The value of the word before, zeros for the first. (N, D) -> (N, D)"""
        first = packed.new_zeros(self.sizes[0], *packed.shape[1:])
        return torch.cat([first, packed.index_select(0, self.previous)])
