"""The kinds of models and of decoders, one entry each, and how a configuration becomes a model.

A new kind is a file with a subclass of `CaptionModel` and an entry in `KINDS`; every command then knows it.
"""

from importlib.resources import files
from typing import Any

import yaml

from coscap.errors import UserError
from coscap.models.ag_cvae import AgCvae
from coscap.models.base import CaptionModel
from coscap.models.config import ModelConfig, read_config
from coscap.models.cos_cvae import CosCvae
from coscap.models.dcc import Dcc
from coscap.models.decoder import UpDownDecoder
from coscap.models.first_decoder import FirstDecoder
from coscap.models.language import TextDecoder
from coscap.models.lnfmm import Lnfmm
from coscap.models.lstm_p import LstmP
from coscap.models.mean_decoder import MeanDecoder
from coscap.models.nbt import Nbt
from coscap.models.noc import Noc
from coscap.models.pos import Pos
from coscap.models.seq_cvae import SeqCvae
from coscap.models.updown import UpDown

KINDS: dict[str, type[CaptionModel]] = {
    "cos_cvae": CosCvae,
    "seq_cvae": SeqCvae,
    "ag_cvae": AgCvae,
    "pos": Pos,
    "lnfmm": Lnfmm,
    "updown": UpDown,
    "lstm_p": LstmP,
    "nbt": Nbt,
    "dcc": Dcc,
    "noc": Noc,
}
DECODERS: dict[str, type[UpDownDecoder]] = {
    "updown": UpDownDecoder,
    "mean": MeanDecoder,
    "first": FirstDecoder,
    "text": TextDecoder,
}
PRESETS = ("paper", "released", "small")


def build_model(config: ModelConfig) -> CaptionModel:
    """A new model with random weights (from torch's random state)."""
    return KINDS[config.kind](config, DECODERS[config.decoder])


def preset(name: str, **changes: Any) -> ModelConfig:
    """One of the shipped configurations, with changes: preset("small", kind="updown", vocabulary=9000)."""
    if name not in PRESETS:
        raise UserError(f"there is no model preset {name!r}; choose one of {', '.join(PRESETS)}.")
    text = files("coscap.models").joinpath(f"presets/{name}.yaml").read_text(encoding="utf-8")
    return read_config({**yaml.safe_load(text), **changes}, f"preset {name}")
