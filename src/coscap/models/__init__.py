"""What is learnt: COS-CVAE and its baselines, on one decoder and one `Step` protocol."""

from coscap.models.base import CaptionModel
from coscap.models.build import PRESETS, build_model, preset
from coscap.models.config import ModelConfig, read_config
from coscap.models.cos_cvae import CosCvae
from coscap.models.gaussian import Gaussian, kl
from coscap.models.latents import Latents
from coscap.models.memory import keep_freed_memory
from coscap.models.parts import Parts
from coscap.models.pretrained import Pretrained, load_pretrained, push_pretrained, save_pretrained
from coscap.models.seq_cvae import SeqCvae
from coscap.models.state import DecodeState
from coscap.models.updown import UpDown

__all__ = [
    "PRESETS",
    "CaptionModel",
    "CosCvae",
    "DecodeState",
    "Gaussian",
    "Latents",
    "ModelConfig",
    "Parts",
    "Pretrained",
    "SeqCvae",
    "UpDown",
    "build_model",
    "keep_freed_memory",
    "kl",
    "load_pretrained",
    "preset",
    "push_pretrained",
    "read_config",
    "save_pretrained",
]
