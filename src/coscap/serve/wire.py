"""What comes over the wire and what goes back, as records that check themselves and document themselves.

The fields that ask for captions are those of `SearchSettings`, with bounds for strangers added; they are not written
down a second time.
"""

from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from annotated_types import Ge, Le, MaxLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from coscap.errors import UserError
from coscap.search.config import SearchSettings, settings_from
from coscap.serve.worker import CaptionOptions, TagOptions

_STRICT = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
_GIVEN = ConfigDict(frozen=True, use_attribute_docstrings=True)

# The most that a stranger may ask for, where it is not what _bounded says for the type.
MOST = {"seed": 2**31 - 1, "min_length": 40, "max_length": 40, "top_k": 1000, "draws": 100}
NUMBER = 20  # of beams, groups and other counts
SCALE = 100.0  # of temperatures and penalties
TEXT = 100  # characters of a text
PHRASE = 60  # characters of one of several texts
PHRASES = 20
OWN = {"max_rows"}  # what the server decides


class VariationFields(BaseModel):
    """Asks for other captions of the same photograph that share one half with a caption."""

    model_config = _STRICT

    id: str = Field(max_length=100)
    """The id of a caption that POST /captions or POST /variations gave."""
    keep: Literal["context", "objects"]
    """context: the same context with other objects. objects: the same objects in another context."""
    n: int = Field(default=5, ge=1)
    """The most captions to give; fewer where fewer differ."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Another seed gives other captions."""


class WordJson(BaseModel):
    model_config = _GIVEN

    word: str
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2 in 0..1 of the width and height of the upright photograph."""
    weight: float
    """The attention on that region, 0..1."""
    support: float | None = None
    """How far the photograph bears the word out, 0..1; left out where nothing is known of it."""


class CaptionJson(BaseModel):
    model_config = _GIVEN

    id: str
    """For POST /variations, as long as the server remembers it."""
    text: str
    alt: str
    """The caption as an alternative text: one sentence of at most 125 characters."""
    log_probability: float
    """Nearer to 0 is more certain."""
    support: float | None = None
    """How likely it is that the caption is true, 0..1; left out without a judge."""
    words: list[WordJson]
    satisfied: bool = True
    """false where the search could not meet the constraints; left out otherwise."""


class PhotoJson(BaseModel):
    model_config = _GIVEN

    photo: str
    """The name that the photograph was sent with."""
    captions: list[CaptionJson]
    """The best first, by what people would write, by agreement with captions of similar pictures and by support; each
    further one is the best compromise between good and unlike those before it. Those of beams come in the order of the
    search."""


class VariationsJson(BaseModel):
    model_config = _GIVEN

    captions: list[CaptionJson]


class TagFields(BaseModel):
    """Asks for the words of photographs."""

    model_config = _STRICT

    n: int = Field(default=20, ge=1, le=200)
    """The most words of a photograph."""
    floor: float = Field(default=0.2, ge=0, le=1)
    """Leave out words that are less probable."""


class TagJson(BaseModel):
    model_config = _GIVEN

    word: str
    probability: float
    """How likely it is that one of five people would use the word in a caption."""
    box: tuple[float, float, float, float]
    """Where the evidence is: x1, y1, x2, y2 in 0..1 of the width and height of the upright photograph."""


class PhotoTagsJson(BaseModel):
    model_config = _GIVEN

    photo: str
    """The name that the photograph was sent with."""
    tags: list[TagJson]
    """The most probable first."""


class HealthJson(BaseModel):
    model_config = _GIVEN

    status: Literal["ok"]
    version: str
    waiting: int
    """Requests that wait or are in work."""


class ErrorJson(BaseModel):
    model_config = _GIVEN

    error: str
    """One sentence: what was wrong and what to do."""


@lru_cache(8)
def caption_model(captions: int) -> type[BaseModel]:
    """The fields of a form that asks for captions, besides its photographs. All may be left out."""
    fields: dict[str, Any] = {
        "n": (
            int,
            Field(default=min(5, captions), ge=1, le=captions, description="Captions for each photograph."),
        ),
        "variety": (
            float,
            Field(
                default=0.5,
                ge=0,
                le=1,
                description="0 takes the best captions of those drawn, 1 the most different.",
            ),
        ),
    }
    for name, field in SearchSettings.model_fields.items():
        if name not in OWN:
            description = " ".join((field.description or "").split())
            bounded = _bounded(name, field.annotation, field.metadata)
            fields[name] = (bounded, Field(default=field.default, description=description))
    return create_model("CaptionFields", __config__=_STRICT, **fields)


@lru_cache(8)
def variation_model(captions: int) -> type[VariationFields]:
    """VariationFields with the server's maximum of n."""
    n = (int, Field(default=min(5, captions), ge=1, le=captions, description="The most captions to give."))
    return create_model("VariationFields", __base__=VariationFields, n=n)


