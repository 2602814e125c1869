"""A prepared data set: a folder of flat arrays that are mapped into memory, not read.

    manifest.json        format, versions, content hashes of the sources and of all that follows, options, counts,
                         skipped items
    vocabulary.json      the units and their numbers
    objects.json         the list of object classes, with its rules, that the captions were split with
    words.npy            (W,)   all captions' units one after the other, without START and END
    contexts.npy         (W,)   the same with SLOT or SLOTS where an object is named: x^m
    word_offsets.npy     (C+1,) caption c is words[word_offsets[c] : word_offsets[c + 1]]
    objects.npy          (O,)   the object units of all captions in their order: x^o
    object_classes.npy   (O,)   their classes, indices into the list of classes
    object_offsets.npy   (C+1,) the objects of caption c
    caption_image.npy    (C,)   the picture of each caption
    texts.npy            bytes of the captions as they were written; text_offsets.npy (C+1,)
    image_ids.npy        (I,)   rising ids of the pictures
    image_captions.npy   (I+1,) picture i has the captions image_captions[i] .. image_captions[i + 1] - 1
    image_split.npy      (I,)   index into the manifest's splits
    names.npy            bytes of the pictures' file names; name_offsets.npy (I+1,)
    subset_N.npy         pictures of a named subset, e.g. the novel part of the held-out test split

Pictures and captions are named by their *index* in these arrays; `image_ids[i]` is the data set's own id.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from coscap.data.records import SPLITS
from coscap.errors import UserError
from coscap.files import read_json, sha256
from coscap.text.objects import ObjectClasses, load_classes
from coscap.text.vocabulary import Vocabulary

FORMAT = "coscap prepared 2"
FORMAT_1 = "coscap prepared 1"  # the same without hashes of the arrays
MANIFEST, VOCABULARY, OBJECTS = "manifest.json", "vocabulary.json", "objects.json"
ARRAYS = (
    "words",
    "contexts",
    "word_offsets",
    "objects",
    "object_classes",
    "object_offsets",
    "caption_image",
    "texts",
    "text_offsets",
    "image_ids",
    "image_captions",
    "image_split",
    "names",
    "name_offsets",
)


def subset_file(number: int) -> str:
    return f"subset_{number}.npy"


@dataclass(frozen=True, eq=False)
class Prepared:
    """An open prepared data set. Indices are into its arrays; nothing is read before it is asked for."""

    path: Path
    manifest: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        """The number of pictures."""
        return len(self.arrays["image_ids"])

    @property
    def captions(self) -> int:
        """The number of captions."""
        return len(self.arrays["caption_image"])

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.path / VOCABULARY)

    @cached_property
    def classes(self) -> ObjectClasses:
        """The object classes that `object_classes` gives indices into."""
        return load_classes(str(self.path / OBJECTS))

    @property
    def max_length(self) -> int:
        """Training takes captions of at most this many units."""
        return int(self.manifest["options"]["max_length"])

    @property
    def long(self) -> str:
        """What training does with longer captions: "drop" or "cut"."""
        return str(self.manifest["options"]["long"])

    @property
    def digest(self) -> str:
        """Names the content: the same sources, split, options and vocabulary give the same digest."""
        import hashlib
        import json

        described = {
            key: self.manifest[key]
            for key in ("sha256", "split", "options", "counts", "vocabulary", "objects")
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    # Pictures

    @property
    def image_ids(self) -> NDArray[np.int64]:
        """(I,) the data set's own ids of all pictures, rising."""
        return self.arrays["image_ids"]

    def images(self, split: str = "train") -> NDArray[np.int64]:
        """Indices of the pictures of a split ("train", "validation", "test", "unpaired"), of a subset
        ("test_novel", "out-domain", ...), or of "all"."""
        split = "validation" if split == "val" else split
        if split == "all":
            return np.arange(len(self), dtype=np.int64)
        if split in self.manifest["splits"]:
            return np.flatnonzero(self.arrays["image_split"] == self.manifest["splits"].index(split))
        if split in self.manifest["subsets"]:
            number = self.manifest["subsets"].index(split)
            members: NDArray[np.int64] = _load(self.path / subset_file(number))
            if (
                members.ndim != 1
                or members.dtype != np.int64
                or not np.all((members >= 0) & (members < len(self)))
            ):
                raise UserError(f"{self.path / subset_file(number)} is damaged; make the data set anew.")
            return members
        known = ", ".join([*self.manifest["splits"], *self.manifest["subsets"], "all"])
        raise UserError(f"{self.path} has no split {split!r}; it has {known}.")

    def index(self, image_id: int) -> int:
        """The index of the picture that the data set calls `image_id`; KeyError if there is none."""
        at = int(np.searchsorted(self.image_ids, image_id))
        if at == len(self) or self.image_ids[at] != image_id:
            raise KeyError(image_id)
        return at

    def split_of(self, image: int) -> str:
        return str(self.manifest["splits"][int(self.arrays["image_split"][image])])

    def name(self, image: int) -> str:
        """The picture's file name, as the source gave it."""
        return self._text("names", "name_offsets", image)

    # Captions

    def captions_of(self, image: int) -> range:
        """Indices of the picture's captions; empty for a picture without."""
        offsets = self.arrays["image_captions"]
        return range(int(offsets[image]), int(offsets[image + 1]))

    def captions_in(self, split: str) -> NDArray[np.int64]:
        """Indices of all captions of a split's pictures."""
        images = self.images(split)
        offsets = self.arrays["image_captions"]
        return ranges(offsets[images], offsets[images + 1])

    def trainable(self, split: str = "train") -> NDArray[np.int64]:
        """Captions of a split that are to be learnt from: too long ones are left out if `long` is "drop"."""
        captions = self.captions_in(split)
        lengths = self.lengths(captions)
        most = self.max_length if self.long == "drop" else int(self.manifest["counts"]["longest caption"])
        return captions[lengths <= most]

    def image_of(self, caption: int) -> int:
        return int(self.arrays["caption_image"][caption])

    def lengths(self, captions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Units of each of these captions, without END."""
        offsets = self.arrays["word_offsets"]
        lengths: NDArray[np.int64] = offsets[captions + 1] - offsets[captions]
        return lengths

    def text(self, caption: int) -> str:
        """The caption as its writer wrote it."""
        return self._text("texts", "text_offsets", caption)

    def words(self, caption: int) -> NDArray[Any]:
        """(T,) numbers of the caption's units, whole, without END."""
        return self._slice("words", "word_offsets", caption)

    def units(self, caption: int) -> list[str]:
        """The caption's units as text; one outside the vocabulary reads <unk>."""
        return [self.vocabulary.units[number] for number in self.words(caption).tolist()]

    def context(self, caption: int) -> NDArray[Any]:
        """(T,) x^m: numbers of the units, SLOT or SLOTS for an object."""
        return self._slice("contexts", "word_offsets", caption)

    def objects(self, caption: int) -> NDArray[Any]:
        """(K,) x^o: numbers of the object units in their order."""
        return self._slice("objects", "object_offsets", caption)

    def object_classes(self, caption: int) -> NDArray[np.int16]:
        """(K,) the class of each object."""
        return self._slice("object_classes", "object_offsets", caption)

    def references(self, split: str) -> dict[int, list[str]]:
        """The captions of a split as they were written, by image id: what metrics compare with.

        Pictures without captions are not in it.
        """
        return {
            int(self.image_ids[image]): [self.text(caption) for caption in self.captions_of(image)]
            for image in self.images(split).tolist()
            if self.captions_of(image)
        }

    def _text(self, name: str, offsets: str, index: int) -> str:
        content = self._slice(name, offsets, index).tobytes()
        try:
            return content.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise UserError(
                f"{self.path / name}.npy is damaged; make the data set anew with `coscap data`."
            ) from None

    def _slice(self, array: str, offsets: str, index: int) -> NDArray[Any]:
        bounds = self.arrays[offsets]
        return self.arrays[array][int(bounds[index]) : int(bounds[index + 1])]


def open_prepared(path: str | Path) -> Prepared:
    """Open a folder that `coscap data ... --out` wrote, after comparing its files with their hashes (COCO: 0.1 s).

    >>> data = open_prepared("coco")                                         # doctest: +SKIP
    >>> image = int(data.images("test")[0])                                  # doctest: +SKIP
    >>> [data.text(caption) for caption in data.captions_of(image)]          # doctest: +SKIP
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a prepared data set; make one with `coscap data ... --out {path}`.")
    if not (path / MANIFEST).is_file():
        raise UserError(
            f"{path} has no {MANIFEST}, so it is not a prepared data set; make one with `coscap data`."
        )
    manifest = _read_manifest(path / MANIFEST)
    if manifest["format"] == FORMAT:
        _compare_hashes(path, manifest["files"])
    arrays = {name: _load(path / f"{name}.npy") for name in ARRAYS}
    data = Prepared(path, manifest, arrays)
    wrong = _misfit(data)
    if wrong:
        raise UserError(
            f"{path / wrong} does not fit the rest of the data set; make it anew with `coscap data`."
        )
    return data


def ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """All of starts[0]..stops[0]-1, starts[1]..stops[1]-1, ... in one array."""
    lengths = stops - starts
    shift = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64), lengths)
    result: NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64) + shift
    return result


def _load(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; make the data set anew with `coscap data`.") from None
    except Exception:  # whatever numpy says of hostile bytes
        raise UserError(
            f"{path} is damaged or cut short; make the data set anew with `coscap data`."
        ) from None
    return array


def files_of(subsets: int) -> list[str]:
    """All files of a prepared data set besides its manifest."""
    arrays = [f"{name}.npy" for name in ARRAYS] + [subset_file(number) for number in range(subsets)]
    return [*arrays, VOCABULARY, OBJECTS]


class _Counts(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    pictures: NonNegativeInt
    captions: NonNegativeInt
    words: NonNegativeInt
    objects: NonNegativeInt
    longest: NonNegativeInt = Field(alias="longest caption")
    unknown: NonNegativeInt = Field(alias="unknown words")
    long: NonNegativeInt = Field(alias="longer than max_length")
    pictures_by_split: dict[str, int] = Field(alias="pictures by split")
    captions_by_split: dict[str, int] = Field(alias="captions by split")


class _Options(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    max_length: PositiveInt
    long: Literal["drop", "cut"]


class _Skipped(BaseModel):
    model_config = ConfigDict(strict=True)
    items: NonNegativeInt
    first: str


class _Vocabulary(BaseModel):
    model_config = ConfigDict(strict=True)
    units: NonNegativeInt
    sha256: str


class _Manifest(BaseModel):
    """What is read of a manifest; the rest is for people."""

    model_config = ConfigDict(extra="allow", strict=True)
    format: str
    source: str
    coscap: str
    sha256: dict[str, str]
    split: dict[str, Any]
    splits: list[str]
    subsets: list[str]
    options: _Options
    counts: _Counts
    vocabulary: _Vocabulary
    objects: dict[str, str]
    skipped: dict[str, _Skipped]
    files: dict[str, str] = {}


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found not in (FORMAT, FORMAT_1):
        raise UserError(f"{path} has the format {found!r} and {FORMAT!r} was expected; make it anew.")
    try:
        checked = _Manifest.model_validate(manifest)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{path}: {field} is missing or not as `coscap data` writes it; make it anew."
        ) from None
    if checked.splits != list(SPLITS) or not checked.counts.pictures_by_split.keys() <= {*SPLITS}:
        raise UserError(f"{path} names other splits than {', '.join(SPLITS)}; make it anew.")
    if found == FORMAT and set(checked.files) != set(files_of(len(checked.subsets))):
        raise UserError(f"{path}: files does not name the files of the data set; make it anew.")
    return dict(manifest)


def _compare_hashes(folder: Path, hashes: dict[str, str]) -> None:
    for name, expected in hashes.items():
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing; make the data set anew with `coscap data`.")
        if sha256(folder / name) != expected:
            raise UserError(
                f"{folder / name} is damaged (its hash is not the one in {MANIFEST}); make the data set anew."
            )


def _misfit(data: Prepared) -> str | None:
    """The first array whose shape, type or values do not fit the others."""
    arrays, counts = data.arrays, data.manifest["counts"]
    pictures, captions = counts["pictures"], counts["captions"]
    lengths = {
        "words": counts["words"],
        "contexts": counts["words"],
        "objects": counts["objects"],
        "object_classes": counts["objects"],
        "caption_image": captions,
        "image_ids": pictures,
        "image_split": pictures,
        "texts": len(arrays["texts"]) if arrays["texts"].ndim else -1,
        "names": len(arrays["names"]) if arrays["names"].ndim else -1,
    }
    for name, length in lengths.items():
        if arrays[name].shape != (length,) or arrays[name].dtype.kind not in "iu":
            return f"{name}.npy"
    offsets = {
        "word_offsets": (captions, counts["words"]),
        "object_offsets": (captions, counts["objects"]),
        "text_offsets": (captions, lengths["texts"]),
        "image_captions": (pictures, captions),
        "name_offsets": (pictures, lengths["names"]),
    }
    for name, (rows, last) in offsets.items():
        array = arrays[name]
        if array.shape != (rows + 1,) or array.dtype != np.int64 or array[0] != 0 or array[-1] != last:
            return f"{name}.npy"
        if not np.all(array[1:] >= array[:-1]):
            return f"{name}.npy"
    if arrays["texts"].dtype != np.uint8 or arrays["names"].dtype != np.uint8:
        return "texts.npy" if arrays["texts"].dtype != np.uint8 else "names.npy"
    if not np.all(arrays["image_ids"][1:] > arrays["image_ids"][:-1]):
        return "image_ids.npy"
    units, classes = len(data.vocabulary), len(data.classes)
    limits = {
        "words": units,
        "contexts": units,
        "objects": units,
        "object_classes": classes,
        "caption_image": pictures,
        "image_split": len(SPLITS),
    }
    for name, limit in limits.items():
        array = arrays[name]
        if len(array) and not (array.min() >= 0 and array.max() < limit):
            return f"{name}.npy"
    return None
