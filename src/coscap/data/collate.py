"""Regions and captions into padded tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from coscap.data.batch import Batch, RegionBatch
from coscap.data.prepared import Prepared
from coscap.text.vocabulary import END, PAD, SLOT, SLOTS
from coscap.vision.regions import GRID_LABEL, Regions, noise_key


def choose(regions: Regions, detections: int | None = None, grid: bool = True) -> Regions:
    """The best `detections` of a picture (all if None), with or without the cells of the grid.

    A picture in which nothing was detected keeps its grid in any case: a model needs something to look at.
    """
    if detections is None and grid:
        return regions
    cells = np.asarray(regions.labels) == GRID_LABEL
    objects = np.flatnonzero(~cells)[:detections]
    kept = np.concatenate([objects, np.flatnonzero(cells)]) if grid or not len(objects) else objects
    return Regions(regions.features[kept], regions.boxes[kept], regions.labels[kept], regions.scores[kept])


def region_batch(
    pictures: Sequence[Regions], detections: int | None = None, grid: bool = True
) -> RegionBatch:
    """P pictures, padded to the largest set of regions among them. The noise of a picture's draws is the same
    whichever of its regions are chosen."""
    chosen = [choose(regions, detections, grid) for regions in pictures]
    if not chosen:
        raise ValueError("a batch needs at least one picture")
    widths = {regions.features.shape[1] for regions in chosen}
    if len(widths) > 1:
        raise ValueError(f"the pictures' features have different widths: {sorted(widths)}")
    count, most, width = len(chosen), max(1, max(len(regions) for regions in chosen)), widths.pop()
    half = all(regions.features.dtype == np.float16 for regions in chosen)
    features = np.zeros((count, most, width), dtype=np.float16 if half else np.float32)  # (P, R, F)
    boxes = np.zeros((count, most, 4), dtype=np.float32)
    labels = np.full((count, most), -1, dtype=np.int64)
    scores = np.zeros((count, most), dtype=np.float32)
    mask = np.zeros((count, most), dtype=np.bool_)
    keys = np.zeros(count, dtype=np.int64)
    for row, (regions, whole) in enumerate(zip(chosen, pictures, strict=True)):
        size = len(regions)
        features[row, :size] = regions.features
        boxes[row, :size] = regions.boxes
        labels[row, :size] = regions.labels
        scores[row, :size] = regions.scores
        mask[row, :size] = True
        keys[row] = noise_key(whole)
    return RegionBatch(
        torch.from_numpy(features).float(),
        torch.from_numpy(boxes),
        torch.from_numpy(labels),
        torch.from_numpy(scores),
        torch.from_numpy(mask),
        torch.from_numpy(keys),
    )


def caption_batch(
    data: Prepared, captions: NDArray[np.int64], images: NDArray[np.int64], pictures: RegionBatch
) -> Batch:
    """B captions of the P pictures `images` (rising indices, one row of `pictures` each)."""
    words, context, lengths = caption_arrays(data, captions)
    rows = np.searchsorted(images, data.arrays["caption_image"][captions])
    return Batch(
        pictures,
        torch.from_numpy(rows.astype(np.int64)),
        torch.from_numpy(words),
        torch.from_numpy(context),
        torch.from_numpy(object_array(words, context)),
        torch.from_numpy(lengths),
        torch.from_numpy(np.array(data.image_ids[images])),
    )


def caption_arrays(
    data: Prepared, captions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Words (B, T), contexts (B, T), both with END and then PAD, and lengths (B,) with END.

    Captions longer than the data set's `max_length` are cut.
    """
    starts = data.arrays["word_offsets"][captions]  # (B,)
    lengths = np.minimum(data.lengths(captions), data.max_length)  # (B,) without END
    columns = np.arange(int(lengths.max(initial=0)) + 1)  # (T,)
    inside = columns < lengths[:, None]  # (B, T)
    places = np.where(inside, starts[:, None] + columns, 0)  # (B, T)
    result = []
    for name in ("words", "contexts"):
        row = np.where(inside, data.arrays[name][places], PAD).astype(np.int64)  # (B, T)
        row[np.arange(len(captions)), lengths] = END
        result.append(row)
    return result[0], result[1], (lengths + 1).astype(np.int64)


def object_array(words: NDArray[np.int64], context: NDArray[np.int64]) -> NDArray[np.int64]:
    """(B, K) the words that stand where the context has a slot, in their order, then PAD; K >= 1."""
    slots = (context == SLOT) | (context == SLOTS)  # (B, T)
    place = np.cumsum(slots, axis=1) - 1  # (B, T)
    most = max(1, int(slots.sum(axis=1).max(initial=0)))
    objects = np.full((len(words), most), PAD, dtype=np.int64)
    row, column = np.nonzero(slots)
    objects[row, place[row, column]] = words[row, column]
    return objects
