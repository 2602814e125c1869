"""The table of captions: a folder of Parquet parts, each whole when it appears, and one file of bad pictures.

captions.parquet/part-000000.parquet   photo, width, height, captions: [{text, log_probability}]
captions.bad.parquet                   photo, reason

Only the process that the user started writes here. So a part that is there counts, a killed run has no late
writers, and the names in the parts are all that a second run needs to know.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from coscap.errors import UserError
from coscap.files import lock_file, whole_file

CAPTIONS = pa.schema(
    [
        pa.field("photo", pa.string(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field(
            "captions",
            pa.list_(pa.struct([("text", pa.string()), ("log_probability", pa.float64())])),
            nullable=False,
        ),
    ]
)
BAD = pa.schema(
    [pa.field("photo", pa.string(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
KEY = b"coscap"  # of the Parquet metadata in which each part says how it was made


class Out:
    """A table that is being written; `made` says how its captions are made. Close it, or use `with`."""

    def __init__(self, folder: str | Path, made: Mapping[str, Any], part: int = 500) -> None:
        self.folder, self.part = Path(folder), part
        self.bad_file = self.folder.with_name(self.folder.name.removesuffix(".parquet") + ".bad.parquet")
        self._metadata = {KEY: json.dumps(dict(made), ensure_ascii=False, sort_keys=True).encode()}
        self._rows: list[pa.Table] = []
        self._dirty = False
        self._lock = self._open_folder()
        try:
            for left in self.folder.glob(".part-*.part"):
                left.unlink(missing_ok=True)
            self.done = frozenset(self._written(made))
            self.bad = self._known_bad()
        except BaseException:
            self._lock.close()
            raise
        self._next = 1 + max((int(path.stem.removeprefix("part-")) for path in self._parts()), default=-1)

    def __enter__(self) -> "Out":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            self._lock.close()

    def add(self, captions: pa.Table, bad: Mapping[str, str]) -> None:
        """Take rows in; a part is written whenever enough have come together."""
        if len(captions):
            self._rows.append(captions)
            self._dirty |= any(self.bad.pop(photo, None) for photo in captions["photo"].to_pylist())
        if bad:
            self.bad.update(bad)
            self._dirty = True
        if sum(map(len, self._rows)) >= self.part or len(bad) >= self.part:
            self.flush()

    def flush(self) -> None:
        """Write what was taken in: the captions first, so that no picture is ever in neither table."""
        if self._rows:
            table = pa.concat_tables(self._rows).cast(CAPTIONS)
            self._write(self.folder / f"part-{self._next:06d}.parquet", table)
            self._next, self._rows = self._next + 1, []
        if self._dirty:
            rows = [{"photo": photo, "reason": reason} for photo, reason in sorted(self.bad.items())]
            self._write(self.bad_file, pa.Table.from_pylist(rows, schema=BAD))
            self._dirty = False

    def _write(self, path: Path, table: pa.Table) -> None:
        try:
            with whole_file(path) as partial:
                parquet.write_table(
                    table.replace_schema_metadata(self._metadata), partial, compression="zstd"
                )
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror or error}).") from None

    def _open_folder(self) -> Any:
        """Make the folder, and hold its lock: two runs at once would write the same pictures twice."""
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(
                f"{self.folder} is a file, and the captions are a folder of parts; choose another --out."
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be written ({error.strerror}); choose another --out."
            ) from None
        if not lock_file(lock):
            lock.close()
            raise UserError(
                f"{self.folder} is being written by another run; wait for it or choose another --out."
            )
        return lock

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def _written(self, made: Mapping[str, Any]) -> Iterator[str]:
        """The names of the pictures that are there, after a check that they were captioned in the same way."""
        other = [path for path in self.folder.glob("*.parquet") if path not in self._parts()]
        for path in [*self._parts(), *other]:
            yield from read(path, made)["photo"].to_pylist()

    def _known_bad(self) -> dict[str, str]:
        if not self.bad_file.exists():
            return {}
        table = read(self.bad_file, None, ["photo", "reason"])
        rows = zip(table["photo"].to_pylist(), table["reason"].to_pylist(), strict=True)
        # A run that was killed after a part and before this file may have left pictures that are good by now.
        return {photo: reason for photo, reason in rows if photo not in self.done}


def read(path: Path, made: Mapping[str, Any] | None, columns: list[str] | None = None) -> pa.Table:
    """Columns of one part; with `made`, a part that was made otherwise is refused."""
    try:
        table = parquet.read_table(path, columns=columns or ["photo"], partitioning=None)
        found = json.loads((table.schema.metadata or {})[KEY])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        raise UserError(
            f"{path} is no part of a table of captions; move it away or choose another --out."
        ) from None
    for name, value in (made or {}).items():
        if found.get(name) != value:
            raise UserError(
                f"{path.parent} was made with {name} {found.get(name)!r}, and this run has {value!r}; "
                "use the same settings or choose another --out."
            )
    return table
