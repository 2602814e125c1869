"""Checkpoints: all that a run needs to go on to the same weights, in a folder that is whole or not there.

    RUN/checkpoints/step-00001200/
        model.safetensors        weights and buffers
        optimiser.safetensors    the optimiser's state, `parameter:item`
        average.safetensors      the moving average of the weights, where there is one
        state.json               step, place in the data, best figure, digests of the data, loss scale

Random generators need no place here: the loop seeds them from (seed, step) before every step.
"""

import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from coscap.errors import UserError
from coscap.files import read_json, whole_folder, write_json

FORMAT = 2
KEPT = 2


@dataclass
class Progress:
    """Where a run is. The one record that the loop changes."""

    step: int = 0
    validated: int = -1  # the step of the last validation: a resumed run neither skips nor repeats one
    best: float | None = None  # the best figure of a validation; greater is better
    best_step: int = -1
    stale: int = 0  # validations since the best
    loader: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, Any] = field(default_factory=dict)  # of the loss, with float16


@dataclass(frozen=True)
class Tensors:
    model: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    average: dict[str, Tensor]


def save_checkpoint(
    run: Path, progress: Progress, tensors: Tensors, steps: int, digests: dict[str, str]
) -> None:
    """Write checkpoint `progress.step` whole, then drop the oldest beyond the last two."""
    folder = run / "checkpoints" / f"step-{progress.step:08d}"
    with whole_folder(folder) as partial:
        for name, group in vars(tensors).items():
            if group or name != "average":
                save_file(
                    {key: _on_cpu(value) for key, value in group.items()}, partial / f"{name}.safetensors"
                )
        state = {"format": FORMAT, "steps": steps, "digests": digests, "progress": asdict(progress)}
        write_json(partial / "state.json", state, indent=1)
        for file in partial.iterdir():
            _to_disk(file)
    for old in checkpoints(run)[:-KEPT]:
        shutil.rmtree(old)


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted((run / "checkpoints").glob("step-*"))


def sweep(run: Path) -> None:
    """Remove what a killed process left half written. Such names begin with a dot, so no reader sees them."""
    for folder in (run, run / "checkpoints"):
        for left in [*folder.glob(".*.part"), *folder.glob(".*.old")]:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def load_checkpoint(folder: Path, digests: dict[str, str]) -> tuple[Progress, Tensors, int]:
    """Progress, tensors and the planned number of steps; refused if it was made with other data."""
    state = read_json(folder / "state.json")
    try:
        if state["format"] != FORMAT:
            raise UserError(
                f"{folder} has checkpoint format {state['format']}, and this coscap reads {FORMAT}; "
                "go on with the version that wrote it."
            )
        progress, steps, saved = Progress(**state["progress"]), int(state["steps"]), dict(state["digests"])
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{folder}/state.json is damaged; remove {folder} to go on from the one before."
        ) from None
    other = [name for name in sorted(saved.keys() | digests.keys()) if saved.get(name) != digests.get(name)]
    if other:
        raise UserError(
            f"{folder} was trained with another {other[0]} than the configuration names now; "
            "give the data and regions of that run, or train into a new --out folder."
        )
    groups = {name: _read(folder / f"{name}.safetensors") for name in ("model", "optimiser")}
    average = folder / "average.safetensors"
    return progress, Tensors(**groups, average=_read(average) if average.exists() else {}), steps


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError):
        raise UserError(
            f"{path} is missing or damaged; remove the folder {path.parent} to go on from the one before."
        ) from None


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
