"""What a caption may be: length, forbidden words and phrases, repeated n-grams, a fixed beginning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coscap.text.vocabulary import END, PAD, SLOT, SLOTS, START, UNK

NEVER = (PAD, START, UNK, SLOT, SLOTS)  # no caption contains these


@dataclass(frozen=True)
class Controls:
    """Rules in numbers of the vocabulary. Every search asks `allow` before it chooses a word."""

    min_length: int = 1
    max_length: int = 20
    never: tuple[int, ...] = NEVER
    phrases: tuple[tuple[int, ...], ...] = ()  # forbidden ones of two words and more
    no_repeat: int = 0
    beginning: tuple[int, ...] = ()

    def allow(self, log_probabilities: Tensor, words: Tensor) -> Tensor:
        """Overwrite the log-probabilities (N, V) with -inf where a word is not allowed.

        words: (N, t), what each row has written so far. What is left is not scaled up: a caption's
        log-probability stays the model's own. The beginning stands above the other rules; after
        max_length words only the end is allowed; a row with no word left may end.
        """
        t = words.shape[1]
        if t < len(self.beginning):
            return _only(log_probabilities, self.beginning[t])
        if t >= self.max_length:
            return _only(log_probabilities, END)
        end = log_probabilities[:, END].clone()  # (N,)
        never = (*self.never, END) if t < self.min_length else self.never
        log_probabilities[:, list(never)] = -torch.inf
        for phrase in self.phrases:
            _forbid_phrase(log_probabilities, words, phrase)
        if self.no_repeat:
            _forbid_repeats(log_probabilities, words, self.no_repeat)
        if self.phrases or self.no_repeat:
            stuck = log_probabilities.amax(1) == -torch.inf  # (N,)
            log_probabilities[stuck, END] = end[stuck]
        return log_probabilities


def _only(log_probabilities: Tensor, word: int) -> Tensor:
    kept = log_probabilities[:, word].clone()
    log_probabilities.fill_(-torch.inf)[:, word] = kept
    return log_probabilities


def _forbid_phrase(allowed: Tensor, words: Tensor, phrase: tuple[int, ...]) -> None:
    """Where a row has written all of the phrase but its last word, that word is not allowed."""
    before = torch.tensor(phrase[:-1], device=words.device)
    if words.shape[1] >= len(before):
        rows = (words[:, words.shape[1] - len(before) :] == before).all(1)
        allowed[rows, phrase[-1]] = -torch.inf


def _forbid_repeats(allowed: Tensor, words: Tensor, size: int) -> None:
    """Forbid each word that would end an n-gram that the row has already."""
    t = words.shape[1]
    if t < size:
        return
    grams = words.unfold(1, size, 1)  # (N, t - size + 1, size)
    last = words[:, t - size + 1 :]  # (N, size - 1), what the next word would be added to
    again = (grams[:, :, :-1] == last[:, None, :]).all(2)  # (N, t - size + 1)
    rows, places = again.nonzero(as_tuple=True)
    allowed[rows, grams[rows, places, -1]] = -torch.inf
