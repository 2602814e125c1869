"""Which training pictures go into a bank: those that together cover the scenes best; where others stand in it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coscap.contexts.bank import Bank, write_bank
from coscap.contexts.phrases import Seen, places, probable
from coscap.data.prepared import Prepared
from coscap.data.word_targets import pictures_in
from coscap.errors import UserError
from coscap.progress import bar, track
from coscap.vision.builtin import BATCH
from coscap.vision.pictures import open_picture
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.store import RegionStore
from coscap.vision.tags import Tagger


def whole_picture(regions: Regions) -> NDArray[np.float32]:
    """(F,) one vector for the picture: the mean of its grid, or of all regions where it has none."""
    cells = np.asarray(regions.labels) == GRID_LABEL
    rows = np.asarray(regions.features[cells] if cells.any() else regions.features, np.float32)
    mean = rows.mean(axis=0) if len(rows) else np.zeros(regions.features.shape[1], np.float32)
    vector: NDArray[np.float32] = mean / max(float(np.sqrt(mean @ mean)), 1e-9)
    return vector


def bank_of_regions(
    data: Prepared, store: RegionStore, out: Path, *, pictures: int, dimensions: int = 128, seed: int = 0
) -> Bank:
    """A bank of at most `pictures` training pictures, which no validation or test picture is among."""
    images = [
        image
        for image in data.images("train").tolist()
        if int(data.image_ids[image]) in store and data.captions_of(image)
    ]
    if not images:
        raise UserError(f"{store.path} has no regions of training pictures of {data.path}.")
    seen = seen_of(
        (store.get(int(data.image_ids[image])) for image in track(images, "pictures")), store.recipe
    )
    chosen = cover(seen.vectors, pictures, seed)
    return _write(data, images, seen, chosen, out, dimensions, store.recipe.name)


def bank_of_pictures(
    data: Prepared, folder: Path, out: Path, *, pictures: int, dimensions: int = 128, seed: int = 0
) -> Bank:
    """The same from the picture files, as the package's tuned vision sees them; drawn at random among the training
    pictures that are in the folder."""
    images, paths = pictures_in(data, folder, "train", pictures, seed)
    tagger = Tagger()
    vectors, words = [], []
    with bar("pictures", len(paths), "pictures") as advance:
        for first in range(0, len(paths), BATCH):
            here = [open_picture(path, least_side=tagger.least_side) for path in paths[first : first + BATCH]]
            for evidence in tagger.look(here):
                vectors.append(evidence.vector)
                words.append(probable(tagger.reader.probabilities(evidence.words)))
            advance(len(here))
    none = np.zeros((len(vectors), 0), np.float32)
    seen = Seen(np.stack(vectors), none, np.stack(words), ())
    return _write(data, images.tolist(), seen, np.arange(len(vectors)), out, dimensions, "tuned map")


def seen_of(pictures: Iterable[Regions], recipe: Recipe) -> Seen:
    """What a store has of pictures: of each one its vector, the best score of each class, its words' probabilities."""
    classes, words = len(recipe.classes), len(recipe.words)
    vectors, found = [], []
    for regions in pictures:
        vectors.append(whole_picture(regions))
        labels = np.asarray(regions.labels, np.int64)
        named = (labels >= 0) & (labels < classes + words)
        row = np.zeros(classes + words, np.float32)
        np.maximum.at(row, labels[named], np.asarray(regions.scores, np.float32)[named])
        found.append(row)
    scores = np.stack(found)
    return Seen(np.stack(vectors), scores[:, :classes], scores[:, classes:], tuple(recipe.classes))


def places_of(
    bank: Bank,
    pictures: Iterable[Regions],
    recipe: Recipe,
    captions: Sequence[Sequence[Sequence[str]]] | None = None,
) -> NDArray[np.float32]:
    """Unit vectors (N, K) of pictures, near each other where people would write alike by the phrases of a bank.
    captions: those of each as words, where they are known."""
    if bank.phrases is None:
        raise UserError(
            f"{bank.path} has learnt no phrases; make a bank of more pictures with `coscap bank`."
        )
    found = places(bank, bank.phrases, seen_of(pictures, recipe), captions)
    lengths = np.sqrt(np.square(found).sum(axis=1, keepdims=True))
    found /= np.maximum(lengths, 1e-9)
    return found


def _write(
    data: Prepared,
    images: list[int],
    seen: Seen,
    chosen: NDArray[np.int64],
    out: Path,
    dimensions: int,
    recipe: str,
) -> Bank:
    """A bank of the chosen pictures; phrases are learnt from all."""
    captions = [[data.units(caption) for caption in data.captions_of(image)] for image in images]
    return write_bank(
        out,
        seen.vectors[chosen],
        [captions[at] for at in chosen.tolist()],
        dimensions=dimensions,
        notes={"data": data.digest, "recipe": recipe},
        seen=seen.of(chosen),
        learn_from=(seen, captions),
    )


def cover(features: NDArray[np.float32], count: int, seed: int = 0) -> NDArray[np.int64]:
    """`count` rows that cover all: of each of many small groups of alike rows, as large a share as of any other.

    Groups are the cells of random cuts (signs of random projections), so that crowded scenes give as much as they
    have and rare ones are not left out.
    """
    if count >= len(features):
        return np.arange(len(features))
    random = np.random.default_rng(seed)
    cuts = random.normal(size=(features.shape[1], 12)).astype(np.float32)
    centred = features - features.mean(axis=0)
    cells = ((centred @ cuts > 0) * (1 << np.arange(12))).sum(axis=1)  # (N,)
    order = random.permutation(len(features))
    order = order[np.argsort(cells[order], kind="stable")]
    steps = np.linspace(0, len(features) - 1, count).round().astype(np.int64)
    return np.sort(order[np.unique(steps)])
