"""What is learnt: COS-CVAE and its baselines, on one decoder and one way to decode."""

from coscap.models.base import CaptionModel, LossTerms
from coscap.models.config import ModelConfig, read_config
from coscap.models.cos_cvae import CosCvae
from coscap.models.decoder import DecodeState
from coscap.models.hub import Pretrained, load_pretrained, save_pretrained
from coscap.models.kernels import keep_freed_memory
from coscap.models.latents import Gaussian, Latents, kl
from coscap.models.registry import DECODERS, KINDS, PRESETS, build_model, preset
from coscap.models.seq_cvae import SeqCvae
from coscap.models.updown import UpDown

__all__ = [
    "DECODERS",
    "KINDS",
    "PRESETS",
    "CaptionModel",
    "CosCvae",
    "DecodeState",
    "Gaussian",
    "Latents",
    "LossTerms",
    "ModelConfig",
    "Pretrained",
    "SeqCvae",
    "UpDown",
    "build_model",
    "keep_freed_memory",
    "kl",
    "load_pretrained",
    "preset",
    "read_config",
    "save_pretrained",
]
