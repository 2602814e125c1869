"""Files that are either whole or not there: every output is written to a temporary name and renamed."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coscap.errors import UserError


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it there when the block ends without an exception."""
    path = Path(path)
    _make_parent(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        _sync(partial)
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it there when the block ends without an exception.

    A folder that is already there is replaced only at the end, so a killed run leaves the old one.
    """
    path = Path(path)
    _make_parent(path)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        yield partial
        partial.chmod(0o755)
        if path.is_dir():
            old = partial.with_suffix(".old")
            path.replace(old)
            partial.replace(path)
            shutil.rmtree(old)
        else:
            partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any, indent: int | None = None) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, or a UserError that names the file and the place where it breaks."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "check that the file is complete."
        ) from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be read; check that it is the right file.") from None


def read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, and a file was expected.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None


def sha256(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be made as a folder ({error.strerror}).") from None


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
