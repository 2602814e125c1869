"""The folder that `coscap contexts` writes: the embedding and the neighbours of every picture.

manifest.json         format, digest of the data set, recipe of the regions, settings, counts, recall
embedding.safetensors the weights of the joint embedding
images.npy            (I,)   indices of the pictures in the prepared data set, rising
captions.npy          (I, k) captions of other pictures whose context is near, best first, -1 for none
scores.npy            (I, k) cosines
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.data.prepared import Prepared
from coscap.errors import UserError
from coscap.files import read_json, write_json

FORMAT = "coscap contexts 1"


@dataclass(frozen=True)
class Neighbours:
    """Captions of other pictures whose context is near to each picture."""

    manifest: dict[str, Any]
    images: NDArray[np.int64]  # (I,) indices of the prepared data set
    captions: NDArray[np.int32]  # (I, k)
    scores: NDArray[np.float32]  # (I, k)

    def of(self, image: int) -> NDArray[np.int32]:
        """The captions near to a picture (an index of the prepared data set), best first."""
        at = int(np.searchsorted(self.images, image))
        if at == len(self.images) or self.images[at] != image:
            return np.zeros(0, np.int32)
        found: NDArray[np.int32] = self.captions[at]
        return np.extract(found >= 0, found)


def save_neighbours(folder: Path, neighbours: Neighbours) -> None:
    np.save(folder / "images.npy", neighbours.images)
    np.save(folder / "captions.npy", neighbours.captions)
    np.save(folder / "scores.npy", neighbours.scores)
    write_json(folder / "manifest.json", neighbours.manifest, indent=2)


def open_neighbours(path: str | Path, prepared: Prepared) -> Neighbours:
    """The neighbours in a folder; a UserError if they were made for another data set."""
    path = Path(path)
    if not (path / "manifest.json").is_file():
        raise UserError(f"{path} holds no neighbours; make them with `coscap contexts {prepared.path}`.")
    manifest = read_json(path / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(
            f"{path / 'manifest.json'} is not of the format {FORMAT!r}; run `coscap contexts` again."
        )
    if manifest.get("data") != prepared.digest:
        raise UserError(
            f"{path} was made for another data set than {prepared.path}; run `coscap contexts` again."
        )
    try:
        arrays = [np.load(path / f"{name}.npy", mmap_mode="r") for name in ("images", "captions", "scores")]
    except (OSError, ValueError, EOFError):
        raise UserError(f"{path} is damaged; run `coscap contexts {prepared.path}` again.") from None
    return Neighbours(manifest, *arrays)