def form_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """JSON schema of the text fields of a form, where nothing is null: it is left out instead."""
    properties = kind.model_json_schema()["properties"]
    for schema in properties.values():
        if any(branch.get("type") == "null" for branch in schema.get("anyOf", ())):
            (given,) = (branch for branch in schema.pop("anyOf") if branch.get("type") != "null")
            schema.update(given)
        if schema.get("default", 0) is None:
            del schema["default"]
    return dict(properties)


def repeatable(kind: type[BaseModel]) -> set[str]:
    """Names of the fields that are lists."""
    return {
        name for name, field in kind.model_fields.items() if get_origin(_plain(field.annotation)) is tuple
    }


def caption_options(kind: type[BaseModel], pairs: list[tuple[str, str]]) -> CaptionOptions:
    """From the text fields of a form."""
    given = checked_form(kind, pairs)
    # What was not given stays unset, so that a default can depend on the other settings.
    settings = given.model_dump(exclude={"n", "variety"}, exclude_unset=True)
    return CaptionOptions(given.n, given.variety, settings_from(**settings))  # type: ignore[attr-defined]


def tag_options(pairs: list[tuple[str, str]]) -> TagOptions:
    """From the text fields of a form."""
    given = checked_form(TagFields, pairs)
    return TagOptions(given.n, given.floor)


M = TypeVar("M", bound=BaseModel)


def checked_form(kind: type[M], pairs: list[tuple[str, str]]) -> M:
    """A checked record from the text fields of a form, in which the fields of a list may come several times."""
    several = repeatable(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in several:
            values[name] = (*values.get(name, ()), value)
        elif name in values:
            raise UserError(f"The field {_short(name)} is given twice; give it once.")
        else:
            values[name] = value
    return checked(kind, values)


def checked(kind: type[M], values: object) -> M:
    """A checked record, or a UserError about the first field that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"][:1])
        known = ", ".join(kind.model_fields)
        if not name:
            raise UserError(f"The body must be a JSON object with the fields {known}.") from None
        if first["type"] == "extra_forbidden":
            raise UserError(f"There is no field {_short(name)}; the fields are {known}.") from None
        if first["type"] == "missing":
            raise UserError(f"The field {name} is missing; the fields are {known}.") from None
        message = first["msg"]
        message = f"{message[0].lower()}{message[1:]}"
        raise UserError(f"The field {name} is {_short(first['input'])}; {message}.") from None


def _bounded(name: str, annotation: Any, metadata: list[Any]) -> Any:
    """The type of a search setting with an upper bound: its own, or a lower one for strangers."""
    plain = _plain(annotation)
    if get_origin(plain) is tuple:
        return Annotated[tuple[Annotated[str, MaxLen(PHRASE)], ...], MaxLen(PHRASES)]
    if plain is str:
        return Annotated[str, MaxLen(TEXT)]
    if plain is not int and plain is not float:  # a choice or a switch
        return annotation
    own: list[Any] = [one.le for one in metadata if isinstance(one, Le)]
    most = min([*own, MOST.get(name, NUMBER if plain is int else SCALE)])
    kept = [one for one in metadata if not isinstance(one, Le)]
    if name == "seed":
        kept.append(Ge(0))
    return Annotated[(annotation, *kept, Le(most))]


def _plain(annotation: Any) -> Any:
    """A type without its metadata and without None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if len(parts) == 1 and type(None) in get_args(annotation):
        return _plain(parts[0])
    return annotation


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
