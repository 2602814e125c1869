"""What a model makes of a picture's regions, once a picture."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.data.batch import OnDevice, RegionBatch
from coscap.models.config import ModelConfig

NORM_GAIN = 0.15  # regions are small beside the words at first, or they drown them


@dataclass(frozen=True)
class RegionValues(OnDevice):
    """The regions of P pictures as posteriors, priors and decoder see them."""

    values: Tensor  # (P, R, F)
    mask: Tensor  # (P, R) bool, at least one True in each row
    mean: Tensor  # (P, F) v-bar


class RegionEncoder(nn.Module):
    """features (+ class embedding) (+ box, size and score) (-> linear, ReLU) = values; their mean = v-bar"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # Row 0 is for regions without a class: cells of the grid.
        self.classes = (
            nn.Embedding(config.classes + 1, config.class_embedding) if config.class_embedding else None
        )
        self.project = (
            nn.Linear(config.described_width, config.region_projection) if config.region_projection else None
        )
        self.norm = nn.LayerNorm(config.value_width) if config.region_norm else None
        if self.norm is not None:
            nn.init.constant_(self.norm.weight, NORM_GAIN)

    def forward(self, regions: RegionBatch, trim: bool = True) -> RegionValues:
        """`trim` leaves out columns that are padding for every picture; an exported graph keeps them."""
        used, detected = used_regions(self.config, regions.mask, regions.labels)  # (P, R) each
        if trim:
            width = int(used.any(0).nonzero().max()) + 1
            used, detected = used[:, :width], detected[:, :width]
        values = self.encode(regions, used)  # (P, R', F)
        chosen = {"all": used, "detections": detected, "grid": used & ~detected}[self.config.mean_over]
        weights = or_else(chosen & used, used).to(values.dtype)
        weights = weights / weights.sum(1, keepdim=True)
        return RegionValues(values=values, mask=used, mean=torch.einsum("pr,prf->pf", weights, values))

    def encode(self, regions: RegionBatch, used: Tensor) -> Tensor:
        """The value of each region. used: (P, R') -> (P, R', F)"""
        values = self._describe(regions, used)
        if self.project is not None:
            values = torch.relu(self.project(values))
        return values if self.norm is None else self.norm(values)

    def _describe(self, regions: RegionBatch, used: Tensor) -> Tensor:
        """Features with class and geometry, (P, R', D). Another kind of region is described here."""
        width = used.shape[1]
        features = regions.features[:, :width]  # (P, R', F)
        if self.config.region_scale != 1:
            features = features * self.config.region_scale
        parts = [features]
        if self.classes is not None:
            parts.append(self.classes(regions.labels[:, :width] + 1))
        if self.config.geometry:
            x1, y1, x2, y2 = regions.boxes[:, :width].unbind(2)
            w, h = x2 - x1, y2 - y1
            scores = regions.scores[:, :width]
            parts.append(torch.stack([x1, y1, x2, y2, w, h, w * h, scores], dim=2))
        joint = torch.cat(parts, dim=2) if len(parts) > 1 else features
        return torch.where(used[:, :, None], joint, 0)  # what padding holds must not matter


def used_regions(config: ModelConfig, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (P, R) of the regions that a model uses, never none of a picture, and of the detections among them."""
    detected = mask & (labels >= 0)
    allowed = detected
    if config.detections is not None:  # they come by falling score
        allowed = detected & (detected.cumsum(1) <= config.detections)
    used = allowed | (mask & ~detected) if config.grid else allowed
    used = or_else(or_else(used, mask), torch.arange(mask.shape[1], device=mask.device)[None] == 0)
    return used, detected & used


def or_else(mask: Tensor, other: Tensor) -> Tensor:
    """mask, and in rows where it is empty the other."""
    return mask | (other & ~mask.any(1, keepdim=True))
