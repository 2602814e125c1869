"""A head that names the caption's objects from z^o alone, so that z^o has something to carry."""

import torch
from torch import Tensor, nn

from coscap.models.base import Teacher
from coscap.models.config import ModelConfig
from coscap.text.vocabulary import PAD, SLOT, SLOTS


class ObjectHead(nn.Module):
    """z^o ─▶ linear ─▶ one distribution over the vocabulary, scored on the caption's object units."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.over, self.weight = config.object_head, config.object_head_weight
        self.name = nn.Linear(config.object_latent, config.vocabulary)

    def forward(self, objects: Tensor, teacher: Teacher) -> Tensor:
        """objects: (N, Zo) z^o -> (B,) weighted loss, summed over the objects of a caption."""
        if self.over == "slots":
            return self.weight * self._at_slots(objects, teacher)
        padded = teacher.packing.unpack(objects)  # (B, T, Zo)
        lengths = teacher.batch.lengths
        if self.over == "mean":
            pooled = padded.sum(1) / lengths[:, None]
        else:
            past = torch.arange(padded.shape[1], device=lengths.device) >= lengths[:, None]
            pooled = padded.masked_fill(past[:, :, None], float("-inf")).amax(1)
        logs = torch.log_softmax(self.name(pooled), dim=1)  # (B, V)
        units = teacher.batch.objects  # (B, K)
        return -self.weight * (logs.gather(1, units) * (units != PAD)).sum(1)

    def _at_slots(self, objects: Tensor, teacher: Teacher) -> Tensor:
        slots = ((teacher.context == SLOT) | (teacher.context == SLOTS)).nonzero()[:, 0]
        missed = nn.functional.cross_entropy(
            self.name(objects[slots]), teacher.targets[slots], reduction="none"
        )
        each = missed.new_zeros(len(objects)).index_put((slots,), missed)
        return teacher.packing.sums(each)
