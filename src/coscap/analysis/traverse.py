"""Latents moved on purpose: one dimension up and down, or one draw turned into another."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coscap.analysis.apart import compare
from coscap.analysis.steer import CONTEXT, OBJECTS, Writer
from coscap.data import Prepared
from coscap.data.batch import RegionBatch
from coscap.data.collate import caption_batch
from coscap.seam import Caption
from coscap.vision.stores import Stores

LATENTS = ("context", "objects")


@dataclass(frozen=True)
class Activity:
    """How much each dimension of a latent carries."""

    kl: NDArray[np.float64]  # (Z,) mean over words of KL(posterior || prior), in nats
    changed_context: NDArray[np.float64]  # (Z,) share of the context's words that moving it by +-2 replaces
    changed_objects: NDArray[np.float64]  # (Z,) the same of object words

    def most_active(self, count: int) -> list[int]:
        return [int(each) for each in np.argsort(-self.kl, kind="stable")[:count]]


def move(writer: Writer, regions: RegionBatch, latent: str, dimension: int, places: Sequence[float]
         ) -> list[list[Caption]]:  # fmt: skip
    """Captions with all noise at 0 but one dimension of one latent, which has each of `places` at every word."""
    both = [_zeros(writer, regions, len(places), width) for width in writer.widths]
    moved = both[LATENTS.index(latent)]
    moved[..., dimension] = torch.tensor(places, device=writer.device)[None, :, None]
    return writer.steered(regions, *both)


def turn(writer: Writer, regions: RegionBatch, latents: Sequence[str], steps: int, seed: int
         ) -> list[list[Caption]]:  # fmt: skip
    """From the first draw to the second in equal steps; latents that are not named stay at the first draw."""
    both = []
    for name, stream in zip(LATENTS, (CONTEXT, OBJECTS), strict=True):
        noise = writer.noise(regions, 2, stream, seed)  # (P, 2, T, Z)
        if name in latents:
            both.append(between(noise[:, 0], noise[:, 1], steps))
        else:
            both.append(noise[:, :1].expand(-1, steps, -1, -1))
    return writer.steered(regions, both[0], both[1])


def between(one: Tensor, other: Tensor, steps: int) -> Tensor:
    """Steps on the way from one noise to another, (P, steps, T, Z).

    The sum of squared weights is 1 all along, so that every step is as likely a noise as the ends are; a straight line
    would pass through unusually small noise.
    """
    angle = torch.linspace(0, torch.pi / 2, steps, device=one.device)[None, :, None, None]
    return torch.cos(angle) * one[:, None] + torch.sin(angle) * other[:, None]


def activity(
    writer: Writer, prepared: Prepared, stores: Stores, captions: NDArray[np.int64], regions: RegionBatch
) -> dict[str, Activity]:
    """KL of each dimension on human captions, and what moving it by two deviations does to captions of `regions`."""
    kls = _kl(writer, prepared, stores, captions)
    still = writer.steered(regions, *(_zeros(writer, regions, 1, width) for width in writer.widths))
    found = {}
    for name, kl in zip(LATENTS, kls, strict=True):
        changed = np.zeros((2, len(kl)))
        for dimension in range(len(kl)):
            moved = move(writer, regions, name, dimension, (-2.0, 2.0))
            pairs = [(one[0], each) for one, row in zip(still, moved, strict=True) for each in row]
            change = compare(pairs, writer.objects)
            changed[:, dimension] = 1 - change.context_kept, 1 - change.objects_kept
        found[name] = Activity(kl, changed[0], changed[1])
    return found


@torch.no_grad()
def _kl(
    writer: Writer, prepared: Prepared, stores: Stores, captions: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean over words of the KL of each dimension of z^m and z^o."""
    sums, words = [np.zeros(width) for width in writer.widths], 0
    chance = torch.Generator(writer.device).manual_seed(0)
    for part in np.array_split(captions, max(1, len(captions) // 100)):
        images = np.unique(prepared.arrays["caption_image"][part])
        pictures = writer.batch([stores.get(int(prepared.image_ids[image])) for image in images])
        batch = caption_batch(prepared, part, images, pictures).to(writer.device)
        terms = writer.model.loss(batch, generator=chance)
        count = int(batch.lengths.sum())
        for total, each in zip(sums, (terms.context_dimensions, terms.object_dimensions), strict=True):
            total += each.double().cpu().numpy() * count
        words += count
    return sums[0] / words, sums[1] / words


def _zeros(writer: Writer, regions: RegionBatch, count: int, width: int) -> Tensor:
    return torch.zeros(len(regions.keys), count, writer.steps, width, device=writer.device)
