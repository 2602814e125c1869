"""Constrained beam search (Anderson et al. 2017): a beam for each state of each picture's automaton.

A constraint is a set of phrases, one or several tokens long; a caption meets it when it contains one of them, its
tokens next to each other. A state of the automaton is

    (the constraints met so far, the tokens at the end of the caption that begin a phrase still required)

and all captions that meet enough constraints share one last state. From a state, all tokens but those of the phrases
lead to the same state: its default. And most tokens of the phrases act alike: whatever the state, "zebra" and
"zebras" lead to the same one. So an automaton is stored as one default for each state and a table of states x kinds
of tokens, instead of states x states x vocabulary.

All states of all pictures and draws are rows of one batch. Of the tokens of one kind, and of all tokens of no kind,
only the best `num_beams` can matter, so a row has at most 1 + num_beams x (kinds + 1) candidates.

Captions that meet enough constraints come first. Where fewer of them than needed are found within the maximal
length, the rest are the best of those that meet most, marked `satisfied=False`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coscap.errors import UserError
from coscap.seam import Candidates, Floats, Ints
from coscap.search.beam import BeamRows, Continuations, best_arrivals
from coscap.search.constraints import Phrase, PhraseSet

FsmState = tuple[frozenset[int], Phrase]  # constraints met, beginning of a phrase

MAX_STATES = 256  # of one automaton; each has its own beam


@dataclass(frozen=True)
class Automaton:
    """The automaton of one picture. State 0 is the start."""

    kinds: tuple[tuple[int, ...], ...]  # C sets of tokens that act alike and may leave the default
    default: tuple[int, ...]  # (S,) the state after any other token
    table: tuple[tuple[int, ...], ...]  # (S, C) the state after a token of each kind
    met: tuple[int, ...]  # (S,) constraints met; no more than required are counted
    required: int

    def walk(self, caption: Iterable[int]) -> int:
        """The state after these tokens."""
        columns = {token: column for column, tokens in enumerate(self.kinds) for token in tokens}
        state = 0
        for token in caption:
            state = self.table[state][columns[token]] if token in columns else self.default[state]
        return state


def build(constraints: Sequence[PhraseSet], at_least: int | None = None) -> Automaton:
    """The automaton for `at_least` of these constraints (all of them if None)."""
    constraints = [_shortest(phrases) for phrases in constraints]
    required = len(constraints) if at_least is None else min(at_least, len(constraints))
    tokens = tuple(sorted({token for phrases in constraints for phrase in phrases for token in phrase}))
    numbers: dict[FsmState, int] = {}
    default: list[int] = []
    rows: list[tuple[int, ...]] = []  # the state after each of `tokens`
    unseen: list[FsmState] = []
    begins: dict[frozenset[int], set[Phrase]] = {}  # by constraints met: what begins a phrase still required

    def number(state: FsmState) -> int:
        if state not in numbers:
            if len(numbers) == MAX_STATES:
                raise UserError(
                    f"Search settings: must has so many phrases that a search needs more than {MAX_STATES} "
                    "beams for each draw; give fewer or shorter ones."
                )
            numbers[state] = len(numbers)
            unseen.append(state)
        return numbers[state]

    def follow(met: frozenset[int], written: Phrase) -> FsmState:
        """The state after `written`: what had been begun and one token more."""
        ends = [written[start:] for start in range(len(written))]
        met = met | {index for index, phrases in enumerate(constraints) if not phrases.isdisjoint(ends)}
        if met not in begins:
            missing = [phrases for index, phrases in enumerate(constraints) if index not in met]
            begins[met] = {p[:size] for phrases in missing for p in phrases for size in range(1, len(p))}
        begun = next((end for end in ends if end in begins[met]), ())  # the longest
        return _enough(met, begun, required)

    number(_enough(frozenset(), (), required))
    while unseen:
        met, begun = unseen.pop(0)
        default.append(number((met, ())))
        if len(met) >= required:  # nothing is required any more
            rows.append(tuple(number((met, ())) for _ in tokens))
        else:
            rows.append(tuple(number(follow(met, (*begun, token))) for token in tokens))
    alike: dict[tuple[int, ...], list[int]] = {}
    for token, column in zip(tokens, zip(*rows, strict=True), strict=True):
        alike.setdefault(column, []).append(token)
    return Automaton(
        kinds=tuple(map(tuple, alike.values())),
        default=tuple(default),
        table=tuple(zip(*alike, strict=True)) if alike else ((),) * len(default),
        met=tuple(min(len(met), required) for met, _ in numbers),
        required=required,
    )


def _shortest(phrases: PhraseSet) -> PhraseSet:
    """Without phrases that contain another: who writes "school bus" has written "bus"."""

    def inside(short: Phrase, long: Phrase) -> bool:
        return any(long[at : at + len(short)] == short for at in range(len(long) - len(short) + 1))

    return frozenset(p for p in phrases if not any(other != p and inside(other, p) for other in phrases))


def _enough(met: frozenset[int], begun: Phrase, required: int) -> FsmState:
    """All states in which enough is met are one."""
    return (frozenset(range(required)), ()) if len(met) >= required else (met, begun)


@dataclass(frozen=True)
class Automata:
    """The automata of P pictures, padded to the most states (S), kinds (C) and tokens of a kind (M) among them."""

    tokens: Ints  # (P, C, M), -1 for padding
    default: Ints  # (P, S)
    table: Ints  # (P, S, C)
    met: Ints  # (P, S)
    required: Ints  # (P,)

    @property
    def states(self) -> int:
        return int(self.default.shape[1])

    def take(self, pictures: Ints) -> "Automata":
        return Automata(
            self.tokens[pictures],
            self.default[pictures],
            self.table[pictures],
            self.met[pictures],
            self.required[pictures],
        )


def stack(automata: Sequence[Automaton]) -> Automata:
    states = max(len(each.default) for each in automata)
    kinds = max(len(each.kinds) for each in automata)
    most = max((len(tokens) for each in automata for tokens in each.kinds), default=0)
    tokens = np.full((len(automata), kinds, most), -1)
    default = np.zeros((len(automata), states), np.int64)
    table = np.zeros((len(automata), states, kinds), np.int64)
    met = np.zeros((len(automata), states), np.int64)
    for row, each in enumerate(automata):
        count = len(each.default)
        for column, alike in enumerate(each.kinds):
            tokens[row, column, : len(alike)] = alike
        default[row, :count] = each.default
        table[row, :count, : len(each.kinds)] = np.reshape(each.table, (count, len(each.kinds)))
        met[row, :count] = each.met
    return Automata(tokens, default, table, met, np.array([each.required for each in automata]))


@dataclass(frozen=True)
class ConstrainedBeams:
    """Group g belongs to picture g // draws; each state of it keeps its `num_beams` best arrivals."""

    automata: Automata
    draws: int
    num_beams: int

    @property
    def k(self) -> int:
        return self.num_beams

    def named(self, rows: BeamRows) -> Ints:
        """(N, C M) the tokens of all kinds."""
        tokens = self.automata.tokens[rows.group // self.draws]
        return tokens.reshape(len(tokens), -1)

    def __call__(self, candidates: Candidates, rows: BeamRows) -> Continuations:
        picture = rows.group // self.draws  # (N,)
        _, kinds, most = self.automata.tokens.shape
        end_ids, named_ids, other_ids = np.split(candidates.ids, [1, 1 + kinds * most], axis=1)
        end, named, others = np.split(candidates.log_probabilities, [1, 1 + kinds * most], axis=1)
        best, best_ids = _best_of_kinds(named, named_ids, kinds, most, self.num_beams)  # (N, C, K')
        moves = self.automata.table[picture, rows.fsm_state]  # (N, C)
        stays = self.automata.default[picture, rows.fsm_state]  # (N,)
        fsm_states = np.concatenate(
            [
                rows.fsm_state[:, None],
                np.repeat(moves, best.shape[2], axis=1),
                np.broadcast_to(stays[:, None], other_ids.shape),
            ],
            axis=1,
        )  # (N, 1 + C K' + K)
        flat = (len(end), -1) if best.size else (len(end), 0)
        tokens = np.concatenate([end_ids, best_ids.reshape(flat), other_ids], axis=1)
        logs = np.concatenate([end, best.reshape(flat), others], axis=1)
        scores = rows.score[:, None] + logs.astype(np.float64)
        chosen = best_arrivals(rows, tokens, scores, scores, fsm_states, self.automata.states, self.num_beams)
        met = self.automata.met[picture[chosen.parent], chosen.fsm_state]
        return Continuations(chosen.parent, chosen.token, chosen.score, chosen.fsm_state, met)


def _best_of_kinds(named: Floats, ids: Ints, kinds: int, most: int, num_beams: int) -> tuple[Floats, Ints]:
    """The best `num_beams` tokens of each kind: log-probabilities and ids, (N, C, K'). named, ids: (N, C M)"""
    shape = (len(named), kinds, most)
    named, ids = named.reshape(shape), ids.reshape(shape)
    if most <= num_beams:
        return named, ids
    order = np.argsort(-named, axis=2, kind="stable")[:, :, :num_beams]
    return np.take_along_axis(named, order, 2), np.take_along_axis(ids, order, 2)
