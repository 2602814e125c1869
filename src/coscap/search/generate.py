"""The one way in: `generate(model, regions, vocabulary, n, settings)` for every search and every model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coscap.errors import UserError
from coscap.seam import (
    Caption,
    Check,
    Checked,
    Ints,
    LatentValues,
    RegionArrays,
    RegionLike,
    S,
    SearchModel,
)
from coscap.search import sampling
from coscap.search.beam import Ended, Finished, Pick, PlainBeams, Trace, run
from coscap.search.config import MAX_CONSTRAINTS, SearchSettings
from coscap.search.constrained import Automata, Automaton, ConstrainedBeams, build, stack
from coscap.search.constraints import (
    TokenConstraints,
    phrases_for,
    required_phrases,
    token_constraints,
    unnamed_classes,
)
from coscap.search.diverse import DiverseBeams
from coscap.text import ObjectClasses, Vocabulary, load_classes

ROUNDS = 4  # how often a picture is drawn again for captions that it does not have yet

Write = Callable[[RegionArrays, range, Ints], list[list[Caption]]]  # pictures, draws, pictures' numbers


def generate(
    model: SearchModel[S],
    regions: RegionLike,
    vocabulary: Vocabulary,
    n: int,
    settings: SearchSettings | None = None,
    *,
    objects: ObjectClasses | None = None,
    classes: Sequence[str] | None = None,
    latents: LatentValues | None = None,
    turn: int = 0,
    check: Check | None = None,
) -> list[list[Caption]]:
    """n captions for each picture: by draw, and those of one draw by rank.

    `turn` 1, 2, ... gives other draws than 0 does.

    `objects` gives the synonyms of words (COCO's by default), `classes` the names that the labels of the regions
    stand for (the names of `objects` by default). `latents` holds z^m or z^o at the values of one row in all draws
    of a single picture. `check` is called before each step of the model and may raise to end the search.
    """
    settings = settings or SearchSettings()
    if n < 1:
        raise UserError(f"Search settings: n is {n}, and at least 1 caption must be asked for.")
    pictures = RegionArrays.of(regions)
    if check is not None:
        model = Checked(model, check)
    objects = objects or load_classes("coco")
    classes = classes or [each.name for each in objects.classes]
    rules = token_constraints(settings, vocabulary, objects)
    automata = None
    if settings.search == "constrained":
        automata = _automata(model, pictures, vocabulary, settings, objects, classes, rules)
    plan = _plan(model, n, settings, automata.states if automata else 1)

    def write(part: RegionArrays, draws: range, numbers: Ints) -> list[list[Caption]]:
        state = sampling.start(model, part, draws, settings, latents)
        if plan.num_beams == 1 and settings.search == "latent":
            trace, ended = sampling.write(model, part, draws, settings, rules, state)
        else:
            here = None if automata is None else automata.take(numbers)
            trace, ended = _beams(model, state, part, draws, settings, rules, plan, here)
        return trace.captions(ended, part, vocabulary.units)

    every = np.arange(len(pictures))
    first = turn * (ROUNDS + 1) * plan.draws
    found = _in_chunks(write, pictures, range(first, first + plan.draws), every, plan.rows, settings.max_rows)
    if settings.distinct:
        found = [_distinct(captions)[:n] for captions in found]
        if settings.do_sample or model.latent_names:
            _draw_again(write, found, pictures, n, first, plan, settings.max_rows)
    return [captions[:n] for captions in found]


@dataclass(frozen=True)
class Plan:
    """How n captions are shared out."""

    draws: int
    per_draw: int  # captions of each draw
    num_beam_groups: int  # of a diverse search, otherwise 1
    per_group: int  # captions of each group
    num_beams: int  # in each group and state
    keep: int  # finished captions that are kept in each group; more than needed where some may be equal
    rows: int  # the most rows that one draw of one picture takes


def _plan(model: SearchModel[S], n: int, settings: SearchSettings, states: int) -> Plan:
    draws = _draws(model, n, settings)
    per_draw = -(-n // draws)
    groups = (settings.num_beam_groups or per_draw) if settings.search == "diverse" else 1
    per_group = -(-per_draw // groups)
    num_beams = max(settings.beams, per_group)
    keep = num_beams if settings.distinct and draws == 1 else per_group
    return Plan(draws, per_draw, groups, per_group, num_beams, keep, num_beams * groups * states)


def _draws(model: SearchModel[S], n: int, settings: SearchSettings) -> int:
    many = settings.search == "latent" or (settings.search == "constrained" and bool(model.latent_names))
    draws = settings.draws or (n if many else 1)
    if draws > n:
        raise UserError(
            f"Search settings: draws is {draws} and n is {n}; ask for at least one caption of each draw."
        )
    if settings.do_sample and draws != n:
        raise UserError("Search settings: do_sample writes one caption for each draw; leave out draws.")
    return draws


def _automata(
    model: SearchModel[S],
    regions: RegionArrays,
    vocabulary: Vocabulary,
    settings: SearchSettings,
    objects: ObjectClasses,
    classes: Sequence[str],
    rules: TokenConstraints,
) -> Automata:
    """The automaton of each picture: what the user requires, then the classes detected in it, up to four.

    A detected class is required unless the model names it by itself, in its greedy caption without noise.
    """
    detected: list[list[str]] = [[] for _ in range(len(regions))]
    if settings.detected:
        greedy = SearchSettings(latent_temperature=0.0, seed=settings.seed)
        trace, ended = sampling.write(model, regions, range(1), greedy, rules)
        plain = [captions[0].tokens for captions in trace.captions(ended, regions, vocabulary.units)]
        detected = unnamed_classes(regions, classes, plain, settings, objects)
    required = required_phrases(settings, vocabulary, objects, rules)
    built: dict[tuple[str, ...], Automaton] = {}
    for names in map(tuple, detected):
        if names not in built:
            more = [phrases_for(name, vocabulary, objects, rules) for name in names]
            every = [*required, *(phrases for phrases in more if phrases)][:MAX_CONSTRAINTS]
            built[names] = build(every, settings.at_least)
    return stack([built[names] for names in map(tuple, detected)])


def _beams(
    model: SearchModel[S],
    state: S,
    regions: RegionArrays,
    draws: range,
    settings: SearchSettings,
    rules: TokenConstraints,
    plan: Plan,
    automata: Automata | None,
) -> tuple[Trace, Ended]:
    """Beam, diverse or constrained search for these draws of these pictures."""
    groups = np.arange(len(regions) * len(draws) * plan.num_beam_groups)
    pick: Pick = PlainBeams(plan.num_beams)
    required = np.zeros_like(groups)
    if automata is not None:
        pick = ConstrainedBeams(automata, len(draws), plan.num_beams)
        required = np.repeat(automata.required, len(draws))
    elif settings.search == "diverse":
        pick = DiverseBeams(plan.num_beam_groups, plan.num_beams, settings.diversity_penalty)
        state = state.select(groups // plan.num_beam_groups)
    trace, finished = run(
        model,
        state,
        groups,
        required,
        pick,
        needed=plan.per_group,
        keep=plan.keep,
        length_penalty=settings.length_penalty,
        exhaustive=settings.exhaustive,
        constraints=rules,
    )
    return trace, _in_order(finished, required, draws, plan)


def _in_order(finished: Finished, required: Ints, draws: range, plan: Plan) -> Ended:
    """By picture, draw, rank, group: the best of every group, then the second best of every group, and on."""
    search_number = finished.group // plan.num_beam_groups
    place = finished.rank * plan.num_beam_groups + finished.group % plan.num_beam_groups
    most = int(place.max(initial=0)) + 1
    order = np.argsort(search_number * most + place, kind="stable")
    if plan.keep == plan.per_group:  # otherwise the spare ones are wanted, too
        order = order[place[order] < plan.per_draw]
    return Ended(
        picture=search_number[order] // len(draws),
        draw=draws.start + search_number[order] % len(draws),
        step=finished.step[order],
        row=finished.row[order],
        log_probability=finished.score[order],
        satisfied=(finished.met >= required[finished.group])[order],
    )


def _in_chunks(
    write: Write, regions: RegionArrays, draws: range, numbers: Ints, rows: int, most: int
) -> list[list[Caption]]:
    """All captions of all pictures, with at most `most` rows at once (one search may need more)."""
    found: list[list[Caption]] = [[] for _ in range(len(numbers))]
    at_once = max(1, most // (rows * len(draws)))  # pictures
    draws_at_once = max(1, min(len(draws), most // rows))
    for first in range(0, len(numbers), at_once):
        pictures = np.arange(first, min(first + at_once, len(numbers)))
        here = regions if len(pictures) == len(regions) else regions.take(pictures)
        for part in _cut(draws, draws_at_once):
            for picture, more in zip(pictures.tolist(), write(here, part, numbers[pictures]), strict=True):
                found[picture].extend(more)
    return found


def _cut(draws: range, size: int) -> Iterator[range]:
    for first in range(draws.start, draws.stop, size):
        yield range(first, min(first + size, draws.stop))


def _draw_again(
    write: Write, found: list[list[Caption]], regions: RegionArrays, n: int, first: int, plan: Plan, most: int
) -> None:
    """Add captions of further draws to the pictures that have fewer than n different ones."""
    for turn in range(1, ROUNDS + 1):
        short = np.array([picture for picture, captions in enumerate(found) if len(captions) < n], np.int64)
        if not len(short):
            return
        further = range(first + plan.draws * turn, first + plan.draws * (turn + 1))
        more = _in_chunks(write, regions.take(short), further, short, plan.rows, most)
        for picture, captions in zip(short.tolist(), more, strict=True):
            found[picture] = _distinct([*found[picture], *captions])[:n]


def _distinct(captions: Sequence[Caption]) -> list[Caption]:
    """Each text once, the first of equal ones."""
    first: dict[str, Caption] = {}
    for caption in captions:
        first.setdefault(caption.text, caption)
    return list(first.values())
