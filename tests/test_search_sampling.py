"""Latent sampling: one caption for each draw, the same in every batch, with probabilities as they should be."""

import math
from collections import Counter

import numpy as np
import pytest

from coscap.errors import UserError
from coscap.seam import Candidates, Floats, RegionArrays
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.search.sampling import choose
from search_tiny import IDS, VOCABULARY, TinyModel, one_picture, pictures, same, scores_of
from search_tiny import one_thread as one_thread

GREEDY = SearchSettings(max_length=8, seed=3)
SAMPLED = SearchSettings(max_length=8, seed=3, do_sample=True, temperature=0.8, top_k=4, top_p=0.9)


def log_softmax(values: Floats) -> Floats:
    return values - np.log(np.exp(values).sum(1, keepdims=True))


def drawn(logs: Floats, chance: Floats, settings: SearchSettings) -> Floats:
    """The tokens drawn from whole vocabularies; logs: (N, V)"""
    ids = np.broadcast_to(np.arange(logs.shape[1]), logs.shape)
    return choose(Candidates(ids, logs), chance, settings)[0]


def test_greedy_takes_the_likeliest_allowed_word_at_each_step() -> None:
    model, batch = TinyModel(seed=1), pictures(1)
    allowed = [*IDS.values(), VOCABULARY.END]
    for caption in generate(model, batch, VOCABULARY, 10, GREEDY)[0]:
        state = model.start(RegionArrays.of(batch), caption.draw + 1, seed=3).select(np.array([caption.draw]))
        token, words = np.array([VOCABULARY.START]), []
        while True:
            logs, state, _ = model.logs(token, state)
            options = allowed if 1 <= len(words) < 8 else allowed[:-1] if len(words) < 8 else allowed[-1:]
            token = np.array([max(options, key=lambda word: float(logs[0, word]))])
            if int(token[0]) == VOCABULARY.END:
                break
            words.append(VOCABULARY.units[int(token[0])])
        assert caption.tokens == tuple(words)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
def test_the_log_probability_is_the_models_own(settings: SearchSettings) -> None:
    model, batch = TinyModel(seed=2), pictures(1)
    for caption in generate(model, batch, VOCABULARY, 12, settings)[0]:
        ids = np.array([VOCABULARY.encode(caption.tokens)])
        expected = scores_of(model, batch, ids, draw=caption.draw, seed=3)
        assert caption.log_probability == pytest.approx(float(expected[0]))


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, SearchSettings(max_length=8, num_beams=2)])
def test_the_same_seed_gives_the_same_captions_whatever_the_batch(settings: SearchSettings) -> None:
    model, batch = TinyModel(seed=3), pictures(7)
    together = generate(model, batch, VOCABULARY, 6, settings)
    small = generate(model, batch, VOCABULARY, 6, settings.model_copy(update={"max_rows": 4}))
    alone = [generate(model, one_picture(batch, p), VOCABULARY, 6, settings)[0] for p in range(7)]
    fewer = generate(model, batch, VOCABULARY, 4, settings)
    assert same(together, small) and same(together, alone)
    assert same([captions[:4] for captions in together], fewer)
    assert [caption.draw for caption in together[0]] == list(range(6))
    other = generate(model, batch, VOCABULARY, 6, settings.model_copy(update={"seed": 4}))
    assert [c.text for row in together for c in row] != [c.text for row in other for c in row]


def test_rows_that_have_ended_leave_the_batch() -> None:
    model = TinyModel(seed=3)
    found = generate(model, pictures(7), VOCABULARY, 6, SearchSettings(max_length=12))
    assert model.row_steps == sum(len(caption.tokens) + 1 for row in found for caption in row)


def test_two_captions_of_each_draw_as_the_released_code_does() -> None:
    found = generate(
        TinyModel(seed=3), pictures(2), VOCABULARY, 8, SearchSettings(draws=4, num_beams=2, max_length=6)
    )
    for captions in found:
        assert [caption.draw for caption in captions] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert all(captions[i].text != captions[i + 1].text for i in range(0, 8, 2))


def test_words_are_drawn_with_the_models_probabilities() -> None:
    logs = log_softmax(np.random.default_rng(0).normal(size=(1, 12)))
    chance = (np.arange(20_000) + 0.5) / 20_000
    chosen = drawn(np.repeat(logs, 20_000, axis=0), chance, SearchSettings(do_sample=True))
    shares = np.bincount(chosen, minlength=12) / 20_000
    assert np.allclose(shares, np.exp(logs[0]), atol=1e-3)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (4, 0.7), (1, 1.0), (0, 0.01)])
