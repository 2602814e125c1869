"""How far a picture bears a caption out: what the tuned vision sees of its words, what people said of similar pictures,
and how many of the captions drawn say the same.

    picture ─▶ map ─┬─▶ words with probabilities ───────────────────────┐
                    └─▶ phrases that people would write ─┐              │
                            └─▶ nearest pictures of the bank ─┬─▶ words ─┼─▶ support of each word ─▶ of the caption
                                                         │    ├─▶ consensus
    captions drawn ──────────────────────────────────────┴────┴─▶ expected · words ─┘

A caption's support is the probability that it names no object that is not there, gives no wrong number, and has at most
one other content word that is wrong, as if its words were right or wrong independently. It is calibrated: of the
captions with 0.8, eight in ten are true by what five people wrote (docs/support.md says how "true" is decided there,
and how it was fitted).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.contexts.bank import Bank, NeighbourCaptions
from coscap.contexts.grams import CaptionVectors
from coscap.contexts.phrases import ExpectedPhrases
from coscap.contexts.word_support import (
    WORD_FEATURES,
    WordFeatures,
    WordGroups,
    calibrated,
    probably_true,
)
from coscap.errors import UserError
from coscap.files import read_json, sha256
from coscap.text.faults import faults
from coscap.text.numbers import with_counted
from coscap.text.objects import ObjectClasses
from coscap.vision.builtin import EYES
from coscap.vision.regions import Recipe, Regions
from coscap.vision.tags import Tagger
from coscap.vision.words import Evidence, WordReader

WORTH = ("likelihood", "consensus", "expected", "support", "objects")


@dataclass(frozen=True)
class Judgement:
    """One caption of one picture."""

    support: float  # 0..1, how likely it is that the caption is true
    objects: float  # 0..1, how likely it is that all objects that it names are there
    words: tuple[float | None, ...]  # of each token; None for a token that says nothing about what is seen
    consensus: float  # agreement with captions of similar pictures, CIDEr-D
    expected: float  # agreement with what people would write, by what is seen
    faults: tuple[str, ...]  # what is wrong by the words alone


@dataclass(frozen=True)
class Selection:
    """What makes a caption worth showing."""

    worth: tuple[float, ...]  # factors of WORTH, the first three being mapped to 0..1 over the captions
    floors: tuple[
        float, float
    ]  # of support, and of the chance that all objects are there: `coscap.pool.tier`

    @classmethod
    def of(cls, content: Any) -> "Selection":
        return cls(
            tuple(float(content["worth"][name]) for name in WORTH),
            (float(content["floors"]["support"]), float(content["floors"]["objects"])),
        )

    def json(self) -> dict[str, Any]:
        return {
            "worth": dict(zip(WORTH, self.worth, strict=True)),
            "floors": {"support": self.floors[0], "objects": self.floors[1]},
        }


@dataclass(frozen=True)
class SupportWeights:
    """What scripts/fit_support.py fits: how evidence makes support, and what makes a caption worth showing."""

    word: tuple[float, ...]  # of WORD_FEATURES: the log-odds that a word is right
    caption: tuple[float, float, float]  # of `calibrated`: how the words' chances make the caption's
    shown: Selection  # of several captions
    accurate: Selection  # of `--accurate`
    enough: tuple[float, float]  # floors for a photograph not to be drawn again

    @classmethod
    def read(cls, path: Path) -> "SupportWeights":
        content: Any = read_json(path)
        try:
            found = cls(
                tuple(float(content["word"][name]) for name in WORD_FEATURES),
                (
                    float(content["caption"]["shift"]),
                    float(content["caption"]["right"]),
                    float(content["caption"]["wrong"]),
                ),
                Selection.of(content["shown"]),
                Selection.of(content["accurate"]),
                (float(content["enough"]["support"]), float(content["enough"]["objects"])),
            )
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{path}: the weights of support do not fit this version; install coscap again, or fit them again "
                "(scripts/fit_support.py)."
            ) from None
        return found

    def json(self) -> dict[str, Any]:
        return {
            "word": dict(zip(WORD_FEATURES, self.word, strict=True)),
            "caption": dict(zip(("shift", "right", "wrong"), self.caption, strict=True)),
            "shown": self.shown.json(),
            "accurate": self.accurate.json(),
            "enough": {"support": self.enough[0], "objects": self.enough[1]},
        }


# Before anything was fitted: a word is borne out as far as its probability says, a caption as far as its words are.
UNFITTED = SupportWeights(
    word=(0.0, 1.0, -0.5, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.5),
    caption=(0.0, 1.0, 1.0),
    shown=Selection((0.0, 0.5, 1.0, 0.5, 0.0), (0.15, 0.6)),
    accurate=Selection((0.0, 0.5, 1.0, 0.25, 0.0), (0.1, 0.5)),
    enough=(0.15, 0.6),
)


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a picture before any caption of it."""

    probabilities: NDArray[np.float32]  # (W,) of the words of the eyes
    detected: Mapping[str, Sequence[float]]  # the scores of each class in it
    similar: NeighbourCaptions | None  # what people wrote about similar pictures
    phrases: ExpectedPhrases | None  # what they would write about this one
    # Of each caption that was asked about: more are drawn for a picture, and all are asked about again.
    agreed: dict[tuple[str, ...], tuple[float, float]] = field(default_factory=dict, repr=False)


