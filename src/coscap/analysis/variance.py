"""How much of the captions' variance each latent explains.

With the picture fixed, a greedy caption is a function f(e^m, e^o) of two independent noises. Its variance falls into
three parts that add up (Hoeffding, Sobol):

    Var f = Var_m[E_o f]  +  Var_o[E_m f]  +  rest
            z^m alone        z^o alone        both together

f is a vector that stands for the caption, and Var is the sum over its components. K noises e^m times K noises e^o are
written in full for each picture, so the parts are those of a two-way layout with one observation a cell, estimated
without bias from mean squares. Between pictures there is a fourth part: what the picture itself decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.analysis.steer import CONTEXT, OBJECTS, Writer
from coscap.data.batch import RegionBatch
from coscap.metrics.grams import Grams, document_frequency, flat, inverse_frequency
from coscap.seam import Caption
from coscap.text import ObjectClasses, split

Floats = NDArray[np.float64]
PARTS = ("context", "objects", "both")  # z^m alone, z^o alone, only together


@dataclass(frozen=True)
class Table:
    """What stands for the K x K captions of one picture, in those columns that its captions have at all."""

    columns: NDArray[np.int64]  # (D,) numbers that mean the same for every picture
    values: Floats  # (K, K, D)


@dataclass(frozen=True)
class Shares:
    """Shares of a variance with 95 % intervals (bootstrap over pictures)."""

    within: dict[
        str, tuple[float, float, float]
    ]  # PARTS: share, low, high; of the variance at a fixed picture
    picture: tuple[float, float, float]  # of the whole variance: what the picture decides


def write_grid(writer: Writer, regions: RegionBatch, count: int, seed: int) -> list[list[Caption]]:
    """K x K captions of each picture, row-major: noise i of z^m with noise j of z^o at i * K + j."""
    context = writer.noise(regions, count, CONTEXT, seed).repeat_interleave(count, dim=1)  # (P, K K, T, Zm)
    objects = writer.noise(regions, count, OBJECTS, seed).repeat(1, count, 1, 1)
    return writer.steered(regions, context, objects)


def two_way(table: Floats) -> Floats:
    """Variance of each part at one picture, (3,) in the order of PARTS; table: (K, K, D)."""
    count = len(table)
    rows, columns = table.mean(axis=1), table.mean(axis=0)  # (K, D)
    grand = rows.mean(axis=0)
    of_rows = count * ((rows - grand) ** 2).sum() / (count - 1)
    of_columns = count * ((columns - grand) ** 2).sum() / (count - 1)
    rest = table - rows[:, None] - columns[None, :] + grand
    of_rest = (rest**2).sum() / (count - 1) ** 2
    return np.array([(of_rows - of_rest) / count, (of_columns - of_rest) / count, of_rest])


def shares(tables: Sequence[Table], seed: int = 0, rounds: int = 2000) -> Shares:
    """Of many pictures."""
    parts = np.array([two_way(table.values) for table in tables])  # (P, 3)
    means = np.zeros((len(tables), 1 + max(int(table.columns.max(initial=0)) for table in tables)))
    for mean, table in zip(means, tables, strict=True):
        mean[table.columns] = table.values.mean(axis=(0, 1))
    products = means @ means.T  # (P, P), so that the bootstrap needs no columns
    count = len(tables[0].values)
    chance = np.random.default_rng(seed)
    drawn = [chance.integers(0, len(parts), len(parts)) for _ in range(rounds)]
    found = np.array([_shares(parts[which], products[np.ix_(which, which)], count) for which in drawn])
    low, high = np.percentile(found, (2.5, 97.5), axis=0)
    values = _shares(parts, products, count)
    triples = [(float(a), float(b), float(c)) for a, b, c in zip(values, low, high, strict=True)]
    return Shares(dict(zip(PARTS, triples[:3], strict=True)), triples[3])


def _shares(parts: Floats, products: Floats, count: int) -> Floats:
    """Shares of the three parts at a fixed picture, and of the picture in the whole."""
    mean = parts.mean(axis=0)  # (3,)
    pictures = len(products)
    between = (np.trace(products) - products.sum() / pictures) / max(1, pictures - 1)
    between -= (mean[0] + mean[1]) / count + mean[2] / count**2  # the means are of finitely many noises
    inside = mean.sum()
    whole = between + inside
    return np.array(
        [*(mean / (inside or 1.0)), between / (whole or 1.0)]
    )  # captions that never differ: all 0


def embeddings(
    grids: Sequence[Sequence[Caption]], count: int, objects: ObjectClasses, documents: Sequence[Sequence[str]]
) -> dict[str, list[Table]]:
    """What stands for a caption, four ways; a table a picture.

    context   its words and pairs of words with slots in place of objects, present or not, scaled to length 1
    objects   the classes of the objects that it names, present or not, scaled to length 1
    caption   CIDEr's vector: tf-idf of its n-grams, each n scaled to length 1; document frequencies from `documents`
    looks     how its attention is spread over the picture's regions, mean over its words
    """
    splits = [[split(" ".join(c.tokens).split(" "), objects) for c in grid] for grid in grids]
    found = {
        "context": _presence([[_grams(each.context) for each in row] for row in splits]),
        "objects": _presence([[set(each.classes) for each in row] for row in splits]),
        "caption": tf_idf([[caption.text for caption in grid] for grid in grids], documents),
        "looks": [_looks(grid) for grid in grids],
    }
    return {
        name: [Table(columns, values.reshape(count, count, -1)) for columns, values in tables]
        for name, tables in found.items()
    }


Flat = tuple[NDArray[np.int64], Floats]  # columns (D,), values (captions, D)


def _grams(words: Sequence[str]) -> set[Any]:
    return {tuple(words[i : i + size]) for size in (1, 2) for i in range(len(words) - size + 1)}


def _looks(grid: Sequence[Caption]) -> Flat:
    most = max(caption.attention.shape[1] for caption in grid)
    values = np.zeros((len(grid), most))
    for line, caption in zip(values, grid, strict=True):
        if len(caption.attention):
            line[: caption.attention.shape[1]] = caption.attention.mean(axis=0)
    return np.arange(most), values


def _presence(rows: Sequence[Sequence[set[Any]]]) -> list[Flat]:
    numbers: dict[Any, int] = {}
    tables = []
    for row in rows:
        here = {name: at for at, name in enumerate(sorted(set().union(*row)))}
        values = np.zeros((len(row), len(here)))
        for line, each in zip(values, row, strict=True):
            line[[here[name] for name in each]] = 1.0 / max(1.0, len(each) ** 0.5)
        columns = np.array([numbers.setdefault(name, len(numbers)) for name in here], np.int64)
        tables.append((columns, values))
    return tables


def tf_idf(rows: Sequence[Sequence[str]], documents: Sequence[Sequence[str]]) -> list[Flat]:
    """The product of two lines is CIDEr's mean cosine over n (without the clipping of CIDEr-D)."""
    grams = Grams()
    listed, starts = flat(documents)
    frequency = document_frequency(grams.encode(listed), starts, len(grams))
    captions, row_starts = flat(rows)
    encoded = grams.encode(captions)
    idf = inverse_frequency(frequency, len(documents), len(grams))
    tables = []
    for first, last in zip(row_starts[:-1].tolist(), row_starts[1:].tolist(), strict=True):
        words = encoded.grams[encoded.offsets[first] : encoded.offsets[last]]
        columns = np.unique(words[words >= 0]).astype(np.int64)
        values = np.zeros((last - first, len(columns)))
        for line, caption in zip(values, range(first, last), strict=True):
            own = encoded.grams[encoded.offsets[caption] : encoded.offsets[caption + 1]]  # (words, 4)
            for order in range(own.shape[1]):
                found, counts = np.unique(own[own[:, order] >= 0, order], return_counts=True)
                weights = counts * idf[found]
                length = np.sqrt((weights**2).sum() * own.shape[1])
                if length > 0:
                    line[np.searchsorted(columns, found)] = weights / length
        tables.append((columns, values))
    return tables
