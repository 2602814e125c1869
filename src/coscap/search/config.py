"""How to search: one frozen record, whose fields are also the options of the commands that caption."""

import functools
import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coscap.errors import UserError

MAX_CONSTRAINTS = 4  # an automaton has up to 2^constraints states, each with its own beam
MAX_WORDS = 10  # of a phrase in must or without
Phrases = Annotated[str, Field(max_length=200)]

_NUM_BEAMS = {"latent": 1, "beam": 5, "diverse": 1, "constrained": 5}


class SearchSettings(BaseModel):
    """All that decides which captions are found, besides the model and the picture.

    Names are those of `generate` in transformers where it has the same thing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    search: Literal["latent", "beam", "diverse", "constrained"] = "latent"
    """latent: one caption for each draw of the latents. beam: the best n of one beam. diverse: groups of
    beams that avoid each other's words. constrained: captions that contain given or detected objects."""
    seed: int = 0
    """The same seed gives the same captions, whatever the batch. Example: 7."""
    latent_temperature: float = Field(default=1.0, ge=0)
    """Scales the standard deviation of the latents' noise; 0 takes their means. Unset: 1 (0.65 for captions of
    photographs); 0 for a beam or diverse search, whose one draw would otherwise decide everything. Example: 0.7."""
    draws: int | None = Field(default=None, ge=1)
    """Draws of latents for each picture. Unset: n for latent and constrained, 1 for beam and diverse."""
    num_beams: int | None = Field(default=None, ge=1)
    """Beams: under each draw, in each group, in each state of the constraints. Unset: latent 1, beam 5,
    diverse 1, constrained 5."""
    length_penalty: float = Field(default=1.0, ge=0)
    """Beams are ranked by log-probability / length^length_penalty, length with the end; 0 ranks by
    log-probability alone, which favours short captions."""
    exhaustive: bool = False
    """Beams go on until no longer caption could rank better. Unset, they stop when none does at its
    present length, which is faster."""

    do_sample: bool = False
    """A latent search draws each word from the model's distribution, instead of taking the likeliest."""
    temperature: float = Field(default=1.0, gt=0)
    """With --do-sample: below 1 the distribution of words is sharpened, above 1 flattened. (For the draws of
    latents there is --latent-temperature.)"""
    top_k: int = Field(default=0, ge=0)
    """With --do-sample: draw from the k likeliest words only; 0 for all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """With --do-sample: draw from the fewest likeliest words that make up this probability."""

    num_beam_groups: int | None = Field(default=None, ge=1)
    """Groups of a diverse search. Unset: n, one caption from each."""
    diversity_penalty: float = Field(default=0.5, ge=0)
    """Diverse search: the penalty on a word for each beam of earlier groups that has it at that place."""

    must: tuple[Phrases, ...] = ()
    """Constrained search: a word or phrase that the caption must contain; repeatable, up to four.
    Alternatives are separated by "|". A class name stands for all its words. Example: "zebra|horse"."""
    detected: int = Field(default=0, ge=0, le=MAX_CONSTRAINTS)
    """Constrained search: also require up to this many classes that the detector is sure of and the plain
    caption does not name."""
    detected_score: float = Field(default=0.5, ge=0, le=1)
    """The score from which a detection counts for --detected."""
    at_least: int | None = Field(default=None, ge=1)
    """How many of the constraints must be met. Unset: all."""
    without: tuple[Phrases, ...] = Field(default=(), max_length=100)
    """A word or phrase that no caption may contain; repeatable, expanded as --must is. Example: "person"."""

    min_length: int = Field(default=1, ge=0)
    """Fewest words of a caption."""
    max_length: int = Field(default=20, ge=1, le=1000)
    """Most words of a caption."""
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    """No caption contains the same n words in a row twice; 0 allows it. Example: 3."""
    beginning: str = Field(default="", max_length=400)
    """The words that every caption begins with. Example: "a photo of"."""
    distinct: bool = False
    """No caption twice for a picture: draw again instead, up to four times; fewer than n if that fails."""
    max_rows: int = Field(default=1024, ge=1)
    """Captions in work at once; less memory when smaller, no effect on the result."""

    @model_validator(mode="before")
    @classmethod
    def _one_draw(cls, values: Any) -> Any:
        """Captions that all come from one draw are searched for at the latents' means."""
        if (
            isinstance(values, dict)
            and values.get("search") in ("beam", "diverse")
            and values.get("draws") in (None, 1)
        ):
            return {"latent_temperature": 0.0, **values}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length ({self.min_length}) is above max_length ({self.max_length}); lower one of them"
            )
        if self.temperature != 1.0 and not self.do_sample:
            raise ValueError(
                "temperature is that of drawn words and needs do_sample (--do-sample); for the draws of latents "
                "there is latent_temperature (--latent-temperature)"
            )
        if (self.top_k or self.top_p < 1.0) and not self.do_sample:
            raise ValueError("top_k and top_p need do_sample (--do-sample)")
        if self.do_sample and (self.search != "latent" or self.beams > 1):
            raise ValueError("do_sample is for a latent search without beams; leave out search and num_beams")
        if (self.must or self.detected or self.at_least) and self.search != "constrained":
            raise ValueError("must, detected and at_least need search: constrained (--search constrained)")
        if self.search == "constrained" and not (self.must or self.detected):
            raise ValueError(
                "a constrained search needs must or detected, for example --must zebra or --detected 2"
            )
        if len(self.must) > MAX_CONSTRAINTS:
            raise ValueError(f"must is given {len(self.must)} times, and {MAX_CONSTRAINTS} is the most")
        if self.at_least is not None and self.at_least > len(self.must) and not self.detected:
            raise ValueError(
                f"at_least is {self.at_least} and must is given {len(self.must)} times; lower it or add to must"
            )
        return self

    @property
    def beams(self) -> int:
        return self.num_beams or _NUM_BEAMS[self.search]


