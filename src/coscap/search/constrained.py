"""Constrained beam search (Anderson et al. 2017): a beam for each state of each picture's automaton.

All states of all pictures and draws are rows of one batch. From a row, the few words of the constraints
lead to states of their own, and its other words to one default state, of which only the best `width` can
matter; so a row has width + words + 1 candidates and the vocabulary is never multiplied by the states.

Captions that meet enough constraints come first. Where fewer of them than wanted are found within the
maximal length, the rest are the best of those that meet most, marked `satisfied=False`.
"""

import torch
from torch import Tensor

from coscap.search.automaton import Automata
from coscap.search.beam import Chosen, Pick, Rows, best_arrivals
from coscap.search.top import top
from coscap.text.vocabulary import END


def constrained(automata: Automata, draws: int, width: int) -> Pick:
    """Pool q belongs to picture q // draws; each state of it keeps its `width` best arrivals."""

    def pick(allowed: Tensor, rows: Rows) -> Chosen:
        picture = rows.pool // draws  # (N,)
        special = automata.words[picture]  # (N, E)
        missing = special < 0
        end = allowed[:, END : END + 1].clone()  # (N, 1)
        leaving = allowed.gather(1, special.clamp(min=0)).masked_fill(missing, -torch.inf)  # (N, E)
        allowed.scatter_(1, special.masked_fill(missing, END), -torch.inf)
        allowed[:, END] = -torch.inf
        staying, word = top(allowed, min(width, allowed.shape[1]))  # (N, K)
        words = torch.cat([torch.full_like(end, END, dtype=torch.int64), special, word], dim=1)
        places = torch.cat(
            [
                rows.place[:, None],
                automata.table[picture, rows.place],
                automata.default[picture, rows.place][:, None].expand_as(word),
            ],
            dim=1,
        )  # (N, 1 + E + K)
        scores = rows.score[:, None] + torch.cat([end, leaving, staying], dim=1).double()
        chosen = best_arrivals(rows, words, scores, scores, places, automata.states, width)
        met = automata.met[picture[chosen.parent], chosen.place]
        return Chosen(chosen.parent, chosen.word, chosen.score, chosen.place, met)

    return pick
