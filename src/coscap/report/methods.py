"""Which rows a report has: each run with each way of searching, and captions that are at hand in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coscap.report.given import GivenCaptions
from coscap.report.runs import METHODS, Run
from coscap.report.sampling import (
    UNCONSTRAINED,
    Constraints,
    SampleSet,
    beam_settings,
    latent_settings,
    word_settings,
)

SMALL = 20  # the smaller of the paper's two numbers of samples

WORDS = {
    **{f"words at {temperature:g}": (temperature, 1.0) for temperature in (0.3, 0.5, 0.7, 1.0)},
    "nucleus 0.9": (1.0, 0.9),
}
"""Sampling without latents: the temperature of the words and top_p of each row."""

SEARCHES = ("draws", "beam", "diverse", "words")
"""Ways of searching: draws of runs with latents, the other three of runs without."""

PUBLISHED_AS = {**METHODS, "beam": "Beam search", "diverse": "Div-BS"}
"""The paper's name of each role, for the rows beside ours; roles that the paper does not have are not in it."""


@dataclass(frozen=True)
class Method:
    """A row of the tables: a run with a way of searching."""

    name: str
    role: str  # a key of PUBLISHED_AS, or another kind of model
    run: Run
    sets: Mapping[int, tuple[SampleSet, ...]]  # number of samples drawn -> one set for each seed
    budgets: Mapping[int, tuple[int, ...]]  # the same -> the numbers of samples that it is measured at

    @property
    def seeds(self) -> int:
        return max(len(sets) for sets in self.sets.values())


def methods(
    runs: Sequence[Run],
    samples: int,
    seeds: int,
    temperature: float = 1.0,
    searches: Sequence[str] = SEARCHES,
    distinct: bool = False,
    constraints: Constraints = UNCONSTRAINED,
) -> list[Method]:
    """Latent draws of every run that has latents; beam, diverse beam and words drawn from every run that has none. With
    `constraints`, every run under a constrained search too."""
    found = []
    budgets = tuple(sorted({min(SMALL, samples), samples}))
    for run in runs:
        if run.has_latents:
            each = [latent_settings(seed, run.warmth(temperature), distinct) for seed in range(seeds)]
            sets = tuple(SampleSet(run, settings, samples) for settings in each)
            if "draws" in searches:
                found.append(Method(run.name, run.role, run, {samples: sets}, {samples: budgets}))
        else:
            found += _without_latents(run, samples, seeds, budgets, searches, distinct)
        if constraints.detected:
            found.append(_constrained(run, samples, seeds, budgets, temperature, constraints))
    return found


def _without_latents(
    run: Run,
    samples: int,
    seeds: int,
    budgets: tuple[int, ...],
    searches: Sequence[str],
    distinct: bool,
) -> list[Method]:
    found = []
    for search, label in (("beam", "beam"), ("diverse", "diverse beam")):
        # A beam of 20 is not the best fifth of a beam of 100, so each number has a search of its own.
        each = {n: (SampleSet(run, beam_settings(search), n),) for n in budgets}
        role = search if run.role == "updown" else f"{run.role}, {search}"
        if search in searches:
            found.append(Method(f"{run.name}, {label}", role, run, each, {n: (n,) for n in budgets}))
    for label, (warmth, top_p) in WORDS.items() if "words" in searches else ():
        settings = [word_settings(seed, warmth, top_p, distinct) for seed in range(seeds)]
        sets = tuple(SampleSet(run, each, samples) for each in settings)
        role = label if run.role == "updown" else f"{run.role}, {label}"
        found.append(Method(f"{run.name}, {label}", role, run, {samples: sets}, {samples: budgets}))
    return found


def given_method(captions: GivenCaptions, samples: int) -> Method:
    """The captions of a file, as far as each picture has them."""
    most = min(captions.n, samples)
    budgets = tuple(sorted({min(SMALL, most), most}))
    name = captions.run.name
    return Method(name, name, captions.run, {most: (captions.set_of(most),)}, {most: budgets})


def _constrained(
    run: Run,
    samples: int,
    seeds: int,
    budgets: tuple[int, ...],
    temperature: float,
    constraints: Constraints,
) -> Method:
    """Under each draw of a run with latents; the n best of one search of a run without."""
    name = f"{run.name[:-1]}, CBS)" if run.name.endswith(")") else f"{run.name} (CBS)"
    role = f"{run.role}, constrained"
    if run.has_latents:
        warmth = run.warmth(temperature)
        each = (constraints.settings(seed, warmth) for seed in range(seeds))
        sets = {samples: tuple(SampleSet(run, settings, samples) for settings in each)}
        return Method(name, role, run, sets, {samples: budgets})
    alone = constraints.settings(0, 1.0)
    return Method(
        name, role, run, {n: (SampleSet(run, alone, n),) for n in budgets}, {n: (n,) for n in budgets}
    )
