"""Variations of one caption: its context kept and other objects named, or its objects kept and the rest rewritten.

The caption is read again token by token under its own draw, which gives the values of z^m and z^o at each token. One
of the two is then held at these values while the other is drawn anew from its prior.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from coscap.errors import UserError
from coscap.seam import Caption, Check, LatentValues, RegionArrays, RegionLike, S, SearchModel
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import START, Vocabulary

Keep = Literal["context", "objects"]


def vary(
    model: SearchModel[S],
    regions: RegionLike,
    kept: LatentValues,
    vocabulary: Vocabulary,
    objects: ObjectClasses,
    *,
    n: int,
    settings: SearchSettings,
    classes: Sequence[str] | None = None,
    check: Check | None = None,
) -> list[Caption]:
    """n captions of the one picture in `regions` under the latents in `kept`; the others are drawn anew.

    The seed and latent_temperature in `settings` are of the new draws. A constrained search stays one, so that
    variations contain what the caption had to contain; from all others one greedy caption is written for each draw.
    """
    _check_split(model)
    changes: dict[str, object] = {"draws": None, "num_beam_groups": None}
    if settings.search != "constrained":
        changes |= {"search": "latent", "num_beams": None}
    return generate(
        model,
        regions,
        vocabulary,
        n,
        settings.model_copy(update=changes),
        objects=objects,
        classes=classes,
        latents=kept,
        check=check,
    )[0]


def keep_latents(
    model: SearchModel[S],
    regions: RegionLike,
    caption: Caption,
    vocabulary: Vocabulary,
    *,
    keep: Keep,
    settings: SearchSettings,
    kept: LatentValues | None = None,
) -> LatentValues:
    """The values of z^m or z^o at each token of a caption of this picture, one row.

    `settings` are those that the caption was found with. `kept` is what it was itself varied under, so that
    a variation can be varied again.
    """
    read = read_latents(model, regions, caption, vocabulary, settings, kept)
    if keep == "context":
        return LatentValues(lengths=read.lengths, context=read.context)
    return LatentValues(read.lengths, objects=read.objects, object_lengths=read.object_lengths)


def read_latents(
    model: SearchModel[S],
    regions: RegionLike,
    caption: Caption,
    vocabulary: Vocabulary,
    settings: SearchSettings,
    kept: LatentValues | None = None,
) -> LatentValues:
    """The values of z^m and z^o at each token of a caption of this picture, one row."""
    _check_split(model)
    draws = caption.draw + 1
    state = model.start(
        RegionArrays.of(regions),
        draws,
        seed=settings.seed,
        latent_temperature=settings.latent_temperature,
        latents=None if kept is None else kept.repeat(draws),
        record=True,
    ).select(np.array([caption.draw]))
    for token in [START, *vocabulary.encode(caption.tokens)]:
        _, state, _ = model.step(np.array([token]), state, 0)
    return state.latents()


def _check_split(model: SearchModel[S]) -> None:
    if "objects" not in model.latent_names:
        raise UserError("Only a COS-CVAE keeps context and objects apart; use a model of that kind.")
