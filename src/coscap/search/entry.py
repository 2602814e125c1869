"""The one way in: `search(model, regions, vocabulary, n, settings)` for every search and every model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.models.step import S, Step
from coscap.search import latent
from coscap.search.automaton import Automata, stack
from coscap.search.beam import Finished, Pick, plain, run
from coscap.search.caption import Caption
from coscap.search.constrained import constrained
from coscap.search.controls import Controls
from coscap.search.diverse import diverse
from coscap.search.settings import SearchSettings
from coscap.search.trace import Ended, Trace
from coscap.search.wishes import controls_from, machines, unnamed_classes
from coscap.text import ObjectClasses, Vocabulary, load_classes

ROUNDS = 4  # how often a picture is drawn again for captions that it does not have yet

Record = TypeVar("Record", RegionBatch, Automata)
Write = Callable[[RegionBatch, range, Tensor], list[list[Caption]]]  # pictures, draws, pictures' numbers


@torch.inference_mode()
def search(
    model: Step[S],
    regions: RegionBatch,
    vocabulary: Vocabulary,
    n: int,
    settings: SearchSettings | None = None,
    *,
    objects: ObjectClasses | None = None,
    classes: Sequence[str] | None = None,
) -> list[list[Caption]]:
    """n captions for each picture, by draw and then the best first.

    `objects` gives the synonyms of words (COCO's by default), `classes` the names that the labels of
    the regions stand for (the names of `objects` by default).
    """
    settings = settings or SearchSettings()
    if n < 1:
        raise UserError(f"Search settings: n is {n}, and at least 1 caption must be asked for.")
    objects = objects or load_classes("coco")
    classes = classes or [each.name for each in objects.classes]
    controls = controls_from(settings, vocabulary, objects)
    automata = None
    if settings.search == "constrained":
        automata = _automata(model, regions, vocabulary, settings, objects, classes, controls)
    plan = _plan(model, n, settings, automata.states if automata else 1)

    def write(part: RegionBatch, draws: range, numbers: Tensor) -> list[list[Caption]]:
        if plan.width == 1 and settings.search == "latent":
            trace, ended = latent.write(model, part, draws, settings, controls)
        else:
            machines_here = _rows_of(automata, numbers) if automata else None
            trace, ended = _beams(model, part, draws, settings, controls, plan, machines_here)
        return trace.captions(ended, part, vocabulary.units)

    every = torch.arange(len(regions.keys), device=regions.keys.device)
    found = _in_chunks(write, regions, range(plan.draws), every, plan.rows, settings.max_rows)
    if settings.distinct:
        found = [_unlike(captions)[:n] for captions in found]
        if settings.choose == "sample" or _has_latents(model):
            _draw_again(write, found, regions, n, plan, settings.max_rows)
    return [captions[:n] for captions in found]


@dataclass(frozen=True)
class Plan:
    """How n captions are shared out."""

    draws: int
    per_draw: int  # captions of each draw
    groups: int  # of a diverse search, otherwise 1
    per_group: int  # captions of each group
    width: int  # beams in each group and state
    keep: int  # finished captions that are kept in each group; more than needed where some may be equal
    rows: int  # the most rows that one draw of one picture takes


def _plan(model: object, n: int, settings: SearchSettings, states: int) -> Plan:
    draws = _draws(model, n, settings)
    per_draw = -(-n // draws)
    groups = (settings.groups or per_draw) if settings.search == "diverse" else 1
    per_group = -(-per_draw // groups)
    width = max(settings.beams, per_group)
    keep = width if settings.distinct and draws == 1 else per_group
    return Plan(draws, per_draw, groups, per_group, width, keep, width * groups * states)


def _has_latents(model: object) -> bool:
    """Whether two draws can differ; a model that does not say so is taken to have latents."""
    return getattr(getattr(model, "config", None), "latent", 1) != 0


def _draws(model: object, n: int, settings: SearchSettings) -> int:
    many = settings.search == "latent" or (settings.search == "constrained" and _has_latents(model))
    draws = settings.draws or (n if many else 1)
    if draws > n:
        raise UserError(
            f"Search settings: draws is {draws} and n is {n}; ask for at least one caption of each draw."
        )
    if settings.choose == "sample" and draws != n:
        raise UserError("Search settings: choose: sample writes one caption for each draw; leave out draws.")
    return draws


def _automata(
    model: Step[S],
    regions: RegionBatch,
    vocabulary: Vocabulary,
    settings: SearchSettings,
    objects: ObjectClasses,
    classes: Sequence[str],
    controls: Controls,
) -> Automata:
    """The automaton of each picture. What a model says by itself is its greedy caption without noise."""
    detected: list[list[str]] = [[] for _ in range(len(regions.keys))]
    if settings.detected:
        by_itself = SearchSettings(temperature=0.0, seed=settings.seed)
        trace, ended = latent.write(model, regions, range(1), by_itself, controls)
        said = [captions[0].units for captions in trace.captions(ended, regions, vocabulary.units)]
        detected = unnamed_classes(regions, classes, said, settings, objects)
    return stack(machines(settings, vocabulary, objects, controls, detected), regions.keys.device)


def _beams(
    model: Step[S],
    regions: RegionBatch,
    draws: range,
    settings: SearchSettings,
    controls: Controls,
    plan: Plan,
    automata: Automata | None,
) -> tuple[Trace, Ended]:
    """Beam, diverse or constrained search for these draws of these pictures."""
    state = latent.start(model, regions, draws, settings)
    pools = torch.arange(len(regions.keys) * len(draws) * plan.groups, device=regions.keys.device)
    pick: Pick = plain(plan.width)
    required = torch.zeros_like(pools)
    if automata is not None:
        pick = constrained(automata, len(draws), plan.width)
        required = automata.required.repeat_interleave(len(draws))
    elif settings.search == "diverse":
        pick = diverse(plan.groups, plan.width, settings.diversity)
        state = state.select(pools // plan.groups)
    trace, finished = run(
        model,
        state,
        pools,
        required,
        pick,
        needed=plan.per_group,
        keep=plan.keep,
        length_norm=settings.length_norm,
        exhaustive=settings.exhaustive,
        controls=controls,
    )
    return trace, _in_order(finished, required, draws, plan)


def _in_order(finished: Finished, required: Tensor, draws: range, plan: Plan) -> Ended:
    """By picture, draw, rank, group: the best of every group, then the second best of every group, and on."""
    search_number = finished.pool // plan.groups
    place = finished.rank * plan.groups + finished.pool % plan.groups
    most = int(place.max()) + 1 if len(place) else 1
    order = (search_number * most + place).argsort()
    if plan.keep == plan.per_group:  # otherwise the spare ones are wanted, too
        order = order[place[order] < plan.per_draw]
    return Ended(
        picture=search_number[order] // len(draws),
        draw=draws.start + search_number[order] % len(draws),
        step=finished.step[order],
        row=finished.row[order],
        log_probability=finished.score[order],
        satisfied=(finished.met >= required[finished.pool])[order],
    )


def _in_chunks(
    write: Write, regions: RegionBatch, draws: range, numbers: Tensor, rows: int, most: int
) -> list[list[Caption]]:
    """All captions of all pictures, with at most `most` rows at once (one search may need more)."""
    found: list[list[Caption]] = [[] for _ in range(len(numbers))]
    at_once = max(1, most // (rows * len(draws)))  # pictures
    draws_at_once = max(1, min(len(draws), most // rows))
    for first in range(0, len(numbers), at_once):
        pictures = torch.arange(first, min(first + at_once, len(numbers)), device=numbers.device)
        for part in _cut(draws, draws_at_once):
            captions = write(_rows_of(regions, pictures), part, numbers[pictures])
            for picture, more in zip(pictures.tolist(), captions, strict=True):
                found[picture].extend(more)
    return found


def _cut(draws: range, size: int) -> Iterator[range]:
    for first in range(draws.start, draws.stop, size):
        yield range(first, min(first + size, draws.stop))


def _draw_again(
    write: Write, found: list[list[Caption]], regions: RegionBatch, n: int, plan: Plan, most: int
) -> None:
    """Add captions of further draws to the pictures that have fewer than n different ones."""
    for turn in range(1, ROUNDS + 1):
        short = [picture for picture, captions in enumerate(found) if len(captions) < n]
        if not short:
            return
        numbers = torch.tensor(short, device=regions.keys.device)
        further = range(plan.draws * turn, plan.draws * (turn + 1))
        more = _in_chunks(write, _rows_of(regions, numbers), further, numbers, plan.rows, most)
        for picture, captions in zip(short, more, strict=True):
            found[picture] = _unlike([*found[picture], *captions])[:n]


def _unlike(captions: Sequence[Caption]) -> list[Caption]:
    """Each text once, the first of equal ones."""
    first: dict[str, Caption] = {}
    for caption in captions:
        first.setdefault(caption.text, caption)
    return list(first.values())


def _rows_of(record: Record, rows: Tensor) -> Record:
    """These rows of a record of tensors."""
    parts = {field.name: getattr(record, field.name)[rows] for field in fields(record)}
    return type(record)(**parts)
