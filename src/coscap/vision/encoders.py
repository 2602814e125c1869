"""Any vision encoder of the transformers library as a grid of regions: CLIP, SigLIP, DINOv2, ViT, ConvNeXt, timm ...

The picture is squashed to the encoder's square, so that the grid covers all of it (the library's processors would cut
its sides off). The last hidden states of the patches are a map, which is pooled to at most GRID x GRID cells.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coscap.errors import UserError, reason
from coscap.vision.pooling import grid_boxes, pool
from coscap.vision.regions import GRID_LABEL, Recipe, Regions

GRID = 8
MOST_PREFIX = 16  # tokens before the patches: class, distillation, registers


class TransformersEncoder:
    """One picture at a time: a batch may round otherwise, and a picture's regions depend on it alone."""

    batch = 8

    def __init__(self, name: str, identity: str, model: Any, processor: Any, device: str = "cpu") -> None:
        whole = getattr(model, "vision_model", model)  # of CLIP and SigLIP only the half that sees
        self._model = whole.to(device).eval()
        self._name, self._device = name, device
        self._side, mean, deviation = _preprocessing(processor, model.config, name)
        self._mean = np.array(mean, np.float32)
        self._deviation = np.array(deviation, np.float32)
        features = self._map(Image.new("RGB", (self._side, self._side)))  # (F, h, w)
        grid = min(GRID, *features.shape[1:])
        self._boxes = grid_boxes(grid)  # (grid * grid, 4)
        self.least_side = 2 * self._side
        self.recipe = Recipe(
            name=f"hf:{identity}/grid-{grid}/1",
            width=int(features.shape[0]),
            classes=(),
            detections=0,
            grid=grid,
        )

    def regions(self, pictures: Sequence[Image.Image]) -> list[Regions]:
        return [self._one(picture) for picture in pictures]

    def _one(self, picture: Image.Image) -> Regions:
        features = pool(self._map(picture), self._boxes)  # (grid * grid, F)
        cells = len(features)
        return Regions(
            features=features.astype(np.float16),
            boxes=self._boxes,
            labels=np.full(cells, GRID_LABEL, np.int16),
            scores=np.ones(cells, np.float32),
        )

    def _map(self, picture: Image.Image) -> NDArray[np.float32]:
        """(F, h, w) the last hidden states, where they are in the picture."""
        import torch

        side = (self._side, self._side)
        pixels = np.asarray(picture.resize(side, Image.Resampling.BICUBIC), np.float32) / 255  # (S, S, 3)
        pixels = ((pixels - self._mean) / self._deviation).transpose(2, 0, 1)[None]  # (1, 3, S, S)
        options = {"interpolate_pos_encoding": True} if self._interpolates() else {}
        try:
            with torch.inference_mode():
                output = self._model(
                    torch.from_numpy(np.ascontiguousarray(pixels)).to(self._device), **options
                )
        except (RuntimeError, ValueError, TypeError) as error:
            raise UserError(
                f"{self._name} cannot be used as an encoder of pictures ({reason(error)}); take one such as DINOv2."
            ) from None
        hidden = getattr(output, "last_hidden_state", None)
        if hidden is None or hidden.ndim not in (3, 4):
            raise UserError(
                f"{self._name} gives no hidden states of patches; take CLIP, SigLIP, DINOv2 or ConvNeXt."
            )
        patch = getattr(self._model.config, "patch_size", None)
        across = self._side // patch if isinstance(patch, int) and patch > 0 else None
        return as_map(hidden[0].float().cpu().numpy(), across, self._name)

    def _interpolates(self) -> bool:
        """Does the model take pictures of another size than its own only when asked to?"""
        own = getattr(self._model.config, "image_size", None)
        known = "interpolate_pos_encoding" in inspect.signature(self._model.forward).parameters
        return known and isinstance(own, int) and own != self._side


def as_map(hidden: NDArray[np.float32], across: int | None, name: str) -> NDArray[np.float32]:
    """(F, h, w) from a map, or from (T, F) tokens: those of the patches come last, and are a square.

    `across`: how many patches a side has, if the encoder does not merge them on its way as Swin does.
    """
    if hidden.ndim == 3:
        last = hidden.shape[0] == hidden.shape[1] != hidden.shape[2]  # timm's Swin keeps channels last
        return hidden.transpose(2, 0, 1) if last else hidden
    tokens, width = hidden.shape
    if across is None or not 0 <= tokens - across * across <= MOST_PREFIX:
        across = int(np.sqrt(tokens))
    prefix = tokens - across * across
    if not across or prefix > MOST_PREFIX:
        raise UserError(
            f"{name} gives {tokens} hidden states, which are no square of patches; take another encoder."
        )
    return hidden[prefix:].reshape(across, across, width).transpose(2, 0, 1)


def _preprocessing(processor: Any, config: Any, name: str) -> tuple[int, Sequence[float], Sequence[float]]:
    """The side of the square that the encoder sees, and the mean and deviation of its colours."""
    timm = getattr(processor, "data_config", None)
    if timm:
        return int(timm["input_size"][-1]), timm["mean"], timm["std"]
    sizes = [getattr(processor, "crop_size", None) if getattr(processor, "do_center_crop", False) else None]
    sizes += [
        getattr(processor, "size", None),
        getattr(getattr(config, "vision_config", config), "image_size", None),
    ]
    for size in sizes:
        keys = ("height", "shortest_edge")
        side = (
            size
            if isinstance(size, int)
            else next((size[key] for key in keys if size and size.get(key)), None)
        )
        if side:
            plain = not getattr(processor, "do_normalize", True)
            mean = [0.0] * 3 if plain else processor.image_mean
            return int(side), mean, [1.0] * 3 if plain else processor.image_std
    raise UserError(f"{name} does not say for which size of pictures it was made; take another encoder.")
