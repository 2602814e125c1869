"""torchvision's Faster R-CNN models, where torchvision is installed: bottom-up attention's own way.

The feature of a detection is what the box head sees of it (1,024 numbers of the second fully connected layer),
computed once more for the boxes that are kept.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from coscap.errors import UserError
from coscap.vision.regions import Recipe, Regions

DETECTIONS = 36


class FasterRcnnDetector:
    least_side = 0
    batch = 4

    def __init__(self, name: str, device: str = "cpu") -> None:
        import torch

        detection, weights = _library(name)
        self._model = _build(detection, name, weights).to(device).eval()
        self._model.roi_heads.score_thresh = 0.1
        self._model.roi_heads.detections_per_img = DETECTIONS
        self._torch = torch
        categories = tuple(weights.meta["categories"])
        # torchvision numbers classes as COCO does, with gaps ("N/A") and "__background__" first.
        named = [index for index, each in enumerate(categories) if each not in {"__background__", "N/A"}]
        self._labels = np.full(len(categories), -1, np.int16)
        self._labels[named] = np.arange(len(named))
        self.recipe = Recipe(
            name=f"torchvision:{name}@{weights.name}/1",
            width=int(self._model.roi_heads.box_predictor.cls_score.in_features),
            classes=tuple(categories[index] for index in named),
            detections=DETECTIONS,
            grid=0,
        )

    def regions(self, pictures: Sequence[Image.Image]) -> list[Regions]:
        return [self._one(picture) for picture in pictures]

    def _one(self, picture: Image.Image) -> Regions:
        torch, model = self._torch, self._model
        device = next(model.parameters()).device
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).to(device).float() / 255  # (3, H, W)
        with torch.inference_mode():
            images, _ = model.transform([pixels])
            maps = model.backbone(images.tensors)
            proposals, _ = model.rpn(images, maps)
            (found,), _ = model.roi_heads(maps, proposals, images.image_sizes)
            height, width = images.image_sizes[0]
            if not len(found["boxes"]):  # without a grid a picture must have some region: all of it, class 0
                found = {
                    "boxes": torch.tensor([[0.0, 0.0, width, height]], device=device),
                    "labels": torch.tensor([int(np.argmax(self._labels == 0))], device=device),
                    "scores": torch.zeros(1, device=device),
                }
            crops = model.roi_heads.box_roi_pool(maps, [found["boxes"]], images.image_sizes)
            features = model.roi_heads.box_head(crops)  # (D, 1024)
        scale = torch.tensor([width, height, width, height], device=device)
        return Regions(
            features=features.cpu().numpy().astype(np.float16),
            boxes=(found["boxes"] / scale).clamp(0, 1).cpu().numpy().astype(np.float32),
            labels=self._labels[found["labels"].cpu().numpy()],
            scores=found["scores"].cpu().numpy().astype(np.float32),
        )


def _library(name: str) -> tuple[Any, Any]:
    try:
        from torchvision.models import detection, get_model_weights
    except (ImportError, RuntimeError):
        raise UserError(
            "a torchvision: detector needs torchvision, in the build that belongs to your torch; install it first."
        ) from None
    if not (name.startswith("fasterrcnn") and hasattr(detection, name)):
        known = ", ".join(sorted(each for each in dir(detection) if each.startswith("fasterrcnn_")))
        raise UserError(f"torchvision has no Faster R-CNN called {name}; it has {known}.")
    return detection, get_model_weights(name).DEFAULT


def _build(detection: Any, name: str, weights: Any) -> Any:
    try:
        return getattr(detection, name)(weights=weights)
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"the weights of {name} cannot be downloaded ({reason}).") from None
