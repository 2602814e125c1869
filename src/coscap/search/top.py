"""The largest of many, with ties broken the same way every time."""

import torch
from torch import Tensor

_BLOCK = 64  # rows longer than some of these are searched block by block


def top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row by falling value, equal ones by rising index: values and indices (N, k).

    torch.topk leaves open which of several equal values it takes. A tie across the edge of the first k
    is rare, so only the rows that have one are sorted whole.
    """
    if k >= values.shape[1]:
        return values.sort(dim=1, descending=True, stable=True)
    best, index = _some_top(values, k + 1)  # (N, k + 1)
    open_rows = (best[:, k - 1] == best[:, k]) & (best[:, k] > -torch.inf)
    index = index[:, :k].sort(dim=1).values
    best, order = values.gather(1, index).sort(dim=1, descending=True, stable=True)
    index = index.gather(1, order)
    if bool(open_rows.any()):
        full, places = values[open_rows].sort(dim=1, descending=True, stable=True)
        best[open_rows], index[open_rows] = full[:, :k], places[:, :k]
    return best, index


def _some_top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk, faster for long rows: the k largest lie in the k blocks with the largest maxima."""
    rows, width = values.shape
    blocks = width // _BLOCK
    if blocks <= 4 * k:
        return values.topk(k, dim=1)
    even = blocks * _BLOCK
    maxima = values[:, :even].reshape(rows, blocks, _BLOCK).amax(2)  # (N, blocks)
    chosen = maxima.topk(k, dim=1).indices  # (N, k)
    within = torch.arange(_BLOCK, device=values.device)
    candidates = (chosen[:, :, None] * _BLOCK + within).flatten(1)  # (N, k * block)
    rest = torch.arange(even, width, device=values.device).expand(rows, -1)
    candidates = torch.cat([candidates, rest], dim=1)
    best, order = values.gather(1, candidates).topk(k, dim=1)
    return best, candidates.gather(1, order)


def ranks(keys: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by rising key, then falling score, then place: the order, and the rank within its key (M,)."""
    order = scores.argsort(descending=True, stable=True)
    order = order[keys[order].argsort(stable=True)]
    return order, counts_within(keys[order], torch.ones_like(keys))


def counts_within(keys: Tensor, ones: Tensor) -> Tensor:
    """keys: (M,) rising. How many of `ones` (0 or 1) stand before each place, under the same key."""
    before = ones.cumsum(0) - ones
    first = torch.searchsorted(keys, keys)  # the first place of each key
    return before - before[first]
