"""Word vectors: what a text's counts say (positive pointwise mutual information, its largest directions), or a file.

They say which words are used alike, so that one that no picture was captioned with can do as another does.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coscap.data.sentences import Sentences
from coscap.errors import UserError
from coscap.files import read_text
from coscap.text.vocabulary import SPECIAL, Vocabulary

Vectors = NDArray[np.float32]  # (V, D), zeros for words without a vector
CONTEXTS = 2000  # the commonest words are what a word is counted beside
WINDOW = 4


def counted_vectors(texts: list[Sentences], vocabulary: int, width: int) -> Vectors:
    """(V, width) vectors of length 1 from how often words stand at most WINDOW words from each other."""
    frequency = np.sum([np.bincount(text.words, minlength=vocabulary) for text in texts], axis=0)
    frequency[: len(SPECIAL)] = 0
    beside = np.argsort(-frequency, kind="stable")[: min(CONTEXTS, vocabulary)]
    place = np.full(vocabulary, -1)
    place[beside] = np.arange(len(beside))
    counts = np.zeros(vocabulary * len(beside), np.float32)
    for text in texts:
        sentence = np.repeat(np.arange(len(text)), np.diff(text.offsets))
        for distance in range(1, WINDOW + 1):
            near = sentence[distance:] == sentence[:-distance]
            one, other = text.words[:-distance][near], text.words[distance:][near]
            for word, context in ((one, other), (other, one)):
                known = (place[context] >= 0) & (word >= len(SPECIAL))
                pairs = word[known].astype(np.int64) * len(beside) + place[context[known]]
                found, times = np.unique(pairs, return_counts=True)
                counts[found] += times
    table = counts.reshape(vocabulary, len(beside))
    return _directions(_mutual_information(table), width)


def _mutual_information(table: Vectors) -> Vectors:
    """max(0, log p(word, context) / p(word) p(context)); the contexts' probabilities to the power of 3/4"""
    rows, columns = table.sum(1, keepdims=True), table.sum(0, keepdims=True) ** 0.75
    expected = rows * columns / max(1e-12, float(columns.sum()))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(table / expected)
    return np.where((table > 0) & (found > 0), found, 0).astype(np.float32)


def _directions(table: Vectors, width: int) -> Vectors:
    """The rows in their `width` largest directions, scaled to length 1."""
    values, vectors = np.linalg.eigh((table.T @ table).astype(np.float64))
    kept = np.argsort(-values)[:width]
    reduced = (
        table @ vectors[:, kept] * np.maximum(values[kept], 1e-12) ** -0.25
    )  # singular values to the power 1/2
    if reduced.shape[1] < width:
        reduced = np.pad(reduced, ((0, 0), (0, width - reduced.shape[1])))
    length = np.linalg.norm(reduced, axis=1, keepdims=True)
    scaled = np.divide(reduced, length, out=np.zeros_like(reduced), where=length > 1e-9)
    return np.asarray(scaled, np.float32)


def read_vectors(path: str | Path, vocabulary: Vocabulary) -> Vectors:
    """The vectors of a text file (a word and its numbers a line, as GloVe's), of length 1; a name of several words has
    the mean of theirs."""
    wanted = {word for unit in vocabulary.units[len(SPECIAL) :] for word in unit.split()}
    found: dict[str, NDArray[np.float32]] = {}
    for line in read_text(Path(path)).splitlines():
        word, _, rest = line.partition(" ")
        if word in wanted:
            try:
                found[word] = np.array(rest.split(), np.float32)
            except ValueError:
                raise UserError(f"{path}: the line of {word!r} holds no numbers after the word.") from None
    widths = {len(each) for each in found.values()}
    if len(widths) != 1:
        raise UserError(f"{path} must hold vectors of one width for words of the vocabulary, a word a line.")
    table = np.zeros((len(vocabulary), widths.pop()), np.float32)
    for number, unit in enumerate(vocabulary.units[len(SPECIAL) :], start=len(SPECIAL)):
        parts = [found[word] for word in unit.split() if word in found]
        if len(parts) == len(unit.split()):
            mean = np.mean(parts, axis=0)
            table[number] = mean / max(1e-9, float(np.linalg.norm(mean)))
    return table


def nearest(vectors: Vectors, word: int, among: NDArray[np.int64]) -> int | None:
    """The one of `among` whose vector is nearest to that of a word; None where the word has none."""
    if not vectors[word].any() or not len(among):
        return None
    return int(among[int(np.argmax(vectors[among] @ vectors[word]))])
