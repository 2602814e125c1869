"""What all detectors do with boxes."""

import numpy as np
from numpy.typing import NDArray


def suppress(
    boxes: NDArray[np.float32], labels: NDArray[np.integer], most_overlap: float, most: int
) -> NDArray[np.intp]:
    """Indices of at most `most` boxes, best first, without those that overlap a better one of their class."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    waiting = np.arange(len(boxes))
    kept: list[np.intp] = []
    while len(waiting) and len(kept) < most:
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[waiting, :2])
        high = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
        shared = np.maximum(high - low, 0).prod(axis=1)
        union = areas[best] + areas[waiting] - shared
        covered = (labels[waiting] == labels[best]) & (shared > most_overlap * union)
        waiting = waiting[~covered]
    return np.array(kept, dtype=np.intp)