class Judge:
    """Judges captions by pictures. Without a bank, consensus and what is expected are 0 for all."""

    def __init__(self, tagger: Tagger, weights: SupportWeights, bank: Bank | None = None) -> None:
        self.tagger, self.weights, self.bank = tagger, weights, bank
        self._groups: WordGroups | None = None

    @classmethod
    def open(
        cls, folder: Path, bank: Path | None, weights: SupportWeights | None = None, threads: int = 1
    ) -> "Judge":
        """Vision in `folder`, with the weights of support there if no others are given; a bank in another."""
        file = folder / "support.json"
        if weights is None:
            weights = SupportWeights.read(file) if file.is_file() else UNFITTED
        return cls(Tagger(folder, threads), weights, None if bank is None else Bank.open(bank))

    @cached_property
    def digest(self) -> str:
        """Names vision, weights and bank: all that judgements depend on besides the picture."""
        parts = (self.tagger.digest, self.weights, self._bank_digest())
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _bank_digest(self) -> str:
        return "" if self.bank is None else sha256(self.bank.path / "bank.json")

    @property
    def reader(self) -> WordReader:
        return self.tagger.reader

    def judge(
        self,
        captions: Sequence[Sequence[str]],
        evidence: Evidence,
        objects: ObjectClasses,
        detected: Mapping[str, Sequence[float]],
    ) -> list[Judgement]:
        """All captions that were drawn for a picture, as tokens; detected: the scores of each class in it."""
        return self.judge_known(captions, self.known(evidence, detected), objects)

    def known(self, evidence: Evidence, detected: Mapping[str, Sequence[float]]) -> Known:
        """What the eyes see of a picture, and what the bank says of what they see."""
        return self.known_of(evidence.vector, self.reader.probabilities(evidence.words), detected)

    def known_of(
        self,
        vector: NDArray[np.float32],
        probabilities: NDArray[np.float32],
        detected: Mapping[str, Sequence[float]],
    ) -> Known:
        """The same where the probability of each word was kept instead of its evidence."""
        bank = self.bank
        if bank is None:
            return Known(probabilities, detected, None, None)
        phrases = None if bank.phrases is None else bank.phrases.expected(vector, detected, probabilities)
        near = bank.nearest((vector if phrases is None else phrases.place)[None])
        similar = bank.neighbour_captions(near[0])
        return Known(probabilities, detected, similar, phrases)

    def judge_known(
        self, captions: Sequence[Sequence[str]], known: Known, objects: ObjectClasses
    ) -> list[Judgement]:
        """The same with what is known of the picture."""
        consensus, expected = self.agreement(captions, known)
        features = self.features(captions, known, objects)
        weights = np.array(self.weights.word)
        judged = []
        met: dict[tuple[str, str | None], float | None] = {}  # the support of each token
        for tokens, agreed, usual in zip(captions, consensus, expected, strict=True):
            here = with_counted(tokens, objects.class_of)
            for each in here:
                if each not in met:
                    row = features.row(*each)
                    met[each] = None if row is None else sigmoid(float(weights @ row))
            words = [met[each] for each in here]
            true, there = probably_true(tokens, words, objects)
            support = calibrated(true, self.weights.caption)
            wrong = _faults(tuple(tokens), objects)
            judged.append(Judgement(support, there, tuple(words), agreed, usual, wrong))
        return judged

    def agreement(self, captions: Sequence[Sequence[str]], known: Known) -> tuple[list[float], list[float]]:
        """Of each caption, how well it agrees with what was written about similar pictures, and with what would be
        about this one."""
        if self.bank is None or known.similar is None:
            return [0.0] * len(captions), [0.0] * len(captions)
        keys = [tuple(caption) for caption in captions]
        new = [key for key in dict.fromkeys(keys) if key not in known.agreed]
        if new:
            vectors = CaptionVectors.of(self.bank, new)
            consensus = known.similar.consensus(vectors)
            expected = np.zeros(len(new)) if known.phrases is None else known.phrases.agreement(vectors)
            known.agreed.update(
                zip(new, zip(consensus.tolist(), expected.tolist(), strict=True), strict=True)
            )
        return [known.agreed[key][0] for key in keys], [known.agreed[key][1] for key in keys]

    def features(
        self, captions: Sequence[Sequence[str]], known: Known, objects: ObjectClasses
    ) -> WordFeatures:
        """What is known of words in a picture."""
        if self._groups is None or self._groups.objects is not objects:
            self._groups = WordGroups.of(self.reader, objects, self.bank)
        frequencies = self.reader.frequencies
        return WordFeatures(
            self._groups, captions, known.probabilities, frequencies, known.similar, known.detected
        )


@lru_cache(maxsize=10_000)
def _faults(tokens: tuple[str, ...], objects: ObjectClasses) -> tuple[str, ...]:
    return tuple(faults(tokens, objects))


def detected_scores(regions: Regions, recipe: Recipe) -> dict[str, list[float]]:
    """The scores of each class that was detected."""
    scores: dict[str, list[float]] = {}
    for label, score in zip(regions.labels.tolist(), regions.scores.tolist(), strict=True):
        if 0 <= label < len(recipe.classes):
            scores.setdefault(recipe.classes[label], []).append(float(score))
    return scores


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-min(max(x, -50.0), 50.0)))


def open_judge(bank: str | Path | None, weights: SupportWeights | None = None) -> Judge | None:
    """The judge of the package, with this bank or the package's own; None where there is neither vision nor bank."""
    if bank is None or str(bank) == "none" or not (EYES / "words.json").is_file():
        return None
    return Judge.open(EYES, bank_folder(bank), weights)


def bank_folder(bank: str | Path | None) -> Path | None:
    """The folder of a bank: `shipped` is that of the package, if it has one."""
    if str(bank) != "shipped":
        return None if bank is None else Path(bank)
    own = EYES.parent.parent.parent / "weights" / "bank"
    return own if own.is_dir() else None
