"""Features of boxes from a map of the whole picture."""

import numpy as np
from numpy.typing import NDArray

LEAST_SIDE = 1e-3  # of the picture: a box without area still covers some cell


def grid_boxes(grid: int) -> NDArray[np.float32]:
    """The cells of a grid over the picture, row by row."""
    edges = np.linspace(0, 1, grid + 1, dtype=np.float32)
    y1, x1 = (index.ravel() for index in np.meshgrid(edges[:-1], edges[:-1], indexing="ij"))
    y2, x2 = (index.ravel() for index in np.meshgrid(edges[1:], edges[1:], indexing="ij"))
    return np.stack([x1, y1, x2, y2], axis=1)  # (grid * grid, 4)


def pool(features: NDArray[np.float32], boxes: NDArray[np.float32]) -> NDArray[np.floating]:
    """The mean of the map over each box: features (C, H, W) and boxes (R, 4) in 0..1 -> (R, C)."""
    return weighted(features, box_weights(boxes, *features.shape[1:]))


def box_weights(boxes: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """(R, H * W) of each box: every cell of the map by the area that it shares with the box; rows sum to 1"""
    across = _overlap(boxes[:, 0], boxes[:, 2], width)  # (R, W)
    down = _overlap(boxes[:, 1], boxes[:, 3], height)  # (R, H)
    return (down[:, :, None] * across[:, None, :]).reshape(len(boxes), height * width)


def weighted(features: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.floating]:
    """Means of the map by (R, P) weights of its places: (R, C). One product for all rows."""
    places = np.ascontiguousarray(
        features.reshape(len(features), -1).T
    )  # (P, C), so that sums run along channels
    # Not by BLAS: for a product this small its threads cost 15 ms of waiting, and more threads round otherwise.
    pooled: NDArray[np.floating] = np.einsum("rp,pc->rc", weights, places)
    return pooled


def _overlap(start: NDArray[np.float32], end: NDArray[np.float32], cells: int) -> NDArray[np.float32]:
    """How much of [start, end] is in each of the equal cells of 0..1; rows sum to 1."""
    end = np.maximum(end, start + LEAST_SIDE)
    start = np.minimum(start, 1 - LEAST_SIDE)
    edges = np.arange(cells + 1, dtype=np.float32) / cells
    shared = np.minimum(end[:, None], edges[1:]) - np.maximum(start[:, None], edges[:-1])
    shared = np.maximum(shared, 0)
    return shared / shared.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


def unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """Rows of length 1, so that pictures of strong and weak contrast weigh the same."""
    length = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return rows / np.maximum(length, 1e-6)  # type: ignore[no-any-return]
