"""The automata by themselves: against a plain look at the caption."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coscap.search.constrained import Automaton, build, stack

WORD = st.integers(1, 4)
PHRASE = st.lists(WORD, min_size=1, max_size=3).map(tuple)
CONSTRAINTS = st.lists(st.frozensets(PHRASE, min_size=1, max_size=3), min_size=0, max_size=4)


def contains(caption: list[int], phrase: tuple[int, ...]) -> bool:
    return any(tuple(caption[at : at + len(phrase)]) == phrase for at in range(len(caption)))


@settings(max_examples=400, deadline=None)
@given(CONSTRAINTS, st.integers(1, 4), st.lists(st.integers(0, 5), max_size=14))
def test_a_state_counts_the_constraints_that_the_caption_contains(
    constraints: list[frozenset[tuple[int, ...]]], at_least: int, caption: list[int]
) -> None:
    machine = build(constraints, at_least)
    required = min(at_least, len(constraints))
    assert machine.required == required
    for end in range(len(caption) + 1):
        met = sum(any(contains(caption[:end], phrase) for phrase in phrases) for phrases in constraints)
        assert machine.met[machine.walk(caption[:end])] == min(met, required)


def test_phrases_that_overlap_themselves() -> None:
    machine = build([frozenset({(1, 1, 2)})])
    assert machine.met[machine.walk([1, 1, 1, 2])] == 1  # "a a a b" contains "a a b"
    assert machine.met[machine.walk([1, 2, 1, 1])] == 0
    assert len(machine.default) == 4  # nothing, "a", "a a", all
    assert machine.kinds == ((1,), (2,))


def test_sizes_are_those_of_the_paper() -> None:
    """Four constraints of single words: 2^4 states. At least one of them: two states."""
    constraints = [frozenset({(word,), (word + 10,)}) for word in range(4)]
    assert len(build(constraints).default) == 16
    assert len(build(constraints).kinds) == 4  # both words of a constraint act alike
    assert len(build(constraints, 1).default) == 2
    assert len(build([], None).default) == 1


def test_a_word_may_meet_two_constraints_and_a_phrase_inside_another() -> None:
    machine = build([frozenset({(7,)}), frozenset({(6, 7)}), frozenset({(5, 6, 7, 8)})])
    assert [machine.met[machine.walk([5, 6, 7, 8][:end])] for end in range(5)] == [0, 0, 0, 2, 3]


def test_a_phrase_that_contains_an_alternative_adds_no_state() -> None:
    assert build([frozenset({(3,), (5, 3), (4, 3, 5)})]) == build([frozenset({(3,)})])


def test_stacked_machines_are_padded() -> None:
    one, two = build([frozenset({(7,), (6,)})]), build([frozenset({(8, 9)}), frozenset({(7,)})])
    both = stack([one, two, build([])])
    assert both.tokens[0].tolist() == [[6, 7], [-1, -1], [-1, -1]]
    assert both.tokens[1].tolist() == [[7, -1], [8, -1], [9, -1]]
    assert (both.tokens[2] == -1).all()
    assert both.required.tolist() == [1, 2, 0]
    assert both.states == len(two.default)
    _walks_alike(one, both.table[0].tolist(), both.default[0].tolist(), both.met[0].tolist())


def _walks_alike(machine: Automaton, table: list[list[int]], default: list[int], met: list[int]) -> None:
    for caption in ([1], [7], [1, 7, 2], []):
        state = 0
        for word in caption:
            kinds = [kind for kind, words in enumerate(machine.kinds) if word in words]
            state = table[state][kinds[0]] if kinds else default[state]
        assert met[state] == machine.met[machine.walk(caption)]
