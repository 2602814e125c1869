"""Where a model lies that a user names: the package's own, a training run, a saved model, or one on a hub."""

from importlib.resources import files as resources
from pathlib import Path

from coscap.errors import UserError

SHIPPED = "shipped"  # the name of the model inside the package


def model_folder(name: str | Path) -> str | Path:
    """The folder of the shipped model, the best model of a run, or the name as it is."""
    if str(name) == SHIPPED:
        return Path(str(resources("coscap"))) / "weights" / "captioner"
    best = Path(name) / "best"
    return best if best.is_dir() else name


def hub_name(name: str) -> tuple[str, str | None]:
    """`owner/name` on a hub, and the revision in `owner/name@revision`, which pins what is downloaded.

    A name that can only be meant as a path ("runs/mine" where there is a folder runs) is a UserError: nobody should
    wait for a hub to hear of a slip.
    """
    repository, _, revision = name.partition("@")
    owner, _, rest = repository.partition("/")
    if Path(name).is_file():
        raise UserError(f"{name} is a file, and the folder of a model was expected; check the path.")
    if not rest or "/" in rest or name.startswith((".", "/", "~")):
        raise UserError(f"{name} is no folder with a model, and no name of one on the hub (owner/name).")
    if Path(owner).is_dir():
        there = sorted(path.name for path in Path(owner).iterdir() if path.is_dir())[:8]
        held = f"it has {', '.join(there)}" if there else "it has none"
        raise UserError(
            f"{name} does not exist: {owner} is a folder without a model {rest} ({held}); check the path."
        )
    return repository, revision or None
