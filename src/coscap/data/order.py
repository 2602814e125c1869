"""The order of an epoch: which items are in which batch, from (seed, epoch) alone."""

import numpy as np
from numpy.typing import NDArray

POOL = (
    50  # batches that are sorted by length together: little padding, and neighbours still change each epoch
)


def generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch])


def bucketed(
    lengths: NDArray[np.int64], size: int, chance: np.random.Generator | None
) -> list[NDArray[np.int64]]:
    """Batches of `size` item numbers, of similar length inside a batch.

    With `chance` the items are shuffled, sorted by length within pools, and the batches shuffled again;
    the incomplete last batch is left out (other items each epoch), unless it is the only one.
    Without, every item comes once, by rising length.
    """
    count = len(lengths)
    if chance is None:
        order = np.argsort(lengths, kind="stable")
        return [order[start : start + size] for start in range(0, count, size)]
    order = chance.permutation(count)
    whole = count // size
    if whole == 0:
        return [order] if count else []
    order = order[: whole * size]
    for start in range(0, len(order), POOL * size):
        pool = order[start : start + POOL * size]
        order[start : start + POOL * size] = pool[np.argsort(lengths[pool], kind="stable")]
    batches = order.reshape(whole, size)
    return list(batches[chance.permutation(whole)])
