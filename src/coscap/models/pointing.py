"""Words from two places: the vocabulary, or the names of what was detected. What such kinds of model share.

p(x_t) = p_t(vocabulary) softmax(W h_t)[x_t] + sum over the names of the picture's regions that are x_t of p_t(name)
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coscap.models.base import CaptionModel, InferredLatents, LossTerms, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import Shared
from coscap.models.kernels import CellState, RowGroups, UniqueTokens
from coscap.models.latents import LatentState
from coscap.models.regions import RegionValues


@dataclass(frozen=True)
class Pointing:
    """Where the words of N rows come from. The names of a picture are K, some of them more than once."""

    log_vocabulary: Tensor  # (N,) log p_t(vocabulary)
    log_names: Tensor  # (N, K) log p_t(name); -inf where the picture has no such name
    tokens: Tensor  # (N, K) the name's token, -1 for none


class PointingModel(CaptionModel):
    """A model without latents that can take a word from a region."""

    draws = False
    embeds_words = False
    learns_from_reward = True
    tempers_words = False
    exports = False

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        kind = config.kind
        if not config.classes:
            raise ValueError(f"kind: {kind} needs regions with classes, and the recipe of these has none")
        if config.detections == 0:
            raise ValueError(f"kind: {kind} needs detections, whose names it takes; leave out detections: 0")
        if config.label_smoothing:
            raise ValueError(f"kind: {kind} has no label smoothing; set label_smoothing to 0")

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        return InferredLatents()

    @abstractmethod
    def point(
        self, pictures: RegionValues, groups: RowGroups, words: Tensor, before: Tensor, hidden: Tensor
    ) -> Pointing:
        """Where the next word of N rows comes from.

        words: (N, D) embedded x_{t-1}, before: (N, Hl) h^lang_{t-1}, hidden: (N, Hl) h^lang_t
        """

    @abstractmethod
    def name_tokens(self) -> Tensor:
        """(L, K) the tokens that the regions of each label can be named by, -1 for none."""

    def further_loss(
        self, forced: TeacherForcedBatch, pointing: Pointing, vocabulary: Tensor, marginal: Tensor
    ) -> Tensor:
        """(B,) what is learnt besides the words. vocabulary: (N,) log p_t(vocabulary) p(x_t | vocabulary),
        marginal: (N,) log p(x_t)"""
        return marginal.new_zeros(len(forced.batch.rows))

    def score(self, forced: TeacherForcedBatch, latents: InferredLatents, hidden: Tensor) -> LossTerms:
        words = self.decoder_words(self.input_tokens(forced))
        groups = RowGroups.of(forced.owners, len(forced.regions.mean))
        pointing = self.point(forced.regions, groups, words, forced.packing.shift(hidden), hidden)
        vocabulary = pointing.log_vocabulary - self.reconstruction(forced, hidden, latents)
        copied, found = matching(pointing, forced.targets)
        marginal = torch.where(found, torch.logaddexp(vocabulary, copied), vocabulary)
        extra = self.further_loss(forced, pointing, vocabulary, marginal)
        return self.loss_terms(forced, InferredLatents(extra=extra), -marginal)

    def decode(
        self,
        tokens: UniqueTokens,
        context: LatentState | None,
        objects: LatentState | None,
        shared: Shared,
        groups: RowGroups,
        state: CellState,
    ) -> tuple[Tensor, Tensor, CellState]:
        logs, attention, after = super().decode(tokens, context, objects, shared, groups, state)
        assert shared.pictures is not None
        words = tokens.spread(self.decoder_words(tokens.ids))
        pointing = self.point(shared.pictures, groups, words, state.language_h, after.language_h)
        return mixed(logs, pointing, distinct(self.name_tokens())), attention, after


def picture_names(pictures: RegionValues, names: Tensor, labels: int) -> Tensor:
    """The tokens of each region's names. names: (L, K) -> (P, R, K), -1 where a region has no such name"""
    assert pictures.labels is not None
    known = pictures.mask & (pictures.labels >= 0) & (pictures.labels < labels)
    return names[pictures.labels.clamp(0, labels - 1)].masked_fill(~known[:, :, None], -1)


def distinct(names: Tensor) -> Tensor:
    """(U,) all tokens in a table of names, rising"""
    found: Tensor = torch.unique(names[names >= 0])
    return found


def masked_log_softmax(scores: Tensor, there: Tensor) -> Tensor:
    """Over the last dimension where `there`, -inf elsewhere; rows without any are all -inf, with gradient 0."""
    any_there = there.any(-1, keepdim=True)
    safe = scores.masked_fill(~there & any_there, float("-inf"))
    return torch.log_softmax(safe, dim=-1).masked_fill(~there, float("-inf"))


def matching(pointing: Pointing, targets: Tensor) -> tuple[Tensor, Tensor]:
    """log sum of p_t(name) over the names that are the target, (N,), and where there is one, (N,)."""
    same = pointing.tokens == targets[:, None]
    found = same.any(1)
    logs = pointing.log_names.masked_fill(~same, float("-inf"))
    return torch.logsumexp(torch.where(found[:, None], logs, 0.0), dim=1), found


def mixed(logs: Tensor, pointing: Pointing, names: Tensor) -> Tensor:
    """log p(x_t) of every token, (N, V). logs: (N, V) of the vocabulary, names: (U,) all tokens that are names"""
    logs = logs + pointing.log_vocabulary[:, None]
    if not len(names):
        return logs
    places = torch.searchsorted(names, pointing.tokens.clamp(min=0)).clamp(max=len(names) - 1)  # (N, K)
    shares = pointing.log_names.exp().masked_fill(pointing.tokens < 0, 0)
    copied = shares.new_zeros(len(logs), len(names)).scatter_add(1, places, shares)  # (N, U)
    logs[:, names] = torch.logaddexp(logs[:, names], copied.log())
    return logs
