"""The context-object split: a caption becomes a context with slots and the objects that fill them, and back.

Names are found with a table of first words, the longest name first, and the rules of the class list decide
whether a name is an object there (docs/text.md). Nothing is parsed, so the whole of COCO takes seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from coscap.text.objects import ObjectClass, ObjectClasses, WordRules, load_classes

SLOT, SLOTS, UNKNOWN = "<s>", "<s+>", "<unk>"

_NOT_AN_OBJECT = -1
_END = "<end>"
# Before a name with one form for both numbers ("sheep"): what tells that it is one, and where to stop looking.
_ONE = frozenset(["a", "an", "one", "another", "this", "that", "each", "every", "single", "lone"])
_STOP = frozenset(
    ["of", "and", "with", "to", "in", "on", "by", "near", "two", "three", "some", "many", "the"]
)


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
    """A name in the table, with the rules that hold for it."""

    text: str
    words: tuple[str, ...]
    index: int  # of the class, or _NOT_AN_OBJECT
    slot: str  # "" where one form serves both numbers
    is_person: bool = False
    is_verb: bool = False
    describes: bool = False
    only_after: frozenset[str] | None = None
    only_before: frozenset[str] | None = None


@dataclass
class _Found:
    """What has been found so far, the same number of units and context words."""

    units: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    last: _Name | None = None  # the object that ends right here


def split(tokens: Sequence[str], objects: ObjectClasses | None = None) -> Split:
    """Find the object names in the tokens of a caption.

    >>> split("two dogs near a fire hydrant".split()).context
    ('two', '<s+>', 'near', 'a', '<s>')
    """
    classes = load_classes("coco") if objects is None else objects
    table = _table(classes)
    found = _Found()
    at, end = 0, len(tokens)
    while at < end:
        word = tokens[at]
        names = table.get(word)
        name = _match(names, tokens, at) if names else None
        if name is None:
            found.units.append(word)
            found.context.append(UNKNOWN if word in (SLOT, SLOTS) else word)  # a slot always holds an object
            found.last = None
            at += 1
        else:
            _add(found, name, _is_object(name, tokens, at, found.last, table, classes.rules))
            at += len(name.words)
    return Split(tuple(found.units), tuple(found.context), tuple(found.objects), tuple(found.classes))


def _add(found: _Found, name: _Name, is_object: bool) -> None:
    if not is_object:
        found.units.extend(name.words)
        found.context.extend(name.words)
        found.last = None
        return
    found.context.append(name.slot or _number(found.context))
    found.units.append(name.text)
    found.objects.append(name.text)
    found.classes.append(name.index)
    found.last = name


def _number(context: list[str]) -> str:
    """The slot for a name with one form for both numbers: singular when "a" or its like is up to three before."""
    for word in context[:-4:-1]:
        if word in _ONE:
            return SLOT
        if word in _STOP or word in (SLOT, SLOTS):
            break
    return SLOTS


def _is_object(
    name: _Name, tokens: Sequence[str], at: int, last: _Name | None, table: "_Table", rules: WordRules
) -> bool:
    """Whether a name that was found at a place is an object there."""
    if name.index == _NOT_AN_OBJECT:
        return False
    before = tokens[at - 1] if at else ""
    end = at + len(name.words)
    behind = tokens[end] if end < len(tokens) else _END
    if before in rules.not_after or (name.slot != SLOTS and not name.is_person and behind in rules.heads):
        return False
    if name.only_after is not None and before not in name.only_after:
        return False
    if name.only_before is not None and not _allowed_behind(name.only_before, tokens, end, behind):
        return False
    if name.is_verb and _is_verb(tokens, at, before, last, rules):
        return False
    return not (name.slot == SLOT and behind in table and _describes(name, tokens, end, table))


def _allowed_behind(allowed: frozenset[str], tokens: Sequence[str], end: int, behind: str) -> bool:
    return behind in allowed or " ".join(tokens[end : end + 2]) in allowed


def _is_verb(tokens: Sequence[str], at: int, before: str, last: _Name | None, rules: WordRules) -> bool:
    if before == "to":
        return at < 2 or tokens[at - 2] not in rules.before_to
    return before in rules.before_verb or (last is not None and last.is_person)


def _describes(name: _Name, tokens: Sequence[str], end: int, table: "_Table") -> bool:
    """Whether a name only describes the object's name behind it: "baby elephant", "tabby cat".

    Two names of one class are one thing, unless a list goes on with "and": "a man, woman and child".
    """
    behind = _match(table[tokens[end]], tokens, end)
    if behind is None or behind.index == _NOT_AN_OBJECT:
        return False
    if name.describes:
        return not (name.is_person and behind.is_verb)
    after = end + len(behind.words)
    return behind.index == name.index and not (after < len(tokens) and tokens[after] == "and")


_Table = dict[str, tuple[_Name, ...]]


def _match(names: tuple[_Name, ...], tokens: Sequence[str], at: int) -> _Name | None:
    for name in names:
        if len(name.words) == 1 or tuple(tokens[at : at + len(name.words)]) == name.words:
            return name
    return None


@lru_cache(maxsize=16)
def _table(classes: ObjectClasses) -> _Table:
    """First word -> the names that begin with it, the longest first."""
    rules = classes.rules
    names = {text: _Name(text, tuple(text.split(" ")), _NOT_AN_OBJECT, "") for text in rules.not_objects}
    # A word of two classes ("windows" beside "window") belongs to the one that is called so.
    by_name = {each.name: index for index, each in reversed(list(enumerate(classes.classes)))}
    for index, each in enumerate(classes.classes):
        for text in (*each.words, *each.plurals):
            if text not in names and by_name.get(text, index) == index:
                names[text] = _name(text, index, each, rules)
    table: dict[str, list[_Name]] = {}
    for name in sorted(names.values(), key=lambda name: -len(name.words)):
        table.setdefault(name.words[0], []).append(name)
    return {word: tuple(found) for word, found in table.items()}


def _name(text: str, index: int, each: ObjectClass, rules: WordRules) -> _Name:
    slot = SLOT if text in each.words else SLOTS
    return _Name(
        text=text,
        words=tuple(text.split(" ")),
        index=index,
        slot="" if text in each.words and text in each.plurals else slot,
        is_person=each.name == "person",
        is_verb=text in rules.verbs,
        describes=text in rules.describes,
        only_after=rules.only_after.get(text),
        only_before=rules.only_before.get(text),
    )


def fill(context: Sequence[str], indices: Sequence[int], objects: ObjectClasses | None = None) -> list[str]:
    """The units of a context whose slots are filled with the names of classes, in order.

    `<s>` takes the singular, `<s+>` the plural; "a" or "an" right before a slot follows the word in it.

    >>> fill(["a", "<s>", "with", "<s+>"], [20, 46])
    ['an', 'elephant', 'with', 'bananas']
    """
    classes = load_classes("coco") if objects is None else objects
    slots = sum(word in (SLOT, SLOTS) for word in context)
    if slots != len(indices):
        raise ValueError(f"the context has {slots} slots, and {len(indices)} classes were given")
    left = iter(indices)
    units: list[str] = []
    for word in context:
        if word not in (SLOT, SLOTS):
            units.append(word)
            continue
        each = classes.classes[next(left)]
        unit = each.singular if word == SLOT else each.plural
        if units and units[-1] in ("a", "an"):
            units[-1] = "an" if unit[0] in "aeiou" else "a"
        units.append(unit)
    return units
