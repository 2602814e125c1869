"""The run of a collection on Ray Data.

entries ─▶ less what is written ─┬─ picture files ──────────────┬▶ workers, one captioner each ─▶ rows ─▶ parts
                                 └─ row groups ─▶ read pictures ┘
"""

import logging
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coscap.bulk.entries import BulkEntry
from coscap.bulk.table import Out
from coscap.bulk.worker import BulkJob, BulkWorker, planned, read_group
from coscap.errors import UserError
from coscap.files import usable_cores
from coscap.progress import bar

BLOCK = 64  # pictures that a worker is given at once: some seconds of work
STORE = 512 * 1024 * 1024  # bytes of pictures from Parquet that wait for workers, on one machine


@dataclass(frozen=True)
class BulkOutcome:
    captioned: int  # pictures of this run
    known: int  # pictures that were in the table, or known to be bad, before
    bad: int  # pictures of this run that could not be read
    bad_file: Path


def caption_collection(
    entries: Sequence[BulkEntry],
    out: str | Path,
    job: BulkJob,
    *,
    address: str | None = None,
    processes: int = 0,
    part: int = 500,
    retry_bad: bool = False,
) -> BulkOutcome:
    """Caption the pictures that `out` does not have yet. Safe to kill, and to call again."""
    with Out(out, made_by(job), part) as table:
        wanted = list({entry.photo: entry for entry in entries}.values())
        known = table.done if retry_bad else table.done | table.bad.keys()
        todo = [entry for entry in wanted if entry.photo not in known]
        captioned = bad = 0
        if todo:
            with _ray(address, processes) as (ray, cores), bar("captions", len(todo), "pictures") as advance:
                workers = processes or cores
                fitting = replace(job, threads=max(1, cores // workers))
                for rows in _stream(ray, todo, fitting, workers):
                    good = rows.filter(rows["reason"].is_null())
                    failed = rows.filter(rows["reason"].is_valid())
                    reasons = dict(
                        zip(failed["photo"].to_pylist(), failed["reason"].to_pylist(), strict=True)
                    )
                    table.add(good.drop_columns(["reason"]), reasons)
                    captioned, bad = captioned + len(good), bad + len(failed)
                    advance(len(rows))
    return BulkOutcome(captioned, len(wanted) - len(todo), bad, table.bad_file)


def made_by(job: BulkJob) -> dict[str, Any]:
    """All that captions depend on besides the picture. Loads the model, so that a wrong one is refused at once."""
    captioner = job.load()
    settings = job.settings.model_dump(mode="json", exclude={"max_rows"})
    return {
        "format": 1,
        "model": captioner.model.digest[:16],
        "recipe": captioner.detector.recipe.name,
        "judge": None if captioner.judge is None else captioner.judge.digest,
        "n": job.n,
        "variety": job.variety,
        **settings,
    }


@contextmanager
def _ray(address: str | None, processes: int) -> Iterator[tuple[Any, int]]:
    """Ray, on this machine or a cluster, and its number of cores. A program's own Ray is used and left running."""
    ray = _import_ray()
    if ray.is_initialized() and address is None:
        yield ray, int(ray.cluster_resources().get("CPU", 1))
        return
    cores = usable_cores()
    with tempfile.TemporaryDirectory(prefix="coscap-ray-", ignore_cleanup_errors=True) as folder:
        if address is None:
            _connect(
                ray,
                "local",
                num_cpus=max(cores, processes),
                include_dashboard=False,
                object_store_memory=STORE,
                _temp_dir=folder,
            )
        else:
            _connect(ray, address)
            cores = int(ray.cluster_resources().get("CPU", 1))
        try:
            yield ray, cores
        except (
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.ActorDiedError,
            ray.exceptions.OutOfMemoryError,
        ):
            raise UserError(
                "a worker was killed, perhaps for want of memory; what is written counts: run the same command "
                "again, or with fewer --processes."
            ) from None
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str, tries: int = 3, **options: Any) -> None:
    """Ray gives its own processes half a minute to start; a busy machine may need another."""
    for left in reversed(range(tries)):
        try:
            with _silence():
                ray.init(address, log_to_driver=False, logging_level="critical", **options)
            return
        except Exception as error:  # Ray raises plain ones, too
            ray.shutdown()
            if left and "timed out during startup" in str(error):
                continue
            where = "Ray does not start" if address == "local" else f"No Ray cluster answers at {address}"
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
            raise UserError(f"{where} ({reason}).") from None


@contextmanager
def _silence() -> Iterator[None]:
    """Standard error away for a moment: Ray's own processes write a line there whatever its log level is."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a file descriptor is wanted
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _import_ray() -> Any:
    """Ray without its talk: what a user needs to know is said by the bar and by one sentence at the end."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


def _stream(ray: Any, entries: Sequence[BulkEntry], job: BulkJob, workers: int) -> Iterator[Any]:
    """Tables of rows, as they come."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    resources: dict[str, Any] = {"num_cpus": job.threads}
    if job.device.startswith("cuda"):
        resources = {"num_cpus": 1, "num_gpus": 1}
    for pictures, blocks in _datasets(ray, entries, workers):
        captions = pictures.map_batches(
            BulkWorker,
            fn_constructor_args=(job,),
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(workers, blocks)),
            **resources,
        )
        yield from captions.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)


def _datasets(ray: Any, entries: Sequence[BulkEntry], workers: int) -> Iterator[tuple[Any, int]]:
    """Picture files, and pictures inside of Parquet files, each with its number of blocks."""
    import pyarrow as pa

    files = [entry for entry in entries if not entry.column]
    block = max(1, min(BLOCK, -(-len(files) // (2 * workers))))  # of few pictures, every worker has some
    if files:
        tables = [planned(files[at : at + block]) for at in range(0, len(files), block)]
        yield ray.data.from_arrow(tables), len(tables)
    groups: dict[tuple[str, str, str, int], list[BulkEntry]] = defaultdict(list)
    for entry in entries:
        if entry.column:
            groups[entry.root, entry.path, entry.column, entry.group].append(entry)
    if groups:
        rows = [
            {
                "root": root,
                "path": path.encode("utf-8", "surrogateescape"),
                "column": column,
                "group": group,
                "rows": [entry.row for entry in held],
                "photos": [entry.photo for entry in held],
            }
            for (root, path, column, group), held in groups.items()
        ]
        plans = ray.data.from_arrow([pa.Table.from_pylist([row]) for row in rows])
        yield plans.map_batches(read_group, batch_size=None, batch_format="pyarrow", num_cpus=0), len(rows)
