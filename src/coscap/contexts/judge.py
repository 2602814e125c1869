"""How far a picture bears a caption out: what the tuned vision sees of its words, and what people said of similar
pictures.

    picture ─▶ map ─┬─▶ words with probabilities ─▶ support of each word ─┐
                    └─▶ vector ─▶ nearest pictures of the bank ─▶ consensus ─┴─▶ support of the caption, 0..1

Support is calibrated: of the captions with 0.8, eight in ten are true by what five people wrote (docs/support.md says
how "true" is decided there, and with what it was fitted).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.contexts.bank import Bank
from coscap.errors import UserError
from coscap.files import read_json, sha256
from coscap.text.content import is_content
from coscap.text.faults import faults
from coscap.text.objects import ObjectClasses
from coscap.vision.builtin import EYES
from coscap.vision.regions import Recipe, Regions
from coscap.vision.tags import Evidence, Tagger
from coscap.vision.words import WordReader

WORD_FEATURES = ("bias", "log_odds", "usual_log_odds", "object", "detection")
CAPTION_FEATURES = (
    "bias", "mean_word", "least_word", "least_object", "unsure_words", "consensus", "log_probability",
)  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """One caption of one picture."""

    support: float  # 0..1, how likely it is that the caption is true
    words: tuple[float | None, ...]  # of each token; None for a token that nothing is known of
    consensus: float  # agreement with captions of similar pictures, CIDEr-D
    faults: tuple[str, ...]  # what is wrong by the words alone


class Judge:
    """Judges captions by pictures. Without a bank, consensus is 0 for all."""

    def __init__(self, tagger: Tagger, weights: dict[str, list[float]], bank: Bank | None = None) -> None:
        self.tagger, self.bank = tagger, bank
        self.word_weights = np.array(weights["word"])
        self.caption_weights = np.array(weights["caption"])
        if len(self.word_weights) != len(WORD_FEATURES) or len(self.caption_weights) != len(CAPTION_FEATURES):
            raise UserError("the weights of support do not fit this version; install coscap again.")

    @classmethod
    def open(cls, folder: Path, bank: Path | None, threads: int = 1) -> "Judge":
        """Vision and weights of support in `folder`, a bank in another."""
        file = folder / "support.json"
        weights: Any = read_json(file) if file.is_file() else UNFITTED
        return cls(Tagger(folder, threads), weights, None if bank is None else Bank.open(bank))

    @cached_property
    def digest(self) -> str:
        """Names vision, weights and bank: all that judgements depend on besides the picture."""
        parts = (
            self.tagger.digest,
            self.word_weights.tolist(),
            self.caption_weights.tolist(),
            self._bank_digest(),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _bank_digest(self) -> str:
        return "" if self.bank is None else sha256(self.bank.path / "bank.json")

    @property
    def reader(self) -> WordReader:
        return self.tagger.reader

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.reader.words)}

    def judge(
        self,
        captions: Sequence[Sequence[str]],
        log_probabilities: Sequence[float],
        evidence: Evidence,
        objects: ObjectClasses,
        detected: dict[str, float],
    ) -> list[Judgement]:
        """Captions as tokens, with log-probabilities a token; detected: the best score of each class in the picture."""
        consensus = self.consensus(captions, evidence)
        features = WordFeatures.of(self.reader, evidence, objects, detected, self.numbers)
        judged = []
        for tokens, log_probability, agreed in zip(captions, log_probabilities, consensus, strict=True):
            rows = [features.row(token) for token in tokens]
            words = [None if row is None else sigmoid(float(self.word_weights @ row)) for row in rows]
            named = [token in objects.class_of for token in tokens]
            row = caption_row(words, named, agreed, log_probability)
            support = sigmoid(float(self.caption_weights @ row))
            wrong = tuple(faults(tokens, objects))
            judged.append(Judgement(support, tuple(words), agreed, wrong))
        return judged

    def consensus(self, captions: Sequence[Sequence[str]], evidence: Evidence) -> list[float]:
        if self.bank is None:
            return [0.0] * len(captions)
        neighbours = self.bank.nearest(evidence.vector[None])[0]
        return [float(score) for score in self.bank.consensus(captions, neighbours)]


@dataclass(frozen=True)
class WordFeatures:
    """What is known of words in one picture."""

    probabilities: NDArray[np.float32]  # (W,)
    frequencies: NDArray[np.float32]  # (W,)
    numbers: dict[str, int]
    siblings: dict[str, list[int]]  # the words of the list that name the same class
    classes: dict[str, str]
    detected: dict[str, float]

    @classmethod
    def of(
        cls,
        reader: WordReader,
        evidence: Evidence,
        objects: ObjectClasses,
        detected: dict[str, float],
        numbers: dict[str, int],
    ) -> "WordFeatures":
        classes = objects.class_of
        siblings: dict[str, list[int]] = {}
        for word, number in numbers.items():
            if word in classes and classes[word] != "person":  # "man" says nothing of "girl"
                siblings.setdefault(classes[word], []).append(number)
        probabilities = reader.probabilities(evidence.words)
        return cls(probabilities, reader.frequencies, numbers, siblings, classes, detected)

    def row(self, token: str) -> NDArray[np.float64] | None:
        """The features of a token's support; None where neither eyes nor detector know the word."""
        if not is_content(token):
            return None
        name = self.classes.get(token)
        known = self.siblings.get(name or "", []) or [self.numbers[token]] if token in self.numbers else []
        if not known and name is None:
            return None
        best = max(known, key=lambda number: float(self.probabilities[number]), default=None)
        seen = -4.0 if best is None else log_odds(float(self.probabilities[best]))
        usual = -4.0 if best is None else log_odds(float(self.frequencies[best]))
        score = 0.0 if name is None else self.detected.get(name, 0.0)
        return np.array([1.0, seen, usual, float(name is not None), score])


