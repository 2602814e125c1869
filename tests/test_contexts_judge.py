"""Support: what the photograph bears out counts for more than what it does not, and chooses what is shown."""

from pathlib import Path

import numpy as np
import pytest

from coscap.captioner import _best
from coscap.contexts.bank import write_bank
from coscap.contexts.judge import (
    CAPTION_FEATURES,
    UNFITTED,
    Judge,
    Judgement,
    WordFeatures,
    caption_row,
    detections_of,
)
from coscap.errors import UserError
from coscap.seam import Caption
from coscap.text import load_classes
from coscap.vision.pictures import open_picture
from coscap.vision.regions import Recipe, Regions
from coscap.vision.tags import Evidence, Tagger

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
    true, invented, half = judge.judge(texts, [-1.0] * 3, coffee, COCO, {"cup": 0.9})
    assert true.support > half.support > invented.support
    cup, zebra = half.words[1], half.words[6]
    assert cup is not None and zebra is not None and cup > 0.8 > 0.2 > zebra
    assert half.words[0] is None  # nothing is known of "a"
    assert invented.faults == () and true.consensus == 0.0


def test_words_of_a_class_stand_for_each_other_and_a_detection_counts(judge: Judge, coffee: Evidence) -> None:
    known = WordFeatures.of(judge.reader, coffee, COCO, {"cup": 0.9}, judge.numbers)
    cup, mug = known.row("cup"), known.row("mug")
    assert cup is not None and mug is not None and np.array_equal(cup, mug)
    assert cup[4] == 0.9 and cup[3] == 1
    man, girl = known.row("man"), known.row("girl")
    assert man is not None and girl is not None and man[1] != girl[1]  # people are told apart
    assert known.row("a") is None and known.row("xylophone") is None


def test_features_of_a_caption() -> None:
    row = dict(
        zip(CAPTION_FEATURES, caption_row([None, 0.9, 0.2], [False, True, False], 1.5, -2.0), strict=True)
    )
    assert row["least_word"] == pytest.approx(np.log(0.2)) and row["least_object"] == pytest.approx(
        np.log(0.9)
    )
    assert row["mean_word"] == pytest.approx((np.log(0.9) + np.log(0.2)) / 2)
    assert (row["unsure_words"], row["consensus"], row["log_probability"]) == (1, 1.5, -2.0)
    assert np.isfinite(caption_row([None], [False], 0.0, 0.0)).all()


def test_consensus_comes_from_the_bank(judge: Judge, coffee: Evidence, tmp_path: Path) -> None:
    features = np.stack([coffee.vector, -coffee.vector, np.roll(coffee.vector, 7)])
    said = [[["a", "cup", "of", "coffee"]], [["a", "red", "bus"]], [["two", "dogs", "run"]]]
    with_bank = Judge(judge.tagger, UNFITTED, write_bank(tmp_path / "bank", features, said, dimensions=2))
    agreed = with_bank.consensus([["a", "cup", "of", "coffee"], ["a", "green", "train"]], coffee)
    assert agreed[0] > agreed[1] >= 0
    assert with_bank.digest != judge.digest


def test_what_is_shown_has_no_fault_while_others_are_left() -> None:
    pool = [caption("a cat next to a cat", -1.0), caption("a cat on a bed", -6.0), caption("a dog", -2.0)]
    judged = {
        pool[0].text: Judgement(0.9, (), 5.0, ("cat is named twice",)),
        pool[1].text: Judgement(0.8, (), 1.0, ()),
        pool[2].text: Judgement(0.1, (), 1.0, ()),
    }
    assert [each.text for each in _best(pool, judged, 1, 0.5)] == ["a cat on a bed"]
    shown = _best(pool, judged, 3, 0.5)
    assert shown[0].text == "a cat on a bed" and len(shown) == 3
    assert [each.text for each in _best(pool, {}, 1, 0.0)] == [
        "a cat next to a cat"
    ]  # without a judge: the likeliest


def test_detections_are_the_best_of_each_class() -> None:
    recipe = Recipe("made/1", 2, ("cat", "dog"), 4, 1, words=("grass",), most_words=2)
    labels = np.array([0, 1, 0, 2, -1], np.int16)
    scores = np.array([0.3, 0.6, 0.8, 0.9, 1.0], np.float32)
    regions = Regions(np.zeros((5, 2), np.float16), np.zeros((5, 4), np.float32), labels, scores)
    assert detections_of(regions, recipe) == pytest.approx({"cat": 0.8, "dog": 0.6})


def test_weights_of_another_version_are_refused(judge: Judge) -> None:
    with pytest.raises(UserError, match="do not fit"):
        Judge(judge.tagger, {"word": [1.0], "caption": [1.0]})
