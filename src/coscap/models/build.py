"""From a configuration to a model."""

from importlib.resources import files
from typing import Any

import yaml

from coscap.errors import UserError
from coscap.models.config import ModelConfig, read_config
from coscap.models.cos_cvae import CosCvae
from coscap.models.seq_cvae import SeqCvae
from coscap.models.updown import UpDown

PRESETS = ("paper", "released", "small")


def preset(name: str, **changes: Any) -> ModelConfig:
    """One of the shipped configurations, with changes: preset("small", kind="updown", vocabulary=9000)."""
    if name not in PRESETS:
        raise UserError(f"there is no model preset {name!r}; choose one of {', '.join(PRESETS)}.")
    text = files("coscap.models").joinpath(f"presets/{name}.yaml").read_text(encoding="utf-8")
    return read_config({**yaml.safe_load(text), **changes}, f"preset {name}")


Model = CosCvae | SeqCvae | UpDown


def build_model(config: ModelConfig) -> Model:
    """A new model with random weights (from torch's random state)."""
    kinds: dict[str, type[Model]] = {"cos_cvae": CosCvae, "seq_cvae": SeqCvae, "updown": UpDown}
    return kinds[config.kind](config)
