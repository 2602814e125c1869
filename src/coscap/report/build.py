"""From runs to figures: each run is searched in one or two ways (a method), measured over seeds and pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from coscap.contexts.bank import Bank
from coscap.data import Prepared, open_prepared
from coscap.errors import UserError
from coscap.files import read_json
from coscap.metrics import spice
from coscap.metrics.evaluation import value_of
from coscap.metrics.grams import Floats
from coscap.metrics.intervals import (
    Bootstrap,
    ScoreDifference,
    Statistics,
    interval,
    paired_difference,
    unpaired_difference,
)
from coscap.report.given import GivenCaptions
from coscap.report.measure import Figures, Measurer, Ranker, check_meteor
from coscap.report.methods import SEARCHES, SMALL, Method, given_method, methods
from coscap.report.runs import METHODS, Run, open_runs
from coscap.report.sampling import (
    UNCONSTRAINED,
    Constraints,
    Sampler,
)
from coscap.vision.stores import Stores

FORMAT = "coscap results 2"  # of results.json


@dataclass(frozen=True)
class ReportOptions:
    """What the user asks for."""

    runs: tuple[str, ...]
    data: Path
    regions: tuple[Path, ...]
    split: str = "test"
    samples: int = 100
    seeds: int = 3
    latent_temperature: float = 1.0
    work: Path = Path("report-work")
    limit: int = 0
    rerank: bool = True
    bank: Path | None = None
    meteor: bool = True
    spice: int = 0
    spice_pictures: int = 0
    spice_cache: Path | None = None
    device: str = "cpu"
    searches: tuple[str, ...] = SEARCHES
    distinct: bool = False  # drawn captions of a picture all differ, as those of a beam do
    constraints: Constraints = UNCONSTRAINED
    beside: Path | None = None  # results.json of an earlier report, whose rows come first
    captions: tuple[str, ...] = ()  # files of captions that are rows of their own, after those of the runs

    @property
    def budgets(self) -> tuple[int, ...]:
        return tuple(sorted({min(SMALL, self.samples), self.samples}))


@dataclass(frozen=True)
class Measured:
    """Figures of a method: mean over seeds, deviation where there are several, interval over pictures."""

    method: Method
    by_seed: list[dict[str, float]]
    mean: dict[str, float]
    deviation: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    resampled: dict[str, Floats] = field(default_factory=dict, repr=False)  # mean over seeds, (B,)

    @classmethod
    def of(cls, method: Method, by_seed: Sequence[Figures], pictures: int) -> "Measured":
        names = [name for name in by_seed[0] if all(name in figures for figures in by_seed)]
        values = [{name: value_of(figures[name]) for name in names} for figures in by_seed]
        table = np.array([list(each.values()) for each in values])  # (S, names)
        deviation = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(0)
        bootstrap = Bootstrap(pictures)
        drawn = [
            bootstrap.values({name: each for name, each in figures.items() if isinstance(each, Statistics)})
            for figures in by_seed
        ]
        resampled = {
            name: np.mean([each[name] for each in drawn], axis=0) for name in names if name in drawn[0]
        }
        return cls(
            method,
            values,
            dict(zip(names, table.mean(axis=0).tolist(), strict=True)),
            dict(zip(names, deviation.tolist(), strict=False)),
            {name: interval(each) for name, each in resampled.items()},
            resampled,
        )

    def minus(self, other: "Measured", name: str) -> ScoreDifference | None:
        """The difference of a figure on the same resamples of pictures, or, where one is of an earlier report, by both
        intervals; None where one of them has none."""
        if name not in self.intervals or name not in other.intervals:
            return None
        if name not in self.resampled or name not in other.resampled:
            return unpaired_difference(
                self.mean[name], other.mean[name], self.intervals[name], other.intervals[name]
            )
        return paired_difference(
            self.mean[name], other.mean[name], self.resampled[name], other.resampled[name]
        )


@dataclass(frozen=True)
class ReportResults:
    """All that was measured, and notes on it."""

    options: ReportOptions
    runs: list[Run]
    found: list[Measured]
    earlier: "EarlierReport | None"  # whose methods are the first ones of `found`
    prepared: Prepared
    stores: Stores
    pictures: tuple[int, ...]
    split_pictures: int  # pictures of the split, with regions or not
    pool: tuple[int, int] | None  # training pictures that re-ranking compares with, and all of them
    novel_objects: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class EarlierReport:
    """A report whose captions may be gone: its methods without resamples, and what it said of them."""

    methods: list[Measured]
    command: tuple[str, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        return list({each.method.run.given: each.method.run for each in self.methods}.values())


def read_earlier(path: Path, prepared: Prepared, stores: Stores, split: str, pictures: int) -> EarlierReport:
    """The methods of a results.json, which must be of the same pictures and regions."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(
            f"--beside {path}: expected the results.json of a report (format {FORMAT!r}); check the path."
        )
    here = {"data": prepared.digest, "split": split, "pictures": pictures, "recipe": stores.recipe.name}
    for name, value in here.items():
        if content[name] != value:
            raise UserError(
                f"--beside {path}: its {name} is {content[name]} and that of this report {value}; rows can be compared "
                "on the same pictures and regions alone."
            )
    found = []
    for row in content["methods"]:
        # A row is called "RUN" or "RUN, SEARCH"; a run of the paper's kinds has no comma in its name.
        name = row["name"] if row["role"] in METHODS else row["name"].rpartition(", ")[0] or row["name"]
        run = Run(name, row["run"], Path(row["run"]), row["role"], row["weights"], row["training"])
        ends = {figure: (float(low), float(high)) for figure, (low, high) in row["intervals"].items()}
        method = Method(row["name"], row["role"], run, {}, {})
        found.append(Measured(method, row["seeds"], row["mean"], row["deviation"], ends))
    return EarlierReport(
        found, tuple(content["command"]), tuple(content["differences"]), tuple(content["left out"])
    )


