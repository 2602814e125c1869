"""What one worker does: it keeps a captioner, reads the pictures of a block ahead, and captions them in batches."""

import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from coscap.bulk.entries import BulkEntry, file_system
from coscap.bulk.table import BAD, CAPTIONS
from coscap.captioner import Captioner
from coscap.errors import UserError
from coscap.photos import OpenedPhoto, PhotoCaptions, PhotoError
from coscap.search.config import SearchSettings
from coscap.vision.pictures import picture_size

LARGEST = 200_000_000  # bytes of a picture's file
READERS = 8  # files that a worker reads at once: a store of objects answers late, but many at a time
PLANNED = pa.schema(
    [
        ("photo", pa.string()),
        ("root", pa.string()),
        ("path", pa.binary()),  # as the file system's bytes: names of files need not be UTF-8
        ("data", pa.large_binary()),  # the picture itself, where a Parquet file held it
    ]
)
# What comes back: a row of the one table or of the other, with nothing in the other's columns.
DONE = pa.schema([field.with_nullable(True) for field in (*CAPTIONS, BAD.field("reason"))])


@dataclass(frozen=True)
class BulkJob:
    """How every picture is captioned."""

    model: str = "shipped"
    bank: str = "shipped"
    n: int = 5
    variety: float = 0.5
    settings: SearchSettings = SearchSettings()  # noqa: RUF009 - frozen
    detector: str | None = None
    device: str = "cpu"
    batch: int = 16
    threads: int = 1

    def load(self) -> Captioner:
        return Captioner.from_pretrained(
            self.model, device=self.device, detector=self.detector, bank=self.bank
        )


class BulkWorker:
    """One to a process. Called with a block of planned pictures, it gives a table for each batch."""

    def __init__(self, job: BulkJob) -> None:
        import torch

        torch.set_num_threads(job.threads)
        self.job, self.captioner = job, job.load()
        self.readers = ThreadPoolExecutor(READERS)

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        rows = block.to_pylist()
        batches = [rows[start : start + self.job.batch] for start in range(0, len(rows), self.job.batch)]
        ahead = [self.readers.submit(_content, row) for row in batches[0]] if batches else []
        for index, batch in enumerate(batches):
            now = ahead
            ahead = [self.readers.submit(_content, row) for row in (batches[index + 1 :] or [[]])[0]]
            names = [row["photo"] for row in batch]
            yield caption_batch(self.captioner, self.job, names, [each.result() for each in now])


def caption_batch(
    captioner: Captioner, job: BulkJob, names: Sequence[str], contents: Sequence[bytes | UserError]
) -> pa.Table:
    """Rows of the table, or of the table of bad pictures, for pictures whose files are read."""
    opened: list[OpenedPhoto | PhotoError] = []
    sizes: dict[str, tuple[int, int]] = {}
    for each, content in zip(captioner.open(contents, names), contents, strict=True):
        if isinstance(each, OpenedPhoto) and isinstance(content, bytes):
            sizes[each.name] = picture_size(content, name=each.name)
        opened.append(each)
    found = captioner.caption(opened, job.n, variety=job.variety, settings=job.settings)
    rows = [
        {"photo": each.photo, "reason": each.error}
        if isinstance(each, PhotoError)
        else _row(each, sizes[each.photo])
        for each in found
    ]
    return pa.Table.from_pylist(rows, schema=DONE)


def _row(result: PhotoCaptions, size: tuple[int, int]) -> dict[str, Any]:
    captions = [{"text": each.text, "log_probability": each.log_probability} for each in result.captions]
    return {"photo": result.photo, "width": size[0], "height": size[1], "captions": captions}


def _content(row: dict[str, Any]) -> bytes | UserError:
    """The bytes of a picture's file."""
    name = row["photo"]
    if row["path"] is None:
        return row["data"] or UserError(f"{name} holds no picture; fill that row or leave it out.")
    system, _ = file_system(row["root"])
    path = row["path"].decode("utf-8", "surrogateescape")
    try:
        if system.type_name == "local" and not stat.S_ISREG(Path(path).stat().st_mode):
            return UserError(f"{name} is a pipe, a device or a folder, and a picture file was expected.")
        with system.open_input_stream(path) as file:
            content: bytes = file.read(LARGEST + 1)
        return (
            content
            if len(content) <= LARGEST
            else UserError(f"{name} is larger than {LARGEST // 1_000_000} MB.")
        )
    except FileNotFoundError:
        return UserError(f"{name} does not exist; check the path.")
    except OSError as error:
        return UserError(f"{name} cannot be read ({str(error).splitlines()[0]}).")


def read_group(block: pa.Table) -> Iterator[pa.Table]:
    """Pictures out of row groups of Parquet files; each row of the block is one group and the rows of it to take."""
    from pyarrow import parquet

    for plan in block.to_pylist():
        system, _ = file_system(plan["root"])
        path = plan["path"].decode("utf-8", "surrogateescape")
        wanted = dict(zip(plan["rows"], plan["photos"], strict=True))
        with parquet.ParquetFile(path, filesystem=system) as file:
            first = 0
            for batch in file.iter_batches(64, row_groups=[plan["group"]], columns=[plan["column"]]):
                values = batch.column(0)
                here = [row for row in range(len(batch)) if first + row in wanted]
                if here:
                    yield _held(values.take(here), [wanted[first + row] for row in here])
                first += len(batch)


def _held(values: Any, photos: list[str]) -> pa.Table:
    if pa.types.is_struct(values.type):
        values = values.field("bytes")
    empty = pa.nulls(len(photos))
    columns = {"photo": photos, "root": empty, "path": empty, "data": values.cast(pa.large_binary())}
    return pa.table(
        [pa.array(column) if isinstance(column, list) else column for column in columns.values()],
        names=list(columns),
    ).cast(PLANNED)


def planned(entries: Sequence[BulkEntry]) -> pa.Table:
    """A block of picture files."""
    rows = [
        {
            "photo": each.photo,
            "root": each.root,
            "path": each.path.encode("utf-8", "surrogateescape"),
            "data": None,
        }
        for each in entries
    ]
    return pa.Table.from_pylist(rows, schema=PLANNED)
