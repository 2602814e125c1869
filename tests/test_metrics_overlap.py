"""BLEU, ROUGE-L and CIDEr equal the official code: recorded scores, and side by side on odd captions."""

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from coscap.metrics import bleu, cider, cider_plain, rouge_l
from coscap.metrics.grams import NONE, Grams
from coscap.metrics.overlap import overlap

SAME = 1e-10
WORDS = st.sampled_from(["a", "dog", "the", "runs", "cat", "on", "25\u00a01/2"])
CAPTION = st.lists(WORDS, max_size=9).map(" ".join)


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    path = Path(__file__).parent / "data" / "metrics_demo.json.gz"
    recorded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return recorded


def test_recorded_scores_of_the_demo(demo: dict[str, Any]) -> None:
    captions = [image["tokens"] for image in demo["images"]]
    references = [[tokens for _, tokens in image["references"]] for image in demo["images"]]
    for name, ours in (
        ("BLEU", bleu(captions, references, tokenised=True)),
        ("ROUGE-L", rouge_l(captions, references, tokenised=True)),
        ("CIDEr", cider(captions, references, tokenised=True)),
    ):
        assert np.abs(np.array(ours[0]) - demo[name]).max() < SAME, name
        assert np.abs(ours[1] - np.array(demo["each"][name])).max() < SAME, name


def test_published_digits_of_the_demo_from_captions_as_written(demo: dict[str, Any]) -> None:
    captions = [image["caption"] for image in demo["images"]]
    references = [[caption for caption, _ in image["references"]] for image in demo["images"]]
    found = [*bleu(captions, references)[0], rouge_l(captions, references)[0], cider(captions, references)[0]]
    assert [f"{value:.3f}" for value in found] == ["0.579", "0.404", "0.279", "0.191", "0.396", "0.600"]
    assert found[5] == pytest.approx(0.599791, abs=5e-7)


def test_counts_of_the_demo(demo: dict[str, Any]) -> None:
    captions = [[image["tokens"]] for image in demo["images"]]
    references = [[tokens for _, tokens in image["references"]] for image in demo["images"]]
    parts = overlap(captions, references)
    assert sum(map(len, references)) == 5005
    assert parts.correct.sum(axis=0).tolist() == [5732, 2510, 1043, 423]
    assert (parts.lengths.sum(), parts.closest.sum()) == (9893, 9855)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CAPTION, st.lists(CAPTION, min_size=1, max_size=4)), min_size=2, max_size=5))
def test_equal_to_the_official_code_on_odd_captions(pictures: list[tuple[str, list[str]]]) -> None:
    """Empty captions, repeated words, one word, words with U+00A0 (which BLEU splits and ROUGE does not)."""
    captions, references = [caption for caption, _ in pictures], [group for _, group in pictures]
    if not any(caption for group in references for caption in group):
        return  # the official CIDEr stops at a corpus without words
    wanted = dict(enumerate(references))
    produced = {number: [caption] for number, caption in enumerate(captions)}
    whole, each = Bleu(4).compute_score(wanted, produced, verbose=0)
    ours = bleu(captions, references, tokenised=True)
    assert np.allclose(ours[0], whole, rtol=0, atol=SAME)
    assert np.allclose(ours[1], np.array(each).T, rtol=0, atol=SAME)
    assert np.allclose(
        rouge_l(captions, references, tokenised=True)[1], Rouge().compute_score(wanted, produced)[1]
    )
    assert np.allclose(
        cider(captions, references, tokenised=True)[1],
        Cider().compute_score(wanted, produced)[1],
        rtol=0,
        atol=SAME,
    )


def test_plain_cider_is_the_mean_cosine_of_tf_idf_vectors() -> None:
    captions = ["a dog runs on the the grass", "two cats sit"]
    references = [["a dog on grass", "the dog runs"], ["two cats sit on a mat"]]

    def vector(text: str, n: int) -> dict[tuple[str, ...], float]:
        words = text.split()
        counts = Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))
        spread = {
            gram: sum(any(f" {' '.join(gram)} " in f" {r} " for r in g) for g in references)
            for gram in counts
        }
        return {
            gram: count * (math.log(2) - math.log(max(1, spread[gram]))) for gram, count in counts.items()
        }

    def cosine(one: dict[Any, float], other: dict[Any, float]) -> float:
        norm = math.hypot(*one.values(), 0.0) * math.hypot(*other.values(), 0.0)
        return sum(value * other.get(gram, 0.0) for gram, value in one.items()) / norm if norm else 0.0

    expected = [
        10 * np.mean([[cosine(vector(caption, n), vector(r, n)) for n in range(1, 5)] for r in group])
        for caption, group in zip(captions, references, strict=True)
    ]
    assert cider_plain(captions, references, tokenised=True)[1] == pytest.approx(expected)


def test_n_grams_have_numbers_of_their_own_beyond_65536_words() -> None:
    grams = Grams()
    many = [f"w{number} w{number + 1} w{number} w{number + 2}" for number in range(0, 70_000, 3)]
    first, again = grams.encode(many), grams.encode(many)
    assert np.array_equal(first.grams, again.grams)
    flat = first.grams[first.grams != NONE]
    distinct = {tuple(c.split()[at : at + n]) for c in many for n in range(1, 5) for at in range(5 - n)}
    assert len({word for word, *more in distinct if not more}) > 1 << 16
    assert len(np.unique(flat)) == len(distinct) == len(grams)
    assert first.grams[3].tolist()[1:] == [NONE, NONE, NONE]


def test_several_captions_are_scored_as_each_would_be_alone(demo: dict[str, Any]) -> None:
    images = demo["images"][:40]
    references = [[tokens for _, tokens in image["references"]] for image in images]
    pictures = [
        [image["tokens"], image["references"][0][1], "a"][: 1 + number % 3]
        for number, image in enumerate(images)
    ]
    parts = overlap(pictures, references)
    for column in range(3):
        chosen = [number for number, captions in enumerate(pictures) if len(captions) > column]
        rows = parts.starts[:-1][chosen] + column
        alone = overlap([[captions[min(column, len(captions) - 1)]] for captions in pictures], references)
        assert np.array_equal(parts.cider_d[rows], alone.cider_d[chosen])
        assert np.array_equal(parts.bleu()[rows], alone.bleu()[chosen])
        assert np.array_equal(parts.rouge_l[rows], alone.rouge_l[chosen])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="2 captions and 1 lists"):
        bleu(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="1 captions have no reference"):
        cider(["a", "b"], [["a"], []])
    with pytest.raises(TypeError):
        rouge_l(["a"], ["a"])  # type: ignore[list-item]
