"""The bank: exact CIDEr-D, nearest pictures as by brute force, refused where it is damaged."""

from pathlib import Path

import numpy as np
import pytest

from coscap.contexts.bank import Bank, write_bank
from coscap.contexts.grams import CaptionVectors
from coscap.errors import UserError

WORDS = "a dog cat runs on the green grass near two red buses and kites".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bank, np.ndarray, list[list[list[str]]]]:
    chance = np.random.default_rng(0)
    features = chance.normal(size=(30, 12)).astype(np.float32)
    captions = [
        [[str(w) for w in chance.choice(WORDS, int(chance.integers(3, 9)))] for _ in range(1 + i % 4)]
        for i in range(30)
    ]
    return (
        write_bank(tmp_path_factory.mktemp("bank") / "b", features, captions, dimensions=6),
        features,
        captions,
    )


def test_similarity_is_cider_d(made: tuple[Bank, np.ndarray, list[list[list[str]]]]) -> None:
    """Against the metric itself, whose references are the bank's pictures: one caption an image at a time."""
    bank, _, captions = made
    candidate = "a dog runs on the green green grass".split()
    candidates = [candidate, ["zebra"], [], ["a", "dog"], candidate[::-1]]
    pictures = np.array([0, 7, 13])
    found = bank.neighbour_captions(pictures).similarity(CaptionVectors.of(bank, candidates))
    said = [words for picture in pictures.tolist() for words in captions[picture]]
    expected = [[_cider_d(each, words, captions) for words in said] for each in candidates]
    assert found == pytest.approx(np.array(expected), abs=1e-9)
    assert found[0].max() > 0


def _cider_d(candidate: list[str], reference: list[str], documents: list[list[list[str]]]) -> float:
    def grams(words: list[str], n: int) -> dict[tuple[str, ...], int]:
        counts: dict[tuple[str, ...], int] = {}
        for at in range(len(words) - n + 1):
            gram = tuple(words[at : at + n])
            counts[gram] = counts.get(gram, 0) + 1
        return counts

    total = 0.0
    for n in range(1, 5):

        def weigh(words: list[str], n: int = n) -> dict[tuple[str, ...], float]:
            found = {}
            for gram, count in grams(words, n).items():
                df = sum(any(gram in grams(caption, n) for caption in each) for each in documents)
                found[gram] = count * (np.log(len(documents)) - np.log(max(1, df)))
            return found

        one, other = weigh(candidate), weigh(reference)
        lengths = np.sqrt(sum(v * v for v in one.values())) * np.sqrt(sum(v * v for v in other.values()))
        if lengths:
            total += sum(min(one[g], other[g]) * other[g] for g in one.keys() & other.keys()) / lengths
    difference = len(candidate) - len(reference)
    return float(10 * total / 4 * np.exp(-(difference**2) / 72))


def test_nearest_are_those_of_brute_force_on_the_vectors(
    made: tuple[Bank, np.ndarray, list[list[list[str]]]],
) -> None:
    bank, features, _ = made
    found = bank.nearest(features, 5)
    assert (found[:, 0] == np.arange(30)).all()  # each picture is most like itself
    vectors = bank.arrays["vectors"].astype(np.float64)
    mine = bank._project(features[3:4])[0]
    order = sorted(range(30), key=lambda i: (-float(mine @ (vectors[i] / 127).astype(np.float32)), i))
    assert found[3].tolist() == order[:5]


def test_consensus_prefers_what_the_neighbours_say(
    made: tuple[Bank, np.ndarray, list[list[list[str]]]],
) -> None:
    bank, _, captions = made
    neighbours = np.array([4, 9])
    said = captions[4][0]
    scores = bank.neighbour_captions(neighbours).consensus(
        CaptionVectors.of(bank, [said, ["zebra", "xylophone"], []]), best=3
    )
    assert scores[0] > scores[1] == scores[2] == 0
    assert bank.captions_of(9) == captions[9]


def test_shares_of_pictures_that_have_a_word(made: tuple[Bank, np.ndarray, list[list[list[str]]]]) -> None:
    bank, _, captions = made
    pictures = [4, 9, 17, 22]
    said = bank.neighbour_captions(np.array(pictures))

    def share(words: set[str]) -> float:
        return sum(any(words & set(each) for each in captions[at]) for at in pictures) / len(pictures)

    assert said.shares.tolist() == [share({word}) for word in bank.words]
    groups = np.array([{"dog": 0, "cat": 0, "kites": 1}.get(word, -1) for word in bank.words])
    assert said.shares_of(groups).tolist() == [share({"dog", "cat"}), share({"kites"})]


def test_a_damaged_bank_is_refused_in_one_sentence(
    made: tuple[Bank, np.ndarray, list[list[list[str]]]], tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(made[0].path, folder)
    np.save(folder / "picture_captions.npy", np.arange(3, dtype=np.uint8))
    with pytest.raises(UserError, match="do not fit"):
        Bank.open(folder)
    np.save(folder / "picture_captions.npy", np.full(3, -1, np.int8))
    with pytest.raises(UserError, match="of another kind"):
        Bank.open(folder)
    (folder / "tokens.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match=r"tokens\.npy is missing or damaged"):
        Bank.open(folder)
    (folder / "bank.json").write_text("{}")
    with pytest.raises(UserError, match="coscap bank"):
        Bank.open(folder)
    with pytest.raises(UserError, match="width 12"):
        made[0].nearest(np.zeros((1, 5), np.float32))
    with pytest.raises(UserError, match="needs pictures"):
        write_bank(tmp_path / "none", np.zeros((0, 3), np.float32), [])
