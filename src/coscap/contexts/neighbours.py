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
    of_caption: NDArray[np.int64]  # (captions,) the distinct context of each; -1 where it was filtered out
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
        stop = min(start + block, len(pictures))
        rows = np.arange(start, stop)
        depth = min(8 * k, len(contexts))
        while len(rows):  # deeper only where it must
            queries = pictures[torch.from_numpy(rows)]
            products = torch.mm(queries, transposed, out=buffer[: len(queries)])  # (b, U)
            values, found = (each.cpu().numpy() for each in products.topk(depth))  # (b, depth)
            fits = slots[found] <= room[rows, None]  # (b, depth)
            for i, row in enumerate(rows.tolist()):
                fits[i] &= ~np.isin(found[i], own[row])
            enough = (fits.sum(1) >= k) | (depth == len(contexts))
            for i in np.flatnonzero(enough).tolist():
                kept = np.flatnonzero(fits[i])[:k]
                numbers[rows[i], : len(kept)] = found[i, kept]
                scores[rows[i], : len(kept)] = values[i, kept]
            rows, depth = rows[~enough], min(8 * depth, len(contexts))
        advance(stop - start)
    return numbers, scores
