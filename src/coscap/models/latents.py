"""Latents: the values of z^m and z^o for whole captions, and where they came from."""

from dataclasses import dataclass

from torch import Tensor

from coscap.data.batch import OnDevice
from coscap.models.gaussian import Gaussian


@dataclass(frozen=True)
class Latents(OnDevice):
    """Rows of latents, padded with zeros. What is None is left to the prior when a caption is decoded."""

    lengths: Tensor  # (N,) words that the values are given for; later ones come from the prior
    context: Tensor | None = None  # (N, T, Zm) z^m; z of a seq_cvae
    objects: Tensor | None = None  # (N, T, Zo) z^o
    context_posterior: Gaussian | None = None  # (N, T, Zm) what `context` was drawn from, if encoded
    object_posterior: Gaussian | None = None  # (N, T, Zo)
