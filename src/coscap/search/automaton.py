"""Finite-state machines that tell which constraints a caption meets so far (Anderson et al. 2017).

A constraint is a set of phrases, one or several words long; a caption meets it when it contains one of
them, its words next to each other. A state of the machine is

    (the constraints met so far, the words at the end of the caption that begin a phrase still wanted)

and all captions that meet enough constraints share one last state. From a state, all words but those of
the phrases lead to the same state: its default. And most words of the phrases act alike: whatever the state,
"zebra" and "zebras" lead to the same one. So a machine is stored as one default for each state and a table of
states x kinds of words, instead of states x states x vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Phrase = tuple[int, ...]
Constraint = frozenset[Phrase]


@dataclass(frozen=True)
class Automaton:
    """The machine of one picture. State 0 is the start."""

    kinds: tuple[tuple[int, ...], ...]  # C sets of words that act alike and may leave the default
    default: tuple[int, ...]  # (S,) the state after any other word
    table: tuple[tuple[int, ...], ...]  # (S, C) the state after a word of each kind
    met: tuple[int, ...]  # (S,) constraints met; no more than required are counted
    required: int

    def walk(self, caption: Iterable[int]) -> int:
        """The state after these words."""
        columns = {word: column for column, words in enumerate(self.kinds) for word in words}
        state = 0
        for word in caption:
            state = self.table[state][columns[word]] if word in columns else self.default[state]
        return state


State = tuple[frozenset[int], Phrase]  # constraints met, beginning of a phrase


def build(constraints: Sequence[Constraint], at_least: int | None = None) -> Automaton:
    """The machine for `at_least` of these constraints (all of them if None)."""
    constraints = [_shortest(phrases) for phrases in constraints]
    required = len(constraints) if at_least is None else min(at_least, len(constraints))
    words = tuple(sorted({word for phrases in constraints for phrase in phrases for word in phrase}))
    numbers: dict[State, int] = {}
    default: list[int] = []
    rows: list[tuple[int, ...]] = []  # the state after each of `words`
    unseen: list[State] = []

    def number(state: State) -> int:
        if state not in numbers:
            numbers[state] = len(numbers)
            unseen.append(state)
        return numbers[state]

    number(_enough(frozenset(), (), required))
    while unseen:
        met, begun = unseen.pop(0)
        if len(met) >= required:  # nothing is wanted any more
            default.append(number((met, ())))
            rows.append(tuple(number((met, ())) for _ in words))
            continue
        default.append(number((met, ())))
        rows.append(tuple(number(_next(constraints, met, (*begun, word), required)) for word in words))
    alike: dict[tuple[int, ...], list[int]] = {}
    for word, column in zip(words, zip(*rows, strict=True), strict=True):
        alike.setdefault(column, []).append(word)
    return Automaton(
        kinds=tuple(map(tuple, alike.values())),
        default=tuple(default),
        table=tuple(zip(*alike, strict=True)) if alike else ((),) * len(default),
        met=tuple(min(len(met), required) for met, _ in numbers),
        required=required,
    )


def _shortest(phrases: Constraint) -> Constraint:
    """Without phrases that contain another: who writes "school bus" has written "bus"."""

    def inside(short: Phrase, long: Phrase) -> bool:
        return any(long[at : at + len(short)] == short for at in range(len(long) - len(short) + 1))

    return frozenset(p for p in phrases if not any(other != p and inside(other, p) for other in phrases))


def _next(constraints: Sequence[Constraint], met: frozenset[int], written: Phrase, required: int) -> State:
    """The state after `written`: what had been begun and one word more."""
    ends = {written[start:] for start in range(len(written))}
    met = met | {index for index, phrases in enumerate(constraints) if phrases & ends}
    wanted = [phrase for index, phrases in enumerate(constraints) if index not in met for phrase in phrases]
    for start in range(len(written)):  # the longest end that begins a wanted phrase
        end = written[start:]
        if any(len(end) < len(phrase) and phrase[: len(end)] == end for phrase in wanted):
            return _enough(met, end, required)
    return _enough(met, (), required)


def _enough(met: frozenset[int], begun: Phrase, required: int) -> State:
    """All states in which enough is met are one."""
    return (frozenset(range(required)), ()) if len(met) >= required else (met, begun)


@dataclass(frozen=True)
class Automata:
    """The machines of P pictures, padded to the most states (S), kinds (C) and words of a kind (M) among them."""

    words: Tensor  # (P, C, M) int64, -1 for padding
    default: Tensor  # (P, S)
    table: Tensor  # (P, S, C)
    met: Tensor  # (P, S)
    required: Tensor  # (P,)

    @property
    def states(self) -> int:
        return self.default.shape[1]


def stack(machines: Sequence[Automaton], device: torch.device) -> Automata:
    states = max(len(machine.default) for machine in machines)
    kinds = max(len(machine.kinds) for machine in machines)
    most = max((len(words) for machine in machines for words in machine.kinds), default=0)
    words = torch.full((len(machines), kinds, most), -1)
    default = torch.zeros(len(machines), states, dtype=torch.int64)
    table = torch.zeros(len(machines), states, kinds, dtype=torch.int64)
    met = torch.zeros(len(machines), states, dtype=torch.int64)
    for row, machine in enumerate(machines):
        count = len(machine.default)
        for column, alike in enumerate(machine.kinds):
            words[row, column, : len(alike)] = torch.tensor(alike)
        default[row, :count] = torch.tensor(machine.default)
        targets = torch.tensor(machine.table, dtype=torch.int64).view(count, len(machine.kinds))
        table[row, :count, : len(machine.kinds)] = targets
        met[row, :count] = torch.tensor(machine.met)
    required = torch.tensor([machine.required for machine in machines])
    return Automata(*(part.to(device) for part in (words, default, table, met, required)))
