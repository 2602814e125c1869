"""Which picture is in which split: published splits, splits from files, and random ones.

mrnn      1,000 test pictures of m-RNN (they ship with coscap), 4,000 for validation, the rest to train
heldout   held-out COCO: train without eight classes, val2014 in two halves; novel and known parts as subsets
source    what the source itself says (Karpathy's file, Flickr8k's lists, "split" in JSONL)
random    by a seed
train, validation, test   everything in that one
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.data.records import SPLITS, TEST, TRAIN, UNPAIRED, VALIDATION, Picture, is_id
from coscap.errors import UserError
from coscap.files import read_json, read_text
from coscap.vision.ids import image_id_of

METHODS = ("mrnn", "karpathy", "heldout", "random", "source", TRAIN, VALIDATION, TEST)
MRNN_VALIDATION = 4000  # the paper: 118,287 / 4,000 / 1,000
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Choice:
    """How to split, as the command line says it."""

    method: str
    validation: int | None = None  # how many pictures; None for the method's own number
    test: int | None = None
    seed: int = 0
    test_ids: Path | None = None
    validation_ids: Path | None = None
    exclude_ids: tuple[Path, ...] = ()
    split_file: Path | None = None


def assign(pictures: tuple[Picture, ...], choice: Choice) -> tuple[Picture, ...]:
    """The pictures that remain, each with its split.

    Pictures for training that have no captions go to the split `unpaired`, so `train` is what can be
    learnt from word by word, and `unpaired` is what pseudo supervision may look at.
    """
    excluded = {image_id for path in choice.exclude_ids for image_id in read_ids(path)}
    kept = tuple(one for one in pictures if one.id not in excluded)
    if not kept:
        raise UserError("no picture is left after --exclude-ids; check that the ids are those to leave out.")
    if choice.method == "mrnn":
        split = _mrnn(kept, choice)
    elif choice.method == "heldout":
        split = _heldout(kept, choice)
    elif choice.method == "random":
        split = _random(kept, choice)
    elif choice.method in ("source", "karpathy"):
        split = _by_ids(tuple(one if one.split else replace(one, split=TRAIN) for one in kept), choice)
    elif choice.method in (TRAIN, VALIDATION, TEST):
        split = tuple(replace(one, split=choice.method) for one in kept)
    else:
        raise UserError(f"--split {choice.method} is not known; use one of {', '.join(METHODS)}.")
    return tuple(
        replace(one, split=UNPAIRED) if one.split == TRAIN and not one.captions else one for one in split
    )


def read_ids(path: Path) -> list[int]:
    """Image ids from a JSON list (of numbers, or of objects with "image_id" or "id") or one a line."""
    if path.suffix.lower() == ".json":
        value: Any = read_json(path)
        rows = value if isinstance(value, list) else value.get("images") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise UserError(
                f"{path} is not a list of image ids; a JSON list such as [192, 488] was expected."
            )
    else:
        rows = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    ids = []
    for position, row in enumerate(rows):
        if isinstance(row, dict):
            row = row.get("image_id", row.get("id"))
        try:
            ids.append(int(row))
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{path}, entry {position + 1}: {row!r} is not an image id.") from None
    return ids


def mrnn_test_ids() -> list[int]:
    ids: list[int] = json.loads((_HERE / "mrnn_test.json").read_text(encoding="utf-8"))
    return ids


def heldout_ids() -> dict[str, NDArray[np.int64]]:
    """The held-out COCO split: image ids of train, val_half, test_half, val_novel and test_novel."""
    with np.load(_HERE / "heldout.npz", allow_pickle=False) as packed:
        ids = np.cumsum(packed["gaps"], dtype=np.int64)  # sorted ids are kept as the gaps between them
        parts = packed["parts"]  # 0 train, 1 val, 2 test, 3 val and novel, 4 test and novel
    return {
        "train": ids[parts == 0],
        "val_half": ids[(parts == 1) | (parts == 3)],
        "test_half": ids[(parts == 2) | (parts == 4)],
        "val_novel": ids[parts == 3],
        "test_novel": ids[parts == 4],
    }


def choose(
    pictures: tuple[Picture, ...], folder: Path | None, limit: int | None, seed: int
) -> tuple[Picture, ...]:
    """Only the pictures whose file is in `folder`, by name or by number, and at most `limit` of them, drawn by seed."""
    if folder is not None:
        from coscap.vision.extract import list_pictures

        names = {PurePosixPath(entry.name).name for entry in list_pictures(folder)}
        ids = {image_id_of(name) for name in names}
        there = tuple(one for one in pictures if one.id in ids or PurePosixPath(one.name).name in names)
        if not there:
            raise UserError(
                f"{folder} has none of the {len(pictures):,} pictures of the data set (such as {pictures[0].name}); "
                "check that they belong together."
            )
        pictures = there
    if limit is None or limit >= len(pictures):
        return pictures
    kept = set(_permutation(pictures, seed)[:limit])
    return tuple(one for one in pictures if one.id in kept)


def _by_ids(pictures: tuple[Picture, ...], choice: Choice) -> tuple[Picture, ...]:
    """Move the pictures that --test-ids and --validation-ids name."""
    for split, path in ((TEST, choice.test_ids), (VALIDATION, choice.validation_ids)):
        if path is not None:
            ids = set(read_ids(path))
            _need(path, ids, pictures)
            pictures = tuple(replace(one, split=split) if one.id in ids else one for one in pictures)
    return pictures


def _need(path: Path, ids: set[int], pictures: tuple[Picture, ...]) -> None:
    if not any(one.id in ids for one in pictures):
        raise UserError(
            f"none of the {len(ids)} image ids in {path} is in the data set; check that it belongs to it."
        )


def _mrnn(pictures: tuple[Picture, ...], choice: Choice) -> tuple[Picture, ...]:
    test = set(read_ids(choice.test_ids) if choice.test_ids else mrnn_test_ids())
    if not any(one.id in test for one in pictures):
        where = f"the ids in {choice.test_ids}" if choice.test_ids else "m-RNN's 1,000 test pictures"
        raise UserError(
            f"none of {where} is in the data set; --split mrnn is for COCO 2014, take --split random for others."
        )
    rest = [one for one in pictures if one.id not in test]
    if choice.validation_ids:
        ids = set(read_ids(choice.validation_ids))
        _need(choice.validation_ids, ids, pictures)
        validation = ids - test
    else:
        usual = min(MRNN_VALIDATION, len(rest) // 10)  # fewer of a part of COCO
        number = usual if choice.validation is None else choice.validation
        validation = _draw(rest, number, choice.seed)
    return tuple(
        replace(one, split=TEST if one.id in test else VALIDATION if one.id in validation else TRAIN)
        for one in pictures
    )


def _heldout(pictures: tuple[Picture, ...], choice: Choice) -> tuple[Picture, ...]:
    """Pictures of train2014 outside the split show the eight classes: they stay, without their captions."""
    parts = _read_parts(choice.split_file) if choice.split_file else heldout_ids()
    where: dict[int, str] = {}
    for name, split in (("train", TRAIN), ("val_half", VALIDATION), ("test_half", TEST)):
        where.update(dict.fromkeys(np.asarray(parts[name]).tolist(), split))
    novel = {
        "validation_novel": set(np.asarray(parts["val_novel"]).tolist()),
        "test_novel": set(np.asarray(parts["test_novel"]).tolist()),
    }
    if not any(one.id in where for one in pictures):
        raise UserError(
            "no picture of the held-out split is in the data set; --split heldout is for COCO 2014."
        )
    result = []
    for one in pictures:
        split_of = where.get(one.id)
        subsets = one.subsets + tuple(name for name, ids in novel.items() if one.id in ids)
        if split_of in (VALIDATION, TEST) and subsets == one.subsets:
            subsets += (f"{split_of}_known",)
        if split_of is None:
            one = replace(one, captions=())
        result.append(replace(one, split=split_of or UNPAIRED, subsets=subsets))
    return tuple(result)


def _read_parts(path: Path) -> dict[str, Any]:
    value = read_json(path)
    names = ("train", "val_half", "test_half", "val_novel", "test_novel")
    for name in names:
        if not isinstance(value, dict) or not isinstance(value.get(name), list):
            raise UserError(f'{path} has no list "{name}"; a held-out split file has {", ".join(names)}.')
        if not all(is_id(image_id) for image_id in value[name]):
            raise UserError(f'{path}: "{name}" must hold whole numbers, the image ids.')
    return dict(value)


def _random(pictures: tuple[Picture, ...], choice: Choice) -> tuple[Picture, ...]:
    """Validation and test are drawn among the pictures that have captions: the others could not judge."""
    named = {i for path in (choice.test_ids, choice.validation_ids) if path for i in read_ids(path)}
    captioned = [one for one in pictures if one.captions and one.id not in named]
    usual = min(1000, len(captioned) // 10)
    # A split that a file names is what the file says, unless more pictures are asked for.
    validation = choice.validation if choice.validation is not None else 0 if choice.validation_ids else usual
    test = choice.test if choice.test is not None else 0 if choice.test_ids else usual
    if validation + test >= max(1, len(captioned)) and (validation or test):
        raise UserError(
            f"--validation {validation} and --test {test} leave nothing to train on: "
            f"{len(captioned)} pictures have captions; choose smaller numbers."
        )
    order = _permutation(captioned, choice.seed)
    drawn = dict.fromkeys(order[:validation], VALIDATION) | dict.fromkeys(
        order[validation : validation + test], TEST
    )
    return _by_ids(tuple(replace(one, split=drawn.get(one.id, TRAIN)) for one in pictures), choice)


def _draw(pictures: list[Picture], number: int, seed: int) -> set[int]:
    if number >= len(pictures):
        raise UserError(
            f"{number} validation pictures cannot be drawn from {len(pictures)}; pass a smaller --validation."
        )
    return set(_permutation(pictures, seed)[:number])


def _permutation(pictures: Iterable[Picture], seed: int) -> list[int]:
    """The ids in an order that each id has by itself, so leaving some pictures out moves no other."""
    ids = np.array([one.id for one in pictures], dtype=np.int64)
    mixed = _mix(ids.view(np.uint64) + _mix(np.array([seed], dtype=np.uint64)))
    order: list[int] = ids[np.argsort(mixed, kind="stable")].tolist()
    return order


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection that scatters neighbouring numbers."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def check_method(method: str) -> None:
    if method not in METHODS:
        raise UserError(f"--split {method} is not known; use one of {', '.join(METHODS)}.")


__all__ = [
    "METHODS",
    "SPLITS",
    "Choice",
    "assign",
    "check_method",
    "choose",
    "heldout_ids",
    "mrnn_test_ids",
    "read_ids",
]
