"""Beam search over pictures, draws and the states of constraints at once, as one batch of ragged rows.

A *group* is one beam search: a picture and a draw (and a group of beams, in a diverse search). An `fsm_state` is a
state of the group's constraints; without constraints there is one. At each step, for each state of each group,

    all continuations of the group's rows that arrive there are ranked by log-probability;
    the first `num_beams` that do not end go on;
    one that ends, if it is among the first `num_beams`, moves to the group's finished captions and never goes on.

Finished captions are ranked by log-probability / length^length_penalty, where length counts the end. A group is
done when it has as many finished captions as are needed and the best unfinished one ranks no better: at its
present length, or, if the search is exhaustive, even if it reached the maximal length at no cost. A single beam is
thus greedy search. Equal scores: the earlier row goes first, then the end, then the lower token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coscap.seam import Candidates, Caption, Floats, Ints, RegionArrays, S, SearchModel
from coscap.search.constraints import TokenConstraints
from coscap.text.vocabulary import END, START


@dataclass(frozen=True)
class BeamRows:
    """N unfinished captions."""

    group: Ints  # (N,)
    fsm_state: Ints  # (N,)
    score: Floats  # (N,) float64, log-probability so far
    tokens: Ints  # (N, t)

    def take(self, which: Ints) -> "BeamRows":
        return BeamRows(self.group[which], self.fsm_state[which], self.score[which], self.tokens[which])


@dataclass(frozen=True)
class Continuations:
    """The M continuations that a step keeps."""

    parent: Ints  # (M,) the row that it continues
    token: Ints  # (M,)
    score: Floats  # (M,) float64
    fsm_state: Ints  # (M,)
    met: Ints  # (M,) constraints met

    def take(self, which: NDArray[np.bool_]) -> "Continuations":
        return Continuations(
            self.parent[which], self.token[which], self.score[which], self.fsm_state[which], self.met[which]
        )


class Pick(Protocol):
    """How a kind of beam search goes on: what it asks a model for, and what it keeps of that."""

    @property
    def k(self) -> int:
        """Candidates of each row besides the end and those that are named."""
        ...

    def named(self, rows: BeamRows) -> Ints | None:
        """(N, A) tokens whose log-probability is needed in any case, -1 for padding."""
        ...

    def __call__(self, candidates: Candidates, rows: BeamRows) -> Continuations:
        """candidates: (N, 1 + A + k), the end, the named ones, the best others."""
        ...


@dataclass(frozen=True)
class Finished:
    """Finished captions of all groups: by rising group, then the best first."""

    group: Ints  # (E,)
    met: Ints  # (E,) constraints met
    rank: Ints  # (E,) 0 for the best of its group
    normalised: Floats  # (E,) float64
    score: Floats  # (E,) float64, log-probability
    step: Ints  # (E,) tokens before the end
    row: Ints  # (E,) the row that ended, among the rows of that step

    @classmethod
    def none(cls) -> "Finished":
        ints, floats = np.zeros(0, np.int64), np.zeros(0)
        return cls(ints, ints, ints, floats, floats, ints, ints)

    def add(
        self, group: Ints, ended: Continuations, step: int, length_penalty: float, keep: int
    ) -> "Finished":
        """With those that ended now; `keep` for each group, those that meet more constraints first."""
        if not len(group):
            return self
        groups = np.concatenate([self.group, group])
        met = np.concatenate([self.met, ended.met])
        normalised = np.concatenate([self.normalised, ended.score / (step + 1) ** length_penalty])
        score = np.concatenate([self.score, ended.score])
        steps = np.concatenate([self.step, np.full_like(group, step)])
        rows = np.concatenate([self.row, ended.parent])
        most = int(met.max())
        order, _ = ranks(groups * (most + 1) + most - met, normalised)
        rank = counts_within(groups[order], np.ones_like(order))
        order, rank = order[rank < keep], rank[rank < keep]
        return Finished(
            groups[order], met[order], rank, normalised[order], score[order], steps[order], rows[order]
        )

    def to_beat(self, needed: int, required: Ints) -> Floats:
        """(G,) what an unfinished caption of each group has to beat; -inf while captions are missing."""
        scores = np.full(required.shape, -np.inf)
        last = (self.rank == needed - 1) & (self.met >= required[self.group])
        scores[self.group[last]] = self.normalised[last]
        return scores


@dataclass(frozen=True)
class Ended:
    """E finished captions, in the order in which they are returned."""

    picture: Ints  # (E,)
    draw: Ints  # (E,)
    step: Ints  # (E,) tokens before the end
    row: Ints  # (E,) the row that ended, among the rows of that step
    log_probability: Floats  # (E,) float64
    satisfied: NDArray[np.bool_]  # (E,)


@dataclass
class Trace:
    """Rows are copied and dropped between steps; this remembers where each came from.

    Row i of step t wrote tokens[t][i] after row parents[t][i] of step t - 1. Step 0 has no tokens.
    """

    parents: list[Ints] = field(default_factory=list)  # (N_t,)
    tokens: list[Ints] = field(default_factory=list)  # (N_t,)
    attention: list[Floats] = field(default_factory=list)  # (N_t, R), while choosing the token after

    def add(self, parents: Ints, tokens: Ints, attention: Floats) -> None:
        self.parents.append(parents)
        self.tokens.append(tokens)
        self.attention.append(attention)

    def captions(self, ended: Ended, regions: RegionArrays, words: Sequence[str]) -> list[list[Caption]]:
        """The captions of each picture, in the order of `ended`; words: the vocabulary, by token."""
        tokens, attention = self._follow(ended)
        rows: list[list[Caption]] = [[] for _ in range(len(regions))]
        for number, (picture, length) in enumerate(
            zip(ended.picture.tolist(), ended.step.tolist(), strict=True)
        ):
            rows[picture].append(
                Caption(
                    tokens=tuple(words[token] for token in tokens[number, :length].tolist()),
                    log_probability=float(ended.log_probability[number]),
                    draw=int(ended.draw[number]),
                    attention=attention[number, :length][:, regions.mask[picture]],
                    satisfied=bool(ended.satisfied[number]),
                )
            )
        return rows

    def _follow(self, ended: Ended) -> tuple[Ints, NDArray[np.float32]]:
        """Go back from the ends: tokens (E, T) and attention (E, T, R)."""
        count, longest = len(ended.step), int(ended.step.max(initial=0))
        regions = self.attention[0].shape[1] if self.attention else 0
        tokens = np.zeros((count, longest), np.int64)
        attention = np.zeros((count, longest, regions), np.float32)
        row = ended.row.copy()
        for step in range(longest, 0, -1):
            here = np.flatnonzero(ended.step >= step)  # captions that have a token at this step
            parent = self.parents[step][row[here]]
            tokens[here, step - 1] = self.tokens[step][row[here]]
            attention[here, step - 1] = self.attention[step - 1][parent]
            row[here] = parent
        return tokens, attention


def run(
    model: SearchModel[S],
    state: S,
    groups: Ints,
    required: Ints,
    pick: Pick,
    *,
    needed: int,
    keep: int,
    length_penalty: float,
    exhaustive: bool,
    constraints: TokenConstraints,
) -> tuple[Trace, Finished]:
    """Search until every group is done.

    groups: (N,) the group of each row of `state`; required: (G,) how many constraints each group has to meet.
    """
    rows = BeamRows(
        group=groups,
        fsm_state=np.zeros_like(groups),
        score=np.zeros(len(groups)),
        tokens=np.empty((len(groups), 0), np.int64),
    )
    trace, finished = Trace(), Finished.none()
    parents, tokens = np.arange(len(groups)), np.full_like(groups, START)
    for step in range(constraints.max_length + 1):
        candidates, state, attention = constraints.step(
            model, tokens, state, rows.tokens, pick.k, pick.named(rows)
        )
        trace.add(parents, tokens, attention)
        chosen = pick(candidates, rows)
        ends = chosen.token == END
        ended, live = chosen.take(ends), chosen.take(~ends)
        finished = finished.add(rows.group[ended.parent], ended, step, length_penalty, keep)
        furthest = (constraints.max_length + 1 if exhaustive else step + 1) ** length_penalty
        best = np.full(required.shape, -np.inf)
        np.maximum.at(best, rows.group[live.parent], live.score)
        going = finished.to_beat(needed, required) < best / furthest  # (G,)
        live = live.take(going[rows.group[live.parent]])
        if len(live.parent) == 0:
            break
        parents, tokens = live.parent, live.token
        rows = BeamRows(
            group=rows.group[parents],
            fsm_state=live.fsm_state,
            score=live.score,
            tokens=np.concatenate([rows.tokens[parents], tokens[:, None]], axis=1),
        )
        state = state.select(parents)
    return trace, finished


@dataclass(frozen=True)
class PlainBeams:
    """Each group keeps its `num_beams` best continuations."""

    num_beams: int

    @property
    def k(self) -> int:
        return self.num_beams

    def named(self, rows: BeamRows) -> None:
        return None

    def __call__(self, candidates: Candidates, rows: BeamRows) -> Continuations:
        scores = rows.score[:, None] + candidates.log_probabilities.astype(np.float64)  # (N, 1 + K)
        return best_arrivals(
            rows, candidates.ids, scores, scores, np.zeros_like(candidates.ids), 1, self.num_beams
        )


def best_arrivals(
    rows: BeamRows,
    tokens: Ints,
    scores: Floats,
    ranked: Floats,
    fsm_states: Ints,
    count: int,
    num_beams: int,
) -> Continuations:
    """The best `num_beams` that go on, and what ends among the best `num_beams`, for each state of each group.

    tokens, scores, ranked, fsm_states: (N, C), the candidates of each row, the score that decides, and the states
    where they arrive; count: the number of states.
    """
    row, column = np.nonzero(ranked > -np.inf)  # (M,)
    keys = rows.group[row] * count + fsm_states[row, column]
    order, rank = ranks(keys, ranked[row, column])
    row, column, keys = row[order], column[order], keys[order]
    token = tokens[row, column]
    goes_on = token != END
    kept = np.where(goes_on, counts_within(keys, goes_on.astype(np.int64)), rank) < num_beams
    row, column = row[kept], column[kept]
    return Continuations(
        parent=row,
        token=token[kept],
        score=scores[row, column],
        fsm_state=fsm_states[row, column],
        met=np.zeros_like(row),
    )


def ranks(keys: Ints, scores: Floats) -> tuple[Ints, Ints]:
    """Sort by rising key, then falling score, then position: the order, and the rank within its key (M,)."""
    order = np.lexsort((-scores, keys))
    return order, counts_within(keys[order], np.ones_like(keys))


def counts_within(keys: Ints, ones: Ints) -> Ints:
    """keys: (M,) rising. How many of `ones` (0 or 1) are before each position, under the same key."""
    before = np.cumsum(ones) - ones
    first = np.searchsorted(keys, keys)  # the first position of each key
    return before - before[first]
