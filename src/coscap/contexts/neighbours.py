"""The contexts nearest to each picture, by exact search in blocks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Contexts:
    """The distinct contexts of a data set; a context that many captions share is searched once."""

    caption: NDArray[np.int64]  # (U,) one caption that has this context
    of_caption: NDArray[
        np.int64
    ]  # (captions,) the distinct context of each caption, -1 where it was filtered out
    slots: NDArray[np.int64]  # (U,) how many slots it has


def distinct_contexts(
    context_of: Callable[[int], tuple[int, ...]],
    captions: NDArray[np.int64],
    total: int,
    *,
    slot_ids: tuple[int, int],
    longest: int,
    need_slot: bool = True,
) -> tuple[Contexts, dict[str, int]]:
    """The distinct contexts among `captions`, and how many each filter took out."""
    first: dict[tuple[int, ...], int] = {}
    of_caption = np.full(total, -1, np.int64)
    representative: list[int] = []
    slots: list[int] = []
    dropped = {"without a slot": 0, "too long": 0, "duplicates": 0}
    for caption in captions.tolist():
        context = context_of(caption)
        count = sum(word in slot_ids for word in context)
        if need_slot and count == 0:
            dropped["without a slot"] += 1
        elif len(context) > longest:
            dropped["too long"] += 1
        else:
            number = first.setdefault(context, len(representative))
            if number == len(representative):
                representative.append(caption)
                slots.append(count)
            else:
                dropped["duplicates"] += 1
            of_caption[caption] = number
    return Contexts(np.array(representative, np.int64), of_caption, np.array(slots, np.int64)), dropped


def nearest(
    pictures: Tensor,
    contexts: Tensor,
    own: list[NDArray[np.int64]],
    k: int,
    *,
    slots: NDArray[np.int64],
    room: NDArray[np.int64],
    block: int = 256,
    advance: Callable[[int], None] = lambda done: None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k nearest contexts of each picture as (I, k) numbers (-1 where there are fewer) and cosines.

    pictures: (I, W) and contexts: (U, W) unit vectors; own[i]: contexts of picture i itself, never
    its neighbours; a context with more than room[i] slots cannot be filled from picture i and is passed over.
    """
    numbers = np.full((len(pictures), k), -1, np.int64)
    scores = np.zeros((len(pictures), k), np.float32)
    transposed = contexts.T.contiguous()  # (W, U)
    buffer = torch.empty(block, len(contexts), device=contexts.device)
    for start in range(0, len(pictures), block):
        rows = pictures[start : start + block]
        stop = start + len(rows)
        products = torch.mm(rows, transposed, out=buffer[: len(rows)])  # (b, U)
        products[_positions(own[start:stop])] = -torch.inf
        numbers[start:stop], scores[start:stop] = _best(products, slots, room[start:stop], k)
        advance(len(rows))
    return numbers, scores


def _positions(own: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    rows = np.repeat(np.arange(len(own)), [len(mine) for mine in own])
    columns = np.concatenate([*own, np.zeros(0, np.int64)])
    return torch.from_numpy(rows), torch.from_numpy(columns)


def _best(
    products: Tensor, slots: NDArray[np.int64], room: NDArray[np.int64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k best of each row among contexts with at most room[row] slots; looks deeper only where it must."""
    numbers = np.full((len(products), k), -1, np.int64)
    scores = np.zeros((len(products), k), np.float32)
    open_rows, depth = np.arange(len(products)), 8 * k
    while len(open_rows):
        depth = min(depth, products.shape[1])
        rows = products if len(open_rows) == len(products) else products[torch.from_numpy(open_rows)]
        values, found = (part.cpu().numpy() for part in rows.topk(depth))
        fits = (slots[found] <= room[open_rows, None]) & (values > -np.inf)  # (b, depth)
        enough = (fits.sum(1) >= k) | (depth == products.shape[1])
        for row in np.flatnonzero(enough):
            kept = np.flatnonzero(fits[row])[:k]
            numbers[open_rows[row], : len(kept)] = found[row, kept]
            scores[open_rows[row], : len(kept)] = values[row, kept]
        open_rows, depth = open_rows[~enough], depth * 8
    return numbers, scores
