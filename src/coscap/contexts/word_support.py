"""What is known of the words of captions in one picture: by its eyes, by what was said of similar pictures, by how many
of the captions drawn for it have them. Words that name the same class of objects stand for each other. A number is
judged by how many things of the class after it were detected."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coscap.contexts.bank import Bank, NeighbourCaptions
from coscap.text.content import is_content
from coscap.text.numbers import NUMBERS, with_counted
from coscap.text.objects import ObjectClasses
from coscap.vision.words import WordReader

WORD_FEATURES = (
    "bias", "log_odds", "usual_log_odds", "object", "detection", "said", "drawn", "object_log_odds", "object_drawn",
    "person", "number", "count", "several", "several_count",
)  # fmt: skip
UNSEEN = -4.0  # log-odds of a word that the eyes do not know
SUREST = 0.99  # nothing here can say that a caption is true for certain
ROOM = 0.02  # added to a share and to what it leaves, so that the log-odds of none and of all are finite


@dataclass(frozen=True, eq=False)
class WordGroups:
    """Which words of the eyes and of a bank belong together."""

    objects: ObjectClasses
    eyes: dict[
        str, list[int]
    ]  # a word, or a class of objects: the numbers of its words. "Man" says nothing of "girl".
    groups: NDArray[np.int64]  # (W,) of each word of the bank: the number of its thing
    numbers: dict[str, int]  # of each thing: a class of objects, or a word that names none

    @classmethod
    def of(cls, reader: WordReader, objects: ObjectClasses, bank: Bank | None) -> "WordGroups":
        eyes: dict[str, list[int]] = {}
        for number, word in enumerate(reader.words):
            name = objects.class_of.get(word, word)
            eyes.setdefault(word if name == "person" else name, []).append(number)
        things = [objects.class_of.get(word, word) for word in (() if bank is None else bank.words)]
        numbers = {thing: number for number, thing in enumerate(dict.fromkeys(things))}
        return cls(objects, eyes, np.array([numbers[thing] for thing in things], np.int64), numbers)


class WordFeatures:
    """The features of words in one picture, of which captions (tokens) were drawn."""

    def __init__(
        self,
        word_groups: WordGroups,
        captions: Sequence[Sequence[str]],
        probabilities: NDArray[np.float32],  # (W,) of the words of the eyes
        frequencies: NDArray[np.float32],  # (W,) their usual probabilities
        similar: NeighbourCaptions | None,
        detected: Mapping[str, Sequence[float]],  # the scores of each class
    ) -> None:
        self.word_groups, self.probabilities, self.frequencies = word_groups, probabilities, frequencies
        self.detected, self.captions = detected, len(captions)
        self.shares = None if similar is None else similar.shares_of(word_groups.groups)
        class_of = word_groups.objects.class_of
        self.counts = Counter(
            thing for tokens in captions for thing in {class_of.get(token, token) for token in tokens}
        )

    def rows(self, tokens: Sequence[str]) -> list[NDArray[np.float64] | None]:
        """(F,) WORD_FEATURES of each token of a caption; None for one that says nothing about what is seen"""
        return [self.row(*each) for each in with_counted(tokens, self.word_groups.objects.class_of)]

    def row(self, token: str, counted: str | None = None) -> NDArray[np.float64] | None:
        """counted: the class that a number counts"""
        if token in NUMBERS:
            least, most = NUMBERS[token]
            names = ("number", "count") if most == least else ("several", "several_count")
            known = {"drawn": self._drawn(token), names[0]: 1.0, names[1]: self._count(least, most, counted)}
            return np.array([known.get(name, 0.0) for name in WORD_FEATURES])
        if not is_content(token):
            return None
        name = self.word_groups.objects.class_of.get(token)
        words = self.word_groups.eyes.get(token if name in (None, "person") else str(name), [])
        best = max(words, key=lambda number: float(self.probabilities[number]), default=None)
        seen = UNSEEN if best is None else log_odds(float(self.probabilities[best]))
        usual = UNSEEN if best is None else log_odds(float(self.frequencies[best]))
        thing, is_object = name or token, float(name is not None)
        score = max(self.detected.get(thing, ()), default=0.0) if name else 0.0
        shared, drawn = self._said(thing, seen), self._drawn(thing)
        own = (
            1,
            seen,
            usual,
            is_object,
            score,
            shared,
            drawn,
            is_object * seen,
            is_object * drawn,
            name == "person",
        )
        return np.array([*own, 0, 0, 0, 0], np.float64)

    def _count(self, least: int, most: float, counted: str | None) -> float:
        """Log-odds that so many are there, scores being independent chances; 0 for what cannot be counted."""
        if counted is None:
            return 0.0
        chances = np.ones(1)  # of none, of one, of two ...
        for score in self.detected.get(counted, ()):
            chances = np.convolve(chances, [1 - score, score])
        share = float(chances[least:].sum() if most > least else chances[least : least + 1].sum())
        return float(np.log((share + ROOM) / (1 - share + ROOM)))

    def _said(self, thing: str, seen: float) -> float:
        """Log-odds of the share of similar pictures of which it was said; without a bank, what the eyes say."""
        if self.shares is None:
            return max(seen, UNSEEN)
        number = self.word_groups.numbers.get(thing)
        share = 0.0 if number is None else float(self.shares[number])
        return float(np.log((share + ROOM) / (1 - share + ROOM)))

    def _drawn(self, thing: str) -> float:
        """Log-odds of the share of the *other* captions that have it, about a quarter where there are no others."""
        count = max(1, self.counts[thing])
        return float(np.log((count - 0.5) / (max(self.captions, count) - count + 1.5)))


def probably_true(
    tokens: Sequence[str], words: Sequence[float | None], objects: ObjectClasses
) -> tuple[float, float]:
    """How likely all objects of a caption are there, its numbers right and at most one other word wrong; and the
    objects alone.

    words: the support of each token, None where there is none
    """
    there = rest = 1.0
    odds = 0.0  # the sum of the other words' odds of being wrong
    for token, word in zip(tokens, words, strict=True):
        if word is None:
            continue
        p = max(word, 1e-6)
        if token in objects.class_of:
            there *= p
        elif token in NUMBERS:
            rest *= p
        else:
            rest, odds = rest * p, odds + (1 - p) / p
    return there * rest * (1 + odds), there


def calibrated(p: float, weights: tuple[float, float, float]) -> float:
    """The chance that a caption is true, where its words as if independent give p: a + b log p - c log(1 - p) are its
    log-odds (beta calibration, Kull et al. 2017; with b = c that of Platt). Never more than SUREST."""
    shift, right, wrong = weights
    p = min(max(p, 1e-5), 1 - 1e-5)
    return min(SUREST, float(1 / (1 + np.exp(-(shift + right * np.log(p) - wrong * np.log(1 - p))))))


def log_odds(p: float) -> float:
    p = min(max(p, 1e-5), 1 - 1e-5)
    return float(np.log(p / (1 - p)))
