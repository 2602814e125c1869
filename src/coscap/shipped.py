"""Where a model lies that a user names: the package's own, a training run, a saved model, or one on a hub."""

from importlib.resources import files as resources
from pathlib import Path

SHIPPED = "shipped"  # the name of the model inside the package


def model_folder(name: str | Path) -> str | Path:
    """The folder of the shipped model, the best model of a run, or the name as it is."""
    if str(name) == SHIPPED:
        return Path(str(resources("coscap"))) / "weights" / "captioner"
    best = Path(name) / "best"
    return best if best.is_dir() else name
