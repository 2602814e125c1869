"""Latent sampling: one caption for each draw, the same in every batch, with probabilities as they should be."""

import math
from collections import Counter

import pytest
import torch

from coscap.errors import UserError
from coscap.search import SearchSettings, search
from coscap.search.latent import choose
from search_tiny import IDS, VOCABULARY, TinyModel, one_picture, pictures, same, scores_of
from search_tiny import one_thread as one_thread

GREEDY = SearchSettings(max_length=8, seed=3)
SAMPLED = SearchSettings(max_length=8, seed=3, choose="sample", word_temperature=0.8, top_k=4, top_p=0.9)


def test_greedy_takes_the_likeliest_allowed_word_at_each_step() -> None:
    model, batch = TinyModel(seed=1), pictures(1)
    allowed = [*IDS.values(), VOCABULARY.END]
    for caption in search(model, batch, VOCABULARY, 10, GREEDY)[0]:
        state = model.start(batch, caption.draw + 1, seed=3).select(torch.tensor([caption.draw]))
        token, words = torch.tensor([VOCABULARY.START]), []
        while True:
            logs, state, _ = model.step(token, state)
            options = allowed if 1 <= len(words) < 8 else allowed[:-1] if len(words) < 8 else allowed[-1:]
            token = torch.tensor([max(options, key=lambda word: float(logs[0, word]))])
            if int(token) == VOCABULARY.END:
                break
            words.append(VOCABULARY.units[int(token)])
        assert caption.units == tuple(words)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
def test_the_log_probability_is_the_models_own(settings: SearchSettings) -> None:
    model, batch = TinyModel(seed=2), pictures(1)
    for caption in search(model, batch, VOCABULARY, 12, settings)[0]:
        ids = torch.tensor([VOCABULARY.encode(caption.units)])
        expected = scores_of(model, batch, ids, draw=caption.draw, seed=3)
        assert caption.log_probability == pytest.approx(float(expected[0]))


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, SearchSettings(max_length=8, beam=2)])
def test_the_same_seed_gives_the_same_captions_whatever_the_batch(settings: SearchSettings) -> None:
    model, batch = TinyModel(seed=3), pictures(7)
    together = search(model, batch, VOCABULARY, 6, settings)
    small = search(model, batch, VOCABULARY, 6, settings.model_copy(update={"max_rows": 4}))
    alone = [search(model, one_picture(batch, p), VOCABULARY, 6, settings)[0] for p in range(7)]
    fewer = search(model, batch, VOCABULARY, 4, settings)
    assert same(together, small) and same(together, alone)
    assert same([captions[:4] for captions in together], fewer)
    assert [caption.draw for caption in together[0]] == list(range(6))
    other = search(model, batch, VOCABULARY, 6, settings.model_copy(update={"seed": 4}))
    assert [c.text for row in together for c in row] != [c.text for row in other for c in row]


def test_rows_that_have_ended_leave_the_batch() -> None:
    model = TinyModel(seed=3)
    found = search(model, pictures(7), VOCABULARY, 6, SearchSettings(max_length=12))
    assert model.row_steps == sum(len(caption.units) + 1 for row in found for caption in row)


def test_two_captions_of_each_draw_as_the_released_code_does() -> None:
    found = search(
        TinyModel(seed=3), pictures(2), VOCABULARY, 8, SearchSettings(draws=4, beam=2, max_length=6)
    )
    for captions in found:
        assert [caption.draw for caption in captions] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert all(captions[i].text != captions[i + 1].text for i in range(0, 8, 2))


def test_words_are_drawn_with_the_models_probabilities() -> None:
    random = torch.Generator().manual_seed(0)
    logs = torch.randn(1, 12, generator=random).log_softmax(1)
    chance = (torch.arange(20_000) + 0.5) / 20_000
    chosen = choose(logs.expand(20_000, -1), chance, SearchSettings(choose="sample"))
    shares = torch.bincount(chosen, minlength=12) / 20_000
    assert torch.allclose(shares, logs[0].exp(), atol=1e-3)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (4, 0.7), (1, 1.0), (0, 0.01)])
