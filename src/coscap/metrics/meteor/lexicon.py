"""The words of the captions at hand: one number each, with stem, synonym sets and whether it is a function word."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coscap.metrics.meteor.tables import Tables

Array = np.ndarray[Any, Any]

# Regular endings, tried in this order until a base form is in WordNet. Irregular forms have their own table.
_ENDINGS = (
    ("s", ""),
    ("ies", "y"),
    ("es", ""),
    ("men", "man"),
    ("ed", "e"),
    ("ed", ""),
    ("ing", "e"),
    ("ing", ""),
    ("er", ""),
    ("er", "e"),
    ("est", ""),
    ("est", "e"),
)


@dataclass(frozen=True)
class WordArrays:
    """What the compiled aligner knows of each word."""

    number: Array  # (V,) in the tables, -1 where unknown
    stem: Array  # (V,)
    function: Array  # (V,) bool
    synset_start: Array  # (V + 1,)
    synsets: Array  # sorted for each word
    signature: Array  # (V,) one bit a synset: words whose bits do not meet share none


class Lexicon:
    """Grows with the captions; words keep their numbers."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._stem_of: Callable[[str], str] | None = None  # nltk takes a second to import: when it is needed
        self._place: dict[str, int] = {}
        self._stems: dict[str, int] = {}
        self._number: list[int] = []
        self._stem: list[int] = []
        self._function: list[bool] = []
        self._synsets: list[Array] = []
        self._arrays: WordArrays | None = None

    def add(self, words: Iterable[str]) -> dict[str, int]:
        """Take in new words; returns the number of every word so far."""
        new = [word for word in dict.fromkeys(words) if word not in self._place]
        if new:
            stem = self._stem_of = self._stem_of or _stemmer()
            self._number += self._tables.find(new).tolist()
            self._synsets += _synsets(new, self._tables)
            for word in new:
                self._place[word] = len(self._place)
                self._stem.append(self._stems.setdefault(stem(word), len(self._stems)))
                self._function.append(word in self._tables.function_words)
            self._arrays = None
        return self._place

    def arrays(self) -> WordArrays:
        if self._arrays is None:
            sizes = [len(each) for each in self._synsets]
            synsets = np.concatenate([np.zeros(0, np.int32), *self._synsets]).astype(np.int32)
            owner = np.repeat(np.arange(len(sizes)), sizes)
            signature = np.zeros(len(sizes), np.uint64)
            np.bitwise_or.at(signature, owner, np.uint64(1) << (synsets % 61).astype(np.uint64))
            self._arrays = WordArrays(
                number=np.array(self._number, np.int64),
                stem=np.array(self._stem, np.int64),
                function=np.array(self._function, bool),
                synset_start=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
                synsets=synsets,
                signature=signature,
            )
        return self._arrays


def _stemmer() -> Callable[[str], str]:
    from nltk.stem.snowball import SnowballStemmer

    stem: Callable[[str], str] = SnowballStemmer("english").stem
    return stem


def _synsets(words: list[str], tables: Tables) -> list[Array]:
    """The synonym sets of each word and of its base forms."""
    candidates = [[word, *_base_forms(word)] for word in words]
    found = iter(tables.find([form for forms in candidates for form in forms]).tolist())
    out = []
    for forms in candidates:
        word, *bases = (next(found) for _ in forms)
        chosen = [word] if word >= 0 else []
        irregular = tables.bases[tables.base_start[word] : tables.base_start[word + 1]] if word >= 0 else ()
        if len(irregular):
            chosen += [int(base) for base in irregular]
        else:
            chosen += [base for base in bases if base >= 0 and _has_synsets(base, tables)][:1]
        sets = [tables.synsets[tables.synset_start[each] : tables.synset_start[each + 1]] for each in chosen]
        out.append(np.unique(np.concatenate([np.zeros(0, np.int32), *sets])))
    return out


def _has_synsets(word: int, tables: Tables) -> bool:
    return bool(tables.synset_start[word + 1] > tables.synset_start[word])


def _base_forms(word: str) -> list[str]:
    if len(word) < 3 or word.endswith("ss"):
        return []
    return [word[: -len(old)] + new for old, new in _ENDINGS if word.endswith(old)]
