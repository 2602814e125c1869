"""A store of regions: one HDF5 file that any tool can read, and that we read as plain memory.

    image_id   (N,)    int64     the pictures' ids, in the order in which they were added
    name       (N,)    bytes     their file names, UTF-8, empty where there is none
    num_boxes  (N,)    int32     how many regions each has
    offsets    (N + 1,) int64    picture i has the rows offsets[i] .. offsets[i + 1] of what follows
    features   (M, F)  float16
    boxes      (M, 4)  float32   x1, y1, x2, y2 in 0..1
    labels     (M,)    int16     -1 for a cell of the grid
    scores     (M,)    float32
    checksum   (N,)    uint32    CRC-32 of the bytes of each picture's features
    attributes: "coscap" (the version of this layout), "recipe" (JSON), "sha256" (of all arrays but the features)

All arrays are contiguous, so HDF5 says at which byte each begins and numpy maps it: reading a picture costs
no call into HDF5, and processes share the pages. Pages that were read count as memory of the process that
read them, so it lets go of them from time to time; the system keeps what it has room for.

A store may come from a stranger: its arrays must be inside the file (HDF5 can point to any other file of the
machine) and fit each other; the small ones are compared with their hash when it is opened, the features of a
picture with their checksum when they are first read. Stores of older versions have neither and are read without.
"""

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.files import cannot_write, check_output, whole_file
from coscap.vision.regions import Recipe, Regions

LAYOUT = 1
HELD = 1 << 30  # bytes of pictures that are read before their pages are let go of
SMALL = ("image_id", "name", "offsets", "boxes", "labels", "scores", "checksum")  # hashed in this order
ROWS = {"features": np.float16, "boxes": np.float32, "labels": np.int16, "scores": np.float32}


