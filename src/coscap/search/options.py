"""The search settings as options of a command: each field is one, with its docstring as the help."""

import functools
import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from coscap.search.settings import SearchSettings, settings_from

_PANEL = "How to search"


def search_options(leave_out: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of SearchSettings as options, and hand them to it as `settings`.

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
    field = SearchSettings.model_fields[name]
    default = field.default
    switch = isinstance(default, bool)
    option = typer.Option(
        "--" + name.replace("_", "-"),
        help=" ".join((field.description or "").split()),
        show_default=False if switch or default in (None, (), "") else str(default),
        rich_help_panel=_PANEL,
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
    return value
