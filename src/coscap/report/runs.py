"""What is reported on: runs of `coscap train` and saved models."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from coscap.errors import UserError
from coscap.files import read_json, read_text
from coscap.models.registry import KINDS
from coscap.shipped import model_folder

METHODS = {
    "pseudo": "COS-CVAE",
    "paired": "COS-CVAE (paired)",
    "seq_cvae": "Seq-CVAE (attn)",
    "seq_cvae, mean": "Seq-CVAE",
    "ag_cvae, first": "AG-CVAE",
    "ag_cvae, mean": "AG-CVAE",
    "ag_cvae": "AG-CVAE (attn)",
    "pos": "POS",
    "lnfmm": "LNFMM",
    "updown": "UpDown",
    "ps3": "PS3",
    "updown, reward": "UpDown (reward)",
    "pseudo, reward": "COS-CVAE (reward)",
    "paired, reward": "COS-CVAE (reward)",
    "seq_cvae, reward": "Seq-CVAE (attn, reward)",
    "lstm_p": "LSTM-P",
    "nbt": "NBT",
    "dcc, text": "DCC",
    "noc, text": "NOC",
}
"""The paper's name of each kind of run; a kind that the paper does not have is called by its own name. The decoder is
named where it is not the up-down one."""


@dataclass(frozen=True)
class Run:
    """One model and where it came from."""

    name: str  # as the tables call it
    given: str  # as the user named the folder
    folder: Path  # that holds the model
    role: str  # a key of METHODS, or another kind of model
    weights: str  # digest
    training: dict[str, Any] = field(default_factory=dict)  # what is known of how it was trained
    has_latents: bool = True  # whether captions differ by draws; a beam is searched otherwise
    temperature: float | None = None  # of the latents, where it has one of its own

    def warmth(self, usual: float) -> float:
        """The temperature of its latents, `usual` where it has none of its own."""
        return usual if self.temperature is None else self.temperature


def open_runs(given: Sequence[str]) -> list[Run]:
    """Runs by `PATH`, `NAME=PATH` or `PATH@TEMPERATURE`; names are made to differ."""
    runs = [open_run(each) for each in given]
    names = [run.name for run in runs]
    runs = [
        replace(run, name=f"{run.name}, {Path(run.given).name}") if names.count(run.name) > 1 else run
        for run in runs
    ]
    twice = [run.name for run in runs if [other.name for other in runs].count(run.name) > 1]
    if twice:
        raise UserError(f"Two runs are called {twice[0]!r}; name them, for example first={runs[0].given}.")
    return runs


def open_run(given: str) -> Run:
    name, equals, place = given.rpartition("=")
    place, temperature = _own_temperature(place if equals else given)
    path = Path(place)
    folder = Path(model_folder(path))
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{path} is neither a run of `coscap train` nor a saved model (it has no config.json); check the path."
        )
    config = read_json(folder / "config.json")
    kind, notes = config["model"]["kind"], config.get("notes") or {}
    setup = _setup(path) or _setup(folder.parent)
    role = kind
    if kind in KINDS and KINDS[kind].learns_from_pseudo:
        with_pseudo = bool(setup.get("pseudo")) if setup else name == METHODS["pseudo"]
        role = "pseudo" if with_pseudo else "paired"
    if kind == "updown" and setup.get("partial"):
        role = "ps3"
    if setup.get("reward"):
        role = f"{role}, reward"
    decoder = config["model"].get("decoder", "updown")
    if decoder != "updown":
        role = f"{role}, {decoder}"
    return Run(
        name=name or METHODS.get(role, role),
        given=str(path),
        folder=folder,
        role=role,
        weights=str(config.get("weights")),
        training=_training(setup, notes),
        temperature=temperature,
    )


def _own_temperature(place: str) -> tuple[str, float | None]:
    """A path and the temperature behind its last @, if there is a number."""
    path, at, number = place.rpartition("@")
    try:
        value = float(number) if at and not Path(place).exists() else None
    except ValueError:
        value = None
    if value is None:
        return place, None
    if not 0 <= value < 100:
        raise UserError(
            f"{place}: the temperature behind @ is {number}, and at least 0 was expected, e.g. 0.7."
        )
    return path, value


def _setup(folder: Path) -> dict[str, Any]:
    """The configuration that a run saved beside its model."""
    path = folder / "config.yaml"
    content = yaml.safe_load(read_text(path)) if path.is_file() else None
    return content if isinstance(content, dict) else {}


def _training(setup: dict[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
    """Steps, epochs and captions seen, as far as run or model say."""
    setup = setup or notes.get("training") or {}
    seen: dict[str, Any] = notes.get("validation") or {}
    step, epoch = notes.get("step", seen.get("step")), notes.get("epoch", seen.get("epoch"))
    known = {
        "steps": step,
        "epochs": None if epoch is None else round(float(epoch), 2),
        "batch": setup.get("batch_size"),
    }
    if setup.get("captions") == "together":
        known["batch of"] = "pictures with all their captions"
    if setup.get("start"):
        known["began with another model"] = True
    if setup.get("pseudo"):
        known["pseudo weight"] = setup["pseudo"].get("weight")
    return {name: value for name, value in known.items() if value is not None}
