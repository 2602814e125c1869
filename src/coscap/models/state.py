"""What a model remembers of the captions that it is writing."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from coscap.models.decoder import DecoderState, Looked
from coscap.models.gaussian import Gaussian
from coscap.models.groups import Groups
from coscap.models.latents import Latents
from coscap.models.noise import normals
from coscap.models.prior import PriorState
from coscap.models.rows import Turned

T = TypeVar("T")


@dataclass(frozen=True)
class Chain:
    """One latent sequence of N rows that is drawn word by word."""

    prior: PriorState
    z: Tensor  # (N, Z) the value at the word before
    keys: Tensor  # (N,) what the noise is seeded with
    given: Tensor | None  # (N, T, Z) values to use instead of draws
    lengths: Tensor | None  # (N,) for how many words they are given

    def draw(
        self, p: Gaussian, prior: PriorState, stream: int, step: int, temperature: float, mode: str
    ) -> "Chain":
        """The chain one word on, with z drawn from p or taken from what was given."""
        noise = normals(self.keys, stream, step, self.z.shape[1]).to(p.mean.dtype)
        z = p.sample(noise, temperature, mode)
        if self.given is not None and self.lengths is not None and step < self.given.shape[1]:
            z = torch.where((self.lengths > step)[:, None], self.given[:, step], z)
        return replace(self, prior=prior, z=z)


@dataclass(frozen=True)
class Shared:
    """What all rows use and no step changes."""

    regions: int  # R of the pictures as they were given
    looked: Looked
    context_gates: Tensor | None  # (P, 4 H) what v-bar adds to p(z^m)
    object_gates: Tensor | None  # (P, 4 H) and to p(z^o)
    temperatures: tuple[float, float]  # of z^m and z^o
    mode: str
    turned: Turned


@dataclass(frozen=True)
class DecodeState:
    shared: Shared
    groups: Groups
    decoder: DecoderState
    context: Chain | None
    objects: Chain | None
    step: int = 0
    history: tuple[tuple[Tensor | None, Tensor | None], ...] | None = None  # (z^m, z^o) of each word so far

    @property
    def rows(self) -> int:
        return len(self.groups.owners)

    def select(self, rows: Tensor) -> "DecodeState":
        """The state whose row i is this state's row rows[i]; rows: (N',) int64."""

        def take(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows)

        return replace(
            self,
            groups=self.groups.select(rows),
            decoder=_each(self.decoder, take),
            context=_each(self.context, take),
            objects=_each(self.objects, take),
            history=_each(self.history, take),
        )

    def latents(self) -> Latents:
        """The values drawn so far, for decoding with them again (needs `start(..., record=True)`)."""
        if self.history is None:
            raise ValueError("this state does not record its latents; start it with record=True")
        columns = list(zip(*self.history, strict=True)) or [(), ()]
        lengths = torch.full((self.rows,), len(self.history), device=self.groups.owners.device)
        context, objects = (_stacked(column) for column in columns)
        return Latents(lengths=lengths, context=context, objects=objects)


def _stacked(column: tuple[Tensor | None, ...]) -> Tensor | None:
    values = [value for value in column if value is not None]
    return torch.stack(values, dim=1) if values else None


def _each(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """The same structure with every tensor in it changed."""
    result: Any = value
    if isinstance(value, Tensor):
        result = change(value)
    elif isinstance(value, tuple):
        result = tuple(_each(part, change) for part in value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _each(getattr(value, field.name), change) for field in fields(value)}
        result = replace(value, **parts)
    return cast(T, result)
