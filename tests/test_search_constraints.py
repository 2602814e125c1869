"""Lengths, forbidden words and phrases, repeated n-grams and beginnings, in every search."""

import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from coscap.errors import UserError
from coscap.seam import Caption
from coscap.search.config import SearchSettings, settings_from
from coscap.search.constraints import TokenConstraints, shortest_way
from coscap.search.generate import generate
from coscap.text.vocabulary import SPECIAL, Vocabulary
from search_tiny import VOCABULARY, TinyModel, contains, every_caption, pictures, ranked
from search_tiny import one_thread as one_thread

SEARCHES = [
    {"search": "latent"},
    {"search": "latent", "do_sample": True},
    {"search": "latent", "num_beams": 2},
    {"search": "beam"},
    {"search": "diverse", "num_beams": 2},
    {"search": "constrained", "must": ("near",), "num_beams": 2},
]


def captions(number: int, **changes: object) -> list[Caption]:
    settings = SearchSettings(**{"max_length": 7, **SEARCHES[number], **changes})  # type: ignore[arg-type]
    found = generate(TinyModel(seed=31, sharp=0.6), pictures(6), VOCABULARY, 5, settings)
    return [caption for row in found for caption in row]


@pytest.mark.parametrize("number", range(len(SEARCHES)))
def test_lengths(number: int) -> None:
    lengths = {len(caption.tokens) for caption in captions(number)}
    assert lengths <= set(range(1, 8)) and min(lengths) < 5
    assert {len(caption.tokens) for caption in captions(number, min_length=5, max_length=6)} <= {5, 6}
    assert {len(caption.tokens) for caption in captions(number, min_length=3, max_length=3)} == {3}


@pytest.mark.parametrize("number", range(len(SEARCHES)))
def test_forbidden_words_and_phrases(number: int) -> None:
    before = captions(number)
    assert any(set(caption.tokens) & {"zebra", "zebras"} for caption in before)
    pairs = Counter(pair for caption in before for pair in pairwise(caption.tokens))
    pair = max((pair for pair in pairs if not {"zebra", "zebras"} & set(pair)), key=lambda pair: pairs[pair])
    after = captions(number, without=("zebra", " ".join(pair)))
    assert not any(set(caption.tokens) & {"zebra", "zebras"} for caption in after)
    assert not any(contains(caption.tokens, pair) for caption in after)


@pytest.mark.parametrize("number", range(len(SEARCHES)))
@pytest.mark.parametrize("size", [1, 2])
def test_no_n_gram_twice(number: int, size: int) -> None:
    def repeats(found: list[Caption]) -> int:
        grams = [[c.tokens[at : at + size] for at in range(len(c.tokens) - size + 1)] for c in found]
        return sum(len(each) > len(set(each)) for each in grams)

    assert repeats(captions(number, min_length=6)) > 0
    assert repeats(captions(number, min_length=6, no_repeat_ngram_size=size)) == 0


@pytest.mark.parametrize("number", range(len(SEARCHES)))
def test_a_fixed_beginning(number: int) -> None:
    found = captions(number, beginning="A fire hydrant near")
    assert all(caption.tokens[:3] == ("a", "fire hydrant", "near") for caption in found)
    assert len({caption.text for caption in found}) > 3


def test_constraints_take_the_best_of_what_they_leave() -> None:
    model, batch = TinyModel(seed=32), pictures(1)
    settings = SearchSettings(
        search="beam", latent_temperature=1.0, num_beams=6**4, max_length=4, min_length=2,
        no_repeat_ngram_size=1, without=("car",), exhaustive=True, max_rows=10**5,
    )  # fmt: skip
    left = [
        (units, score)
        for units, score in every_caption(model, batch, 4, shortest=2)
        if len(set(units)) == len(units) and "car" not in units
    ]
    found = generate(model, batch, VOCABULARY, 10, settings)[0]
    assert [caption.tokens for caption in found] == [units for units, _ in ranked(left, 1.0)[:10]]


