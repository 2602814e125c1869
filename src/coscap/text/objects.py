"""Which words name an object, and of which class: COCO's 80 classes, or a list of the user's own."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from coscap.errors import UserError
from coscap.files import read_text
from coscap.text.plurals import plural as plural_of

_FOLDER = Path(__file__).parent / "classes"


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
class ObjectClasses:
    """A list of classes and the rules that tell where one of their words is not an object.

    `not_objects`: phrases that contain a class word and name nothing of the list ("toy car").
    `heads`: a class word directly before one of these only describes it ("train station").
    """

    name: str
    classes: tuple[ObjectClass, ...]
    not_objects: tuple[str, ...] = ()
    heads: frozenset[str] = field(default_factory=frozenset)

    def __len__(self) -> int:
        return len(self.classes)


@cache
def load_classes(source: str | Path = "coco") -> ObjectClasses:
    """The built-in list "coco", a YAML file in its format, or a text file with one class name a line.

    >>> load_classes("coco").classes[10].plural
    'fire hydrants'
    """
    builtin = _FOLDER / f"{source}.yaml"
    path = builtin if builtin.is_file() else Path(source)
    text = read_text(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(path, text)
    return _from_lines(path, text)


def _from_lines(path: Path, text: str) -> ObjectClasses:
    names = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    classes = tuple(_object_class(path, name, [name]) for name in names)
    return _checked(path, ObjectClasses(path.stem, classes))


def _from_yaml(path: Path, text: str) -> ObjectClasses:
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"{path} is not valid YAML ({str(error).splitlines()[0]}); correct the file."
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("classes"), dict):
        raise UserError(f"{path} has no mapping `classes` of class names to words; see docs/text.md.")
    classes = tuple(_object_class(path, str(name), words) for name, words in content["classes"].items())
    return _checked(
        path,
        ObjectClasses(
            str(content.get("name", path.stem)),
            classes,
            tuple(content.get("not_objects", ())),
            frozenset(content.get("heads", ())),
        ),
    )


def _object_class(path: Path, name: str, words: Any) -> ObjectClass:
    if words is None:
        words = [name]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UserError(f"{path}: class `{name}` must have a list of words, for example [man/men, boy].")
    forms = [_forms(word.lower()) for word in words]
    return ObjectClass(
        name.lower(), tuple(one for one, _ in forms if one), tuple(many for _, many in forms if many)
    )


def _forms(word: str) -> tuple[str, str]:
    """ "man/men" -> both; "car" -> the regular plural; "luggage/-" -> no plural; "-/people" -> no singular."""
    one, slash, many = word.partition("/")
    one, many = one.strip(), many.strip()
    if not slash:
        return one, plural_of(one)
    return one.replace("-", "", 1) if one == "-" else one, "" if many == "-" else many


def _checked(path: Path, classes: ObjectClasses) -> ObjectClasses:
    owner: dict[str, str] = {}
    for each in classes.classes:
        if not each.words or not each.plurals:
            raise UserError(
                f"{path}: class `{each.name}` needs a singular and a plural word to fill a slot with."
            )
        for word in {*each.words, *each.plurals}:
            if owner.setdefault(word, each.name) != each.name:
                raise UserError(
                    f"{path}: `{word}` is a word of `{owner[word]}` and of `{each.name}`; keep one."
                )
    if not classes.classes:
        raise UserError(f"{path} names no class; give one class name a line.")
    return classes
