"""What people would write about a picture: against a plain ridge regression, and by what it says of captions."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from coscap.contexts import phrases
from coscap.contexts.bank import Bank, write_bank
from coscap.contexts.grams import CaptionVectors
from coscap.contexts.judge import UNFITTED, Judge, Judgement
from coscap.contexts.phrases import Seen, learn_phrases, probable
from coscap.errors import UserError
from coscap.pool import rank
from coscap.seam import Caption
from coscap.text import load_classes
from coscap.vision.tags import Tagger

SCENES = {
    0: ("a cat on a bed", "the cat sleeps on a bed"),
    1: ("a dog in the park", "a dog runs in the park"),
    2: ("a red bus on a street", "a bus drives down a street"),
}
COUNT, WIDTH, WORDS = 60, 4, 5


def world(seed: int = 0) -> tuple[Seen, list[list[list[str]]]]:
    """Pictures of three scenes: each has a direction of the vector, a class or a word that goes with it."""
    random = np.random.default_rng(seed)
    scene = np.arange(COUNT) % 3
    vectors = random.normal(0, 0.1, (COUNT, WIDTH)).astype(np.float32)
    vectors[np.arange(COUNT), scene] += 1
    scores = np.zeros((COUNT, 2), np.float32)
    scores[scene == 0, 0], scores[scene == 1, 1] = 0.9, 0.8
    words = np.where(random.random((COUNT, WORDS)) < 0.3, 0.5, 0).astype(np.float32)
    captions = [[text.split() for text in SCENES[int(each)]] for each in scene]
    return Seen(vectors, scores, words, ("cat", "dog")), captions


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    seen, captions = world()
    return write_bank(
        tmp_path_factory.mktemp("phrases") / "bank",
        seen.vectors[::2],
        captions[::2],
        dimensions=4,
        seen=seen.of(np.arange(0, COUNT, 2)),
        learn_from=(seen, captions),
    )


def plain_weights(bank: Bank, caption: list[str]) -> dict[tuple[str, ...], float]:
    """CIDEr's unit tf-idf vector of a caption, phrases of one to three words, each order by itself."""
    _, captions = world()
    df = Counter(
        gram
        for each in captions[::2]
        for gram in {tuple(c[i : i + n]) for c in each for n in range(1, 5) for i in range(len(c) - n + 1)}
    )
    found = {}
    for n in (1, 2, 3):
        counts = Counter(tuple(caption[i : i + n]) for i in range(len(caption) - n + 1))
        weight = {g: k * (np.log(30) - np.log(max(1, df[g]))) for g, k in counts.items()}
        size = np.sqrt(sum(w * w for w in weight.values()))
        found |= {g: w / size if size else 0.0 for g, w in weight.items()}
    return found


def test_it_is_the_ridge_regression_of_the_captions_vectors(bank: Bank) -> None:
    """At full rank: expected weights = mean + x (X'X + ridge)^-1 X'Y, written out with every phrase that occurs."""
    seen, captions = world()
    assert bank.phrases is not None
    rows = [[plain_weights(bank, caption) for caption in each] for each in captions]
    often = Counter(
        gram
        for each in captions
        for gram in {tuple(c[i : i + n]) for c in each for n in (1, 2, 3) for i in range(len(c) - n + 1)}
    )
    grams = [gram for gram, count in often.items() if count >= phrases.FEWEST]
    assert len(grams) == len(bank.phrases.arrays["phrase_grams"])
    y = np.array([[np.mean([row.get(gram, 0.0) for row in each]) for gram in grams] for each in rows])
    x = np.concatenate([seen.vectors, seen.scores, seen.words], axis=1).astype(np.float64)
    scale = np.r_[
        np.full(WIDTH, 1 / seen.vectors.std()), np.full(2 + WORDS, phrases.LOUD / x[:, WIDTH:].std())
    ]
    centred = (x - x.mean(axis=0)) * scale
    ridge = phrases.RIDGE * COUNT + phrases.RIDGE_LEAST
    solved = np.linalg.solve(
        centred.T @ centred + ridge * np.eye(x.shape[1]), centred.T @ (y - y.mean(axis=0))
    )
    texts = ["a cat on a bed", "a dog in the park", "a red bus", "the unicorn"]
    for picture in (0, 1, 2, 7):
        weights = dict(zip(grams, y.mean(axis=0) + centred[picture] @ solved, strict=True))
        plain = [
            10 / 3 * sum(w * weights.get(g, 0.0) for g, w in plain_weights(bank, text.split()).items())
            for text in texts
        ]
        detected = {"cat": [0.2, float(seen.scores[picture, 0])], "dog": [float(seen.scores[picture, 1])]}
        if not seen.scores[picture, 0]:
            detected.pop("cat")
        expected = bank.phrases.expected(seen.vectors[picture], detected, seen.words[picture])
        found = expected.agreement(CaptionVectors.of(bank, [text.split() for text in texts]))
        assert found == pytest.approx(plain, abs=0.03)  # whole numbers of 8 bits, half precision
        assert found.argmax() == picture % 3


