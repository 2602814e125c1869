"""F1 of naming novel objects: do captions mention the object where the references do, and only there?

Whole words are compared, with plurals and synonyms. (Code in the field looks for substrings, so that
"minibus " counts as "bus"; this does not.) With several captions a picture, it is positive if *any* of the
first n mentions the object; n = 1 is the definition for one caption a picture. Labels come from the
references: any of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coscap.metrics.grams import Floats
from coscap.metrics.intervals import Statistics
from coscap.metrics.words import token_groups

HELD_OUT: Mapping[str, tuple[str, ...]] = {
    "bottle": ("bottle", "bottles"),
    "bus": ("bus", "buses", "busses"),
    "couch": ("couch", "couches", "sofa", "sofas"),
    "microwave": ("microwave", "microwaves"),
    "pizza": ("pizza", "pizzas"),
    "racket": ("racket", "rackets", "racquet", "racquets"),
    "suitcase": ("suitcase", "suitcases", "luggage", "luggages"),
    "zebra": ("zebra", "zebras"),
}


@dataclass(frozen=True)
class ObjectScores:
    """F1 in percent of each object for n = 1 .. S captions a picture; NaN where no reference names it."""

    objects: tuple[str, ...]
    f1: Floats  # (O, S)
    found: NDArray[np.bool_]  # (O, I, S) whether any of the first n captions names the object
    labels: NDArray[np.bool_]  # (O, I)

    @property
    def average(self) -> Floats:
        """Mean over the objects that the references name, (S,)."""
        named = self.f1[~np.isnan(self.f1[:, 0])]
        return named.mean(axis=0) if len(named) else np.full(self.f1.shape[1], np.nan)

    def statistics(self, n: int, name: str | None = None) -> Statistics:
        """F1 of one object, or the average, by any of the first n captions."""
        chosen = range(len(self.objects)) if name is None else [self.objects.index(name)]
        rows = [
            [self.found[o, :, n - 1] & self.labels[o], self.found[o, :, n - 1], self.labels[o]]
            for o in chosen
        ]
        terms = np.array(rows, np.float64)  # (O, 3, I)

        def finish(sums: Floats) -> Floats:
            hits, found, labelled = np.moveaxis(
                sums.reshape(len(terms), 3, *sums.shape[1:]), 1, 0
            )  # (O, ...)
            named = labelled > 0
            f1 = np.where(named, 200.0 * hits / np.where(named, found + labelled, 1), 0)
            objects = named.sum(axis=0)
            return np.asarray(f1.sum(axis=0) / np.where(objects == 0, np.nan, objects))

        return Statistics(terms.reshape(3 * len(terms), -1), finish)

    @property
    def missing(self) -> tuple[str, ...]:
        """Objects that no reference names."""
        return tuple(name for name, row in zip(self.objects, self.f1, strict=True) if np.isnan(row[0]))


def object_f1(
    pictures: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    objects: Mapping[str, Collection[str]] = HELD_OUT,
    *,
    tokenised: bool = False,
) -> ObjectScores:
    """F1 of each object over captions, for every number of captions a picture at once.

    `objects` maps an object to all its words; a term of several words ("fire hydrant") is matched as a whole.
    """
    pictures, references = token_groups(pictures, tokenised), token_groups(references, tokenised)
    most = max(map(len, pictures))
    found = np.zeros((len(objects), len(pictures), most), bool)  # (O, I, S)
    labels = np.zeros((len(objects), len(pictures)), bool)
    for number, words in enumerate(objects.values()):
        for picture, captions in enumerate(pictures):
            labels[number, picture] = _mentions(references[picture], words).any()
            found[number, picture, : len(captions)] = _mentions(captions, words)
    found = np.logical_or.accumulate(found, axis=2)  # any of the first n
    f1 = np.array([_f1(each, label[:, None]) for each, label in zip(found, labels, strict=True)])
    return ObjectScores(tuple(objects), f1, found, labels)


def _mentions(captions: Sequence[str], words: Collection[str]) -> NDArray[np.bool_]:
    terms = [f" {word} " for word in words]
    spaced = [f" {caption} " for caption in captions]
    return np.array([any(term in caption for term in terms) for caption in spaced], bool)


def _f1(found: NDArray[np.bool_], labels: NDArray[np.bool_]) -> Floats:
    """F1 in percent: 2 hits / (found + labelled)."""
    if not labels.any():
        return np.full(found.shape[1], np.nan)
    hits = (found & labels).sum(axis=0)
    return np.asarray(200.0 * hits / (found.sum(axis=0) + labels.sum()), np.float64)
