"""Diagonal Gaussians: sampling with given noise and the KL divergence in closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coscap.data.batch import OnDevice


@dataclass(frozen=True)
class Gaussian(OnDevice):
    mean: Tensor  # (..., Z)
    log_variance: Tensor  # (..., Z)

    @classmethod
    def of(cls, parameters: Tensor) -> "Gaussian":
        """parameters: (..., 2 Z), the mean and then the log variance, as a linear layer gives them."""
        mean, log_variance = parameters.chunk(2, dim=-1)
        return cls(mean, log_variance)

    def sample(self, noise: Tensor, temperature: float = 1.0, mode: str = "scale") -> Tensor:
        """mean + deviation * noise. The temperature multiplies the deviation (`scale`), or is an
        exponent of it (`power`, as in the authors' code)."""
        deviation = torch.exp(0.5 * self.log_variance)
        deviation = deviation**temperature if mode == "power" else deviation * temperature
        return self.mean + deviation * noise


def kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p) of each dimension, (..., Z). Exactly 0 where both are the same."""
    ratio = torch.exp(q.log_variance - p.log_variance)
    distance = (q.mean - p.mean).square() * torch.exp(-p.log_variance)
    return 0.5 * (p.log_variance - q.log_variance + ratio + distance - 1)
