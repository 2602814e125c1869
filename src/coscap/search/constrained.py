"""Constrained beam search (Anderson et al. 2017): a beam for each state of each picture's automaton.

All states of all pictures and draws are rows of one batch. From a row, the words of one kind lead to the same
state, and so do all words that are of no kind; of each only the best `width` can matter. So a row has at most
1 + width x (kinds + 1) candidates, and the vocabulary is never multiplied by the states.

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
        end = allowed[:, END : END + 1].clone()  # (N, 1)
        leaving, special = _best_of_kinds(allowed, automata.words[picture], width)  # (N, C, K')
        allowed[:, END] = -torch.inf
        staying, word = top(allowed, min(width, allowed.shape[1]))  # (N, K)
        words = torch.cat([word.new_full(end.shape, END), special.flatten(1), word], dim=1)
        places = torch.cat(
            [
                rows.place[:, None],
                automata.table[picture, rows.place][:, :, None].expand_as(special).flatten(1),
                automata.default[picture, rows.place][:, None].expand_as(word),
            ],
            dim=1,
        )  # (N, 1 + C K' + K)
        scores = rows.score[:, None] + torch.cat([end, leaving.flatten(1), staying], dim=1).double()
        chosen = best_arrivals(rows, words, scores, scores, places, automata.states, width)
        met = automata.met[picture[chosen.parent], chosen.place]
        return Chosen(chosen.parent, chosen.word, chosen.score, chosen.place, met)

    return pick


def _best_of_kinds(allowed: Tensor, words: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The best `width` words of each kind and their log-probabilities, which are struck out of `allowed`.

    words: (N, C, M), -1 for padding. Gives (N, C, K') twice.
    """
    rows, kinds, most = words.shape
    missing = words.flatten(1) < 0  # (N, C M)
    index = words.flatten(1).masked_fill(missing, END)
    values = allowed.gather(1, index).masked_fill(missing, -torch.inf)
    allowed.scatter_(1, index, -torch.inf)
    if kinds * most == 0:
        return values.view(rows, kinds, most), index.view(rows, kinds, most)
    best, place = top(values.view(rows * kinds, most), min(width, most))
    chosen = index.view(rows * kinds, most).gather(1, place)
    return best.view(rows, kinds, -1), chosen.view(rows, kinds, -1)
