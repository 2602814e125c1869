"""What flows into a model: padded tensors of pictures and of captions."""

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor


class OnDevice:
    """A dataclass of tensors that can be moved as one."""

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Self:
        moved = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            moved[field.name] = (
                value.to(device, non_blocking=True) if isinstance(value, Tensor | OnDevice) else value
            )
        return type(self)(**moved)


@dataclass(frozen=True)
class RegionBatch(OnDevice):
    """The regions of P pictures, padded to the largest set among them (R)."""

    features: Tensor  # (P, R, F) float32
    boxes: Tensor  # (P, R, 4) float32, 0..1
    labels: Tensor  # (P, R) int64; -1 for a cell of the grid and for padding
    scores: Tensor  # (P, R) float32; 0 for padding
    mask: Tensor  # (P, R) bool; True where there is a region
    keys: Tensor  # (P,) int64; what the noise of a picture's draws is seeded with, besides the user's seed


@dataclass(frozen=True)
class Batch(OnDevice):
    """B captions of P pictures. Position t of words, context and slots is the same word of the caption.

    Words are *units*: a multi-word object name ("fire hydrant") is one entry of the vocabulary, so a slot
    of the context stands for exactly one unit.
    """

    pictures: RegionBatch
    rows: Tensor  # (B,) int64: the picture of each caption, an index into `pictures`
    words: Tensor  # (B, T) int64: the caption x, END after its last word, then PAD; no START
    context: Tensor  # (B, T) int64: x^m, the same with SLOT or SLOTS where an object is named
    objects: Tensor  # (B, K) int64: x^o, the object units in their order, then PAD; K >= 1
    lengths: Tensor  # (B,) int64: words including END
    image_ids: Tensor  # (P,) int64: the data set's ids of the pictures, for reports


@dataclass(frozen=True)
class PictureBatch(OnDevice):
    """P pictures without words."""

    pictures: RegionBatch
    image_ids: Tensor  # (P,) int64: the data set's ids
    images: Tensor  # (P,) int64: their indices in the prepared data set
    captioned: Tensor  # (P,) bool: False for a picture without captions
