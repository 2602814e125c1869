"""The context-object split: a caption becomes a context with slots and the objects that fill them, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from coscap.text.objects import ObjectClasses, load_classes

SLOT, SLOTS, UNKNOWN = "<s>", "<s+>", "<unk>"

# What stands before a word with one form for both numbers ("sheep") when it means one of them.
_ONE = frozenset("a an one another this that each every single".split())
_NOT_AN_OBJECT = -1


@dataclass(frozen=True)
class Split:
    """A caption in units. Position t of `units` and `context` is the same word; slots hold the objects in order.

    units:   a | fire hydrant | near | two | cars
    context: a | <s>          | near | two | <s+>
    objects: fire hydrant | cars
    """

    units: tuple[str, ...]
    context: tuple[str, ...]
    objects: tuple[str, ...]
    classes: tuple[int, ...]  # of each object, an index into the list of classes

    def join(self) -> list[str]:
        """The tokens that were split."""
        tokens: list[str] = []
        for unit, word in zip(self.units, self.context, strict=True):
            tokens.extend(unit.split(" ") if word in (SLOT, SLOTS) else (unit,))
        return tokens


@dataclass(frozen=True)
class _Name:
    words: tuple[str, ...]
    text: str
    index: int  # of the class, or _NOT_AN_OBJECT
    slot: str  # "" where one form serves both numbers


def split(tokens: Sequence[str], objects: ObjectClasses | None = None) -> Split:
    """Find the object names in the tokens of a caption.

    >>> split("two dogs near a fire hydrant".split()).context
    ('two', '<s+>', 'near', 'a', '<s>')
    """
    classes = load_classes("coco") if objects is None else objects
    names = _names(classes)
    units: list[str] = []
    context: list[str] = []
    found: list[str] = []
    indices: list[int] = []
    at = 0
    while at < len(tokens):
        word = tokens[at]
        name = _match(names[word], tokens, at) if word in names else None
        if name is None:
            units.append(word)
            context.append(UNKNOWN if word in (SLOT, SLOTS) else word)  # a slot always holds an object
            at += 1
            continue
        end = at + len(name.words)
        if name.index == _NOT_AN_OBJECT or (
            name.slot == SLOT and end < len(tokens) and tokens[end] in classes.heads
        ):
            units.extend(name.words)
            context.extend(name.words)
        else:
            one = bool(context) and context[-1] in _ONE
            units.append(name.text)
            context.append(name.slot or (SLOT if one else SLOTS))
            found.append(name.text)
            indices.append(name.index)
        at = end
    return Split(tuple(units), tuple(context), tuple(found), tuple(indices))


def _match(names: list[_Name], tokens: Sequence[str], at: int) -> _Name | None:
    for name in names:
        if len(name.words) == 1 or tuple(tokens[at : at + len(name.words)]) == name.words:
            return name
    return None


@lru_cache(maxsize=16)
def _names(classes: ObjectClasses) -> dict[str, list[_Name]]:
    """First word -> the names that begin with it, the longest first."""
    table: dict[str, list[_Name]] = {}
    for index, each in enumerate(classes.classes):
        for text in dict.fromkeys((*each.words, *each.plurals)):
            both = text in each.words and text in each.plurals
            slot = "" if both else SLOT if text in each.words else SLOTS
            words = tuple(text.split(" "))
            table.setdefault(words[0], []).append(_Name(words, text, index, slot))
    for text in classes.not_objects:
        words = tuple(text.split(" "))
        table.setdefault(words[0], []).append(_Name(words, text, _NOT_AN_OBJECT, ""))
    for names in table.values():
        names.sort(key=lambda name: -len(name.words))
    return table


def fill(context: Sequence[str], indices: Sequence[int], objects: ObjectClasses | None = None) -> list[str]:
    """The units of a context whose slots are filled with the names of classes, in order.

    `<s>` takes the singular, `<s+>` the plural; "a" and "an" before a slot follow its word.

    >>> fill(["a", "<s>", "with", "<s+>"], [20, 46])
    ['an', 'elephant', 'with', 'bananas']
    """
    classes = load_classes("coco") if objects is None else objects
    left = iter(indices)
    units: list[str] = []
    for word in context:
        if word in (SLOT, SLOTS):
            each = classes.classes[next(left)]
            unit = each.singular if word == SLOT else each.plural
            if units and units[-1] in ("a", "an"):
                units[-1] = "an" if unit[0] in "aeiou" else "a"
            units.append(unit)
        else:
            units.append(word)
    return units
