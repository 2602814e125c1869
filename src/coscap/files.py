"""Files that are either whole or not there: every output is written to a temporary name and renamed.

Only a regular file is ever replaced. A symbolic link stays, and what it points to is replaced; a pipe or a
device such as /dev/stdout is written through. `check_output` asks all of this before the work begins.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from coscap.errors import UserError, reason

DEEPEST = 200  # brackets inside of brackets in a YAML file


def check_output(path: str | Path, *, folder: bool = False, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse an output that could not be written, before the work and not after it; nothing is left behind.

    `folder`: the output is a folder, not a file. `inputs`: what the command reads, which is never written over.
    """
    path = Path(path)
    for source in inputs:
        if _same(path, Path(source)):
            raise UserError(
                f"{path} would be written over, and it is what is read; choose another name for the output."
            )
    target = _target(path, folder)
    if target is None:
        return
    place = next(parent for parent in target.parents if parent.exists())
    try:
        handle, name = tempfile.mkstemp(prefix=".coscap.", suffix=".part", dir=place)
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise cannot_write(path, error) from None


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it there when the block ends without an exception.

    A pipe or a device gets the content when the block ends.
    """
    path = Path(path)
    target = _target(path)
    try:
        if target is None:
            with tempfile.TemporaryDirectory(prefix="coscap-") as place:
                partial = Path(place) / "output.part"
                partial.touch()
                yield partial
                _write_through(partial, path)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _beside(target)
        try:
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            yield partial
            _sync(partial)
            if target.exists():
                partial.chmod(stat.S_IMODE(target.stat().st_mode))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except BrokenPipeError:
        raise  # the reader of a pipe has had enough: no error of the user's
    except OSError as error:
        raise cannot_write(path, error) from None


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it there when the block ends without an exception.

    A folder that is already there is replaced only at the end, so a killed run leaves the old one.
    """
    path = Path(path)
    target = _target(path, folder=True)
    assert target is not None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _beside(target)
        try:
            partial.mkdir()
            yield partial
            _put_in_place(partial, target)
        except UserError as error:  # of a file inside: the user knows the folder by its own name
            raise UserError(str(error).replace(str(partial), str(path))) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: str | Path, error: BaseException) -> UserError:
    return UserError(f"{path} cannot be written ({reason(error)}); choose another place or free space.")


def write_text(path: str | Path, text: str) -> None:
    """UTF-8; a character that it cannot hold (of a file name that is not UTF-8) is written as \\udcff."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | Path, value: Any, indent: int | None = None) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, or a UserError that names the file and the place where it breaks."""
    return parse_json(path, read_text(path))


def parse_json(name: str | Path, content: str | bytes) -> Any:
    """The same for content that was read already; `name` stands for it in messages."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{name} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "check that the file is complete."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except ValueError as error:  # a whole number of thousands of digits
        raise UserError(f"{name} is not valid JSON ({reason(error)}); correct it.") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply to be read; check that it is the right file.") from None


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file, or a UserError that names the file and the place where it breaks."""
    import yaml

    text = read_text(path)
    try:
        if (
            _deepest_bracket(text) > DEEPEST
        ):  # before the parser, whose time grows with the square of the depth
            raise RecursionError
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise UserError(f"{path} is not valid YAML{place}; correct it there.") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        # Of values that look like numbers or dates and are none, as 2026-13-45, and of !!tags that do not fit.
        raise UserError(f"{path} is not valid YAML ({reason(error)}); correct it.") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be read; check that it is the right file.") from None


def _deepest_bracket(text: str) -> int:
    depths = accumulate(1 if found[0] in "[{" else -1 for found in re.finditer(r"[\[\]{}]", text))
    return max(depths, default=0)


def read_text(path: str | Path) -> str:
    try:
        return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None


def read_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, and a file was expected.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({reason(error)}).") from None


def usable_cores() -> int:
    """The cores that this process may use, where the system can say; otherwise all."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def lock_file(file: IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process has. A system without such locks locks nothing."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sha256(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _target(path: Path, folder: bool = False) -> Path | None:
    """What is to be replaced: the file or folder itself, behind all links; None for a pipe or a device."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = 0
    except (OSError, ValueError) as error:
        in_the_way = next((each for each in path.parents if each.is_file()), None)
        if in_the_way is not None:
            raise UserError(
                f"{path} cannot be written, because {in_the_way} is a file; choose another place."
            ) from None
        raise cannot_write(path, error) from None
    if stat.S_ISDIR(mode) and not folder:
        raise UserError(f"{path} is a folder, and a file is to be written; name a file in it.")
    if folder and mode and not stat.S_ISDIR(mode):
        raise UserError(f"{path} is a file, and a folder is to be written; choose another name.")
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or (mode and _descriptor(path) is not None):
        return None
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path} is neither a file nor a pipe; choose another place.")
    if stat.S_ISREG(mode) and not os.access(path, os.W_OK):
        raise UserError(f"{path} cannot be written (it is read-only); choose another place.")
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # links that go round in a circle
        raise cannot_write(path, error) from None


def _descriptor(path: Path) -> int | None:
    """1 for /dev/stdout, N for /dev/fd/N: an open file of this process, whatever it is."""
    name = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}.get(str(path), str(path))
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", name)
    return int(found[1]) if found else None


def _write_through(partial: Path, path: Path) -> None:
    number = _descriptor(path)
    sys.stdout.flush()  # in case that is what it is
    opened = path.open("wb") if number is None else os.fdopen(os.dup(number), "wb")
    with partial.open("rb") as source, opened as target:
        shutil.copyfileobj(source, target)


def _put_in_place(partial: Path, target: Path) -> None:
    """Rename a folder over another, which is removed once the new one is there."""
    if not target.is_dir():
        partial.replace(target)
        return
    old = partial.with_suffix(".old")
    target.replace(old)
    try:
        partial.replace(target)
    except OSError:
        old.replace(target)
        raise
    shutil.rmtree(old)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.part")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
