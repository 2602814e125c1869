"""Which words name an object, and of which class: COCO's 80 classes, or a list of the user's own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from coscap.errors import UserError
from coscap.files import read_json, read_text, read_yaml, write_json
from coscap.text.plurals import plural as plural_of
from coscap.text.ptb import tokenise

_FOLDER = Path(__file__).parent / "classes"
_WORD_LISTS = ("not_objects", "heads", "describes", "not_after", "verbs", "before_verb", "before_to")
_WORD_TABLES = ("only_after", "only_before")


@dataclass(frozen=True)
class ObjectClass:
    """A class, the words for one of it and the words for several; the first of each fills a slot."""

    name: str
    words: tuple[str, ...]
    plurals: tuple[str, ...]

    @property
    def singular(self) -> str:
        return self.words[0]

    @property
    def plural(self) -> str:
        return self.plurals[0]


@dataclass(frozen=True)
class WordRules:
    """Where a class word names no object. Words are tokens; a name is the whole name ("stop sign")."""

    not_objects: frozenset[str] = frozenset()  # phrases that hold a class word and name nothing: "jet ski"
    heads: frozenset[str] = frozenset()  # a singular thing before one of these describes it: "train station"
    describes: frozenset[str] = (
        frozenset()
    )  # names that describe an object's name behind them: "baby elephant"
    not_after: frozenset[str] = frozenset()  # a name behind one of these is not the thing: "toy train"
    only_after: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # name -> what must stand before it
    only_before: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # name -> what must stand behind it
    verbs: frozenset[str] = frozenset()  # names that are verbs behind a person or one of `before_verb`
    before_verb: frozenset[str] = frozenset()
    before_to: frozenset[str] = (
        frozenset()
    )  # "to" behind one of these goes with no verb: "next to bike racks"


@dataclass(frozen=True)
class ObjectClasses:
    """A list of classes and the rules for its words."""

    name: str
    classes: tuple[ObjectClass, ...]
    rules: WordRules = WordRules()

    def __hash__(self) -> int:  # cheap: a list is the key of a cache for every caption
        return hash((self.name, len(self.classes)))

    def __len__(self) -> int:
        return len(self.classes)

    @cached_property
    def class_of(self) -> dict[str, str]:
        """The class of each word of the list, singular and plural."""
        return {word: each.name for each in self.classes for word in (*each.words, *each.plurals)}

    def index(self, name: str) -> int:
        """The number of the class with this name; a ValueError when there is none."""
        return [each.name for each in self.classes].index(name)

    def save(self, path: str | Path) -> None:
        """Write the list with all its rules as JSON, which `load_classes` reads like the YAML."""
        classes = {
            each.name: [f"{word}/-" for word in each.words] + [f"-/{word}" for word in each.plurals]
            for each in self.classes
        }
        content: dict[str, Any] = {"name": self.name, "classes": classes}
        content |= {key: sorted(getattr(self.rules, key)) for key in _WORD_LISTS}
        for key in _WORD_TABLES:
            content[key] = {word: sorted(words) for word, words in getattr(self.rules, key).items()}
        write_json(path, content, indent=1)


def load_classes(source: str | Path = "coco") -> ObjectClasses:
    """The built-in list "coco", a YAML or JSON file in its format, or a text file with one class name a line.

    >>> load_classes("coco").classes[10].plural
    'fire hydrants'
    """
    if source == "coco":
        return _coco()
    path = Path(source)
    if path.suffix == "" and not path.exists():
        raise UserError(f"{path} is no list of object classes; give `coco` or a file (.yaml, .json, .txt).")
    return _read(path)


@cache
def _coco() -> ObjectClasses:
    return _read(_FOLDER / "coco.json")


def _read(path: Path) -> ObjectClasses:
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return _read_lines(path)
    content = _read_table(path)
    classes = tuple(_object_class(path, str(name), words) for name, words in content["classes"].items())
    _check(path, classes)
    return ObjectClasses(str(content.get("name", path.stem)), classes, _rules(path, _english() | content))


def _read_lines(path: Path) -> ObjectClasses:
    """One class a line; commas divide its names, as in Visual Genome's lists: "couch,sofa".

    Names become tokens, so that they are found in captions: "Drill (Tool)" is "drill". Detectors know classes
    such as "window" and "windows" beside each other: the latter is then the plural of the former.
    """
    lines = [line for line in read_text(path).splitlines() if line.strip() and not line.startswith("#")]
    rows = [[_as_tokens(name) for name in line.split(",") if _as_tokens(name)] for line in lines]
    for line, row in zip(lines, rows, strict=True):
        if not row:
            raise UserError(f"{path}: the line `{line.strip()}` holds no word; give one class name a line.")
    if not rows:
        raise UserError(f"{path} names no class; give one class name a line.")
    singular = {plural_of(name): name for row in rows for name in row if plural_of(name) != name}
    classes = []
    for row in rows:
        ones = [singular.get(name, name) for name in row]
        many = [name if name in singular else plural_of(name) for name in row]
        classes.append(ObjectClass(row[0], tuple(dict.fromkeys(ones)), tuple(dict.fromkeys(many))))
    return ObjectClasses(path.stem, tuple(classes), _rules(path, _english()))


def _as_tokens(name: str) -> str:
    return " ".join(tokenise(re.sub(r"\(.*?\)", "", name)))


@cache
def _english() -> dict[str, Any]:
    return _read_table(_FOLDER / "english.json")


def _read_table(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    if not isinstance(content, dict) or (
        path != _FOLDER / "english.json" and not isinstance(content.get("classes"), dict)
    ):
        raise UserError(f"{path} has no mapping `classes` of class names to words; see docs/text.md.")
    unknown = set(content) - {"about", "name", "classes", *_WORD_LISTS, *_WORD_TABLES}
    if unknown:
        known = ", ".join(("name", "classes", *_WORD_LISTS, *_WORD_TABLES))
        raise UserError(f"{path} has the unknown key `{min(map(str, unknown))}`; the keys are {known}.")
    return content


def _rules(path: Path, content: dict[str, Any]) -> WordRules:
    values: dict[str, Any] = {key: _words(path, key, content.get(key, [])) for key in _WORD_LISTS}
    for key in _WORD_TABLES:
        table = content.get(key, {})
        if not isinstance(table, dict):
            raise UserError(f"{path}: `{key}` must map a word to a list of words.")
        values[key] = {str(word): _words(path, f"{key}: {word}", words) for word, words in table.items()}
    return WordRules(**values)


def _words(path: Path, key: str, words: Any) -> frozenset[str]:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError(
            f"{path}: `{key}` must be a list of words; put quotes around words such as yes and no."
        )
    return frozenset(words)


def _object_class(path: Path, name: str, words: Any) -> ObjectClass:
    words = [name] if words is None else words
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise UserError(f"{path}: class `{name}` must have a list of words, for example [man/men, boy].")
    forms = [_forms(" ".join(word.lower().split())) for word in words]
    singular = tuple(dict.fromkeys(one for one, _ in forms if one))
    plural = tuple(dict.fromkeys(many for _, many in forms if many))
    if not singular or not plural:
        raise UserError(f"{path}: class `{name}` needs a singular and a plural word to fill a slot with.")
    return ObjectClass(name.lower(), singular, plural)


def _forms(word: str) -> tuple[str, str]:
    """Singular and plural: "man/men"; "car" has the regular plural; "-" stands for none ("-/cattle")."""
    one, slash, many = (part.strip() for part in word.partition("/"))
    if not slash:
        return one, plural_of(one)
    return ("" if one == "-" else one), ("" if many == "-" else many)


def _check(path: Path, classes: tuple[ObjectClass, ...]) -> None:
    if not classes:
        raise UserError(f"{path} has no class under `classes`; see docs/text.md.")
    owner: dict[str, str] = {}
    for each in classes:
        for word in (*each.words, *each.plurals):
            other = owner.setdefault(word, each.name)
            if other != each.name:
                raise UserError(f"{path}: `{word}` is a word of `{other}` and of `{each.name}`; keep one.")
