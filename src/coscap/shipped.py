"""What a user's name of a model leads to: its folder, the detector that it was trained with, a device that is there."""

import sys
from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, Literal

from coscap.errors import UserError
from coscap.extras import needed
from coscap.runtime import Precision, has_graphs, load_runtime
from coscap.vision.regions import Recipe

SHIPPED = "shipped"  # the name of the model inside the package
Runtime = Literal["onnx", "torch"]


def model_folder(name: str | Path) -> str | Path:
    """The folder of the shipped model, the best model of a run, its last where none was validated, or the name."""
    if str(name) == SHIPPED:
        return Path(str(resources("coscap"))) / "weights" / "captioner"
    return next((each for each in (Path(name, "best"), Path(name, "last")) if each.is_dir()), name)


def load_model(
    name: str | Path,
    device: str = "cpu",
    runtime: Runtime | None = None,
    providers: Sequence[str] | None = None,
    precision: Precision | None = None,
) -> tuple[Any, Any]:
    """A model with all that belongs to it, and the same as searches use it (coscap.seam.SearchModel).

    In onnxruntime if the folder has graphs and a CPU or `providers` are asked for, in torch otherwise.
    """
    if runtime not in (None, "onnx", "torch"):
        raise UserError(f"The runtime is {runtime!r}, and onnx or torch was expected.")
    folder = model_folder(name)
    graphs = has_graphs(folder)
    if runtime is None:
        runtime = "onnx" if graphs and (device == "cpu" or providers) else "torch"
    if runtime == "onnx":
        if not graphs:
            raise UserError(f"{name} has no graphs for onnxruntime; make them: coscap export {name} --here.")
        if providers is None:
            providers = ("CPUExecutionProvider",) if device == "cpu" else ("CUDAExecutionProvider",)
        loaded = load_runtime(folder, providers=providers, precision=precision)
        return loaded, loaded.model
    if precision == "int8":
        raise UserError(f"{name} runs in torch, which computes in float32; leave out int8, or use onnx.")
    with needed(f"{name} in torch"):
        check_device(device)
        from coscap.models.hub import load_pretrained
        from coscap.models.stepper import TorchStepper

        pretrained = load_pretrained(folder)
    return pretrained, TorchStepper(pretrained.model.to(device).eval())


def detector_name(recipe: Recipe | None, source: str) -> str:
    """The name of the detector that makes regions of a recipe."""
    from coscap.vision.builtin import RECIPE, is_of_package

    if recipe is None or is_of_package(recipe):
        return "builtin"
    if recipe.name == RECIPE.name:
        return "builtin:imagenet"
    kind, _, rest = recipe.name.partition(":")
    name = rest.rpartition("@")[0]
    if kind in ("torchvision", "hf") and name and (kind == "torchvision" or "/" in name):
        return f"{kind}:{name}"
    raise UserError(
        f"{source} was trained on regions of the recipe {recipe.name}, and no detector of that name can be loaded by "
        "itself; give the detector that made them (--detector hf:FOLDER), or use `coscap sample` with their store."
    )


def check_device(device: str) -> None:
    """Refuse a device that is not there, without torch where that can be known."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return
    if kind != "cuda":
        raise UserError(f"The device is {device!r}, and cpu or cuda was expected.")
    drivers = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
    if sys.platform == "linux" and not any(Path(each).exists() for each in drivers):
        raise UserError("--device cuda: this machine has no GPU that torch could use; use --device cpu.")
    import torch

    if not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU here; use --device cpu.")
