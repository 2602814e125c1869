"""A captioner with random weights, for tests that need words and boxes but no sense."""

from pathlib import Path

import torch

from coscap.models import build_model, preset, save_pretrained
from coscap.text import Vocabulary, load_classes
from coscap.vision.detectors import load_detector

WORDS = "a the on in of with man woman dog cat cup table holding sitting white small street two and".split()


def save_tiny_model(path: Path, kind: str = "cos_cvae") -> Path:
    """A saved model with random weights."""
    torch.manual_seed(3)
    classes = load_classes("coco")
    vocabulary = Vocabulary.build([WORDS], minimum=1, objects=classes)
    recipe = load_detector().recipe
    config = dict(
        attention_lstm=16, language_lstm=16, region_projection=16, attention_width=8, context_posterior=8,
        object_posterior=8, context_prior=8, object_prior=8, classes=len(recipe.classes),
        region_words=len(recipe.words),
    )  # fmt: skip
    model = build_model(
        preset("small", kind=kind, vocabulary=len(vocabulary), region_width=recipe.width, **config)
    )
    save_pretrained(model, path, vocabulary=vocabulary, recipe=recipe, classes=classes)
    return path
