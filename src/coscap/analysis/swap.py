"""Contexts and objects swapped between pictures: z^m or z^o of a caption of picture A, held while B is captioned."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coscap.analysis.apart import compare
from coscap.analysis.steer import Writer
from coscap.data.batch import RegionBatch
from coscap.models.latents import Latents
from coscap.seam import Caption
from coscap.text import ObjectClasses, split

HELD = ("context", "objects", "neither")


@dataclass(frozen=True)
class Swapped:
    """Captions of pictures B against those of pictures A that a latent came from, as means over pairs."""

    pairs: int
    context_kept: float  # words and pairs of words of A's context that B's caption has (Jaccard)
    objects_kept: float  # object words that both have (Jaccard)
    true_of_b: float  # share of the objects named that people name in B
    true_of_a: float  # ... in A


def swap(writer: Writer, regions: RegionBatch, sources: Sequence[Caption], latents: Latents, seed: int
         ) -> dict[str, list[Caption]]:  # fmt: skip
    """Captions of each picture with row i of `latents` (read from sources[i], of another picture) held.

    "neither" are captions of the same pictures with nothing held.
    """
    assert latents.context is not None and latents.objects is not None
    return {
        "context": writer.held(regions, replace(latents, objects=None), seed),
        "objects": writer.held(regions, replace(latents, context=None), seed),
        "neither": writer.drawn(regions, seed),
    }


def take(latents: Latents, rows: Sequence[int]) -> Latents:
    """These rows of z^m and z^o."""
    context, objects = latents.context, latents.objects
    assert context is not None and objects is not None
    which = list(rows)
    return Latents(lengths=latents.lengths[which], context=context[which], objects=objects[which])


def measure_swaps(
    writer: Writer, regions: RegionBatch, named: Sequence[set[int]], seed: int
) -> dict[str, Swapped]:
    """Each picture is B once and A once, in a random cycle. named: the classes that people name in each picture."""
    sources = writer.drawn(regions, seed)
    latents = writer.read(regions, sources, seed)
    order = np.random.default_rng(seed).permutation(len(sources))
    partner = np.empty(len(order), np.int64)
    partner[order] = np.roll(order, 1)  # nobody is paired with itself
    given = [sources[a] for a in partner.tolist()]
    found = swap(writer, regions, given, take(latents, partner.tolist()), seed + 1)
    return {
        held: _measured(
            list(zip(given, captions, strict=True)),
            named,
            [named[a] for a in partner.tolist()],
            writer.objects,
        )
        for held, captions in found.items()
    }


def _measured(
    pairs: list[tuple[Caption, Caption]],
    in_b: Sequence[set[int]],
    in_a: Sequence[set[int]],
    objects: ObjectClasses,
) -> Swapped:
    change = compare(pairs, objects)
    classes_of = [split(" ".join(caption.tokens).split(" "), objects).classes for _, caption in pairs]
    return Swapped(
        len(pairs),
        change.context_kept,
        change.objects_kept,
        _true(classes_of, in_b),
        _true(classes_of, in_a),
    )


def _true(classes_of: Sequence[Sequence[int]], named: Sequence[set[int]]) -> float:
    hits = [each in there for classes, there in zip(classes_of, named, strict=True) for each in classes]
    return float(np.mean(hits)) if hits else 0.0
