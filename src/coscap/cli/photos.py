"""Which photographs a command line means."""

import glob
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from coscap.errors import UserError

LARGEST = 50_000_000  # bytes that are read from an address or from standard input
Source = str | Callable[[], bytes]


def list_photos(arguments: Sequence[str], urls: bool = False) -> list[tuple[str, Source]]:
    """(name, what to open) of every photograph that the arguments name, in their order, each once."""
    found: dict[str, Source] = {}
    for argument in arguments:
        if argument == "-":
            found["-"] = _standard_input
        elif argument.startswith(("http://", "https://")):
            if not urls:
                raise UserError(f"{argument} is an address; pass --urls to let coscap fetch photographs.")
            found[argument] = partial(_fetch, argument)
        else:
            found |= {name: name for name in _files(argument)}
    return list(found.items())


def _files(argument: str) -> list[str]:
    from coscap.vision.pictures import picture_suffixes

    path = Path(argument)
    if path.is_dir():
        names = [
            str(p)
            for p in sorted(path.rglob("*"))
            if p.suffix.lower() in picture_suffixes() and not p.name.startswith(".") and p.is_file()
        ]
        if not names:
            raise UserError(f"{argument} is a folder without photographs; check the path.")
        return names
    if path.exists():
        return [argument]
    names = sorted(glob.glob(argument, recursive=True))  # noqa: PTH207 - an absolute pattern is fine, too
    if not names:
        raise UserError(f"{argument} does not exist; check the path.")
    return names


def _standard_input() -> bytes:
    return _limited(sys.stdin.buffer.read(LARGEST + 1), "The photograph on standard input")


def _fetch(address: str) -> bytes:
    from coscap.fetch import fetch

    return fetch(address, LARGEST)


def _limited(content: bytes, name: str) -> bytes:
    if len(content) > LARGEST:
        raise UserError(f"{name} is larger than {LARGEST // 1_000_000} MB; make it smaller.")
    return content
