"""Beam search over pictures, draws and the states of constraints at once, as one batch of ragged rows.

A *pool* is one beam search: a picture and a draw (and a group, in a diverse search). A *place* is a state
of the pool's constraints; without constraints there is one. At each step, for each place of each pool,

    all continuations of the pool's rows that arrive there are ranked by log-probability;
    the first `width` that do not end go on;
    one that ends, if it is among the first `width`, moves to the pool's finished captions and never goes on.

Finished captions are ranked by log-probability / length^length_norm, where length counts the end. A pool is
done when it has as many finished captions as are wanted and the best unfinished one ranks no better: at its
present length, or, if the search is exhaustive, even if it reached the maximal length at no cost. A beam of
one row is thus greedy search. Equal scores: the earlier row goes first, then the end, then the lower word.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coscap.models.step import S, Step
from coscap.search.controls import Controls
from coscap.search.top import counts_within, ranks, top
from coscap.search.trace import Trace
from coscap.text.vocabulary import END, START


@dataclass(frozen=True)
class Rows:
    """N unfinished captions."""

    pool: Tensor  # (N,)
    place: Tensor  # (N,)
    score: Tensor  # (N,) float64, log-probability so far
    words: Tensor  # (N, t)


@dataclass(frozen=True)
class Chosen:
    """The M continuations that a step keeps."""

    parent: Tensor  # (M,) the row that it continues
    word: Tensor  # (M,)
    score: Tensor  # (M,) float64
    place: Tensor  # (M,)
    met: Tensor  # (M,) constraints met

    def take(self, which: Tensor) -> "Chosen":
        return Chosen(
            self.parent[which], self.word[which], self.score[which], self.place[which], self.met[which]
        )


Pick = Callable[[Tensor, Rows], Chosen]  # (allowed log-probabilities (N, V), rows) -> what goes on or ends


@dataclass(frozen=True)
class Finished:
    """Finished captions of all pools: by rising pool, then the best first."""

    pool: Tensor  # (E,)
    met: Tensor  # (E,) constraints met
    rank: Tensor  # (E,) 0 for the best of its pool
    normalised: Tensor  # (E,) float64
    score: Tensor  # (E,) float64, log-probability
    step: Tensor  # (E,) words before the end
    row: Tensor  # (E,) the row that ended, among the rows of that step

    def add(self, pool: Tensor, chosen: Chosen, step: int, length_norm: float, keep: int) -> "Finished":
        """With these, which ended now; `keep` for each pool, those that meet more constraints first."""
        pools = torch.cat([self.pool, pool])
        met = torch.cat([self.met, chosen.met])
        normalised = torch.cat([self.normalised, chosen.score / (step + 1) ** length_norm])
        score = torch.cat([self.score, chosen.score])
        steps = torch.cat([self.step, torch.full_like(pool, step)])
        rows = torch.cat([self.row, chosen.parent])
        most = int(met.max()) if len(met) else 0
        order, _ = ranks(pools * (most + 1) + most - met, normalised)
        rank = counts_within(pools[order], torch.ones_like(order))
        order, rank = order[rank < keep], rank[rank < keep]
        return Finished(
            pools[order], met[order], rank, normalised[order], score[order], steps[order], rows[order]
        )

    def wanted(self, needed: int, required: Tensor) -> Tensor:
        """(Q,) what an unfinished caption of each pool has to beat; -inf while captions are missing."""
        scores = torch.full(required.shape, -torch.inf, dtype=torch.float64, device=required.device)
        last = (self.rank == needed - 1) & (self.met >= required[self.pool])
        scores[self.pool[last]] = self.normalised[last]
        return scores


def none_finished(device: torch.device) -> Finished:
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    return Finished(empty, empty, empty, empty.double(), empty.double(), empty, empty)


def run(
    model: Step[S],
    state: S,
    pools: Tensor,
    required: Tensor,
    pick: Pick,
    *,
    needed: int,
    keep: int,
    length_norm: float,
    exhaustive: bool,
    controls: Controls,
) -> tuple[Trace, Finished]:
    """Search until every pool is done.

    pools: (N,) the pool of each row of `state`; required: (Q,) how many constraints each pool is to meet.
    """
    rows = Rows(
        pool=pools,
        place=torch.zeros_like(pools),
        score=torch.zeros(len(pools), dtype=torch.float64, device=pools.device),
        words=torch.empty(len(pools), 0, dtype=torch.int64, device=pools.device),
    )
    trace, finished = Trace(), none_finished(pools.device)
    parents, words = torch.arange(len(pools), device=pools.device), torch.full_like(pools, START)
    for step in range(controls.max_length + 1):
        trace.parents.append(parents)
        trace.words.append(words)
        log_probabilities, state, attention = model.step(words, state)  # (N, V), (N, R)
        trace.attention.append(attention)
        chosen = pick(controls.allow(log_probabilities, rows.words), rows)
        ended = chosen.word == END
        gone = chosen.take(ended)
        finished = finished.add(rows.pool[gone.parent], gone, step, length_norm, keep)
        live = chosen.take(~ended)
        furthest = (controls.max_length + 1 if exhaustive else step + 1) ** length_norm
        best = torch.full(required.shape, -torch.inf, dtype=torch.float64, device=pools.device)
        best = best.scatter_reduce(0, rows.pool[live.parent], live.score, "amax") / furthest  # (Q,)
        going = finished.wanted(needed, required) < best  # (Q,)
        live = live.take(going[rows.pool[live.parent]])
        if len(live.parent) == 0:
            break
        parents, words = live.parent, live.word
        rows = Rows(
            pool=rows.pool[parents],
            place=live.place,
            score=live.score,
            words=torch.cat([rows.words[parents], words[:, None]], dim=1),
        )
        state = state.select(parents)
    return trace, finished


def plain(width: int) -> Pick:
    """Each pool keeps its `width` best continuations."""

    def pick(allowed: Tensor, rows: Rows) -> Chosen:
        end, best, word = ends_and_top(allowed, width)
        scores = rows.score[:, None] + torch.cat([end, best], dim=1).double()  # (N, 1 + K)
        words = torch.cat([torch.full_like(word[:, :1], END), word], dim=1)
        return best_arrivals(rows, words, scores, scores, torch.zeros_like(words), 1, width)

    return pick


def ends_and_top(allowed: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the log-probability of its end (N, 1), and its best other words (N, K), twice."""
    end = allowed[:, END : END + 1].clone()
    allowed[:, END] = -torch.inf
    return (end, *top(allowed, min(width, allowed.shape[1])))


def best_arrivals(
    rows: Rows, words: Tensor, scores: Tensor, ranked: Tensor, places: Tensor, states: int, width: int
) -> Chosen:
    """The best `width` that go on, and what ends among the best `width`, for each place of each pool.

    words, scores, ranked, places: (N, C), the candidates of each row, the score that decides, and the
    places where they arrive.
    """
    row, column = (ranked > -torch.inf).nonzero(as_tuple=True)  # (M,)
    keys = rows.pool[row] * states + places[row, column]
    order, rank = ranks(keys, ranked[row, column])
    row, column, keys = row[order], column[order], keys[order]
    word = words[row, column]
    goes_on = word != END
    kept = torch.where(goes_on, counts_within(keys, goes_on.long()), rank) < width
    row, column = row[kept], column[kept]
    return Chosen(
        parent=row,
        word=word[kept],
        score=scores[row, column],
        place=places[row, column],
        met=torch.zeros_like(row),
    )
