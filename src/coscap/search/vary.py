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
    caption: Caption,
    vocabulary: Vocabulary,
    objects: ObjectClasses,
    *,
    keep: Keep,
    n: int,
    seed: int,
    settings: SearchSettings,
) -> list[Caption]:
    """n captions of the one picture in `regions`: `keep` names the latent that stays as it was.

    `settings` are those that the caption was found with; `seed` is of the new draws.
    """
    if not isinstance(model, CosCvae):
        raise UserError("Only a COS-CVAE keeps context and objects apart; use a model of that kind.")
    held = read_latents(model, regions, caption, vocabulary, settings)
    latents = Latents(
        lengths=held.lengths.expand(n),
        context=held.context.expand(n, -1, -1) if keep == "context" and held.context is not None else None,
        objects=held.objects.expand(n, -1, -1) if keep == "objects" and held.objects is not None else None,
    )
    state = model.start(regions, n, seed=seed, temperature=settings.temperature, latents=latents)
    controls = controls_from(settings, vocabulary, objects)
    trace, ended = latent.write(model, regions, range(n), settings, controls, state)
    return trace.captions(ended, regions, vocabulary.units)[0]


def read_latents(
    model: CosCvae, regions: RegionBatch, caption: Caption, vocabulary: Vocabulary, settings: SearchSettings
) -> Latents:
    """The values of z^m and z^o at each word of a caption of this picture, one row."""
    draws = caption.draw + 1
    state = model.start(
        regions, draws, seed=settings.seed, temperature=settings.temperature, record=True
    ).select(torch.tensor([caption.draw], device=regions.keys.device))
    for word in [START, *vocabulary.encode(caption.units)]:
        _, state, _ = model.step(torch.tensor([word], device=regions.keys.device), state)
    return state.latents()
