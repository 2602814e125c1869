"""Conditional normalising flows: invertible maps whose log-determinant is known exactly.

z ─▶ coupling ─▶ swap ─▶ coupling ─▶ ... ─▶ e,   log p(z | c) = log N(e; 0, I) + log |det de/dz|

A coupling layer keeps one half of its input and scales and shifts the other by what that half and c say:
y_2 = x_2 * exp(s(x_1, c)) + t(x_1, c), so that log |det dy/dx| = sum s and x_2 = (y_2 - t) * exp(-s).
"""

import math

import torch
from torch import Tensor, nn

MOST = 2.0  # of |s|: a layer stretches by at most e^2, so that no layer can overflow


class Coupling(nn.Module):
    """One affine coupling layer; it begins as the identity."""

    def __init__(self, width: int, condition: int, hidden: int) -> None:
        super().__init__()
        half = width // 2
        self.read = nn.Linear(half + condition, hidden)
        self.out = nn.Linear(hidden, 2 * half)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, kept: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """s and t, (B, D / 2) each; kept: (B, D / 2), condition: (B, C)"""
        s, t = self.out(torch.relu(self.read(torch.cat([kept, condition], dim=1)))).chunk(2, dim=1)
        return MOST * torch.tanh(s / MOST), t


class Flow(nn.Module):
    """p(z | c) of even width; `layers` coupling layers that change the halves in turn."""

    def __init__(self, width: int, condition: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(width, condition, hidden) for _ in range(layers))

    def forward(self, z: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """z: (B, D), condition: (B, C) -> e (B, D) and log |det de/dz| (B,)"""
        kept, changed = z.chunk(2, dim=1)
        total = torch.zeros_like(z[:, 0])
        for layer in self.layers:
            s, t = layer(kept, condition)
            kept, changed = changed * torch.exp(s) + t, kept
            total = total + s.sum(1)
        return torch.cat([kept, changed], dim=1), total

    def inverse(self, e: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """e: (B, D), condition: (B, C) -> z (B, D) and log |det dz/de| (B,)"""
        kept, changed = e.chunk(2, dim=1)
        total = torch.zeros_like(e[:, 0])
        for layer in reversed(self.layers):
            s, t = layer(changed, condition)
            kept, changed = changed, (kept - t) * torch.exp(-s)
            total = total - s.sum(1)
        return torch.cat([kept, changed], dim=1), total

    def log_probability(self, z: Tensor, condition: Tensor) -> Tensor:
        """log p(z | c), (B,)"""
        e, log_determinant = self(z, condition)
        found: Tensor = standard_normal(e) + log_determinant
        return found


def standard_normal(e: Tensor) -> Tensor:
    """log N(e; 0, I). e: (B, D) -> (B,)"""
    return -0.5 * (e.square() + math.log(2 * math.pi)).sum(1)