class RegionStore:
    """Regions of many pictures. Read-only; safe to share between threads, and to send to other processes."""

    def __init__(
        self, path: Path, recipe: Recipe, arrays: dict[str, NDArray[Any]], mapped: mmap.mmap
    ) -> None:
        self.path = path
        self.recipe = recipe
        self.ids: NDArray[np.int64] = np.array(arrays["image_id"])
        self._raw_names = arrays["name"]
        self._offsets: NDArray[np.int64] = np.array(arrays["offsets"])
        self._rows = {name: arrays[name] for name in ROWS}
        self._order = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._order]
        self._by_name: dict[str, int] | None = None
        self._mapped, self._held = mapped, 0
        self._checksums: NDArray[np.uint32] | None = arrays.get("checksum")
        self._unread = np.ones(len(self.ids), np.bool_)  # pictures whose checksum was not compared yet

    @classmethod
    def open(cls, path: str | Path) -> Self:
        path = Path(path)
        return cls(path, *_read(path))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int | np.integer | str) and self._find(key) is not None

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return type(self).open, (self.path,)  # another process maps the file itself

    @property
    def names(self) -> list[str]:
        return [os.fsdecode(name) for name in self._raw_names]

    def get(self, key: int | str) -> Regions:
        """The regions of a picture, by its id or its file name."""
        position = self._find(key)
        if position is None:
            raise UserError(f"{self.path} has no regions of picture {key}; make them with `coscap features`.")
        return self.at(position)

    def at(self, position: int) -> Regions:
        """The regions of the picture at a position of the store: views into the file, not copies."""
        rows = slice(self._offsets[position], self._offsets[position + 1])
        self._let_go(int(rows.stop - rows.start) * self.recipe.width * 2)
        regions = Regions(**{name: array[rows] for name, array in self._rows.items()})
        if self._checksums is not None and self._unread[position]:
            if zlib.crc32(regions.features.data) != self._checksums[position]:
                raise UserError(
                    f"{self.path} is damaged (the features of picture {self.ids[position]} are not those that were "
                    "written); copy it again, or make it again."
                )
            self._unread[position] = False
        return regions

    def detected(self, position: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """Labels and scores alone, without reading any feature."""
        rows = slice(self._offsets[position], self._offsets[position + 1])
        return self._rows["labels"][rows], self._rows["scores"][rows]

    def positions(self, ids: Iterable[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Where pictures lie in the store; -1 for those that it does not have."""
        wanted = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
        if not len(self.ids):
            return np.full(wanted.shape, -1, np.int64)
        places = np.searchsorted(self._sorted, wanted).clip(max=len(self.ids) - 1)
        return np.where(self._sorted[places] == wanted, self._order[places], -1)

    def _let_go(self, read: int) -> None:
        """After enough bytes were read, drop the mapped pages from this process; those needed again come back."""
        self._held += read
        if self._held > HELD and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)
            self._held = 0

    def _find(self, key: int | np.integer | str) -> int | None:
        if isinstance(key, str):
            if self._by_name is None:
                self._by_name = {name: position for position, name in enumerate(self.names) if name}
            return self._by_name.get(key)
        place = int(np.searchsorted(self._sorted, key))
        found = place < len(self._sorted) and self._sorted[place] == key
        return int(self._order[place]) if found else None


class StoreWriter:
    """Write a store: `add` pictures, leave the `with` block. Until then there is no file at `path`.

    HDF5 must know how long a contiguous array is before it is written, so the features wait in a file beside
    it, which is copied at the end and is gone in any case.
    """

    def __init__(self, path: str | Path, recipe: Recipe) -> None:
        self.path = Path(path)
        self.recipe = recipe
        self._ids: dict[int, str] = {}
        self._counts: list[int] = []
        self._checksums: list[int] = []
        self._small: dict[str, list[NDArray[Any]]] = {"boxes": [], "labels": [], "scores": []}

    def __enter__(self) -> Self:
        check_output(self.path)
        self._waiting = self.path.parent / f".{self.path.name}.{os.getpid()}.features.part"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._features = self._waiting.open("w+b", buffering=0)
        except OSError as error:
            raise cannot_write(self.path, error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._features.close()
            self._waiting.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, image_id: int, regions: Regions, name: str = "") -> None:
        if image_id in self._ids:
            other = self._ids[image_id] or "an earlier picture"
            raise UserError(
                f"{name or 'a picture'} and {other} have the same id {image_id}; rename one of them."
            )
        count, width = regions.features.shape
        if width != self.recipe.width:
            raise UserError(
                f"picture {name or image_id} has features of width {width}, and the recipe says {self.recipe.width}."
            )
        self._ids[image_id] = name
        self._counts.append(count)
        features = np.ascontiguousarray(regions.features, dtype=np.float16).data
        self._checksums.append(zlib.crc32(features))
        try:
            self._features.write(features)
        except OSError as error:
            raise cannot_write(self.path, error) from None
        for key, parts in self._small.items():
            parts.append(np.asarray(getattr(regions, key), dtype=ROWS[key]))

    def _finish(self) -> None:
        import h5py

        offsets = np.concatenate([[0], np.cumsum(self._counts, dtype=np.int64)]).astype(np.int64)
        names = [os.fsencode(name) for name in self._ids.values()]
        small = {
            "image_id": np.array(list(self._ids), dtype=np.int64),
            "name": np.array(names, dtype=f"S{max([1, *map(len, names)])}"),
            "num_boxes": np.array(self._counts, dtype=np.int32),
            "offsets": offsets,
            "boxes": np.concatenate([np.zeros((0, 4), np.float32), *self._small["boxes"]]),
            "labels": np.concatenate([np.zeros(0, np.int16), *self._small["labels"]]),
            "scores": np.concatenate([np.zeros(0, np.float32), *self._small["scores"]]),
            "checksum": np.array(self._checksums, dtype=np.uint32),
        }
        shape = (int(offsets[-1]), self.recipe.width)
        with whole_file(self.path) as partial:
            _reserve(partial, sum(array.nbytes for array in small.values()) + 2 * shape[0] * shape[1])
            with h5py.File(partial, "w") as file:
                file.attrs["coscap"] = LAYOUT
                file.attrs["recipe"] = json.dumps(self.recipe.fields())
                file.attrs["sha256"] = _hash(self.recipe, small)
                for name, array in small.items():
                    file.create_dataset(name, data=array, track_times=False)
                features = file.create_dataset("features", shape=shape, dtype=np.float16, track_times=False)
                self._copy_features(features)

    def _copy_features(self, target: Any) -> None:
        self._features.flush()
        self._features.seek(0)
        rows = 1 << 16
        for start in range(0, len(target), rows):
            count = min(rows, len(target) - start)
            chunk = np.fromfile(self._features, np.float16, count * self.recipe.width)
            target[start : start + count] = chunk.reshape(count, self.recipe.width)


def _reserve(path: Path, size: int) -> None:
    """Is there room for so many bytes? HDF5 meets a full disk with noise that cannot be caught."""
    if hasattr(os, "posix_fallocate"):
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size + (1 << 16))


def _hash(recipe: Recipe, arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(recipe.fields()).encode())
    for name in SMALL:
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[Recipe, dict[str, NDArray[Any]], mmap.mmap]:
    import h5py

    if not path.is_file():
        raise UserError(f"{path} does not exist; make a store of regions with `coscap features`.")
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("coscap") != LAYOUT:
                raise UserError(
                    f"{path} is an HDF5 file but not a store of regions made by this version; "
                    "make one with `coscap features`."
                )
            recipe = _recipe(file.attrs["recipe"])
            size, digest = path.stat().st_size, file.attrs.get("sha256")
            names = [*("image_id", "name", "offsets"), *ROWS, *(["checksum"] if digest is not None else [])]
            places = {name: _place(own_dataset(path, file, name), size) for name in names}
        with path.open("rb") as whole:
            mapped = mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ)
        arrays = {name: _view(mapped, *place) for name, place in places.items()}
        fits = _fits(recipe, arrays)
        same = digest is None or (fits and digest == _hash(recipe, arrays))
    except (UserError, MemoryError):
        raise
    except Exception:
        # HDF5, h5py and numpy meet hostile bytes with whatever comes: OSError, KeyError, RuntimeError, ...
        raise UserError(
            f"{path} is not a whole store of regions; make it again with `coscap features`."
        ) from None
    if not fits:
        raise UserError(f"{path} is damaged (its arrays do not fit each other); make it again.")
    if not same:
        raise UserError(f"{path} is damaged (its arrays are not those that were written); copy it again.")
    return recipe, arrays, mapped


def own_dataset(path: Path, file: Any, name: str) -> Any:
    """A dataset that is in this file: not a link, and not stored in or put together from other files."""
    import h5py

    dataset = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise UserError(
            f"{path}: {name} is not an array inside the file; a store of regions may not point elsewhere."
        )
    return dataset


def _recipe(text: str) -> Recipe:
    fields = json.loads(text)
    recipe = Recipe.of(fields)
    numbers = (recipe.width, recipe.detections, recipe.grid, recipe.most_words)
    if not all(type(each) is int and 0 <= each < 1 << 31 for each in numbers):
        raise ValueError("the recipe's numbers")
    if not all(isinstance(each, str) for each in (recipe.name, *recipe.classes, *recipe.words)):
        raise ValueError("the recipe's names")
    return recipe


def _place(dataset: Any, size: int) -> tuple[int | None, Any, tuple[int, ...]]:
    """Where an array's bytes are in the file; None for one without rows, which HDF5 gives no place."""
    offset = dataset.id.get_offset()
    if dataset.size and (offset is None or offset + dataset.nbytes > size or dataset.dtype.hasobject):
        raise OSError("the array is not stored as one block, or the file ends before it does")
    return offset, dataset.dtype, dataset.shape


def _view(mapped: mmap.mmap, offset: int | None, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if offset is None or not np.prod(shape):
        return np.zeros(shape, dtype)
    return np.frombuffer(mapped, dtype, int(np.prod(shape)), offset).reshape(shape)


def _fits(recipe: Recipe, arrays: dict[str, NDArray[Any]]) -> bool:
    """The arrays fit each other: no offset points outside of them, no label outside the classes."""
    offsets, labels, count = arrays["offsets"], arrays["labels"], len(arrays["image_id"])
    rows = len(labels)
    return (
        arrays["image_id"].shape == arrays["name"].shape == (count,)
        and arrays["name"].dtype.kind == "S"
        and arrays["image_id"].dtype == offsets.dtype == np.int64
        and offsets.shape == (count + 1,)
        and offsets[0] == 0
        and offsets[-1] == rows
        and bool(np.all(offsets[1:] >= offsets[:-1]))
        and arrays["features"].shape == (rows, recipe.width)
        and arrays["boxes"].shape == (rows, 4)
        and arrays["scores"].shape == labels.shape == (rows,)
        and all(arrays[name].dtype == dtype for name, dtype in ROWS.items())
        and (
            not rows
            or (labels.min() >= -1 and labels.max() < max(1, len(recipe.classes) + len(recipe.words)))
        )
        and ("checksum" not in arrays or arrays["checksum"].shape == (count,))
    )
