"""Part-of-speech templates of captions: a tag for every token of the vocabulary, and k-medoids over sequences of tags.

training captions ─▶ tagger ─▶ the commonest tag of each token ─▶ sequences of tags ─▶ k-medoids ─▶ K templates

The tagger reads captions in context, but a token keeps one tag, the one that it has most often. So a caption's template
follows from its tokens alone, and a trained model needs no tagger.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from coscap.data import Prepared
from coscap.errors import UserError
from coscap.text.vocabulary import SPECIAL

TAGS = ("", "noun", "verb", "adjective", "adverb", "pronoun", "determiner", "adposition", "number", "conjunction",
        "particle", "other")  # fmt: skip
LENGTH = 20  # tags of a template; shorter captions are padded with tag 0, longer ones cut
TAGGED = 50_000  # captions that are tagged in context: half a minute
BLOCK = 4096  # sequences that are compared with all medoids at once

_OF_PENN = {
    "NN": 1, "VB": 2, "MD": 2, "JJ": 3, "RB": 4, "WRB": 4, "PRP": 5, "WP": 5, "EX": 5, "DT": 6, "PDT": 6, "WDT": 6,
    "PRP$": 6, "WP$": 6, "IN": 7, "CD": 8, "CC": 9, "RP": 10, "TO": 10, "POS": 10,
}  # fmt: skip

Tagger = Callable[[Sequence[str]], list[int]]
Sequences = NDArray[np.uint8]  # (S, LENGTH)


def load_tagger() -> Tagger:
    """TextBlob's tagger: rules and a lexicon, which are inside the package."""
    try:
        from textblob.en import tag
    except ImportError:
        raise UserError("a pos model needs a part-of-speech tagger: pip install 'coscap[pos]'.") from None

    def tagger(words: Sequence[str]) -> list[int]:
        found = [coarse(each) for _, each in tag(" ".join(words), tokenize=False)]
        if len(found) == len(words):
            return found
        return [tagger([word])[0] for word in words] if len(words) > 1 else found[:1] or [TAGS.index("other")]

    return tagger


def coarse(penn: str) -> int:
    """The number in TAGS of a tag of the Penn Treebank."""
    found = _OF_PENN.get(penn)
    return found if found is not None else _OF_PENN.get(penn[:2], TAGS.index("other"))


def token_tags(prepared: Prepared, tagger: Tagger) -> NDArray[np.int64]:
    """(V,) the commonest tag of each token among training captions; 0 for tokens that are no words."""
    units = prepared.vocabulary.units
    captions = prepared.trainable("train")
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    for caption in captions[:: max(1, -(-len(captions) // TAGGED))].tolist():
        numbers = prepared.words(caption).tolist()
        parts = [units[number].split() for number in numbers]  # a unit may have several words
        tags = iter(tagger([word for part in parts for word in part]))
        for number, part in zip(numbers, parts, strict=True):
            *_, last = (next(tags) for _ in part)  # "fire hydrant" is what "hydrant" is
            seen[number][last] += 1
    table = np.zeros(len(units), np.int64)
    for number in range(len(SPECIAL), len(units)):
        counts = seen.get(number)
        table[number] = (
            counts.most_common(1)[0][0] if counts else tagger(units[number].split())[-1]
        )  # of equal counts the one seen first
    return table


def tag_sequences(prepared: Prepared, tags: NDArray[np.int64]) -> tuple[Sequences, NDArray[np.int64]]:
    """The different sequences of tags of the training captions, (S, LENGTH), and how often each occurs, (S,)."""
    captions = prepared.trainable("train")
    found = np.zeros((len(captions), LENGTH), np.uint8)
    for row, caption in zip(found, captions.tolist(), strict=True):
        here = tags[prepared.words(caption)[:LENGTH]]
        row[: len(here)] = here
    different, counts = np.unique(found, axis=0, return_counts=True)
    return different, counts


def k_medoids(sequences: Sequences, counts: NDArray[np.int64], k: int, rounds: int = 20) -> Sequences:
    """K of the sequences from which all are as few tags away as alternating finds, beginning with the commonest.

    Each round gives every sequence to its nearest medoid, then takes as medoid the member that is nearest to all
    others. A distance is a number of places (Hamming), so that the sum of distances to a group follows from how often
    each tag has each place, without comparing the members with each other.
    """
    if len(sequences) < k:
        raise UserError(
            f"field model.templates is {k}, and the training captions have only {len(sequences)} different "
            f"sequences of parts of speech; set it to at most {len(sequences)}."
        )
    medoids = np.sort(np.argsort(-counts, kind="stable")[:k])
    for _ in range(rounds):
        nearest = nearest_medoid(sequences, sequences[medoids])
        moved = np.array([_medoid(sequences, counts, np.flatnonzero(nearest == each)) for each in range(k)])
        if np.array_equal(moved, medoids):
            break
        medoids = moved
    return sequences[medoids]


def nearest_medoid(sequences: Sequences, medoids: Sequences) -> NDArray[np.int64]:
    """(S,) the medoid with the fewest differing places, the first of equal ones."""
    inputs = _one_hot(medoids).T.copy()  # (LENGTH * tags, K)
    blocks = [sequences[start : start + BLOCK] for start in range(0, len(sequences), BLOCK)]
    return np.concatenate([(_one_hot(block) @ inputs).argmax(axis=1) for block in blocks])


def _medoid(sequences: Sequences, counts: NDArray[np.int64], members: NDArray[np.int64]) -> int:
    """The member with the smallest weighted sum of distances to all members; the first of equal ones."""
    group, weights = sequences[members], counts[members]
    alike = np.zeros(len(members))
    for place in range(group.shape[1]):
        column = group[:, place]
        alike += np.bincount(column, weights, len(TAGS))[column]  # weight of those with the same tag here
    return int(members[alike.argmax()])


def _one_hot(sequences: Sequences) -> NDArray[np.float32]:
    same: NDArray[np.bool_] = sequences[:, :, None] == np.arange(len(TAGS))  # (S, LENGTH, tags)
    return same.reshape(len(sequences), -1).astype(np.float32)
