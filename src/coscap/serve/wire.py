"""What comes over the wire and what goes back, as records that check themselves and document themselves."""

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coscap.errors import UserError
from coscap.search.config import settings_from
from coscap.serve.worker import Wish

_STRICT = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
_GIVEN = ConfigDict(frozen=True, use_attribute_docstrings=True)


class CaptionFields(BaseModel):
    """The fields of a form that asks for captions, besides its photographs. All may be left out."""

    model_config = _STRICT

    n: int = Field(default=5, ge=1)
    """Captions for each photograph."""
    variety: float = Field(default=0.5, ge=0, le=1)
    """0 shows the likeliest captions of those drawn, 1 the most different."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """The same seed gives the same captions; 0 if left out."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """Scales the noise of the latents: 0.4 is safe, 1 as learnt."""
    search: Literal["latent", "beam", "diverse", "constrained"] | None = None
    """latent if left out; constrained if `must` is given."""
    beam: int | None = Field(default=None, ge=1, le=20)
    """Beams of a search with beams."""
    diversity: float | None = Field(default=None, ge=0, le=100)
    """How strongly the groups of a diverse search avoid each other's words."""
    must: tuple[str, ...] = Field(default=(), max_length=4)
    """A word or phrase that each caption must contain; repeatable. Alternatives are separated by "|"."""
    without: tuple[str, ...] = Field(default=(), max_length=20)
    """A word or phrase that no caption may contain; repeatable."""
    min_length: int | None = Field(default=None, ge=0, le=40)
    """Fewest words of a caption."""
    max_length: int | None = Field(default=None, ge=1, le=40)
    """Most words of a caption."""
    beginning: str | None = Field(default=None, max_length=200)
    """The words that every caption begins with."""

    def wish(self) -> Wish:
        asked = self.model_dump(exclude={"n", "variety"}, exclude_none=True)
        names = {"temperature": "latent_temperature", "beam": "num_beams", "diversity": "diversity_penalty"}
        settings = settings_from(**{names.get(k, k): v for k, v in asked.items() if v != ()})
        return Wish(self.n, self.variety, settings)


class VariationFields(BaseModel):
    """Asks for other captions of the same photograph that share one half with a caption."""

    model_config = _STRICT

    id: str = Field(max_length=100)
    """The id of a caption that POST /captions or POST /variations gave."""
    keep: Literal["context", "objects"]
    """context: tell the same of other objects. objects: tell otherwise of the same objects."""
    n: int = Field(default=5, ge=1)
    """Most captions to give; fewer where fewer differ."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Another seed gives other captions."""


class Word(BaseModel):
    model_config = _GIVEN

    word: str
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2 in 0..1 of the width and height of the upright photograph."""
    weight: float
    """The attention on that region, 0..1."""


class GivenCaption(BaseModel):
    model_config = _GIVEN

    id: str
    """For POST /variations, as long as the server remembers it."""
    text: str
    alt: str
    """The caption as an alternative text: one sentence of at most 125 characters."""
    log_probability: float
    """Nearer to 0 is more certain."""
    words: list[Word]


class Captioned(BaseModel):
    model_config = _GIVEN

    photo: str
    """The name that the photograph was sent with."""
    captions: list[GivenCaption]


class Variations(BaseModel):
    model_config = _GIVEN

    captions: list[GivenCaption]


class Problem(BaseModel):
    model_config = _GIVEN

    error: str
    """One sentence: what was wrong and what to do."""


_REPEATABLE = {"must", "without"}


def caption_fields(pairs: list[tuple[str, str]]) -> CaptionFields:
    """From the text fields of a form."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in _REPEATABLE:
            values[name] = (*values.get(name, ()), value)
        elif name in values:
            raise UserError(f"The field {_short(name)} is given twice; give it once.")
        else:
            values[name] = value
    return checked(CaptionFields, values)


M = TypeVar("M", bound=BaseModel)


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
        told = f"{message[0].lower()}{message[1:]}"
        raise UserError(f"The field {name} is {_short(first['input'])}; {told}.") from None


def _short(value: object) -> str:
    told = repr(value)
    return told if len(told) <= 60 else told[:57] + "..."
