"""Parts of a batch, and the seed of each: the unit of randomness, whatever number of processes there is."""

import hashlib
import random
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coscap.data.batch import Batch, RegionBatch
from coscap.models.noise import mix
from coscap.text.vocabulary import PAD


def split(batch: Batch, parts: int) -> list[Batch]:
    """The batch as `parts` batches of neighbouring captions, each with only its pictures and its padding."""
    if parts == 1:
        return [batch]
    captions = torch.arange(len(batch.rows), device=batch.rows.device)
    return [_take(batch, some) for some in captions.tensor_split(parts) if len(some)]


def _take(batch: Batch, captions: Tensor) -> Batch:
    pictures, rows = batch.rows[captions].unique(return_inverse=True)
    length = int(batch.lengths[captions].max())
    objects = batch.objects[captions]
    most = max(1, int((objects != PAD).sum(dim=1).max()))
    return replace(
        batch,
        pictures=_take_pictures(batch.pictures, pictures),
        rows=rows,
        words=batch.words[captions, :length],
        context=batch.context[captions, :length],
        objects=objects[:, :most],
        lengths=batch.lengths[captions],
        image_ids=batch.image_ids[pictures],
    )


def _take_pictures(regions: RegionBatch, pictures: Tensor) -> RegionBatch:
    most = int(regions.mask[pictures].sum(dim=1).max())
    return RegionBatch(
        features=regions.features[pictures, :most],
        boxes=regions.boxes[pictures, :most],
        labels=regions.labels[pictures, :most],
        scores=regions.scores[pictures, :most],
        mask=regions.mask[pictures, :most],
        keys=regions.keys[pictures],
    )


def caption_keys(batch: Batch, seed: int, step: int) -> Tensor:
    """(B,) int64: what the noise of each caption follows from: seed, step, picture and words.

    It does not depend on the other captions, so the joint batch draws the same noise however it is cut.
    """
    key = mix(batch.image_ids[batch.rows] ^ mix(torch.full_like(batch.rows, _number(seed, step))))
    for words in batch.words.unbind(1):
        key = torch.where(words == PAD, key, mix(key ^ words))
    return key


def _number(*names: int) -> int:
    """A number of 63 bits that the names decide."""
    digest = hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int, step: int, piece: int) -> None:
    """Make every global generator a function of (seed, step, piece), so that a run can go on anywhere.

    Pieces are counted over all processes: two processes draw what one draws that works in two parts.
    """
    number = _number(seed, step, piece)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
