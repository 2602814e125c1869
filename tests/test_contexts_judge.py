"""Support: what the photograph bears out counts for more than what it does not, and chooses what is shown."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from coscap.contexts.bank import NeighbourCaptions, write_bank
from coscap.contexts.judge import UNFITTED, Judge, Judgement, Known, SupportWeights, detected_scores
from coscap.contexts.word_support import UNSEEN, WORD_FEATURES, WordFeatures, calibrated, probably_true
from coscap.errors import UserError
from coscap.files import write_json
from coscap.pool import rank
from coscap.seam import Caption
from coscap.search.select import select
from coscap.text import load_classes
from coscap.text.numbers import NUMBERS
from coscap.vision.pictures import open_picture
from coscap.vision.regions import Recipe, Regions
from coscap.vision.tags import Tagger
from coscap.vision.words import Evidence

EXAMPLES = Path(__file__).parents[1] / "examples"
COCO = load_classes("coco")


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(Tagger(), UNFITTED)


@pytest.fixture(scope="module")
def coffee(judge: Judge) -> Evidence:
    return judge.tagger.look([open_picture(EXAMPLES / "coffee.jpg")])[0]


def caption(text: str, log_probability: float = -5.0) -> Caption:
    tokens = tuple(text.split())
    return Caption(tokens, log_probability, 0, np.zeros((len(tokens), 1), np.float32))


def test_a_true_caption_has_more_support_than_an_invented_one(judge: Judge, coffee: Evidence) -> None:
    texts = [
        "a cup of coffee on a table".split(),
        "a zebra riding a bus".split(),
        "a cup of coffee and a zebra".split(),
    ]
    true, invented, half = judge.judge(texts, coffee, COCO, {"cup": [0.9]})
    assert true.support > half.support > invented.support
    assert true.objects > half.objects > invented.objects
    cup, zebra = half.words[1], half.words[6]
    assert cup is not None and zebra is not None and cup > 0.8 > 0.2 > zebra
    assert half.words[0] is None  # nothing is known of "a"
    assert invented.faults == () and true.consensus == 0.0


def features(
    judge: Judge, coffee: Evidence, drawn: list[list[str]], said: NeighbourCaptions | None = None
) -> WordFeatures:
    known = Known(judge.reader.probabilities(coffee.words), {"cup": [0.9]}, said, None)
    return judge.features(drawn, known, COCO)


def named(row: np.ndarray | None) -> dict[str, float]:
    assert row is not None
    return dict(zip(WORD_FEATURES, row.tolist(), strict=True))


def test_words_of_a_class_stand_for_each_other_and_a_detection_counts(judge: Judge, coffee: Evidence) -> None:
    known = features(judge, coffee, [["a", "cup"]])
    cup, mug = named(known.row("cup")), named(known.row("mug"))
    assert cup == mug and cup["detection"] == 0.9 and cup["object"] == 1
    man, girl = named(known.row("man")), named(known.row("girl"))
    assert man["log_odds"] != girl["log_odds"] and man["person"] == 1  # people are told apart
    assert known.row("a") is None
    assert (
        named(known.row("xylophone"))["log_odds"] == UNSEEN
    )  # the eyes do not know it, but it says something


def test_a_word_that_other_captions_have_has_more_support(judge: Judge, coffee: Evidence) -> None:
    drawn = [["a", "cup"], ["a", "mug"], ["two", "cups"], ["a", "spoon"]]
    known = features(judge, coffee, drawn)
    cup, spoon = named(known.row("cup")), named(known.row("spoon"))
    assert cup["drawn"] == pytest.approx(np.log(2.5 / 2.5)) and spoon["drawn"] == pytest.approx(
        np.log(0.5 / 4.5)
    )
    alone = features(judge, coffee, drawn[:1])  # there are no others: nothing is known
    assert (
        named(alone.row("cup"))["drawn"] == named(alone.row("spoon"))["drawn"] == pytest.approx(np.log(1 / 3))
    )


def test_what_was_neighbour_captions_similar_pictures_counts(
    judge: Judge, coffee: Evidence, tmp_path: Path
) -> None:
    vectors = np.stack([coffee.vector, -coffee.vector, np.roll(coffee.vector, 7)])
    said = [[["a", "mug", "of", "coffee"]], [["a", "red", "bus"]], [["two", "dogs", "run"]]]
    bank = write_bank(tmp_path / "bank", vectors, said, dimensions=2)
    with_bank = Judge(judge.tagger, UNFITTED, bank)
    agreed = [
        each.consensus
        for each in with_bank.judge([["a", "mug", "of", "coffee"], ["a", "green", "train"]], coffee, COCO, {})
    ]
    assert agreed[0] > agreed[1] >= 0
    assert with_bank.digest != judge.digest
    known = features(with_bank, coffee, [["a", "cup"]], bank.neighbour_captions(np.array([0, 1])))
    cup, bus, sheep = (named(known.row(word))["said"] for word in ("cup", "bus", "sheep"))
    assert cup == bus == pytest.approx(0) and sheep == pytest.approx(np.log(0.02 / 1.02))


def test_a_caption_is_true_with_all_objects_and_all_other_words_but_one() -> None:
    tokens, words = ["two", "dogs", "running", "the", "bus", "red"], [0.7, 0.9, 0.6, None, 0.8, 0.3]
    expected = 0.0
    for right in itertools.product(
        (False, True), repeat=6
    ):  # every way in which words can be right and wrong
        if not right[3]:
            continue  # nothing is said by "the"
        chances = [1.0 if p is None else p if ok else 1 - p for p, ok in zip(words, right, strict=True)]
        others = right[2] + right[5]
        expected += float(np.prod(chances)) * (right[0] and right[1] and right[4] and others >= 1)
    assert probably_true(tokens, words, COCO) == pytest.approx((expected, 0.9 * 0.8))
    assert probably_true(["the"], [None], COCO) == (1, 1)


def test_a_number_is_judged_by_what_was_detected(judge: Judge, coffee: Evidence) -> None:
    scores = {"cup": [0.9, 0.8, 0.3], "dog": [0.9]}
    tokens = "two large white cups and two dogs and three zebras on two tables".split()
    seen = Known(judge.reader.probabilities(coffee.words), scores, None, None)
    group = named(judge.features([], seen, COCO).row("group", "cup"))
    known = judge.features([tokens], seen, COCO)
    counts = [
        named(row)["count"] for row, token in zip(known.rows(tokens), tokens, strict=True) if token in NUMBERS
    ]
    both = 0.9 * 0.8 * 0.7 + 0.9 * 0.2 * 0.3 + 0.1 * 0.8 * 0.3  # exactly two of three
    none = np.log(0.02 / 1.02)
    assert counts == pytest.approx([np.log((both + 0.02) / (1 - both + 0.02)), none, none, none])
    three = 0.9 * 0.8 * 0.3
    assert (
        group["several_count"] == pytest.approx(np.log((three + 0.02) / (1 - three + 0.02)))
        and group["several"] == 1
    )
    assert group["number"] == group["count"] == 0
    number = named(known.row("two"))
    assert number["count"] == 0 and number["number"] == 1 and number["bias"] == 0
    right, wrong = judge.judge([["two", "cups"], ["three", "cups"]], coffee, COCO, scores)
    assert right.support > wrong.support and right.objects == wrong.objects
    assert right.words[0] is not None and wrong.words[0] is not None and right.words[0] > wrong.words[0]


def test_what_is_shown_has_no_fault_and_no_invented_object_while_others_are_left() -> None:
    pool = [caption("a cat next to a cat", -1.0), caption("a cat on a bed", -6.0), caption("a dog", -2.0)]
    pool.append(caption("a blue cat", -3.0))
    judged = [
        Judgement(0.9, 0.9, (), 5.0, 5.0, ("cat is named twice",)),
        Judgement(0.4, 0.8, (), 1.0, 1.0, ()),
        Judgement(0.9, 0.1, (), 1.0, 1.0, ()),
        Judgement(0.1, 0.9, (), 9.0, 9.0, ()),
    ]
    ranks = rank(pool, judged, UNFITTED.shown)
    assert [each.text for each in select(pool, 1, 0.5, *ranks)] == ["a cat on a bed"]
    assert [each.text for each in select(pool, 4, 0.5, *ranks)] == [pool[i].text for i in (1, 3, 2, 0)]
    assert [each.text for each in select(pool, 1, 0.0)] == [
        "a cat next to a cat"
    ]  # without a judge: the likeliest


def test_scores_of_each_class() -> None:
    recipe = Recipe("made/1", 2, ("cat", "dog"), 4, 1, words=("grass",), most_words=2)
    labels = np.array([0, 1, 0, 2, -1], np.int16)
    scores = np.array([0.3, 0.6, 0.8, 0.9, 1.0], np.float32)
    regions = Regions(np.zeros((5, 2), np.float16), np.zeros((5, 4), np.float32), labels, scores)
    assert detected_scores(regions, recipe) == {"cat": pytest.approx([0.3, 0.8]), "dog": pytest.approx([0.6])}


def test_weights_are_read_as_they_were_written_and_those_of_another_version_refused(tmp_path: Path) -> None:
    file = tmp_path / "support.json"
    write_json(file, UNFITTED.json())
    assert SupportWeights.read(file) == UNFITTED
    write_json(file, {"word": [1.0], "caption": [1.0]})
    with pytest.raises(UserError, match=r"support\.json: the weights of support do not fit"):
        SupportWeights.read(file)


def test_support_is_beta_calibrated() -> None:
    """The log-odds are a + b log p - c log(1 - p): of Platt where b = c, and rising with p. Never for certain."""
    odds = np.linspace(-6, 3, 19)
    chances = 1 / (1 + np.exp(-odds))
    platt = [calibrated(float(p), (0.3, 0.8, 0.8)) for p in chances]
    np.testing.assert_allclose(platt, 1 / (1 + np.exp(-(0.3 + 0.8 * odds))), rtol=1e-6)
    bent = np.array([calibrated(float(p), (0.1, 0.4, 1.2)) for p in chances])
    expected = 0.1 + 0.4 * np.log(chances) - 1.2 * np.log(1 - chances)
    np.testing.assert_allclose(np.log(bent / (1 - bent)), expected, rtol=1e-6)
    assert (np.diff(bent) > 0).all() and 0 < calibrated(0.0, (0.1, 0.4, 1.2)) < 0.1
    assert calibrated(1.0, (0.1, 0.4, 1.2)) == 0.99
