"""Variations of one caption: its context kept and other objects named, or its objects kept and told otherwise.

The caption is read again word by word under its own draw, which gives the values of z^m and z^o at each
word. One of the two is then held at these values while the other is drawn anew from its prior.
"""

from typing import Literal

import torch

from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.models.cos_cvae import CosCvae
from coscap.models.latents import Latents
from coscap.search import latent
from coscap.search.caption import Caption
from coscap.search.settings import SearchSettings
from coscap.search.wishes import controls_from
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import START, Vocabulary

Keep = Literal["context", "objects"]


@torch.inference_mode()
def vary(
    model: torch.nn.Module,
    regions: RegionBatch,
    kept: Latents,
    vocabulary: Vocabulary,
    objects: ObjectClasses,
    *,
    n: int,
    settings: SearchSettings,
) -> list[Caption]:
    """n captions of the one picture in `regions` under the latents in `kept`; the others are drawn anew.

    The seed and temperature in `settings` are of the new draws.
    """
    model = split(model)
    state = model.start(
        regions, n, seed=settings.seed, temperature=settings.temperature, latents=_rows(kept, n)
    )
    controls = controls_from(settings, vocabulary, objects)
    trace, ended = latent.write(model, regions, range(n), settings, controls, state)
    return trace.captions(ended, regions, vocabulary.units)[0]


@torch.inference_mode()
def keep_latents(
    model: torch.nn.Module,
    regions: RegionBatch,
    caption: Caption,
    vocabulary: Vocabulary,
    *,
    keep: Keep,
    settings: SearchSettings,
    kept: Latents | None = None,
) -> Latents:
    """The values of z^m or z^o at each word of a caption of this picture, one row.

    `settings` are those that the caption was found with. `kept` is what it was itself varied under, so that
    a variation can be varied again.
    """
    read = read_latents(split(model), regions, caption, vocabulary, settings, kept)
    if keep == "context":
        return Latents(lengths=read.lengths, context=read.context)
    return Latents(lengths=read.lengths, objects=read.objects)


def read_latents(
    model: CosCvae,
    regions: RegionBatch,
    caption: Caption,
    vocabulary: Vocabulary,
    settings: SearchSettings,
    kept: Latents | None = None,
) -> Latents:
    """The values of z^m and z^o at each word of a caption of this picture, one row."""
    draws = caption.draw + 1
    state = model.start(
        regions,
        draws,
        seed=settings.seed,
        temperature=settings.temperature,
        latents=None if kept is None else _rows(kept, draws),
        record=True,
    ).select(torch.tensor([caption.draw], device=regions.keys.device))
    for word in [START, *vocabulary.encode(caption.units)]:
        _, state, _ = model.step(torch.tensor([word], device=regions.keys.device), state)
    return state.latents()


def split(model: torch.nn.Module) -> CosCvae:
    if not isinstance(model, CosCvae):
        raise UserError("Only a COS-CVAE keeps context and objects apart; use a model of that kind.")
    return model


def _rows(kept: Latents, n: int) -> Latents:
    """One row of latents for n rows."""
    return Latents(
        lengths=kept.lengths.expand(n),
        context=None if kept.context is None else kept.context.expand(n, -1, -1),
        objects=None if kept.objects is None else kept.objects.expand(n, -1, -1),
    )
