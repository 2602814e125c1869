"""What a step returns of its log-probabilities, in NumPy: the same as coscap.models.stepper.candidates."""

import numpy as np
from numpy.typing import NDArray

from coscap.seam import Candidates, Ints, TokenMask

_BLOCK = 64  # rows longer than some of these are searched block by block


def candidates(
    logs: NDArray[np.float32], k: int | None, named: Ints | None, mask: TokenMask | None
) -> Candidates:
    """logs: (N, V), which is overwritten"""
    if mask is not None:
        logs[:, mask.tokens] = -np.inf
        if len(mask.rows):
            logs[mask.rows, mask.row_tokens] = -np.inf
    if k is None:
        return Candidates(np.broadcast_to(np.arange(logs.shape[1]), logs.shape), logs)
    rows = np.arange(len(logs))[:, None]
    values, index = logs[:, :0], np.zeros((len(logs), 0), np.int64)
    if named is not None:
        index = place = named  # (N, A)
        missing = index < 0
        padded = missing.any()
        if padded:
            place = np.maximum(np.where(missing, index[:, :1], index), 0)  # padding stands for the first one
        values = logs[rows, place]
        if padded:
            values[missing] = -np.inf
        if k:
            logs[rows, place] = -np.inf
    if k:
        best, others = top(logs, min(k, logs.shape[1]))  # (N, k)
        values, index = np.concatenate([values, best], axis=1), np.concatenate([index, others], axis=1)
    return Candidates(index, values)


def top(values: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], Ints]:
    """The k largest of each row by falling value, equal ones by rising index: values and indices (N, k)."""
    if k == 1:
        index = values.argmax(axis=1)[:, None]  # the first of equal ones
        return np.take_along_axis(values, index, 1), index
    some = _some_top(values, k)  # (N, K') rising
    order = np.argsort(-np.take_along_axis(values, some, 1), axis=1, kind="stable")[:, :k]
    index = np.take_along_axis(some, order, 1)
    return np.take_along_axis(values, index, 1), index


def _some_top(values: NDArray[np.float32], k: int) -> Ints:
    """Indices (N, K') in rising order with the k first of each row among them: those of its k best blocks.

    A block is the better the larger its largest value; of equal blocks the first is better. So no value outside the
    best k blocks is larger than the largest of any of them, nor equal and earlier.
    """
    rows, width = values.shape
    blocks = width // _BLOCK
    if blocks <= 4 * k:
        return np.broadcast_to(np.arange(width), values.shape)
    even = blocks * _BLOCK
    maxima = values[:, :even].reshape(rows, blocks, _BLOCK).max(axis=2)  # (N, blocks)
    chosen = np.sort(np.argsort(-maxima, axis=1, kind="stable")[:, :k], axis=1)  # (N, k)
    found = (chosen[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(rows, -1)  # (N, k * block)
    rest = np.broadcast_to(np.arange(even, width), (rows, width - even))
    return np.concatenate([found, rest], axis=1)
