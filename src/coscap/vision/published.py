"""Regions in the formats in which they are published, behind the same interface as our own store.

    bottom-up TSV    image_id image_w image_h num_boxes boxes features, the last two base64 of float32;
                     also the ten columns with objects_id and objects_conf
    bottom-up HDF5   image_id, num_boxes, boxes, features, one row a picture, flat and of varying length or
                     padded; with or without classes and scores
    a folder         ID.npz (features or feat or x, and boxes or bbox, ...) or ID.npy (features alone)

They are read a picture at a time, so that any size works; `coscap data regions` turns them into our own
store, which is many times faster. Regions without a class have the label -1, without a score the score 1,
without a box the whole picture.
"""

import base64
import binascii
import math
import mmap
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.files import read_text
from coscap.vision.checked import checked_regions
from coscap.vision.ids import image_id_of
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.store import RegionStore, own_dataset

LARGEST = 1 << 28  # bytes of one array of one picture: a hundred times what any detector gives

_PLAIN = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_WITH_CLASSES = (
    "image_id",
    "image_h",
    "image_w",
    "objects_id",
    "objects_conf",
    "attrs_id",
    "attrs_conf",
    "num_boxes",
    "boxes",
    "features",
)


class Store(Protocol):
    """What loaders and captioners need of a store of regions, ours or a published one."""

    @property
    def path(self) -> Path: ...

    @property
    def recipe(self) -> Recipe: ...

    @property
    def ids(self) -> NDArray[np.int64]:
        """(N,) the pictures' ids, by position."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...

    def get(self, key: int) -> Regions:
        """The regions of the picture with this id."""
        ...

    def at(self, position: int) -> Regions:
        """The regions of the picture at this position of the store."""
        ...

    def detected(self, position: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """Labels and scores of the picture at a position."""
        ...

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position of each picture, -1 for one that is not in the store."""
        ...


