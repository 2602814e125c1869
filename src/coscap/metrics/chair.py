"""CHAIR: how often captions name objects that are not in the picture (Rohrbach et al., EMNLP 2018).

CHAIR-i     hallucinated mentions / all mentions of objects
CHAIR-s     captions with a hallucinated mention / captions
CHAIR-free  the share of *pictures* none of whose captions has one

In the picture is what a reference names and, where they are given, what COCO's instance annotations hold. Which words
name an object is decided as the published script decides it (`ObjectWords.official`), its oddities included: its
singulars are those of a rule that turns "bus" into "bu", so a "bus" is never counted, "buses" are. `ObjectWords.of`
takes the classes of a list instead, with all their words and plurals.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as resources
from pathlib import Path

import numpy as np

from coscap.errors import UserError
from coscap.files import read_json
from coscap.metrics.intervals import Statistics, mean, ratio
from coscap.metrics.references import ImageId
from coscap.text.objects import ObjectClasses, load_classes

_TOILETS, _SEATS = {"toilet", "toilets"}, {"seat", "seats"}


@dataclass(frozen=True)
class ObjectWords:
    """Tokens that name an object: names of one or more tokens and their class; the longest name counts."""

    classes: tuple[str, ...]
    names: Mapping[str, str]  # tokens with spaces -> class, or "" where they name no object ("train track")
    longest: int  # tokens of the longest name
    toilet_seats: bool = False  # the script's rule: beside "toilet", "seat" is no chair

    @staticmethod
    @cache
    def official() -> "ObjectWords":
        """The words of the published script."""
        differences = json.loads((resources("coscap.metrics") / "chair.json").read_text("utf-8"))
        classes = load_classes("coco")
        left_out = {word for line in differences["not counted"] for word in line.split()}
        names = {
            name: kind for name, kind in _names(classes).items() if " " not in name and name not in left_out
        }
        names |= {word: kind for kind, words in differences["words"].items() for word in words.split()}
        names |= {pair: kind for kind, pairs in differences["pairs"].items() for pair in pairs.split(", ")}
        return ObjectWords(tuple(each.name for each in classes.classes), names, 2, toilet_seats=True)

    @classmethod
    def of(cls, classes: ObjectClasses) -> "ObjectWords":
        names = _names(classes)
        longest = max(name.count(" ") + 1 for name in names)
        return cls(tuple(each.name for each in classes.classes), names, longest)

    def mentions(self, caption: str) -> list[str]:
        """The classes that a tokenised caption names, in order."""
        tokens = caption.split()
        found: list[tuple[str, str]] = []  # name, class
        at = 0
        while at < len(tokens):
            for length in range(min(self.longest, len(tokens) - at), 0, -1):
                name = " ".join(tokens[at : at + length])
                if name in self.names:
                    found.append((name, self.names[name]))
                    break
            at += length
        if self.toilet_seats and any(
            name in _TOILETS or (kind == "toilet" and " " in name) for name, kind in found
        ):
            found = [(name, kind) for name, kind in found if name not in _SEATS]
        return [kind for _, kind in found if kind]


def _names(classes: ObjectClasses) -> dict[str, str]:
    return {word: each.name for each in classes.classes for word in (*each.words, *each.plurals)}


def in_pictures(
    references: Sequence[Sequence[str]], words: ObjectWords, instances: Sequence[set[str]] | None = None
) -> list[set[str]]:
    """The classes that are in each picture, by its tokenised references and its instance annotations."""
    found = [{kind for caption in captions for kind in words.mentions(caption)} for captions in references]
    return (
        found if instances is None else [named | seen for named, seen in zip(found, instances, strict=True)]
    )


def chair_statistics(
    pictures: Sequence[Sequence[str]], there: Sequence[set[str]], words: ObjectWords
) -> dict[str, Statistics]:
    """CHAIR-i, CHAIR-s and CHAIR-free in percent, of all captions of each picture."""
    counts = np.zeros((4, len(pictures)))  # mentions, hallucinated ones, captions, captions with one
    for picture, (captions, here) in enumerate(zip(pictures, there, strict=True)):
        for caption in captions:
            named = words.mentions(caption)
            wrong = sum(kind not in here for kind in named)
            counts[:, picture] += len(named), wrong, 1, wrong > 0
    mentions, hallucinated, captions_, with_one = counts
    return {
        "CHAIR-i": ratio(hallucinated, mentions, 100.0),
        "CHAIR-s": ratio(with_one, captions_, 100.0),
        "CHAIR-free": mean(with_one == 0, scale=100.0),
    }


def read_instances(path: str | Path, words: ObjectWords) -> dict[ImageId, set[str]]:
    """The classes in each picture of a COCO instances file (`{"annotations", "categories"}`)."""
    content = read_json(path)
    try:
        names = {int(each["id"]): str(each["name"]) for each in content["categories"]}
        found: dict[ImageId, set[str]] = {image["id"]: set() for image in content.get("images", [])}
        for each in content["annotations"]:
            found.setdefault(each["image_id"], set()).add(names[each["category_id"]])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f'{path} is not a COCO instances file; expected "categories" with id and name and "annotations" with '
            "image_id and category_id."
        ) from None
    unknown = sorted({name for named in found.values() for name in named} - set(words.classes))
    if unknown:
        raise UserError(
            f"{path} has the category {unknown[0]!r} ({len(unknown)} of {len(names)} are not known), which is no class "
            "of the words for CHAIR; give a list of classes with that name (--chair-words FILE)."
        )
    return found
