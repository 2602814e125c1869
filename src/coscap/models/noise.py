"""Noise that depends on names, not on order: (seed, picture, draw, word) always gives the same numbers.

A counter-based generator (the finaliser of SplitMix64 over a running hash) needs no state, so rows may
leave, be copied or be reordered, batches may be cut in any way, and every draw keeps its noise.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit words in which every bit of the input moves every bit of the output."""
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def row_keys(seed: int, keys: Tensor, draws: int) -> Tensor:
    """One key for each row, picture-major. keys: (P,) int64 -> (P * draws,) int64."""
    start = mix(torch.full_like(keys, _signed(seed)))  # (P,)
    pictures = mix(start ^ keys)  # (P,)
    numbers = torch.arange(draws, device=keys.device)
    return mix(pictures[:, None] ^ mix(numbers)[None, :]).flatten()


def uniforms(keys: Tensor, stream: int, step: Tensor | int, width: int) -> Tensor:
    """Numbers in (0, 1), (N, width) float64. step: a number for all rows or one for each, (N,)."""
    named = mix(mix(keys ^ stream) ^ step)  # (N,)
    counter = torch.arange(width, device=keys.device)
    bits = _shift(mix(named[:, None] + counter * _GOLDEN), 11)  # (N, width), 53 bits
    return (bits.double() + 0.5) * 2.0**-53


def normals(keys: Tensor, stream: int, step: Tensor | int, width: int) -> Tensor:
    """Standard normals, (N, width) float32, by Box and Muller's method."""
    pairs = (width + 1) // 2
    u = uniforms(keys, stream, step, 2 * pairs)
    radius = torch.sqrt(-2 * torch.log(u[:, :pairs]))
    angle = 2 * math.pi * u[:, pairs:]
    both = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    return both[:, :width].float()


class NoiseSource:
    """Where a training step takes its noise from.

    With `keys`, one number for each caption, the noise of a caption is its own: the same however captions
    are put into batches or spread over processes. Without, it comes from the generator (or torch's own).
    """

    def __init__(
        self, captions: Tensor, positions: Tensor, generator: torch.Generator | None, keys: Tensor | None
    ):
        self.positions = positions  # (N,) the t of each word
        self.generator = generator
        self.keys = None if keys is None else keys[captions]  # (N,)

    def normals(self, stream: int, width: int) -> Tensor:
        """(N, width)"""
        if self.keys is not None:
            return normals(self.keys, stream, self.positions, width)
        return self._on_device(torch.randn, width)

    def uniforms(self, stream: int, width: int) -> Tensor:
        """(N, width) in 0..1"""
        if self.keys is not None:
            return uniforms(self.keys, stream, self.positions, width).float()
        return self._on_device(torch.rand, width)

    def dropout(self, stream: int, rate: float, width: int) -> Tensor:
        """Factors of dropout, (N, width): 0 with probability `rate`, otherwise 1 / (1 - rate)."""
        return (self.uniforms(stream, width) >= rate) / (1 - rate)

    def _on_device(self, draw: Callable[..., Tensor], width: int) -> Tensor:
        device = self.positions.device
        made_on = device if self.generator is None else self.generator.device
        return draw(len(self.positions), width, generator=self.generator, device=made_on).to(device)
