"""Several processes as one: started by torchrun, joined by DDP, each with its share of every batch.

DDP averages gradients over the processes. The loss of each is therefore its sum times the number of
processes, over the captions of the joint batch: the average is then the gradient of the joint batch.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from coscap.errors import UserError
from coscap.training.objective import Objective

logger = logging.getLogger("coscap.training")

PATIENCE = timedelta(hours=6)  # the others wait while the first process validates


@dataclass(frozen=True)
class Ranks:
    """This process among its equals."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """Each value summed over all processes."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        return list(tensor.tolist())

    def total_tensors(self, named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same for tensors by name, as float64 on the CPU."""
        flat = [value.double().cpu() for value in named.values()]
        if self.world > 1:
            joined = torch.cat([value.flatten() for value in flat])
            dist.all_reduce(joined)
            parts = joined.split([value.numel() for value in flat])
            flat = [part.view_as(value) for part, value in zip(parts, flat, strict=True)]
        return dict(zip(named, flat, strict=True))

    def any(self, flag: bool) -> bool:
        return self.total(float(flag))[0] > 0

    def wrap(self, objective: Objective) -> nn.Module:
        if self.world == 1:
            return objective
        ids = [self.device.index] if self.device.type == "cuda" else None
        parallel = nn.parallel.DistributedDataParallel
        known = signature(parallel).parameters
        buffers = (
            "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        )  # torch < 2.13
        options: dict[str, Any] = {buffers: False}
        return parallel(objective, device_ids=ids, **options)


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """The ranks of this run; one process unless torchrun started it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if world == 1:
        yield Ranks(0, 1, chosen)
        return
    backend = "gloo"
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), world, chosen)
    finally:
        dist.destroy_process_group()


def leave(code: int) -> None:
    """End this process at once if it is one of several.

    DDP keeps the threads of gloo alive, also after `destroy_process_group`. One that still holds a tensor of the
    last exchange when the interpreter is taken down aborts the process, and torchrun takes the run for a failure.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """`auto` is a GPU where there is one."""
    available = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if available else "cpu"
    if device == "cuda":
        if not available:
            raise UserError("--device cuda: torch finds no GPU here; use --device cpu or --device auto.")
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    if device != "cpu":
        raise UserError(f"--device {device}: expected cpu, cuda or auto.")
    return torch.device("cpu")


def use_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is worth having. A processor without instructions for it emulates them, a hundred times slower
    than float32; a warning says so."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return True
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return True
    logger.warning(
        "this processor has no instructions for bfloat16; training goes on in float32, which is faster here"
    )
    return False
