"""Noise that depends on names, not on order: (seed, picture, draw, token) always gives the same numbers.

The NumPy twin of `coscap.models.noise`: the same bits, and the same normals to the last rounding. A counter-based
generator (the finaliser of SplitMix64 over a running hash) needs no state, so rows may leave, be copied or be
reordered, batches may be cut in any way, and every draw keeps its noise.
"""

import numpy as np
from numpy.typing import NDArray

from coscap.seam import Ints

Words = NDArray[np.uint64]
CONTEXT_NOISE, OBJECT_NOISE = 1, 2  # the streams of z^m and z^o, as in coscap.models.base
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = (np.uint64(bits) for bits in (30, 27, 31, 11))


def mix(x: Words) -> Words:
    """A bijection of 64-bit words in which every bit of the input moves every bit of the output."""
    x = x + _GOLDEN  # arrays wrap around
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


def row_keys(seed: int, keys: Ints, draws: range) -> Words:
    """One key for each row, picture-major. keys: (P,) of the pictures -> (P * draws,)"""
    start = mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))  # (1,)
    pictures = mix(start ^ keys.astype(np.uint64))  # (P,)
    return mix(pictures[:, None] ^ mix(np.array(draws, np.uint64))).ravel()


def uniforms(keys: Words, stream: int, step: Ints | int, width: int) -> NDArray[np.float64]:
    """Numbers in (0, 1), (N, width). step: a number for all rows or one for each, (N,)."""
    named = mix(mix(keys ^ np.uint64(stream)) ^ np.asarray(step).astype(np.uint64))  # (N,)
    bits = mix(named[:, None] + np.arange(width, dtype=np.uint64) * _GOLDEN) >> _11  # (N, width), 53 bits
    return (bits.astype(np.float64) + 0.5) * 2.0**-53


def normal_blocks(keys: Words, stream: int, steps: int, width: int) -> NDArray[np.float32]:
    """The normals of steps 0 .. steps - 1 at once, (N, steps, width): one call costs less than one a step."""
    each = normals(np.repeat(keys, steps), stream, np.tile(np.arange(steps), len(keys)), width)
    return each.reshape(len(keys), steps, width)


def normals(keys: Words, stream: int, step: Ints | int, width: int) -> NDArray[np.float32]:
    """Standard normals, (N, width), by Box and Muller's method."""
    pairs = (width + 1) // 2
    u = uniforms(keys, stream, step, 2 * pairs)
    radius = np.sqrt(-2 * np.log(u[:, :pairs]))
    angle = 2 * np.pi * u[:, pairs:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return both[:, :width].astype(np.float32)
