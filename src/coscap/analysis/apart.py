"""Do the two latents do what their names say? Hold one, draw the other anew, and see which words change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coscap.data.batch import RegionBatch
from coscap.models.cos_cvae import CosCvae
from coscap.models.stepper import TorchStepper
from coscap.seam import Caption, RegionArrays
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.search.variations import keep_latents, vary
from coscap.text import ObjectClasses, Vocabulary, split

KEEPS: tuple[Literal["context"], Literal["objects"]] = ("context", "objects")


@dataclass(frozen=True)
class Change:
    """How captions differ from the one they vary, as means over pairs."""

    pairs: int
    objects_kept: float
    """Share of the object words (with their number) that both captions have: Jaccard of the two lists."""
    context_kept: float
    """Share of the context's words and word pairs that both have, objects being slots: Jaccard."""
    same_objects: float
    """Share of pairs that name exactly the same objects."""
    same_context: float
    """Share of pairs whose contexts are equal word for word."""


def hold_apart(
    model: CosCvae,
    pictures: Sequence[RegionBatch],
    vocabulary: Vocabulary,
    objects: ObjectClasses,
    *,
    variations: int = 5,
    temperature: float = 1.0,
) -> dict[str, Change]:
    """The change when z^m is held, when z^o is held, and when neither is. pictures: batches of one picture."""
    settings, fresh = (SearchSettings(latent_temperature=temperature, seed=seed) for seed in (0, 1))
    pairs: dict[str, list[tuple[Caption, Caption]]] = {"context": [], "objects": [], "neither": []}
    stepper = TorchStepper(model)
    for regions in map(RegionArrays.of, pictures):
        drawn = generate(stepper, regions, vocabulary, 1 + variations, settings, objects=objects)[0]
        first = drawn[0]
        pairs["neither"] += [(first, other) for other in drawn[1:]]
        for keep in KEEPS:
            kept = keep_latents(stepper, regions, first, vocabulary, keep=keep, settings=settings)
            others = vary(stepper, regions, kept, vocabulary, objects, n=variations, settings=fresh)
            pairs[keep] += [(first, other) for other in others]
    return {name: compare(found, objects) for name, found in pairs.items()}


def compare(pairs: Sequence[tuple[Caption, Caption]], objects: ObjectClasses) -> Change:
    rows = [_pair(one, other, objects) for one, other in pairs]
    means = np.mean(rows, axis=0)
    return Change(len(rows), *(float(mean) for mean in means))


def _pair(one: Caption, other: Caption, objects: ObjectClasses) -> tuple[float, float, float, float]:
    a, b = (split(" ".join(caption.tokens).split(" "), objects) for caption in (one, other))
    return (
        _jaccard(set(a.objects), set(b.objects)),
        _jaccard(_grams(a.context), _grams(b.context)),
        float(sorted(a.objects) == sorted(b.objects)),
        float(a.context == b.context),
    )


def _grams(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + size]) for size in (1, 2) for i in range(len(words) - size + 1)}


def _jaccard(one: set[Any], other: set[Any]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0
