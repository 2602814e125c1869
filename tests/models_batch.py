"""Made-up batches for the tests of the models."""

import torch

from coscap.data.batch import Batch, RegionBatch
from coscap.text.vocabulary import END, SLOT


def make_regions(
    pictures: int = 3, regions: int = 5, width: int = 6, classes: int = 4, seed: int = 0
) -> RegionBatch:
    """Pictures with different numbers of regions; the last two of each are cells of the grid."""
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(3, regions + 1, (pictures,), generator=g)
    counts[0] = regions
    mask = torch.arange(regions) < counts[:, None]
    labels = torch.randint(0, classes, (pictures, regions), generator=g)
    labels[(torch.arange(regions) >= counts[:, None] - 2)] = -1
    corner = torch.rand(pictures, regions, 2, generator=g) * 0.5
    return RegionBatch(
        features=torch.randn(pictures, regions, width, generator=g) * mask[:, :, None],
        boxes=torch.cat([corner, corner + 0.3], dim=2),
        labels=labels,
        scores=torch.rand(pictures, regions, generator=g) * mask,
        mask=mask,
        keys=torch.arange(pictures) + 1000,
    )


def make_batch(
    captions: int = 4, words: int = 6, vocabulary: int = 20, seed: int = 0, **regions: int
) -> Batch:
    """Captions of different lengths in which every third word is an object."""
    g = torch.Generator().manual_seed(seed + 1)
    pictures = make_regions(seed=seed, **regions)
    count = len(pictures.keys)
    lengths = torch.randint(2, words + 1, (captions,), generator=g)
    lengths[-1] = words
    place = torch.arange(words)
    x = torch.randint(6, vocabulary, (captions, words), generator=g)
    x = torch.where(place == lengths[:, None] - 1, END, x).masked_fill(place >= lengths[:, None], 0)
    named = (place % 3 == 1) & (place < lengths[:, None] - 1)
    objects = torch.zeros(captions, max(1, int(named.sum(1).max())), dtype=torch.long)
    for row in range(captions):
        units = x[row][named[row]]
        objects[row, : len(units)] = units
    return Batch(
        pictures=pictures,
        rows=torch.arange(captions) % count,
        words=x,
        context=torch.where(named, SLOT, x),
        objects=objects,
        lengths=lengths,
        image_ids=torch.arange(count),
    )
