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
import mmap
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.vision.ids import image_id_of
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.store import RegionStore

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
        fields = self._fields(position)
        return _regions(f"{self.path}, image {int(self.ids[position])}", fields, self._width)

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
        except (OSError, RuntimeError):
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
        ids = [image_id_of(one.decode()) if isinstance(one, bytes) else int(one) for one in raw.tolist()]
        super().__init__(path, ids)

    def _fields(self, position: int) -> dict[str, Any]:
        return {
            key: self._read(self.path, name, position)
            for key, name in self._names.items()
            if name is not None
        }

    def _read(self, path: Path, name: str, position: int | None) -> Any:
        try:
            dataset = self._file[name]
            return dataset[()] if position is None else dataset[position]
        except (OSError, RuntimeError, ValueError, IndexError):
            where = "" if position is None else f", row {position}"
            raise UserError(f"{path}{where}: {name} cannot be read; the file may be cut short.") from None


class FolderStore(Published):
    """One file a picture, named by its id."""

    def __init__(self, path: Path) -> None:
        self._files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".npz", ".npy"))
        super().__init__(path, [image_id_of(file.name) for file in self._files])

    def _fields(self, position: int) -> dict[str, Any]:
        file = self._files[position]
        try:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return {"features": content}
            with content:
                return self._from_npz(file, content)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile):
            raise UserError(
                f"{file} is not a whole file of arrays; it may be cut short, copy it again."
            ) from None

    def _from_npz(self, file: Path, content: Any) -> dict[str, Any]:
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
        return {key: content[name] for key, name in known.items() if name is not None}


def _regions(item: str, fields: dict[str, Any], width: int | None) -> Regions:
    """Check the arrays of one picture against each other and bring the boxes to 0..1."""
    features = np.asarray(fields["features"])
    if features.dtype.kind != "f":
        raise UserError(f"{item}: features have the type {features.dtype} and floats were expected.")
    count = int(fields["num_boxes"]) if "num_boxes" in fields else len(features)
    features = _rows(item, "features", features, count)  # (R, F)
    if width is not None and features.shape[1] != width:
        raise UserError(
            f"{item}: features are {features.shape[1]} wide, and those of the first picture {width}; "
            "all must come from one detector."
        )
    labels = np.full(count, GRID_LABEL, dtype=np.int16)
    scores = np.ones(count, dtype=np.float32)
    if "classes" in fields:
        labels = _rows(item, "classes", np.asarray(fields["classes"]), count)[:, 0].astype(np.int16)
    if "scores" in fields:
        scores = _rows(item, "scores", np.asarray(fields["scores"]), count)[:, 0].astype(np.float32)
    return Regions(features, _boxes(item, fields, count), labels, scores)


def _rows(item: str, name: str, values: NDArray[Any], count: int) -> NDArray[Any]:
    """(count, width) out of rows, padded rows, or a flat array."""
    if values.ndim == 2 and len(values) >= count:
        return values[:count]
    if values.ndim == 1 and count and len(values) >= count and len(values) % count == 0:
        return values.reshape(count, -1)
    if values.ndim == 1 and name in ("classes", "scores") and len(values) >= count:
        return values[:count, None]
    raise UserError(f"{item}: {name} have the shape {values.shape}, which does not fit {count} boxes.")


def _boxes(item: str, fields: dict[str, Any], count: int) -> NDArray[np.float32]:
    if "boxes" not in fields:
        return np.tile(np.array([0, 0, 1, 1], dtype=np.float32), (count, 1))
    boxes = _rows(item, "boxes", np.asarray(fields["boxes"]), count).astype(np.float32)
    if boxes.shape[1] < 4:
        raise UserError(f"{item}: boxes have {boxes.shape[1]} columns and x1, y1, x2, y2 were expected.")
    boxes = boxes[:, :4]
    if boxes.max(initial=0) > 1.5:  # pixels
        if "width" not in fields or "height" not in fields:
            raise UserError(
                f"{item}: boxes are in pixels, and there is no width and height to divide them by."
            )
        size = np.array([float(fields["width"]), float(fields["height"])] * 2, dtype=np.float32)
        if not (size > 0).all():
            raise UserError(f"{item}: the width and height of the picture must be above 0.")
        boxes = boxes / size
    return np.clip(boxes, 0, 1).astype(np.float32)


def _decode(item: str, column: str, text: bytes, kind: type) -> NDArray[Any]:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype=kind)
    except (binascii.Error, ValueError):
        raise UserError(f"{item}: {column} is not whole base64; the file may be cut short.") from None


def _first(names: Any, *candidates: str) -> str | None:
    return next((name for name in candidates if name in names), None)


def _class_names(path: Path) -> tuple[str, ...]:
    """The classes of Visual Genome, if bottom-up's objects_vocab.txt lies beside the regions; else numbers."""
    folder = path if path.is_dir() else path.parent
    file = folder / "objects_vocab.txt"
    if file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        return tuple(line.split(",")[0].strip() for line in lines if line.strip())
    return tuple(f"class {number}" for number in range(1600))


def _is_ours(path: Path) -> bool:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return "coscap" in file.attrs
    except (OSError, RuntimeError):
        raise UserError(f"{path} is not a whole HDF5 file; it may be cut short, copy it again.") from None
