"""What a source of captions gives: pictures with their captions, and a way to deal with bad items."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeGuard

from coscap.errors import UserError

TRAIN, VALIDATION, TEST = "train", "validation", "test"
UNPAIRED = "unpaired"  # pictures that training may see but that have no captions
SPLITS = (TRAIN, VALIDATION, TEST, UNPAIRED)


@dataclass(frozen=True)
class Picture:
    """One picture of a data set, with any number of captions from 0."""

    id: int
    name: str  # its file name, as the source gives it
    captions: tuple[str, ...] = ()
    split: str | None = None  # one of SPLITS, where the source itself says it
    subsets: tuple[str, ...] = ()  # other groups that it is in, e.g. nocaps' domain


@dataclass(frozen=True)
class Source:
    """All pictures of a data set, by rising id, and the content hashes of the files they were read from."""

    name: str
    pictures: tuple[Picture, ...]
    hashes: dict[str, str]  # file name -> sha256 of its content
    notes: tuple[str, ...] = ()  # sentences about the source that are no errors


@dataclass
class Troubles:
    """Bad items: the first one stops the reading, or with `skip` each is left out and counted."""

    skip: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # kind -> the sentence about its first item

    def report(self, kind: str, sentence: str) -> None:
        """`sentence` says which file and item, and what was expected, without a full stop."""
        if not self.skip:
            raise UserError(f"{sentence}; correct it, or pass --skip-bad to leave such items out.")
        self.counts[kind] += 1
        self.examples.setdefault(kind, f"{sentence}.")


class Collector:
    """Gathers pictures and captions in any order, and finds duplicates, strangers and empty captions."""

    def __init__(self, file: str, troubles: Troubles) -> None:
        self.file = file
        self.troubles = troubles
        self._pictures: dict[int, Picture] = {}
        self._captions: dict[int, list[str]] = {}

    def __contains__(self, image_id: int) -> bool:
        return image_id in self._pictures

    def split_of(self, image_id: int) -> str | None:
        return self._pictures[image_id].split

    def picture(
        self, item: str, image_id: int, name: str, split: str | None = None, subsets: Iterable[str] = ()
    ) -> bool:
        """Add a picture; False if another one has its id."""
        known = self._pictures.get(image_id)
        if known is not None:
            self.troubles.report(
                "duplicate id",
                f"{self.file}, {item}: the id {image_id} of {name!r} is already taken by {known.name!r}",
            )
            return False
        self._pictures[image_id] = Picture(image_id, name, split=split, subsets=tuple(subsets))
        return True

    def caption(self, item: str, image_id: int, caption: object) -> None:
        if image_id not in self._pictures:
            self.troubles.report(
                "unknown image",
                f"{self.file}, {item}: its image {image_id} is not among the images of the file",
            )
        elif not isinstance(caption, str):
            self.troubles.report("missing field", f"{self.file}, {item}: the caption is not a text")
        elif not _is_unicode(caption):
            self.troubles.report(
                "broken text", f"{self.file}, {item}: the caption holds half a character (a lone surrogate)"
            )
        elif not caption.strip():
            self.troubles.report("empty caption", f"{self.file}, {item}: the caption is empty")
        else:
            self._captions.setdefault(image_id, []).append(caption)

    def pictures(self) -> tuple[Picture, ...]:
        captions = self._captions
        return tuple(
            Picture(one.id, one.name, tuple(captions.get(one.id, ())), one.split, one.subsets)
            for _, one in sorted(self._pictures.items())
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: object) -> TypeGuard[int]:
    """Can this be a picture's id? A whole number of 64 bits; JSON's true is none, though Python counts it as 1."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def split_name(name: object) -> str | None:
    """The split that a source calls `name`, in our words; None if it is none that we know."""
    known = {
        "train": TRAIN,
        "training": TRAIN,
        "restval": TRAIN,  # Karpathy's: what is left of val2014, which everybody trains on
        "val": VALIDATION,
        "valid": VALIDATION,
        "validation": VALIDATION,
        "dev": VALIDATION,
        "test": TEST,
        "unpaired": UNPAIRED,
    }
    return known.get(name.lower()) if isinstance(name, str) else None


def join(sources: Iterable[Source], troubles: Troubles) -> Source:
    """One data set out of several files that have no picture in common."""
    sources = list(sources)
    if len(sources) == 1:
        return sources[0]
    taken: dict[int, Picture] = {}
    hashes: dict[str, str] = {}
    for source in sources:
        hashes.update(source.hashes)
        for one in source.pictures:
            if one.id in taken:
                troubles.report(
                    "duplicate id", f"{source.name}: the image id {one.id} is also in another file"
                )
            else:
                taken[one.id] = one
    return Source(
        "+".join(source.name for source in sources),
        tuple(taken[key] for key in sorted(taken)),
        hashes,
        tuple(note for source in sources for note in source.notes),
    )


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
