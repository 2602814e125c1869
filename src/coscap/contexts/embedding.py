"""A joint embedding of pictures and contexts (VSE++), learnt on pairs {x^m, I} only.

    regions ──▶ mean feature, class scores ──▶ linear ──▶ unit length ─┐
                                                                       ├─▶ cosine
    context ──▶ word vectors ──▶ GRU, last state ─────▶ unit length ───┘

Objects are slots in a context, so the embedding learns which *scenes* look alike, whatever is in them.
"""

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from coscap.data.batch import RegionBatch

TEMPERATURE = 0.07  # of the softmax over a batch


class EmbeddingConfig(BaseModel):
    """Sizes of the joint embedding. The defaults are for a CPU; VSE++ upstream takes 1024."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocabulary: int = Field(gt=0)
    region_width: int = Field(gt=0)
    classes: int = Field(ge=0)
    """How many detector classes there are; their best scores are appended to the mean feature. 0 for none."""
    width: int = 256
    word_width: int = 300
    pooling: Literal["mean", "attention"] = "mean"
    margin: float = 0.2


class JointEmbedding(nn.Module):
    def __init__(self, config: EmbeddingConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocabulary, config.word_width, padding_idx=0)
        self.context_rnn = nn.GRU(config.word_width, config.width, batch_first=True)
        self.picture = nn.Linear(config.region_width + config.classes, config.width)
        self.pool = nn.Linear(config.region_width, 1) if config.pooling == "attention" else None
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def embed_contexts(self, context: Tensor, lengths: Tensor) -> Tensor:
        """context: (B, T) word ids, lengths: (B,); gives unit vectors (B, W)."""
        packed = pack_padded_sequence(
            self.words(context), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, last = self.context_rnn(packed)  # (1, B, W)
        return functional.normalize(last[0], dim=-1)

    def embed_pictures(self, regions: RegionBatch) -> Tensor:
        """Unit vectors (P, W)."""
        pooled = self._pool(regions.features, regions.mask)  # (P, F)
        if self.config.classes:
            pooled = torch.cat([pooled, class_scores(regions, self.config.classes)], dim=-1)
        return functional.normalize(self.picture(pooled), dim=-1)

    def _pool(self, features: Tensor, mask: Tensor) -> Tensor:
        if self.pool is None:
            weights = mask.float()
            weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
        else:
            scores = self.pool(features)[..., 0].masked_fill(~mask, -torch.inf)  # (P, R)
            weights = scores.softmax(-1)
        return torch.einsum("pr,prf->pf", weights, features)


def class_scores(regions: RegionBatch, classes: int) -> Tensor:
    """The best score of each class in a picture: (P, C), 0 where the class was not detected."""
    found = (regions.labels >= 0) & regions.mask
    scores = regions.scores * found
    best = scores.new_zeros(len(scores), classes)
    return best.scatter_reduce(1, regions.labels.clamp(min=0), scores, "amax")


Negatives = Literal["hardest", "mean", "softmax"]


def contrastive_loss(
    pictures: Tensor, contexts: Tensor, same: Tensor, margin: float, negatives: Negatives = "hardest"
) -> Tensor:
    """How far each pair is from beating the others of the batch, both ways.

    pictures, contexts: (B, W), row i of one belongs to row i of the other; same: (B, B) True where a pair is no
    negative (the same picture, the same context). `hardest` is the triplet loss of VSE++, `mean` the same over all
    negatives, `softmax` the cross entropy of finding the pair among all at the temperature `TEMPERATURE`.
    """
    scores = pictures @ contexts.T  # (B, B)
    positive = scores.diagonal()
    if negatives == "softmax":
        off = same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        logits = scores.masked_fill(off, -torch.inf) / TEMPERATURE
        own = torch.arange(len(scores), device=scores.device)
        return functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)
    if negatives == "hardest":
        others = scores.masked_fill(same, -torch.inf)
        worst_context = (margin + others.amax(1) - positive).clamp(min=0)
        worst_picture = (margin + others.amax(0) - positive).clamp(min=0)
        return (worst_context + worst_picture).mean()
    short = (margin + scores - positive[:, None]).clamp(min=0) + (margin + scores - positive).clamp(min=0)
    return short.masked_fill(same, 0).sum() / (~same).sum().clamp(min=1)


def recall(
    pictures: Tensor, contexts: Tensor, owner: Tensor, ks: tuple[int, ...] = (1, 5, 10)
) -> dict[str, float]:
    """Recall@k both ways. pictures: (P, W); contexts: (C, W); owner: (C,) the picture of each context."""
    scores = pictures @ contexts.T  # (P, C)
    own = owner[None, :] == torch.arange(len(pictures), device=owner.device)[:, None]
    best_own = scores.masked_fill(~own, -torch.inf).amax(1)
    rank_of_context = (scores > best_own[:, None]).sum(1)
    rank_of_picture = (scores > scores[owner, torch.arange(len(contexts), device=owner.device)]).sum(0)
    result = {}
    for k in ks:
        result[f"context_recall@{k}"] = (rank_of_context < k).float().mean().item()
        result[f"picture_recall@{k}"] = (rank_of_picture < k).float().mean().item()
    return result
