"""The torch side of the seam between models and searches (coscap.seam): NumPy in, NumPy out."""

from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.models.base import CaptionModel
from coscap.models.latents import Latents
from coscap.seam import Candidates, Floats, Ints, LatentValues, RegionArrays, TokenMask

_BLOCK = 64  # rows longer than some of these are searched block by block


@dataclass(frozen=True)
class TorchState:
    """A model's state, on its device; rows are selected by NumPy arrays."""

    state: Any
    device: torch.device

    @property
    def rows(self) -> int:
        rows: int = self.state.rows
        return rows

    @torch.inference_mode()
    def select(self, rows: Ints) -> "TorchState":
        return TorchState(self.state.select(torch.from_numpy(rows).to(self.device)), self.device)

    def latents(self) -> LatentValues:
        values = self.state.latents()

        def array(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor.cpu().numpy()

        return LatentValues(**{each.name: array(getattr(values, each.name)) for each in fields(LatentValues)})


class TorchStepper:
    """A CaptionModel as searches use it. Candidates are computed on the model's device."""

    def __init__(self, module: CaptionModel) -> None:
        self.module = module

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def latent_names(self) -> tuple[str, ...]:
        if not sum(self.module.latent_widths(self.module.config)):
            return ()
        return ("context", "objects") if self.module.splits_objects else ("context",)

    @cached_property
    def digest(self) -> str:
        """A checksum of the weights: equal digests give equal captions."""
        found = sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.cpu().numpy().tobytes())
        return found.hexdigest()

    @torch.inference_mode()
    def start(
        self,
        regions: RegionArrays,
        draws: int,
        *,
        seed: int = 0,
        latent_temperature: float = 1.0,
        latents: LatentValues | None = None,
        record: bool = False,
    ) -> TorchState:
        batch = RegionBatch(
            **{name: self._tensor(values) for name, values in vars(RegionArrays.of(regions)).items()}
        )
        given = None
        if latents is not None:
            values = vars(latents).items()
            given = Latents(**{name: self._tensor(each) for name, each in values if each is not None})  # type: ignore[arg-type]
        return TorchState(
            self.module.start(
                batch, draws, seed=seed, temperature=latent_temperature, latents=given, record=record
            ),
            self.device,
        )

    @torch.inference_mode()
    def step(
        self,
        tokens: Ints,
        state: TorchState,
        k: int | None,
        *,
        named: Ints | None = None,
        mask: TokenMask | None = None,
    ) -> tuple[Candidates, TorchState, Floats]:
        logs, after, attention = self.module.step(self._tensor(tokens), state.state)  # (N, V), (N, R)
        found = candidates(logs, k, named, mask)
        return found, TorchState(after, self.device), attention.cpu().numpy()

    def _tensor(self, values: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)


def candidates(logs: Tensor, k: int | None, named: Ints | None, mask: TokenMask | None) -> Candidates:
    """What a step returns of its log-probabilities (N, V), which are overwritten."""
    device = logs.device
    if mask is not None:
        logs[:, torch.from_numpy(mask.tokens).to(device)] = -torch.inf
        if len(mask.rows):
            rows, tokens = torch.from_numpy(mask.rows), torch.from_numpy(mask.row_tokens)
            logs[rows.to(device), tokens.to(device)] = -torch.inf
    if k is None:
        ids = np.broadcast_to(np.arange(logs.shape[1]), tuple(logs.shape))
        return Candidates(ids, logs.cpu().numpy())
    values, index = logs[:, :0], torch.zeros(len(logs), 0, dtype=torch.int64, device=device)
    if named is not None:
        index = torch.from_numpy(np.ascontiguousarray(named)).to(device)  # (N, A)
        missing = index < 0
        place = torch.where(missing, index[:, :1], index).clamp(min=0)  # padding stands for the first one
        values = logs.gather(1, place).masked_fill(missing, -torch.inf)
        if k:
            logs.scatter_(1, place, -torch.inf)
    if k:
        best, others = top(logs, min(k, logs.shape[1]))  # (N, k)
        values, index = torch.cat([values, best], dim=1), torch.cat([index, others], dim=1)
    return Candidates(index.cpu().numpy(), values.cpu().numpy())


def top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row by falling value, equal ones by rising index: values and indices (N, k).

    torch.topk leaves open which of several equal values it takes. A tie across the edge of the first k
    is rare, so only the rows that have one are sorted whole.
    """
    if k == 1:
        best, index = values.max(dim=1, keepdim=True)
        return best, index
    if k >= values.shape[1]:
        return values.sort(dim=1, descending=True, stable=True)
    best, index = _some_top(values, k + 1)  # (N, k + 1)
    open_rows = (best[:, k - 1] == best[:, k]) & (best[:, k] > -torch.inf)
    index = index[:, :k].sort(dim=1).values
    best, order = values.gather(1, index).sort(dim=1, descending=True, stable=True)
    index = index.gather(1, order)
    if bool(open_rows.any()):
        full, places = values[open_rows].sort(dim=1, descending=True, stable=True)
        best[open_rows], index[open_rows] = full[:, :k], places[:, :k]
    return best, index


def _some_top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk, faster for long rows: the k largest are in the k blocks with the largest maxima."""
    rows, width = values.shape
    blocks = width // _BLOCK
    if blocks <= 4 * k:
        return values.topk(k, dim=1)
    even = blocks * _BLOCK
    maxima = values[:, :even].reshape(rows, blocks, _BLOCK).amax(2)  # (N, blocks)
    chosen = maxima.topk(k, dim=1).indices  # (N, k)
    within = torch.arange(_BLOCK, device=values.device)
    found = (chosen[:, :, None] * _BLOCK + within).flatten(1)  # (N, k * block)
    rest = torch.arange(even, width, device=values.device).expand(rows, -1)
    found = torch.cat([found, rest], dim=1)
    best, order = values.gather(1, found).topk(k, dim=1)
    return best, found.gather(1, order)
