"""Constrained beam search: against brute force, with phrases, several constraints, detections and a way out."""

from dataclasses import replace

import pytest
import torch

from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text.vocabulary import SPECIAL, Vocabulary
from search_tiny import (
    IDS,
    VOCABULARY,
    TinyModel,
    contains,
    every_caption,
    one_picture,
    pictures,
    ranked,
    same,
)
from search_tiny import one_thread as one_thread

Units = tuple[str, ...]


def any_of(units: Units, *phrases: str) -> bool:
    return any(contains(units, tuple(phrase.split(" "))) or phrase in units for phrase in phrases)


WISHES = [
    (("zebra",), None, lambda units: any_of(units, "zebra", "zebras")),
    (("zebra", "car"), None, lambda units: any_of(units, "zebra", "zebras") and any_of(units, "car")),
    (("near a",), None, lambda units: any_of(units, "near a")),
    (("a a near",), None, lambda units: any_of(units, "a a near")),
    (("near car|car near", "fire hydrant"), None,
     lambda units: any_of(units, "near car", "car near") and "fire hydrant" in units),
    (("zebra", "car", "fire hydrant", "near"), 2,
     lambda units: sum([any_of(units, "zebra", "zebras"), "car" in units, "fire hydrant" in units,
                        "near" in units]) >= 2),
]  # fmt: skip


@pytest.mark.parametrize(("must", "at_least", "meets"), WISHES)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_full_beam_finds_the_best_captions_that_meet_the_constraints(
    must: Units, at_least: int | None, meets: object, length_penalty: float
) -> None:
    model, batch = TinyModel(seed=21), pictures(1)
    settings = SearchSettings(
        search="constrained", must=must, at_least=at_least, num_beams=6**4, max_length=4, draws=1,
        length_penalty=length_penalty, exhaustive=True, max_rows=10**6,
    )  # fmt: skip
    found = generate(model, batch, VOCABULARY, 10, settings)[0]
    every = ranked(every_caption(model, batch, 4), length_penalty)
    best = [(units, score) for units, score in every if meets(units)][:10]  # type: ignore[operator]
    assert [caption.tokens for caption in found if caption.satisfied] == [units for units, _ in best]
    assert [c.log_probability for c in found if c.satisfied] == pytest.approx([score for _, score in best])


@pytest.mark.parametrize(("must", "at_least", "meets"), WISHES)
def test_a_small_beam_meets_the_constraints_under_each_draw(
    must: Units, at_least: int | None, meets: object
) -> None:
    model, batch = TinyModel(seed=22), pictures(4)
    settings = SearchSettings(
        search="constrained", must=must, at_least=at_least, num_beams=2, max_length=7, seed=5
    )
    found = generate(model, batch, VOCABULARY, 5, settings)
    assert all(meets(caption.tokens) and caption.satisfied for row in found for caption in row)  # type: ignore[operator]
    assert [[caption.draw for caption in row] for row in found] == [list(range(5))] * 4
    assert len({caption.text for row in found for caption in row}) > 6
    alone = [generate(model, one_picture(batch, p), VOCABULARY, 5, settings)[0] for p in range(4)]
    small = generate(model, batch, VOCABULARY, 5, settings.model_copy(update={"max_rows": 20}))
    assert same(found, alone) and same(found, small)


def test_without_room_for_the_constraints_the_nearest_captions_are_given_and_marked() -> None:
    model, batch = TinyModel(seed=23), pictures(1)
    settings = SearchSettings(
        search="constrained",
        must=("zebra", "car", "near"),
        num_beams=40,
        max_length=2,
        draws=1,
        exhaustive=True,
    )
    found = generate(model, batch, VOCABULARY, 3, settings)[0]
    assert not any(caption.satisfied for caption in found)
    wanted = [{"zebra", "zebras"}, {"car"}, {"near"}]
    two = [
        item
        for item in every_caption(model, batch, 2)
        if sum(bool(set(item[0]) & one) for one in wanted) == 2
    ]
    assert [caption.tokens for caption in found] == [units for units, _ in ranked(two, 1.0)[:3]]


def test_forbidden_words_are_not_used_to_meet_a_constraint() -> None:
    settings = SearchSettings(
        search="constrained", must=("zebra|car",), without=("zebra",), num_beams=3, max_length=5
    )
    for caption in generate(TinyModel(seed=24), pictures(1), VOCABULARY, 6, settings)[0]:
        assert "car" in caption.tokens and not {"zebra", "zebras"} & set(caption.tokens)


def test_a_synonym_stands_for_itself_and_a_class_name_for_all_its_words() -> None:
    vocabulary = Vocabulary((*SPECIAL, "a", "man", "men", "woman", "person", "stop", "sign"))
    model, batch = TinyModel(seed=25, vocabulary=len(vocabulary)), pictures(3)

    def texts_with(must: str) -> list[str]:
        settings = SearchSettings(search="constrained", must=(must,), num_beams=2, max_length=4)
        captions = generate(model, batch, vocabulary, 20, settings)
        assert all(caption.satisfied for row in captions for caption in row)
        return [caption.text for row in captions for caption in row]

    assert all({"man", "men"} & set(text.split()) for text in texts_with("man"))
    assert any(not {"man", "men"} & set(text.split()) for text in texts_with("person"))
    settings = SearchSettings(search="constrained", must=("stop sign",), num_beams=2, max_length=4)
    for row in generate(model, batch, vocabulary, 5, settings):
        assert all("stop sign" in caption.text for caption in row)  # two units where it is not one


def test_objects_that_were_detected_and_not_named_are_brought_in() -> None:
    model = TinyModel(seed=26)
    batch = pictures(3)
    zebra, car, hydrant, bus = 22, 2, 10, 5  # COCO's numbers
    batch = replace(
        batch,
        labels=torch.tensor([[zebra, car, -1], [hydrant, hydrant, zebra], [bus, -1, -1]]),
        scores=torch.tensor([[0.9, 0.3, 1.0], [0.8, 0.7, 0.6], [0.9, 1.0, 1.0]]),
    )
    settings = SearchSettings(search="constrained", detected=2, num_beams=3, max_length=6)
    found = generate(model, batch, VOCABULARY, 4, settings)
    said = [
        set(row[0].tokens)
        for row in generate(model, batch, VOCABULARY, 1, SearchSettings(latent_temperature=0.0, max_length=6))
    ]
    for caption in found[0]:
        assert {"zebra", "zebras"} & (set(caption.tokens) | said[0])
    for caption in found[1]:
        assert {"zebra", "zebras"} & (set(caption.tokens) | said[1])
        assert "fire hydrant" in set(caption.tokens) | said[1]
    assert all(caption.satisfied for row in found for caption in row)  # "bus" is no word of this model
    sure = settings.model_copy(update={"detected_score": 0.95})
    beams = SearchSettings(search="beam", draws=4, num_beams=3, max_length=6)
    assert same(generate(model, batch, VOCABULARY, 4, sure), generate(model, batch, VOCABULARY, 4, beams))


def test_ids_of_the_tests_are_as_thought() -> None:
    assert list(IDS.values()) == list(range(6, 12))