def test_a_lower_rank_keeps_what_changes_most(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, captions = world()
    monkeypatch.setattr(phrases, "RANK", 2)  # three scenes lie in a plane
    small = learn_phrases(bank, seen, captions)
    assert small is not None and bank.phrases is not None
    assert small.arrays["phrase_map"].shape == (WIDTH + 2 + WORDS, 2)
    texts = [text.split() for each in SCENES.values() for text in each]
    for picture in range(3):
        cat, dog = seen.scores[picture].tolist()
        told = (seen.vectors[picture], {"cat": [cat], "dog": [dog]}, seen.words[picture])
        few, all_ = (
            each.expected(*told).agreement(CaptionVectors.of(bank, texts)) for each in (small, bank.phrases)
        )
        assert np.corrcoef(few, all_)[0, 1] > 0.98


def test_captions_do_not_depend_on_each_other(bank: Bank) -> None:
    assert bank.phrases is not None
    seen, _ = world()
    expected = bank.phrases.expected(seen.vectors[0], {}, seen.words[0])
    texts = [text.split() for each in SCENES.values() for text in each]
    together = expected.agreement(CaptionVectors.of(bank, texts))
    alone = [expected.agreement(CaptionVectors.of(bank, [text]))[0] for text in texts]
    assert together.tolist() == pytest.approx(alone)
    assert expected.agreement(CaptionVectors.of(bank, [[]])).tolist() == [0.0]


def test_neighbours_are_pictures_about_which_people_write_alike(bank: Bank) -> None:
    """A picture of a scene, whatever its vector says besides, has those of its scene as neighbours."""
    assert bank.phrases is not None
    seen, captions = world(seed=5)
    for picture in range(3):
        cat, dog = seen.scores[picture].tolist()
        expected = bank.phrases.expected(
            seen.vectors[picture], {"cat": [cat], "dog": [dog]}, seen.words[picture]
        )
        near = bank.nearest(expected.place[None], 10)[0]
        assert [bank.captions_of(at) for at in near.tolist()] == [captions[picture]] * 10


def test_places_are_those_of_the_whole_vectors(bank: Bank) -> None:
    """What was written has the numbers that a least-squares fit of its phrases by the directions has."""
    assert bank.phrases is not None
    seen, captions = world()
    some = np.array([0, 1, 2])
    a = bank.phrases.arrays
    directions = a["phrase_vectors"].astype(float) * a["phrase_scales"][:, None]
    real = np.flatnonzero(
        a["phrase_sizes"] > 1e-3 * a["phrase_sizes"].max()
    )  # three scenes need two directions
    found = phrases.places(bank, bank.phrases, seen.of(some), [captions[at] for at in some])
    for row, at in enumerate(some.tolist()):
        written = phrases._weights(bank, captions[at], a["phrase_grams"]) - a["phrase_means"]
        fitted = np.linalg.lstsq(directions[:, real], written, rcond=None)[0]
        foretold = seen.numbers[at] @ a["phrase_map"].astype(float) - a["phrase_shift"]
        plain = (fitted + foretold[real]) * np.sqrt(a["phrase_sizes"][real])
        assert found[row, real] == pytest.approx(plain, abs=0.02 * np.abs(plain).max())


def test_only_probable_words_count() -> None:
    probabilities = np.full(30, 0.1, np.float32)
    probabilities[3:23] = np.linspace(0.2, 0.9, 20)
    kept = probable(probabilities)
    assert (kept > 0).sum() == phrases.WORDS and kept[22] == np.float32(0.9) and kept[3] == 0
    assert probable(np.array([0.5, 0.01], np.float32)).tolist() == [0.5, 0.0]


def test_no_phrase_often_enough_is_no_map_and_the_bank_works_without(tmp_path: Path) -> None:
    seen = Seen(np.eye(2, dtype=np.float32), np.zeros((2, 0), np.float32), np.zeros((2, 3), np.float32), ())
    captions = [[["a", "cat"]], [["a", "dog"]]]
    learn_from = (seen, captions)
    made = write_bank(
        tmp_path / "bank", seen.vectors, captions, dimensions=2, seen=seen, learn_from=learn_from
    )
    assert made.phrases is None and not list((tmp_path / "bank").glob("phrase_*"))
    judge = Judge(Tagger(), UNFITTED, made)
    known = judge.known_of(seen.vectors[0], np.full(len(judge.reader.words), 0.1, np.float32), {})
    (only,) = judge.judge_known([["a", "cat"]], known, load_classes("coco"))
    assert only.expected == 0.0


def test_what_is_expected_counts_for_what_is_shown() -> None:
    """Two captions that differ in nothing else."""
    pool = [
        Caption(tuple(t.split()), -5.0, 0, np.zeros((3, 1), np.float32))
        for t in ("a cat sits", "a cat stands")
    ]
    judged = [Judgement(0.9, 0.9, (), 1.0, expected, ()) for expected in (0.2, 0.7)]
    worth, tiers = rank(pool, judged, UNFITTED.shown)
    assert worth[1] > worth[0] and tiers == [0, 0]


def test_damaged_phrases_and_other_eyes_are_one_sentence(bank: Bank, tmp_path: Path) -> None:
    assert bank.phrases is not None
    with pytest.raises(UserError, match="learnt from 11 numbers a picture, and these eyes give 9"):
        bank.phrases.expected(np.zeros(2, np.float32), {}, np.zeros(WORDS, np.float32))
    broken = tmp_path / "bank"
    shutil.copytree(bank.path, broken)
    np.save(broken / "phrase_shift.npy", np.zeros(3, np.float32))
    with pytest.raises(UserError, match="do not fit each other"):
        Bank.open(broken)
    (broken / "phrase_shift.npy").unlink()
    with pytest.raises(UserError, match=r"phrase_shift\.npy is missing or damaged"):
        Bank.open(broken)
