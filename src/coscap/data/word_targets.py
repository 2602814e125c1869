"""Which words a picture can show: the content words of captions, and which pictures have them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coscap.data.prepared import Prepared
from coscap.errors import UserError
from coscap.text.content import is_content

# A mirrored picture does not show these any more.
SIDED_WORDS = frozenset(
    "left right text writing written letters words word numbers number sign signs clock".split()
)


@dataclass(frozen=True)
class WordTargets:
    """The words of a list in the captions of some pictures."""

    words: tuple[str, ...]  # by falling number of training pictures
    images: NDArray[np.int64]  # (I,) indices into the prepared data set
    offsets: NDArray[np.int64]  # (I+1,) picture i has the words numbers[offsets[i] : offsets[i + 1]]
    numbers: NDArray[np.int32]

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, W) 1 where a caption of the picture at that place has the word"""
        rows = np.zeros((len(places), len(self.words)), np.float32)
        for row, place in enumerate(places.tolist()):
            rows[row, self.numbers[self.offsets[place] : self.offsets[place + 1]]] = 1
        return rows

    def frequencies(self) -> NDArray[np.float32]:
        """(W,) the share of the pictures that have each word"""
        counts = np.bincount(self.numbers, minlength=len(self.words))
        return (counts / max(1, len(self.images))).astype(np.float32)


def choose_words(data: Prepared, images: NDArray[np.int64], most: int) -> tuple[str, ...]:
    """The content words that most pictures have in their captions."""
    counts = Counter(token for image in images.tolist() for token in _tokens_of(data, image))
    tokens = data.vocabulary.units
    kept = [(count, token) for token, count in counts.items() if count >= 5 and is_content(tokens[token])]
    if not kept:
        raise UserError(
            f"{data.path}: no content word is in the captions of five pictures; give more captions."
        )
    kept.sort(key=lambda item: (-item[0], item[1]))
    return tuple(tokens[token] for _, token in kept[:most])


def word_targets(data: Prepared, images: NDArray[np.int64], words: Iterable[str]) -> WordTargets:
    words = tuple(words)
    place = {word: number for number, word in enumerate(words)}
    by_token = np.array([place.get(token, -1) for token in data.vocabulary.units], np.int32)
    rows = []
    for image in images.tolist():
        numbers = by_token[np.fromiter(_tokens_of(data, image), np.int64)]
        rows.append(np.sort(numbers[numbers >= 0]))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    numbers = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return WordTargets(words, images, offsets, numbers.astype(np.int32))


def _tokens_of(data: Prepared, image: int) -> set[int]:
    captions = data.captions_of(image)
    if not captions:
        return set()
    bounds = data.arrays["word_offsets"]
    return set(data.arrays["words"][int(bounds[captions.start]) : int(bounds[captions.stop])].tolist())


def pictures_in(
    data: Prepared, folder: Path, split: str, limit: int, seed: int
) -> tuple[NDArray[np.int64], list[Path]]:
    """The pictures of a split that are in the folder, at most `limit` drawn at random."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder of the data set's pictures.")
    there = {path.name: path for path in folder.iterdir()}
    by_id = {path.stem.split("_")[-1].lstrip("0"): path for path in there.values()}
    images, paths = [], []
    for image in data.images(split).tolist():
        path = there.get(Path(data.name(image)).name) or by_id.get(str(int(data.image_ids[image])))
        if path is not None and data.captions_of(image):
            images.append(image)
            paths.append(path)
    if not images:
        raise UserError(f"{folder} has none of the {split} pictures of {data.path}; check the folder.")
    if limit and limit < len(images):
        chosen = np.sort(np.random.default_rng(seed).permutation(len(images))[:limit])
        return np.array(images, np.int64)[chosen], [paths[at] for at in chosen.tolist()]
    return np.array(images, np.int64), paths