def build(options: ReportOptions, tell: Callable[[str], None]) -> ReportResults:
    runs = open_runs(options.runs)
    if not runs and not options.captions:
        raise UserError("There is nothing to report on; give runs of `coscap train`, or --captions FILE.")
    if options.spice:
        spice.check_installed()  # before captions are drawn, not after
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
    if options.spice and 0 < options.spice_pictures < len(pictures):
        notes.append(
            f"SPICE of the best of several captions (oracle) is that of {options.spice_pictures:,} pictures, evenly "
            f"spread; the other {len(pictures) - options.spice_pictures:,} are left out of it."
        )
    ranker = None
    if options.rerank:
        bank = None if options.bank is None else Bank.open(options.bank)
        ranker = Ranker(prepared, stores, pictures, options.work, bank)
    novel = prepared.manifest["split"].get("method") == "heldout"
    measurer = Measurer.of(
        {image: references[image] for image in pictures},
        ranker,
        prepared.classes,
        meteor=reason is None,
        objects=novel,
    )
    earlier = None
    if options.beside is not None:
        earlier = read_earlier(options.beside, prepared, stores, options.split, len(pictures))
        notes += [note for note in earlier.notes if note not in notes]
    samplers: dict[str, Sampler | GivenCaptions] = {
        run.name: Sampler(run, stores, options.work, options.device) for run in runs
    }
    runs = [replace(run, has_latents=samplers[run.name].has_latents) for run in runs]
    wanted = methods(
        runs,
        options.samples,
        options.seeds,
        options.latent_temperature,
        options.searches,
        options.distinct,
        options.constraints,
    )
    for each in (GivenCaptions(given, pictures) for given in options.captions):
        wanted.append(given_method(each, options.samples))
        samplers[each.run.name] = each
    names = [method.name for method in wanted]
    again = [name for name in names if names.count(name) > 1]
    if again:
        raise UserError(f"Two rows are called {again[0]!r}; name the file: --captions NAME=FILE.")
    found = [] if earlier is None else list(earlier.methods)
    known = {each.method.name for each in found}
    twice = [method for method in wanted if method.name in known]
    if twice:
        raise UserError(
            f"--beside {options.beside} has a row {twice[0].name!r} already; name the run, for example "
            f"again={twice[0].run.given}."
        )
    for method in wanted:
        tell(f"{method.name}: {method.seeds} seed{'s' * (method.seeds > 1)}, {len(pictures):,} pictures")
        found.append(_measure(method, samplers[method.run.name], measurer, options))
    return ReportResults(
        options=options,
        runs=runs,
        found=found,
        earlier=earlier,
        prepared=prepared,
        stores=stores,
        pictures=tuple(pictures),
        split_pictures=len(references),
        pool=None if ranker is None else (len(ranker.pool), ranker.training_pictures),
        novel_objects=novel,
        notes=tuple(notes),
    )


def _measure(
    method: Method, sampler: Sampler | GivenCaptions, measurer: Measurer, options: ReportOptions
) -> Measured:
    by_seed: list[Figures] = []
    for number in range(method.seeds):
        figures: Figures = {}
        for n, sets in method.sets.items():
            samples = sampler.samples(sets[number], measurer.pictures)
            found = measurer.measure(samples, method.budgets[n])
            figures |= found if len(method.sets) == 1 else _own(found, n)
        by_seed.append(figures)
    measured = Measured.of(method, by_seed, len(measurer.pictures))
    if options.spice:
        _add_spice(measured, sampler, measurer, options)
    return measured


def _add_spice(
    measured: Measured, sampler: Sampler | GivenCaptions, measurer: Measurer, options: ReportOptions
) -> None:
    """SPICE of the first seed alone: parsing costs some 30 ms a new caption."""
    method = measured.method
    for n, sets in method.sets.items():
        samples = sampler.samples(sets[0], measurer.pictures)
        found = measurer.spice(
            samples, method.budgets[n], options.spice, options.spice_pictures, options.spice_cache
        )
        only = Measured.of(method, [found], len(measurer.pictures))
        measured.mean.update(only.mean)
        measured.intervals.update(only.intervals)
        measured.resampled.update(only.resampled)


def _own(figures: Figures, n: int) -> Figures:
    """Of a search of its own only the figures at its own number of captions."""
    return {name: value for name, value in figures.items() if name.split("/")[1] == str(n)}
