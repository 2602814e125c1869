"""Which words name an object, and of which class: COCO's 80 classes, or a list of the user's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from coscap.errors import UserError
from coscap.files import read_text
from coscap.text.plurals import plural as plural_of

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
    heads: frozenset[str] = frozenset()  # a singular name before one of these describes it: "train station"
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


@dataclass(frozen=True, eq=False)
class ObjectClasses:
    """A list of classes and the rules for its words."""

    name: str
    classes: tuple[ObjectClass, ...]
    rules: WordRules = WordRules()

    def __len__(self) -> int:
        return len(self.classes)

    def index(self, name: str) -> int:
        """The number of the class with this name; a ValueError when there is none."""
        return [each.name for each in self.classes].index(name)


@cache
def load_classes(source: str | Path = "coco") -> ObjectClasses:
    """The built-in list "coco", a YAML file in its format, or a text file with one class name a line.

    >>> load_classes("coco").classes[10].plural
    'fire hydrants'
    """
    builtin = _FOLDER / f"{source}.yaml"
    path = builtin if builtin.is_file() else Path(source)
    content = _read_yaml(path) if path.suffix.lower() in (".yaml", ".yml") else _read_lines(path)
    classes = tuple(_object_class(path, str(name), words) for name, words in content["classes"].items())
    rules = _rules(path, _read_yaml(_FOLDER / "english.yaml") | content)
    _check(path, classes)
    return ObjectClasses(str(content.get("name", path.stem)), classes, rules)


def _read_lines(path: Path) -> dict[str, Any]:
    """One class a line; a comma divides its names, as in lists of Visual Genome: "couch,sofa"."""
    lines = (line.strip() for line in read_text(path).splitlines())
    rows = [[name.strip() for name in line.split(",") if name.strip()] for line in lines]
    names = [row for row in rows if row and not row[0].startswith("#")]
    first = [row[0] for row in names]
    twice = next((name for name in first if first.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path} names the class `{twice}` twice; keep one of the lines.")
    return {"classes": {row[0]: row for row in names}}


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    text = read_text(path)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is not valid YAML ({reason}); correct the file.") from None
    if not isinstance(content, dict) or (
        path.name != "english.yaml" and not isinstance(content.get("classes"), dict)
    ):
        raise UserError(f"{path} has no mapping `classes` of class names to words; see docs/text.md.")
    unknown = set(content) - {"name", "classes", *_WORD_LISTS, *_WORD_TABLES}
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
        raise UserError(f"{path} names no class; give one class name a line.")
    owner: dict[str, str] = {}
    for each in classes:
        for word in (*each.words, *each.plurals):
            other = owner.setdefault(word, each.name)
            if other != each.name:
                raise UserError(f"{path}: `{word}` is a word of `{other}` and of `{each.name}`; keep one.")
