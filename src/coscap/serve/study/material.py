"""What a study shows: pictures, and for each of them some captions of every method."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coscap.errors import UserError
from coscap.metrics.references import Captions, ImageId, grouped, read_samples
from coscap.vision.extract import list_pictures
from coscap.vision.pictures import open_picture


@dataclass(frozen=True)
class Item:
    """What is rated at once: the captions of one method for one picture, in the order in which they are shown."""

    picture: int
    """The place of the picture in the study."""
    method: str
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    methods: tuple[str, ...]
    pictures: tuple[str, ...]
    """The image ids."""
    files: tuple[Path, ...]
    """The pictures' files."""
    captions: Mapping[str, Sequence[tuple[str, ...]]]
    """Of each method, the captions of each picture."""

    def __len__(self) -> int:
        return len(self.pictures) * len(self.methods)

    @cached_property
    def digest(self) -> str:
        """Changes with the pictures, the methods and every caption."""
        content = [self.methods, self.pictures, [self.captions[method] for method in self.methods]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def order(self, annotator: str) -> list[Item]:
        """All items in the order of one annotator, the same each time.

        Every picture comes once before any comes again, each time with another method: captions of the same picture
        are far apart. Pictures come in blocks that have every method once, so someone who stops early has rated all
        methods equally often.
        """
        chance = random.Random(f"{self.digest} {annotator}")
        methods = chance.sample(self.methods, len(self.methods))
        pictures = chance.sample(range(len(self.pictures)), len(self.pictures))
        blocks = [pictures[start : start + len(methods)] for start in range(0, len(pictures), len(methods))]
        items = []
        for turn in range(len(methods)):
            for block in chance.sample(blocks, len(blocks)):
                for place in chance.sample(range(len(block)), len(block)):
                    method = methods[(place + turn) % len(methods)]
                    captions = self.captions[method][block[place]]
                    items.append(Item(block[place], method, tuple(chance.sample(captions, len(captions)))))
        return items


def read_study(
    samples: Sequence[Path], images: Path | None = None, captions: int = 5, pictures: int = 0
) -> Study:
    """The pictures that have at least so many captions in every file; of each file the first ones.

    `images` is the folder of the pictures, by default that of the first file; `pictures` takes fewer of them,
    spread over the data set.
    """
    if not samples:
        raise UserError("A study needs one or more files of captions: coscap serve --study a.json b.json.")
    by_method = {name: grouped(read_samples(path)) for name, path in _names(samples).items()}
    common = [
        image_id
        for image_id in next(iter(by_method.values()))
        if all(len(found.get(image_id, ())) >= captions for found in by_method.values())
    ]
    if not common:
        raise UserError(
            f"No picture has {captions} captions in each of {_listed(samples)}; "
            "check that they are of the same pictures, or ask for fewer with --captions."
        )
    common.sort(key=lambda image_id: (isinstance(image_id, str), image_id))
    if pictures and pictures < len(common):
        common = [common[place * len(common) // pictures] for place in range(pictures)]
    files = _find(common, images or samples[0].parent)
    return Study(
        methods=tuple(by_method),
        pictures=tuple(str(image_id) for image_id in common),
        files=tuple(files),
        captions={name: _first(found, common, captions) for name, found in by_method.items()},
    )


def _first(found: Captions, wanted: Sequence[ImageId], captions: int) -> list[tuple[str, ...]]:
    return [tuple(found[image_id][:captions]) for image_id in wanted]


def _names(samples: Sequence[Path]) -> dict[str, Path]:
    """Methods are called by their files, with the folder where two files are called the same."""
    stems = [path.stem for path in samples]
    names = {
        path.stem if stems.count(path.stem) == 1 else f"{path.resolve().parent.name}/{path.stem}": path
        for path in samples
    }
    if len(names) < len(samples):
        raise UserError(
            f"Two of {_listed(samples)} have the same name; rename one, for methods are called by their files."
        )
    return names


def _find(wanted: Sequence[ImageId], folder: Path) -> list[Path]:
    """The picture file of each id: COCO's name for it, or any name that stands for that id."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give that of the pictures with --images.")
    found: dict[ImageId, Path] = {}
    for image_id in wanted:
        path = folder / (f"{image_id:012d}.jpg" if isinstance(image_id, int) else image_id)
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            found[image_id] = path
    if len(found) < len(wanted):
        entries = {entry.id: Path(entry.path) for entry in list_pictures(folder)}
        found = {**{image_id: entries[image_id] for image_id in wanted if image_id in entries}, **found}
    missing = [image_id for image_id in wanted if image_id not in found]
    if missing:
        raise UserError(
            f"{folder} has no picture of {len(missing):,} of the {len(wanted):,} image ids (the first is "
            f"{missing[0]}); give the folder of the pictures with --images."
        )
    for path in found.values():  # a bad picture is reported now, not to an annotator
        open_picture(path, least_side=64)
    return [found[image_id] for image_id in wanted]


def _listed(samples: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in samples)
