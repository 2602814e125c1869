"""From runs to a folder of results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coscap.data import Prepared, open_prepared
from coscap.errors import UserError
from coscap.report.measure import Judge, check_meteor
from coscap.report.methods import SMALL, Measured, Method, measure, methods
from coscap.report.ranking import Ranker
from coscap.report.runs import Run, open_runs
from coscap.report.sampling import Sampler
from coscap.report.stores import Stores


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    runs: tuple[str, ...]
    data: Path
    regions: tuple[Path, ...]
    split: str = "test"
    samples: int = 100
    seeds: int = 3
    temperature: float = 1.0  # of the latents
    work: Path = Path("report-work")
    limit: int = 0
    rerank: bool = True
    meteor: bool = True
    spice: int = 0
    spice_cache: Path | None = None
    device: str = "cpu"

    @property
    def budgets(self) -> tuple[int, ...]:
        return tuple(sorted({min(SMALL, self.samples), self.samples}))


@dataclass(frozen=True)
class Results:
    """All that was measured, and what must be said beside it."""

    options: Options
    runs: list[Run]
    found: list[Measured]
    prepared: Prepared
    stores: Stores
    pictures: tuple[int, ...]
    asked: int  # pictures of the split, with regions or not
    pool: tuple[int, int] | None  # training pictures that re-ranking compares with, and all of them
    novel_objects: bool
    notes: tuple[str, ...]


def build(options: Options, tell: Callable[[str], None]) -> Results:
    runs = open_runs(options.runs)
    prepared, stores = open_prepared(options.data), Stores(options.regions)
    references = prepared.references(options.split)
    pictures = [image for image in references if image in stores]
    if not pictures:
        raise UserError(
            f"{stores} has regions of none of the pictures of {options.split!r}; check both paths."
        )
    pictures = pictures[: options.limit or None]
    notes = []
    reason = check_meteor() if options.meteor else "--no-meteor was given"
    if reason is not None:
        notes.append(f"METEOR is left out: {reason}")
    ranker = Ranker(prepared, stores, pictures, options.work) if options.rerank else None
    novel = prepared.manifest["split"].get("method") == "heldout"
    judge = Judge.of(
        {image: references[image] for image in pictures},
        ranker,
        prepared.classes,
        meteor=reason is None,
        objects=novel,
    )
    found = []
    samplers = {run.name: Sampler(run, stores, options.work, options.device) for run in runs}
    for method in methods(runs, options.samples, options.seeds, options.temperature):
        tell(f"{method.name}: {method.seeds} seed{'s' * (method.seeds > 1)}, {len(pictures):,} pictures")
        sampler = samplers[method.run.name]
        measured = measure(method, sampler, judge)
        if options.spice:
            _add_spice(measured, method, sampler, judge, options)
        found.append(measured)
    return Results(
        options=options,
        runs=runs,
        found=found,
        prepared=prepared,
        stores=stores,
        pictures=tuple(pictures),
        asked=len(references),
        pool=None if ranker is None else (len(ranker.pool), ranker.training_pictures),
        novel_objects=novel,
        notes=tuple(notes),
    )


def _add_spice(measured: Measured, method: Method, sampler: Sampler, judge: Judge, options: Options) -> None:
    """SPICE of the first seed alone: parsing costs some 60 ms a new caption."""
    from coscap.report.spice import spice_figures

    for n, wanted in method.sets.items():
        samples = sampler.samples(wanted[0], judge.pictures)
        budgets: Sequence[int] = method.budgets[n]
        measured.mean.update(spice_figures(samples, judge, budgets, options.spice, options.spice_cache))