def settings_from(**values: Any) -> SearchSettings:
    """Checked settings, or a UserError about the first one that is wrong.

    Words that a caption must contain ask for a constrained search; it need not be named.
    """
    if "search" not in values and (values.get("must") or values.get("detected")):
        values["search"] = "constrained"
    try:
        return SearchSettings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if not name:
            raise UserError(f"Search settings: {message}.") from None
        if first["type"] == "extra_forbidden":
            known = ", ".join(SearchSettings.model_fields)
            raise UserError(f"Search settings: there is no {name}; there are {known}.") from None
        given = repr(first["input"])
        given = given if len(given) <= 60 else given[:57] + "..."
        raise UserError(f"Search settings: {name} is {given}; {message[0].lower()}{message[1:]}.") from None


# The settings as options of a command: each field is one, with its docstring as the help.


def search_options(leave_out: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of SearchSettings as options, and pass them to it as `settings`.

    `leave_out` names fields that the command sets itself.
    """
    names = [name for name in SearchSettings.model_fields if name not in leave_out]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(function).parameters.values() if p.name != "settings"]
        options = [_option(name) for name in names]

        @functools.wraps(function)
        def command(**values: Any) -> Any:
            given = {name: _plain(values.pop(name)) for name in names}
            # What was not given stays unset, so that a default can depend on the other settings.
            settings = settings_from(**{name: value for name, value in given.items() if value is not None})
            return function(**values, settings=settings)

        command.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
        return command

    return decorate


def _option(name: str) -> inspect.Parameter:
    import typer

    field = SearchSettings.model_fields[name]
    default = field.default
    switch = isinstance(default, bool)
    option = typer.Option(
        "--" + name.replace("_", "-"),
        help=" ".join((field.description or "").split()),
        show_default=False if switch or default in (None, (), "") else str(default),
        rich_help_panel="How to search",
    )
    annotation = bool if switch else _type(name, field.annotation) | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if switch else None,
        annotation=Annotated[annotation, option],
    )


def _type(name: str, annotation: Any) -> Any:
    """What typer is to read: a plain type, a list, or one of several words."""
    if get_origin(annotation) is Literal:
        return Enum(name.title(), {word: word for word in get_args(annotation)}, type=str)
    if get_origin(annotation) is tuple:
        return list[str]
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return parts[0] if parts else annotation


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return tuple(value) or None
    if value is False:
        return None
    return value
