"""Which pictures a collection has: files on Arrow file systems, and rows of Parquet files.

A local picture is listed as `coscap caption` lists it. What is here are addresses (`s3://bucket/photos`, `gs://`,
`hdfs://`, `file://`: all that Arrow opens) and Parquet with a column of picture files or of their paths.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any

from coscap.errors import UserError
from coscap.vision.pictures import picture_suffixes

PATH_COLUMNS = ("path", "file", "file_name", "filename", "photo", "image", "image_path", "url")
PARQUET = ".parquet"


@dataclass(frozen=True, slots=True)
class BulkEntry:
    """A picture of the collection: its name in the table, and where it is."""

    photo: str
    root: str  # the address that opens its file system, "" for local files
    path: str  # in that file system: of the picture, or of the Parquet file that holds it
    column: str = ""  # of the Parquet file, "" for a picture file
    group: int = -1  # the row group of the Parquet file
    row: int = -1  # the row in that group


def local_entry(path: str) -> BulkEntry:
    return BulkEntry(readable(path), "", path)


def readable(path: str) -> str:
    """A path as text that UTF-8 can hold; other bytes of a file's name are shown as \\xff."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_address(argument: str) -> bool:
    return "://" in argument


def is_parquet(argument: str) -> bool:
    return argument.split("?")[0].rstrip("/").lower().endswith(PARQUET)


@lru_cache(maxsize=64)
def file_system(root: str) -> tuple[Any, str]:
    """The Arrow file system behind an address, and the address's path in it."""
    from pyarrow import fs

    if not is_address(root):
        return fs.LocalFileSystem(), root
    try:
        system, path = fs.FileSystem.from_uri(root)
    except (ValueError, OSError, NotImplementedError) as error:
        raise UserError(
            f"{root} is no address that Arrow can open ({_first_line(error)}); "
            "give a path, file://, s3://, gs:// or hdfs://."
        ) from None
    return system, path


def list_address(address: str) -> list[BulkEntry]:
    """The pictures below an address, in the order of their paths."""
    scheme = address.split("://")[0]
    found = list(_files(address, picture_suffixes()))
    if not found:
        raise UserError(f"{address} has no pictures; check the address.")
    return [BulkEntry(f"{scheme}://{path}", address, path) for path in found]


def list_parquet(argument: str, column: str = "", names: str = "", urls: bool = False) -> list[BulkEntry]:
    """The pictures of a Parquet file, of a folder of them or of a pattern; local or at an address.

    `urls`: rows may name addresses. They are those of whoever wrote the file, so the user must allow them.
    """
    files = list(_files(argument, frozenset({PARQUET})))
    if not files:
        raise UserError(f"{argument} has no Parquet files; check the path.")
    root = argument if is_address(argument) else ""
    return [entry for path in files for entry in _rows(root, path, column, names, urls)]


def _files(argument: str, suffixes: frozenset[str]) -> Iterator[str]:
    """Paths in the argument's file system: the file, all below a folder, or those of a pattern."""
    from pyarrow import fs

    system, path = file_system(argument)
    base = path
    while any(sign in base for sign in "*?["):
        base = base.rpartition("/")[0]
    try:
        kind = system.get_file_info(path).type
        if kind == fs.FileType.File:
            yield path
            return
        if kind == fs.FileType.NotFound and base == path:
            raise UserError(f"{argument} does not exist; check the path.")
        selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
        below = sorted(each.path for each in system.get_file_info(selector) if each.is_file)
    except OSError as error:
        raise UserError(f"{argument} cannot be listed ({_first_line(error)}).") from None
    for each in below:
        name = each.rpartition("/")[2].lower()
        hidden = name.startswith((".", "_"))
        if (base == path or _matches(each, path)) and not hidden and name.endswith(tuple(suffixes)):
            yield each


def _matches(path: str, pattern: str) -> bool:
    """As a shell does: * stays in its folder, ** does not."""
    return fnmatch(path, pattern) and ("**" in pattern or path.count("/") == pattern.count("/"))


def _rows(root: str, path: str, column: str, names: str, urls: bool) -> Iterator[BulkEntry]:
    """The rows of one Parquet file. Only names and paths are read here, never pictures."""
    import pyarrow as pa
    from pyarrow import parquet

    system, _ = file_system(root)
    shown = f"{root.split('://')[0]}://{path}" if root else path
    try:
        with parquet.ParquetFile(path, filesystem=system) as file:
            schema = file.schema_arrow
            column = column or _guess(schema, shown)
            kind = _kind(schema, column, shown)
            if kind == "path":
                yield from _paths(file, root, path, column, urls)
                return
            if names and names not in schema.names:
                raise UserError(f"{shown} has no column {names}; it has {', '.join(schema.names)}.")
            first = 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                photos: list[Any] = [f"{shown}#{first + row}" for row in range(count)]
                if names:
                    photos = file.read_row_group(group, columns=[names]).column(0).to_pylist()
                if any(name is None for name in photos):
                    raise UserError(
                        f"{shown} has rows without a value in {names}; name pictures by another column."
                    )
                for row, name in enumerate(photos):
                    yield BulkEntry(str(name), root, path, column, group, row)
                first += count
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{shown} cannot be read as Parquet ({_first_line(error)}); get a whole copy of it."
        ) from None


def _paths(file: Any, root: str, path: str, column: str, urls: bool) -> Iterator[BulkEntry]:
    """Pictures that a Parquet file names; a relative path starts at the Parquet file's folder."""
    folder = path.rpartition("/")[0]
    for batch in file.iter_batches(columns=[column]):
        for value in batch.column(0).to_pylist():
            if value is None:
                continue
            if is_address(value):
                if not urls:
                    raise UserError(
                        f"{path} names the address {value}; pass --urls to let coscap read addresses that a Parquet "
                        "file names."
                    )
                yield BulkEntry(value, value, file_system(value)[1])
            else:
                place = value if value.startswith("/") or not folder else f"{folder}/{value}"
                yield BulkEntry(f"{root.split('://')[0]}://{place}" if root else place, root, place)


def _kind(schema: Any, column: str, shown: str) -> str:
    """`bytes`, `struct` (bytes and a path, as Hugging Face keeps pictures) or `path`."""
    import pyarrow as pa

    if column not in schema.names:
        raise UserError(f"{shown} has no column {column}; it has {', '.join(schema.names)}.")
    of = schema.field(column).type
    if pa.types.is_binary(of) or pa.types.is_large_binary(of) or pa.types.is_binary_view(of):
        return "bytes"
    if pa.types.is_struct(of) and of.get_field_index("bytes") >= 0:
        return "struct"
    if pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of):
        return "path"
    raise UserError(f"{shown}: column {column} holds {of}, and the bytes or paths of pictures were expected.")


def _guess(schema: Any, shown: str) -> str:
    """The column with pictures: the only one with bytes, otherwise one with the usual name of a path."""
    import pyarrow as pa

    held = []
    for field in schema:
        struct = pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        if struct or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            held.append(field.name)
    if len(held) == 1:
        return str(held[0])
    named = [name for name in PATH_COLUMNS if name in schema.names] if not held else []
    if not named:
        raise UserError(
            f"{shown} does not say which column has the pictures; name it, for example: "
            f"--column {(held or schema.names or ['picture'])[0]}."
        )
    return named[0]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
