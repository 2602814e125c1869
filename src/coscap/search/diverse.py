"""Diverse beam search (Vijayakumar et al. 2018): groups of beams that avoid each other's tokens.

At each step the groups choose one after the other. A token that beams of earlier groups have taken at this very
step costs `diversity_penalty` for each of them (Hamming diversity). The penalty decides what is kept; a caption's own
log-probability, by which the finished ones are ranked, is without it. The end of a caption costs nothing.

At most (num_beam_groups - 1) x num_beams tokens are penalised when a group chooses, so its best continuations are
among the num_beam_groups x num_beams likeliest of a row.
"""

from dataclasses import dataclass

import numpy as np

from coscap.seam import Candidates, Floats, Ints
from coscap.search.beam import BeamRows, Continuations, best_arrivals
from coscap.text.vocabulary import END


@dataclass(frozen=True)
class DiverseBeams:
    """Group g belongs to the search g // num_beam_groups; each keeps its `num_beams` best continuations."""

    num_beam_groups: int
    num_beams: int
    diversity_penalty: float

    @property
    def k(self) -> int:
        return self.num_beam_groups * self.num_beams

    def named(self, rows: BeamRows) -> None:
        return None

    def __call__(self, candidates: Candidates, rows: BeamRows) -> Continuations:
        searches = rows.group // self.num_beam_groups  # (N,)
        size = int(candidates.ids.max()) + 1
        taken = np.zeros(0, np.int64)  # search * size + token, once for each beam that took it; sorted
        parts = []
        for group in range(self.num_beam_groups):  # one after the other by definition
            here = np.flatnonzero(rows.group % self.num_beam_groups == group)
            keys = searches[here][:, None] * size + candidates.ids[here]  # (N', 1 + K)
            times = np.searchsorted(taken, keys, "right") - np.searchsorted(taken, keys, "left")
            part = self._continue_group(candidates, times, rows, here)
            parts.append(part)
            words = part.take(part.token != END)
            taken = np.sort(np.concatenate([taken, searches[words.parent] * size + words.token]))
        columns = [(p.parent, p.token, p.score, p.fsm_state, p.met) for p in parts]
        return Continuations(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def _continue_group(
        self, candidates: Candidates, times: Ints, rows: BeamRows, here: Ints
    ) -> Continuations:
        """The continuations that one group keeps; times: (N', 1 + K) how often each candidate is taken already."""
        own: Floats = candidates.log_probabilities[here]  # (N', 1 + K)
        penalised: Floats = own - times.astype(own.dtype) * own.dtype.type(self.diversity_penalty)
        tokens, own, penalised = _by_falling(candidates.ids[here], own, penalised)
        group = rows.take(here)
        before = group.score[:, None]
        chosen = best_arrivals(
            group,
            tokens,
            before + own.astype(np.float64),
            before + penalised.astype(np.float64),
            np.zeros_like(tokens),
            1,
            self.num_beams,
        )
        return Continuations(here[chosen.parent], chosen.token, chosen.score, chosen.fsm_state, chosen.met)


def _by_falling(tokens: Ints, own: Floats, penalised: Floats) -> tuple[Ints, Floats, Floats]:
    """Candidates after the first (the end) sorted anew: by falling penalised value, equal ones by rising token."""
    order = np.lexsort((tokens[:, 1:], -penalised[:, 1:]), axis=1) + 1
    order = np.concatenate([np.zeros((len(order), 1), np.int64), order], axis=1)
    return (
        np.take_along_axis(tokens, order, 1),
        np.take_along_axis(own, order, 1),
        np.take_along_axis(penalised, order, 1),
    )
