"""Diverse beam search (Vijayakumar et al. 2018): groups of beams that avoid each other's words.

At each step the groups choose one after the other. A word that beams of earlier groups have taken at this
very step costs `diversity` for each of them (Hamming diversity). The penalty decides what is kept; a
caption's own log-probability, by which the finished ones are ranked, is without it. The end of a caption is
no word and costs nothing.
"""

import torch
from torch import Tensor

from coscap.search.beam import Chosen, Pick, Rows, best_arrivals, ends_and_top
from coscap.text.vocabulary import END


def diverse(groups: int, width: int, diversity: float) -> Pick:
    """Pool q is group q % groups of the search q // groups; each keeps its `width` best continuations."""

    def pick(allowed: Tensor, rows: Rows) -> Chosen:
        searches = rows.pool // groups  # (N,)
        taken = allowed.new_zeros(int(searches.max()) + 1, allowed.shape[1])  # (searches, V)
        parts = []
        for group in range(groups):  # one after the other by definition
            here = (rows.pool % groups == group).nonzero()[:, 0]
            part = _continue_group(allowed[here], taken[searches[here]] * diversity, rows, here, width)
            parts.append(part)
            words = part.take(part.word != END)
            one = torch.ones_like(words.word, dtype=taken.dtype)
            taken.index_put_((searches[words.parent], words.word), one, accumulate=True)
        return Chosen(*(torch.cat(column) for column in zip(*map(_columns, parts), strict=True)))

    return pick


def _continue_group(allowed: Tensor, penalty: Tensor, rows: Rows, here: Tensor, width: int) -> Chosen:
    """The continuations that one group keeps; allowed, penalty: (N', V), of the rows `here` (N',)."""
    end, ranked, word = ends_and_top(allowed - penalty, width)
    own = torch.cat([end, allowed.gather(1, word)], dim=1).double()  # (N', 1 + K)
    ranked = torch.cat([end, ranked], dim=1).double()
    words = torch.cat([torch.full_like(word[:, :1], END), word], dim=1)
    group = Rows(rows.pool[here], rows.place[here], rows.score[here], rows.words[here])
    before = group.score[:, None]
    chosen = best_arrivals(group, words, before + own, before + ranked, torch.zeros_like(words), 1, width)
    return Chosen(here[chosen.parent], chosen.word, chosen.score, chosen.place, chosen.met)


def _columns(chosen: Chosen) -> tuple[Tensor, ...]:
    return chosen.parent, chosen.word, chosen.score, chosen.place, chosen.met