def test_a_row_with_no_word_left_may_end() -> None:
    """Six words and none twice: the seventh cannot be written, though eight are asked for."""
    found = captions(0, min_length=8, max_length=9, no_repeat_ngram_size=1)
    assert {len(caption.tokens) for caption in found} == {6}


def test_a_word_without_is_forbidden_inside_of_units_too() -> None:
    assert not any("fire" in caption.text for caption in captions(0, without=("fire",)))


def test_phrases_are_forbidden_only_after_their_beginning() -> None:
    rules = TokenConstraints(never=(), min_length=0, phrases=((6, 7), (6, 6, 8)))
    mask = rules.mask(np.array([[6, 6], [8, 6], [6, 8]]))
    assert sorted(zip(mask.rows.tolist(), mask.row_tokens.tolist(), strict=True)) == [(0, 7), (0, 8), (1, 7)]
    assert mask.tokens.tolist() == []


def test_a_long_phrase_takes_no_time() -> None:
    """Every cut of "hot dog hot dog ..." into tokens was listed once: twice as many for each further one."""
    vocabulary = Vocabulary((*SPECIAL, "hot", "dog", "hot dog", "a"))
    text = " ".join(["hot dog"] * 25)
    begin = time.process_time()
    assert shortest_way(text, vocabulary) == (vocabulary.id("hot dog"),) * 25
    assert shortest_way(text + " cat", vocabulary) is None
    model, batch = TinyModel(vocabulary=len(vocabulary)), pictures(1)
    (found,) = generate(model, batch, vocabulary, 1, SearchSettings(beginning=text, max_length=26))[0]
    assert found.tokens[:25] == ("hot dog",) * 25
    settings = SearchSettings(without=(" ".join(["hot dog"] * 5),), max_length=12, min_length=12)
    assert not any(text[:39] in each.text for each in generate(model, batch, vocabulary, 5, settings)[0])
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"beginning": "a " * 201}, "beginning is 'a a"),
        ({"must": ("zebra " * 40,)}, "must.0 is 'zebra"),
        ({"must": ("a zebra near a zebra near a car near a car",)}, "has 11 words, and 10 is the most"),
        ({"must": ("|".join(["zebra"] * 21),)}, "has 21 alternatives, and 20 is the most"),
        ({"without": ("zebra",) * 101}, "without is"),
        ({"without": ("a zebra near a zebra near a car near a car",)}, "has 11 words"),
        ({"max_length": 100_000}, "max_length is 100000"),
    ],
)
def test_what_is_too_long_is_refused_at_once(values: dict[str, object], words: str) -> None:
    begin = time.process_time()
    with pytest.raises(UserError, match=words):
        generate(TinyModel(), pictures(1), VOCABULARY, 1, settings_from(**values))
    assert time.process_time() - begin < 10


def test_the_largest_automaton_is_refused_before_its_beams_are_made() -> None:
    names = [f"w{number}" for number in range(900)]
    vocabulary = Vocabulary((*SPECIAL, *names))
    must = tuple(
        "|".join(
            " ".join(names[40 * (5 * part + place) + 9 * k :][:9]) for k in range(4) for place in range(1)
        )
        for part in range(4)
    )
    begin = time.process_time()
    with pytest.raises(UserError, match="more than 256 beams"):
        generate(
            TinyModel(vocabulary=len(vocabulary)), pictures(1), vocabulary, 1,
            SearchSettings(search="constrained", must=must),
        )  # fmt: skip
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("number", range(len(SEARCHES)))
def test_every_step_asks_whether_the_work_is_wanted(number: int) -> None:
    model, calls = TinyModel(seed=31, sharp=0.6), []

    def check() -> None:
        calls.append(model.steps)

    settings = SearchSettings(**{"max_length": 7, **SEARCHES[number]})  # type: ignore[arg-type]
    generate(model, pictures(3), VOCABULARY, 4, settings, check=check)
    assert calls == list(range(model.steps))
