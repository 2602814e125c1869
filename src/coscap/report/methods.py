"""The rows of the tables: a run with a way of searching, measured over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coscap.report.measure import Figures, Judge
from coscap.report.runs import METHODS, Run
from coscap.report.sampling import Sampler, Wanted
from coscap.search import SearchSettings

SMALL = 20  # the smaller of the paper's two numbers of samples

PUBLISHED_AS = {**METHODS, "beam": "Beam search", "diverse": "Div-BS"}
"""The paper's name of each role, for the rows that ours stand beside."""


@dataclass(frozen=True)
class Method:
    name: str
    role: str  # a key of PUBLISHED_AS
    run: Run
    sets: Mapping[int, tuple[Wanted, ...]]  # number of samples drawn -> one set for each seed
    budgets: Mapping[int, tuple[int, ...]]  # the same -> the numbers of samples that it is measured at

    @property
    def seeds(self) -> int:
        return max(len(wanted) for wanted in self.sets.values())


@dataclass(frozen=True)
class Measured:
    """Figures of a method: mean over seeds, deviation where there are several."""

    method: Method
    by_seed: list[Figures]
    mean: Figures = field(default_factory=dict)
    deviation: Figures = field(default_factory=dict)

    @classmethod
    def of(cls, method: Method, by_seed: list[Figures]) -> "Measured":
        names = list(by_seed[0])
        table = np.array([[figures[name] for name in names] for figures in by_seed])  # (S, names)
        spread = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(0)
        return cls(
            method,
            by_seed,
            dict(zip(names, table.mean(axis=0).tolist(), strict=True)),
            dict(zip(names, spread.tolist(), strict=False)),
        )


def methods(runs: Sequence[Run], samples: int, seeds: int, temperature: float = 1.0) -> list[Method]:
    """Latent draws of every run that has latents; beam and diverse beam search of every run that has none."""
    found = []
    small = min(SMALL, samples)
    budgets = tuple(sorted({small, samples}))
    for run in runs:
        if run.has_latents:
            settings = [SearchSettings(seed=seed, latent_temperature=temperature) for seed in range(seeds)]
            sets = tuple(Wanted(run, each, samples) for each in settings)
            found.append(Method(run.name, run.role, run, {samples: sets}, {samples: budgets}))
            continue
        for search, label in (("beam", "beam"), ("diverse", "diverse beam")):
            # A beam of 20 is not the best fifth of a beam of 100, so each number has a search of its own.
            each = {n: (Wanted(run, SearchSettings(search=search), n),) for n in budgets}  # type: ignore[arg-type]
            found.append(Method(f"{run.name}, {label}", search, run, each, {n: (n,) for n in budgets}))
    return found


def measure(method: Method, sampler: Sampler, judge: Judge) -> Measured:
    by_seed: list[Figures] = []
    for number in range(method.seeds):
        figures: Figures = {}
        for n, wanted in method.sets.items():
            found = judge.measure(sampler.samples(wanted[number], judge.pictures), method.budgets[n])
            figures |= found if len(method.sets) == 1 else _own(found, n)
        by_seed.append(figures)
    return Measured.of(method, by_seed)


def _own(figures: Figures, n: int) -> Figures:
    """Of a search of its own only the figures at its own number of captions."""
    return {name: value for name, value in figures.items() if name.split("/")[1] == str(n)}