def test_top_k_and_top_p_leave_the_likeliest_words(top_k: int, top_p: float) -> None:
    logs = np.log([[0.05, 0.3, 0.1, 0.25, 0.2, 0.1]])
    settings = SearchSettings(do_sample=True, top_k=top_k, top_p=top_p, temperature=2.0)
    scaled = np.exp(log_softmax(logs / 2))[0].tolist()
    order = sorted(range(6), key=lambda word: -scaled[word])[: top_k or 6]
    kept, total = {}, sum(scaled[word] for word in order)
    for word in order:
        if sum(kept.values()) / total < top_p:
            kept[word] = scaled[word]
    chance = (np.arange(10_000) + 0.5) / 10_000
    counts = Counter(drawn(np.repeat(logs, 10_000, axis=0), chance, settings).tolist())
    assert set(counts) == set(kept)
    for word, share in kept.items():
        assert counts[word] / 10_000 == pytest.approx(share / sum(kept.values()), abs=1e-3)


def test_top_p_sorts_only_as_many_words_as_it_needs() -> None:
    """The same choice whether the likeliest words suffice or another row makes all be sorted."""
    random = np.random.default_rng(1)
    sharp = log_softmax(random.normal(size=(40, 3000)) * 4)
    flat = log_softmax(np.zeros((1, 3000)))
    chance = random.random(41)
    settings = SearchSettings(do_sample=True, top_p=0.9)
    alone = drawn(sharp, chance[:40], settings)
    both = drawn(np.concatenate([sharp, flat]), chance, settings)
    assert both[:40].tolist() == alone.tolist()
    assert abs(int(both[40]) - float(chance[40]) * 2700) < 2  # 90 % of equally likely words


def test_words_of_probability_zero_are_never_drawn() -> None:
    logs = np.array([[-math.inf, 0.0, -math.inf]])
    chance = np.array([0.0, 0.5, 1.0 - 1e-16])
    assert drawn(np.repeat(logs, 3, axis=0), chance, SearchSettings(do_sample=True)).tolist() == [1, 1, 1]


def test_distinct_draws_again_and_gives_fewer_rather_than_the_same_twice() -> None:
    model, batch = TinyModel(seed=9, sharp=3.0), pictures(6)
    plain = generate(model, batch, VOCABULARY, 8, SearchSettings(max_length=3, latent_temperature=0.3))
    repeats = [len({caption.text for caption in row}) for row in plain]
    assert min(repeats) < 8
    settings = SearchSettings(max_length=3, latent_temperature=0.3, distinct=True)
    unlike = generate(model, batch, VOCABULARY, 8, settings)
    for before, row, count in zip(plain, unlike, repeats, strict=True):
        texts = [caption.text for caption in row]
        assert count <= len(texts) == len(set(texts)) <= 8
        assert list(dict.fromkeys(caption.text for caption in before)) == texts[:count]
    assert any(caption.draw >= 8 for row in unlike for caption in row)
    still = generate(model, batch, VOCABULARY, 8, settings.model_copy(update={"latent_temperature": 0.0}))
    assert [len(row) for row in still] == [1] * 6
    assert same(unlike, generate(model, batch, VOCABULARY, 8, settings.model_copy(update={"max_rows": 3})))


@pytest.mark.parametrize(
    ("n", "settings", "words"),
    [
        (0, SearchSettings(), "n is 0"),
        (2, SearchSettings(draws=3), "draws is 3 and n is 2"),
        (4, SearchSettings(draws=2, do_sample=True), "leave out draws"),
        (1, SearchSettings(beginning="a photo"), '"photo"'),
        (1, SearchSettings(beginning="a near a", max_length=2), "max_length is 2"),
        (1, SearchSettings(search="constrained", must=("giraffe",)), '"giraffe"'),
        (1, SearchSettings(search="constrained", must=("zebra",), without=("zebra",)), "forbidden"),
        (1, SearchSettings(search="constrained", must=("zebra|",)), "alternative"),
    ],
)
def test_what_cannot_be_done_is_said(n: int, settings: SearchSettings, words: str) -> None:
    with pytest.raises(UserError, match=words):
        generate(TinyModel(), pictures(1), VOCABULARY, n, settings)