def open_regions(path: str | Path) -> Store:
    """Open a store of regions, whichever of the formats it is in; the content decides."""
    path = Path(path)
    if path.is_dir():
        return FolderStore(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; make a store of regions with `coscap features`.")
    with path.open("rb") as file:
        start = file.read(1 << 16)
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return RegionStore.open(path) if _is_ours(path) else Hdf5Store(path)
    if b"\t" in start:
        return TsvStore(path)
    raise UserError(
        f"{path} is no store of regions; an HDF5 file, a bottom-up TSV or a folder of .npz files was expected."
    )


class Published(ABC):
    """Finds pictures by id; the formats read one picture at a position."""

    def __init__(self, path: Path, ids: Iterable[int], classes: tuple[str, ...] | None = None) -> None:
        self.path = path
        self.ids = np.fromiter(ids, dtype=np.int64)
        if not len(self.ids):
            raise UserError(f"{path} holds no regions; check that the file is complete.")
        self._order = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._order]
        twice = self._sorted[1:][np.diff(self._sorted) == 0]
        if len(twice):
            raise UserError(f"{path} has image {int(twice[0])} twice; leave one of them out.")
        self._width: int | None = None
        first = self.at(0)
        self._width = first.features.shape[1]
        labelled = bool((np.asarray(first.labels) != GRID_LABEL).any())
        self.recipe = Recipe(
            name=f"bottom-up/{self._width}",
            width=self._width,
            classes=(classes or _class_names(path)) if labelled else (),
            detections=max(100, len(first)),  # bottom-up gives 10 to 100, or always 36
            grid=0,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int | np.integer) and int(self.positions(np.array([key]))[0]) >= 0

    def detected(self, position: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        regions = self.at(position)
        return regions.labels, regions.scores

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        wanted = np.asarray(ids, dtype=np.int64)
        places = np.searchsorted(self._sorted, wanted).clip(max=len(self.ids) - 1)
        return np.where(self._sorted[places] == wanted, self._order[places], -1)

    def get(self, key: int) -> Regions:
        position = int(self.positions(np.array([key]))[0])
        if position < 0:
            raise UserError(f"{self.path} has no regions of picture {key}.")
        return self.at(position)

    def at(self, position: int) -> Regions:
        item = f"{self.path}, image {int(self.ids[position])}"
        regions = checked_regions(item, self._fields(position), self._width)
        known = len(self.recipe.classes) if hasattr(self, "recipe") else 1 << 15
        if len(regions) and regions.labels.max() >= max(1, known):
            raise UserError(
                f"{item}: the class {regions.labels.max()} is not one of the {known} known classes."
            )
        return regions

    @abstractmethod
    def _fields(self, position: int) -> dict[str, Any]:
        """features, and what there is of boxes, classes, scores, width, height and num_boxes."""


class TsvStore(Published):
    """A bottom-up TSV; the file is mapped, and only the beginnings of its lines are remembered."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._starts, ids = self._index(path)
        super().__init__(path, ids)

    def _index(self, path: Path) -> tuple[list[int], list[int]]:
        starts, ids = [], []
        start, number = 0, 0
        while start < len(self._bytes):
            end = self._bytes.find(b"\n", start)
            end = len(self._bytes) if end < 0 else end
            number += 1
            tab = self._bytes.find(b"\t", start, min(end, start + 200))
            if tab < 0 and end > start:
                raise UserError(f"{path}, line {number} does not begin with an image id and a tab.")
            if end > start and not (number == 1 and self._bytes[start:tab] in (b"image_id", b"img_id")):
                starts.append(start)
                ids.append(image_id_of(self._bytes[start:tab].decode("utf-8", "replace")))
            start = end + 1
        return starts, ids

    def _fields(self, position: int) -> dict[str, Any]:
        start = self._starts[position]
        end = self._bytes.find(b"\n", start)
        columns = self._bytes[start : end if end >= 0 else len(self._bytes)].rstrip(b"\r").split(b"\t")
        item = f"{self.path}, image {int(self.ids[position])}"
        names = {len(_PLAIN): _PLAIN, len(_WITH_CLASSES): _WITH_CLASSES}.get(len(columns))
        if names is None:
            raise UserError(
                f"{item}: the line has {len(columns)} columns and {len(_PLAIN)} ({' '.join(_PLAIN)}) were expected; "
                "the file may be cut short."
            )
        row = dict(zip(names, columns, strict=True))
        try:
            fields: dict[str, Any] = {
                "num_boxes": int(row["num_boxes"]),
                "width": float(row["image_w"]),
                "height": float(row["image_h"]),
            }
        except ValueError:
            raise UserError(f"{item}: image_w, image_h and num_boxes must be numbers.") from None
        kinds: dict[str, tuple[str, Any]] = {
            "features": ("features", np.float32),
            "boxes": ("boxes", np.float32),
            "objects_id": ("classes", np.int64),
            "objects_conf": ("scores", np.float32),
        }
        for column, (name, kind) in kinds.items():
            if column in row:
                fields[name] = _decode(item, column, row[column], kind)
        return fields


class Hdf5Store(Published):
    """A bottom-up HDF5 file: one row a picture, of varying length or padded."""

    def __init__(self, path: Path) -> None:
        import h5py

        try:
            self._file = h5py.File(path, "r")
            names = set(self._file)
        except Exception:  # whatever HDF5 says of hostile bytes
            raise UserError(f"{path} is not a whole HDF5 file; it may be cut short, copy it again.") from None
        missing = {"image_id", "features"} - names
        if missing:
            raise UserError(
                f"{path} has no dataset {', '.join(sorted(missing))}; a bottom-up file has image_id, num_boxes, "
                "boxes and features."
            )
        self._names = {
            "features": "features",
            "boxes": _first(names, "boxes", "bbox"),
            "num_boxes": _first(names, "num_boxes", "num_bbox"),
            "width": _first(names, "width", "image_w"),
            "height": _first(names, "height", "image_h"),
            "classes": _first(names, "classes", "objects_id", "labels"),
            "scores": _first(names, "scores", "objects_conf"),
        }
        raw = self._read(path, "image_id", None)
        if raw.ndim != 1 or raw.dtype.kind not in "iuSO":
            raise UserError(f"{path}: image_id has the shape {raw.shape} and a row of ids was expected.")
        try:
            ids = [image_id_of(one.decode()) if isinstance(one, bytes) else int(one) for one in raw.tolist()]
        except (ValueError, TypeError):
            raise UserError(f"{path}: image_id holds values that are no ids of pictures.") from None
        super().__init__(path, ids)

    def _fields(self, position: int) -> dict[str, Any]:
        return {
            key: self._read(self.path, name, position)
            for key, name in self._names.items()
            if name is not None
        }

    def _read(self, path: Path, name: str, position: int | None) -> Any:
        where = "" if position is None else f", row {position}"
        try:
            dataset = own_dataset(path, self._file, name)
            shape = dataset.shape if position is None else dataset.shape[1:]
            # A compressed or empty array may claim any size: no more than a picture needs, or a byte a picture.
            most = path.stat().st_size * 8 if position is None else LARGEST
            if math.prod(shape) * dataset.dtype.itemsize <= most:
                return dataset[()] if position is None else dataset[position]
        except UserError:
            raise
        except Exception:
            raise UserError(f"{path}{where}: {name} cannot be read; the file may be cut short.") from None
        raise UserError(
            f"{path}{where}: {name} claims the shape {shape}, which is more than any file of regions has."
        )


class FolderStore(Published):
    """One file a picture, named by its id."""

    def __init__(self, path: Path) -> None:
        kinds = (".npz", ".npy")
        self._files = sorted(
            file for file in path.iterdir() if file.suffix.lower() in kinds and file.is_file()
        )
        super().__init__(path, [image_id_of(file.name) for file in self._files])

    def _fields(self, position: int) -> dict[str, Any]:
        file = self._files[position]
        try:
            if file.suffix.lower() == ".npy":
                return {"features": np.load(file, mmap_mode="r", allow_pickle=False)}
            with zipfile.ZipFile(file) as archive:
                return self._from_npz(file, archive)
        except UserError:
            raise
        except Exception:  # zlib.error, KeyError, BadZipFile and whatever else comes of hostile bytes
            raise UserError(
                f"{file} is not a whole file of arrays; it may be cut short, copy it again."
            ) from None

    def _from_npz(self, file: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
        content = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        known = {
            "features": _first(content, "features", "feat", "x"),
            "boxes": _first(content, "boxes", "bbox"),
            "num_boxes": _first(content, "num_boxes", "num_bbox"),
            "width": _first(content, "image_w", "width"),
            "height": _first(content, "image_h", "height"),
            "classes": _first(content, "classes", "objects_id", "labels"),
            "scores": _first(content, "scores", "objects_conf"),
        }
        if known["features"] is None:
            raise UserError(f"{file} has no array features, feat or x; it has {', '.join(content)}.")
        wanted = {key: content[name] for key, name in known.items() if name is not None}
        for info in wanted.values():
            if info.file_size > LARGEST:
                raise UserError(
                    f"{file}: {info.filename} claims {info.file_size:,} bytes, more than regions have."
                )
        arrays = {}
        for key, info in wanted.items():
            with archive.open(info) as member:
                arrays[key] = _read_array(member, info.file_size)
        return arrays


def _read_array(file: IO[bytes], size: int) -> NDArray[Any]:
    """An array of an .npz file, after its header was compared with the bytes that are there."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, by_columns, dtype = readers[np.lib.format.read_magic(file)](file)
    count = math.prod(shape)
    if dtype.hasobject or count < 0 or file.tell() + count * dtype.itemsize != size:
        raise ValueError("the header claims another size than the array has")
    values = np.frombuffer(file.read(), dtype, count)
    return values.reshape(shape, order="F" if by_columns else "C")


def _decode(item: str, column: str, text: bytes, kind: type) -> NDArray[Any]:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype=kind)
    except (binascii.Error, ValueError):
        raise UserError(f"{item}: {column} is not whole base64; the file may be cut short.") from None


def _first(names: Any, *candidates: str) -> str | None:
    return next((name for name in candidates if name in names), None)


def _class_names(path: Path) -> tuple[str, ...]:
    """The classes of Visual Genome, if bottom-up's objects_vocab.txt is beside the regions; else numbers."""
    folder = path if path.is_dir() else path.parent
    file = folder / "objects_vocab.txt"
    if file.is_file():
        lines = read_text(file).splitlines()
        return tuple(line.split(",")[0].strip() for line in lines if line.strip())
    return tuple(f"class {number}" for number in range(1600))


def _is_ours(path: Path) -> bool:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return "coscap" in file.attrs
    except Exception:
        raise UserError(f"{path} is not a whole HDF5 file; it may be cut short, copy it again.") from None