def test_top_k_and_top_p_leave_the_likeliest_words(top_k: int, top_p: float) -> None:
    logs = torch.tensor([[0.05, 0.3, 0.1, 0.25, 0.2, 0.1]]).log()
    settings = SearchSettings(choose="sample", top_k=top_k, top_p=top_p, word_temperature=2.0)
    scaled = (logs[0].double() / 2).softmax(0).tolist()
    order = sorted(range(6), key=lambda word: -scaled[word])[: top_k or 6]
    kept, total = {}, sum(scaled[word] for word in order)
    for word in order:
        if sum(kept.values()) / total < top_p:
            kept[word] = scaled[word]
    chance = (torch.arange(10_000) + 0.5) / 10_000
    counts = Counter(choose(logs.expand(10_000, -1), chance, settings).tolist())
    assert set(counts) == set(kept)
    for word, share in kept.items():
        assert counts[word] / 10_000 == pytest.approx(share / sum(kept.values()), abs=1e-3)


def test_top_p_sorts_only_as_many_words_as_it_needs() -> None:
    """The same choice whether the likeliest words suffice or another row makes all be sorted."""
    random = torch.Generator().manual_seed(1)
    sharp = (torch.randn(40, 3000, generator=random) * 4).log_softmax(1)
    flat = torch.zeros(1, 3000).log_softmax(1)
    chance = torch.rand(41, generator=random, dtype=torch.float64)
    settings = SearchSettings(choose="sample", top_p=0.9)
    alone = choose(sharp, chance[:40], settings)
    both = choose(torch.cat([sharp, flat]), chance, settings)
    assert both[:40].tolist() == alone.tolist()
    assert abs(int(both[40]) - float(chance[40]) * 2700) < 2  # 90 % of equally likely words


def test_words_of_probability_zero_are_never_drawn() -> None:
    logs = torch.tensor([[-math.inf, 0.0, -math.inf]])
    chance = torch.tensor([0.0, 0.5, 1.0 - 1e-16], dtype=torch.float64)
    assert choose(logs.expand(3, -1), chance, SearchSettings(choose="sample")).tolist() == [1, 1, 1]


def test_distinct_draws_again_and_gives_fewer_rather_than_the_same_twice() -> None:
    model, batch = TinyModel(seed=9, sharp=3.0), pictures(6)
    plain = search(model, batch, VOCABULARY, 8, SearchSettings(max_length=3, temperature=0.3))
    repeats = [len({caption.text for caption in row}) for row in plain]
    assert min(repeats) < 8
    settings = SearchSettings(max_length=3, temperature=0.3, distinct=True)
    unlike = search(model, batch, VOCABULARY, 8, settings)
    for before, row, count in zip(plain, unlike, repeats, strict=True):
        texts = [caption.text for caption in row]
        assert count <= len(texts) == len(set(texts)) <= 8
        assert list(dict.fromkeys(caption.text for caption in before)) == texts[:count]
    assert any(caption.draw >= 8 for row in unlike for caption in row)
    still = search(model, batch, VOCABULARY, 8, settings.model_copy(update={"temperature": 0.0}))
    assert [len(row) for row in still] == [1] * 6
    assert same(unlike, search(model, batch, VOCABULARY, 8, settings.model_copy(update={"max_rows": 3})))


@pytest.mark.parametrize(
    ("n", "settings", "words"),
    [
        (0, SearchSettings(), "n is 0"),
        (2, SearchSettings(draws=3), "draws is 3 and n is 2"),
        (4, SearchSettings(draws=2, choose="sample"), "leave out draws"),
        (1, SearchSettings(beginning="a photo"), '"photo"'),
        (1, SearchSettings(beginning="a near a", max_length=2), "max_length is 2"),
        (1, SearchSettings(search="constrained", must=("giraffe",)), '"giraffe"'),
        (1, SearchSettings(search="constrained", must=("zebra",), without=("zebra",)), "forbidden"),
        (1, SearchSettings(search="constrained", must=("zebra|",)), "alternative"),
    ],
)
def test_what_cannot_be_done_is_said(n: int, settings: SearchSettings, words: str) -> None:
    with pytest.raises(UserError, match=words):
        search(TinyModel(), pictures(1), VOCABULARY, n, settings)