def caption_row(
    words: Sequence[float | None], named: Sequence[bool], consensus: float, log_probability: float
) -> NDArray[np.float64]:
    """The features of a caption's support; words: the support of each token, named: whether it names an object."""
    logs = [float(np.log(max(word, 1e-6))) for word in words if word is not None]
    things = [
        float(np.log(max(word, 1e-6)))
        for word, is_object in zip(words, named, strict=True)
        if word is not None and is_object
    ]
    unsure = sum(word is not None and word < 0.5 for word in words)
    mean, least = (float(np.mean(logs)), min(logs)) if logs else (-1.0, -1.0)
    return np.array([1.0, mean, least, min(things, default=-0.5), float(unsure), consensus, log_probability])


def detections_of(regions: Regions, recipe: Recipe) -> dict[str, float]:
    """The best score of each class that was detected."""
    best: dict[str, float] = {}
    for label, score in zip(regions.labels.tolist(), regions.scores.tolist(), strict=True):
        if 0 <= label < len(recipe.classes):
            name = recipe.classes[label]
            best[name] = max(best.get(name, 0.0), float(score))
    return best


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(x, -50, 50))))


def log_odds(p: float) -> float:
    p = min(max(p, 1e-5), 1 - 1e-5)
    return float(np.log(p / (1 - p)))


# Before anything was fitted: a word is borne out as far as its probability says, a caption as far as its words are.
UNFITTED = {"word": [0.0, 1.0, -0.5, 0.0, 2.0], "caption": [2.0, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0]}


def open_judge(bank: str | Path | None) -> Judge | None:
    """The judge of the package, with this bank or the package's own; None where there is neither vision nor bank."""
    if bank is None or str(bank) == "none" or not (EYES / "words.json").is_file():
        return None
    own = EYES.parent.parent.parent / "weights" / "bank"
    folder = (own if own.is_dir() else None) if str(bank) == "shipped" else Path(bank)
    return Judge.open(EYES, folder)
