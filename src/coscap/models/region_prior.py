"""A prior of z^o that chooses among the regions of the picture: a special case of eq. 4.

h of the prior's LSTM ─▶ query · key_r ─▶ pi_r ──┐
regions v_1 .. v_R ────▶ linear ─▶ mean_r ───────┼─▶ p(z^o) = pi_0 N(mean_0, sigma_0^2) + sum_r pi_r N(mean_r, sigma^2)
h ─▶ linear ─▶ mean_0, sigma_0, pi_0 ────────────┘

Which object is named next is one of several things, and a single Gaussian has its mass between them: a draw from there
names what nobody sees. Here a draw chooses a region first (or none, component 0), so that it stands for something that
is in the picture.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.data.batch import OnDevice
from coscap.models.kernels import RowGroups, uniform
from coscap.models.latents import Gaussian, Prior, kl
from coscap.models.regions import RegionValues

COMPONENT_LIFT = 4.0  # on initial weights: region values are small at first (regions.NORM_GAIN)
COLDEST = 1e-4  # temperatures below choose the likeliest component


@dataclass(frozen=True)
class RegionComponents(OnDevice):
    """What the prior needs of P pictures, once for all their captions."""

    keys: Tensor  # (P, R, A)
    means: Tensor  # (P, R, Z)
    masked: Tensor  # (P, R) -inf where there is no region, otherwise 0


@dataclass(frozen=True)
class RegionMixture:
    """Mixtures of N rows: component 0 belongs to no region, component r to region r of the row's picture."""

    log_weights: Tensor  # (N, 1 + R) log pi
    other: Gaussian  # (N, Z) component 0
    means: Tensor  # (P, R, Z)
    log_variance: Tensor  # (Z,) of the regions' components
    owners: Tensor  # (N,) the picture of each row

    @property
    def noise_width(self) -> int:
        """One more than the latent's: the last one chooses the component."""
        return self.means.shape[2] + 1

    def choose(self, noise: Tensor, temperature: float = 1.0) -> Tensor:
        """The region of each row that a draw with this noise stands for, -1 for none: (N,). noise: (N, Z + 1) normals;
        a lower temperature sharpens the choice."""
        reached = torch.softmax(self.log_weights / _cold(temperature, self.log_weights), dim=1).cumsum(
            1
        )  # (N, 1 + R)
        uniform_noise = 0.5 + 0.5 * torch.erf(noise[:, -1:] / math.sqrt(2))  # (N, 1)
        return (reached < uniform_noise * reached[:, -1:]).sum(1) - 1

    def log_choice(self, chosen: Tensor, temperature: float = 1.0) -> Tensor:
        """log p of having chosen these, -1 for none: (N,) -> (N,)"""
        logs = torch.log_softmax(self.log_weights / _cold(temperature, self.log_weights), dim=1)
        return logs.gather(1, chosen[:, None] + 1)[:, 0]

    def sample(self, noise: Tensor, temperature: float = 1.0, mode: str = "scale") -> Tensor:
        """Choose a component, then draw from it. noise: (N, Z + 1) normals"""
        chosen = self.choose(noise, temperature)
        region = chosen.clamp(min=0)
        none = (chosen < 0)[:, None]
        means = self.means.flatten(0, 1).index_select(0, self.owners * self.means.shape[1] + region)  # (N, Z)
        mean = torch.where(none, self.other.mean, means)
        log_variance = torch.where(none, self.other.log_variance, self.log_variance)
        return Gaussian(mean, log_variance).sample(noise[:, :-1], temperature, mode)


def _cold(temperature: float, like: Tensor) -> Tensor:
    return torch.as_tensor(temperature, dtype=like.dtype).clamp(min=COLDEST)


def mixture_kl(q: Gaussian, p: RegionMixture) -> Tensor:
    """-log sum_r pi_r exp(-KL(q || p_r)), an upper bound of KL(q || p) (Hershey and Olsen 2007), so that the
    objective stays a lower bound of the likelihood.

    (N, Z + 1): with rho_r, the share of component r in that sum, the mean of KL(q || p_r) over rho for each dimension,
    and in the last column what the choice costs, KL(rho || pi).
    """
    expanded = Gaussian(q.mean[:, None], q.log_variance[:, None])
    regions = kl(expanded, Gaussian(p.means[p.owners], p.log_variance))  # (N, R, Z)
    each = torch.cat([kl(q, p.other)[:, None], regions], dim=1)  # (N, 1 + R, Z)
    scores = p.log_weights - each.sum(2)  # (N, 1 + R)
    within = torch.einsum("nr,nrz->nz", torch.softmax(scores, dim=1), each)
    choice = -torch.logsumexp(scores, dim=1) - within.sum(1)
    return torch.cat([within, choice[:, None]], dim=1)


class RegionPrior(Prior):
    """p(z^o_k | z^o_{<k}, z^m_{<=t}, x_{<t}, I) as a mixture over regions."""

    def __init__(self, words: int, latents: int, picture: int, hidden: int, latent: int) -> None:
        super().__init__(words, latents, picture, hidden, latent)
        width = 2 * latent
        self.query = uniform(width, hidden, width=hidden)
        self.key = nn.Linear(picture, width, bias=False)
        self.means = nn.Linear(picture, latent)
        self.log_variance = nn.Parameter(torch.zeros(latent))
        self.no_region = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.means.weight.mul_(COMPONENT_LIFT)
            self.key.weight.mul_(COMPONENT_LIFT)

    def components(self, regions: RegionValues) -> RegionComponents:
        masked = torch.zeros(regions.mask.shape, dtype=torch.float32, device=regions.mask.device)
        return RegionComponents(
            keys=self.key(regions.values),
            means=self.means(regions.values).float(),
            masked=masked.masked_fill(~regions.mask, float("-inf")),
        )

    def mixture(self, h: Tensor, components: RegionComponents, groups: RowGroups) -> RegionMixture:
        """h: (N, H) of the LSTM, groups: the picture of each row"""
        query = groups.spread(h @ self.query.t())  # (P, D, A)
        scores = torch.bmm(query, components.keys.transpose(1, 2)) / math.sqrt(query.shape[2])  # (P, D, R)
        seen = groups.collect(scores.float() + components.masked[:, None])  # (N, R)
        scores = torch.cat([self.no_region(h).float(), seen], dim=1)
        return RegionMixture(
            log_weights=torch.log_softmax(scores, dim=1),
            other=Gaussian.of(self.out(h).float()),
            means=components.means,
            log_variance=self.log_variance,
            owners=groups.owners,
        )
