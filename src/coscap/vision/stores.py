"""Several stores of regions read as one."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.progress import track
from coscap.vision.published import Store, open_regions
from coscap.vision.regions import Recipe, Regions


class Stores:
    """Regions of training and test pictures may be in different files; they must have been made in one way."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.stores: list[Store] = [open_regions(path) for path in paths]
        for store in self.stores[1:]:
            if store.recipe != self.recipe:
                raise UserError(
                    f"{store.path} was made by the recipe {store.recipe.name} and {self.stores[0].path} by "
                    f"{self.recipe.name}; make the regions in one way."
                )

    def __str__(self) -> str:
        return ", ".join(str(store.path) for store in self.stores)

    @property
    def recipe(self) -> Recipe:
        return self.stores[0].recipe

    def __contains__(self, image: object) -> bool:
        return any(image in store for store in self.stores)

    def get(self, image: int) -> Regions:
        return next(store for store in self.stores if image in store).get(image)

    def checksum(self, image: int) -> int:
        """Names the features of a picture."""
        return zlib.crc32(np.ascontiguousarray(self.get(image).features, np.float16).data)

    def means(self, images: Sequence[int], label: str) -> NDArray[np.float32]:
        """The mean feature of each picture's regions, (I, F)."""
        means = np.zeros((len(images), self.recipe.width), np.float32)
        for mean, image in zip(means, track(images, label, unit="image"), strict=True):
            features: NDArray[Any] = self.get(image).features  # (R, F)
            mean[:] = features.mean(axis=0, dtype=np.float32) if len(features) else 0
        return means
