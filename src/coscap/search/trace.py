"""What the rows of a search did, step by step, and how captions are read off it at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.search.caption import Caption


@dataclass(frozen=True)
class Ended:
    """E finished captions, in the order in which they are to be given."""

    picture: Tensor  # (E,) the picture of each
    draw: Tensor  # (E,)
    step: Tensor  # (E,) words before the end
    row: Tensor  # (E,) the row that ended, among the rows of that step
    log_probability: Tensor  # (E,) float64
    satisfied: Tensor  # (E,) bool


@dataclass
class Trace:
    """Rows are copied and dropped between steps; this remembers where each came from.

    Row i of step t wrote words[t][i] after row parents[t][i] of step t - 1. Step 0 has no words.
    """

    parents: list[Tensor] = field(default_factory=list)  # (N_t,)
    words: list[Tensor] = field(default_factory=list)  # (N_t,)
    attention: list[Tensor] = field(default_factory=list)  # (N_t, R), while choosing the word after

    def captions(self, ended: Ended, regions: RegionBatch, units: Sequence[str]) -> list[list[Caption]]:
        """The captions of each picture, in the order of `ended`."""
        words, attention = self._follow(ended)
        lengths = ended.step.tolist()
        seen = regions.mask.cpu()
        rows: list[list[Caption]] = [[] for _ in range(len(regions.keys))]
        for number, (picture, draw, score, satisfied) in enumerate(
            zip(
                ended.picture.tolist(),
                ended.draw.tolist(),
                ended.log_probability.tolist(),
                ended.satisfied.tolist(),
                strict=True,
            )
        ):
            length = lengths[number]
            rows[picture].append(
                Caption(
                    units=tuple(units[word] for word in words[number, :length].tolist()),
                    log_probability=score,
                    draw=draw,
                    attention=attention[number, :length][:, seen[picture]].numpy(),
                    satisfied=satisfied,
                )
            )
        return rows

    def _follow(self, ended: Ended) -> tuple[Tensor, Tensor]:
        """Go back from the ends: words (E, T) and attention (E, T, R), on the CPU."""
        count, longest = len(ended.step), int(ended.step.max()) if len(ended.step) else 0
        regions = self.attention[0].shape[1] if self.attention else 0
        words = torch.zeros(count, longest, dtype=torch.int64)
        attention = torch.zeros(count, longest, regions)
        row = ended.row.clone()
        for step in range(longest, 0, -1):
            here = (ended.step >= step).nonzero()[:, 0]  # captions that have a word at this step
            parent = self.parents[step][row[here]]
            words[here.cpu(), step - 1] = self.words[step][row[here]].cpu()
            attention[here.cpu(), step - 1] = self.attention[step - 1][parent].float().cpu()
            row[here] = parent
        return words, attention
