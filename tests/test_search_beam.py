"""Beam search: against brute force, greedy search, and itself in other batches."""

import numpy as np
import pytest
import torch

from coscap.models.stepper import top
from coscap.seam import RegionArrays
from coscap.search.beam import counts_within, ranks
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from search_tiny import VOCABULARY, TinyModel, every_caption, one_picture, pictures, ranked, same
from search_tiny import one_thread as one_thread

ALL = 6**5  # a beam that nothing falls out of


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
def test_a_full_beam_finds_what_brute_force_finds(length_penalty: float) -> None:
    model, batch = TinyModel(seed=3), pictures(1)
    settings = SearchSettings(
        search="beam",
        latent_temperature=1.0,
        num_beams=ALL,
        max_length=5,
        length_penalty=length_penalty,
        exhaustive=True,
        max_rows=10**6,
    )
    found = generate(model, batch, VOCABULARY, 20, settings)[0]
    best = ranked(every_caption(model, batch, 5), length_penalty)[:20]
    assert [caption.tokens for caption in found] == [units for units, _ in best]
    assert [caption.log_probability for caption in found] == pytest.approx([score for _, score in best])


def test_a_full_beam_under_a_draw_finds_the_best_of_that_draw() -> None:
    model, batch = TinyModel(seed=4), pictures(1)
    settings = SearchSettings(
        search="beam", num_beams=6**4, draws=3, max_length=4, seed=9, latent_temperature=0.6, exhaustive=True
    )
    found = generate(model, batch, VOCABULARY, 6, settings)[0]
    assert [caption.draw for caption in found] == [0, 0, 1, 1, 2, 2]
    for draw in range(3):
        every = every_caption(model, batch, 4, draw=draw, seed=9, latent_temperature=0.6)
        best = [units for units, _ in ranked(every, 1.0)[:2]]
        assert [caption.tokens for caption in found[2 * draw : 2 * draw + 2]] == best


def test_a_beam_of_one_is_greedy_search() -> None:
    model, batch = TinyModel(seed=5), pictures(12)
    greedy = generate(model, batch, VOCABULARY, 4, SearchSettings(seed=1, max_length=8))
    beam = generate(
        model, batch, VOCABULARY, 4, SearchSettings(search="beam", num_beams=1, draws=4, seed=1, max_length=8)
    )
    assert same(greedy, beam)
    assert len({caption.text for captions in greedy for caption in captions}) > 12


def test_a_wider_beam_is_at_least_as_good_here_and_captions_have_no_end_inside() -> None:
    model, batch = TinyModel(seed=6), pictures(20)
    means = []
    for beam in (1, 3, 9):
        settings = SearchSettings(search="beam", num_beams=beam, max_length=8, exhaustive=True)
        found = [captions[0] for captions in generate(model, batch, VOCABULARY, 1, settings)]
        assert all(set(caption.tokens) <= set(VOCABULARY.units[6:]) for caption in found)
        means.append(sum(c.log_probability / (len(c.tokens) + 1) for c in found) / len(found))
    assert means[0] < means[1] <= means[2]


@pytest.mark.parametrize("exhaustive", [False, True])
def test_results_do_not_depend_on_the_batch(exhaustive: bool) -> None:
    model, batch = TinyModel(seed=7), pictures(9)
    settings = SearchSettings(
        search="beam", num_beams=3, draws=2, seed=5, max_length=7, exhaustive=exhaustive
    )
    together = generate(model, batch, VOCABULARY, 4, settings)
    small = generate(model, batch, VOCABULARY, 4, settings.model_copy(update={"max_rows": 4}))
    alone = [generate(model, one_picture(batch, p), VOCABULARY, 4, settings)[0] for p in range(9)]
    assert same(together, small) and same(together, alone)


def test_pictures_that_are_done_leave_the_batch() -> None:
    model, batch = TinyModel(seed=7), pictures(9)
    generate(model, batch, VOCABULARY, 1, SearchSettings(search="beam", num_beams=3, max_length=30))
    assert model.row_steps < 9 * 3 * model.steps


def test_attention_follows_the_caption_through_the_beam() -> None:
    """The attention of a caption is that of the model fed with its words."""
    model, batch = TinyModel(seed=8), pictures(5)
    found = generate(
        model,
        batch,
        VOCABULARY,
        3,
        SearchSettings(search="beam", latent_temperature=1.0, num_beams=4, max_length=6, seed=2),
    )
    for picture, captions in enumerate(found):
        for caption in captions:
            only = one_picture(batch, picture)
            state = model.start(RegionArrays.of(only), 1, seed=2)
            token = np.array([VOCABULARY.START])
            for at, word in enumerate(VOCABULARY.encode(caption.tokens)):
                _, state, attention = model.logs(token, state)
                expected = attention[0][only.mask[0].numpy()]
                assert np.allclose(caption.attention[at], expected, atol=1e-6)
                token = np.array([word])
            assert caption.attention.shape == (len(caption.tokens), int(only.mask.sum()))


def test_equal_scores_go_to_the_earlier_row_and_the_lower_word() -> None:
    model = TinyModel()
    model.output[:] = 0
    model.favour[:] = 0  # now every word has the same probability
    settings = SearchSettings(search="beam", num_beams=3, max_length=2, min_length=2, length_penalty=0.0)
    found = generate(model, pictures(2), VOCABULARY, 3, settings)
    assert [caption.text for caption in found[0]] == ["a a", "a zebra", "a zebras"]
    assert [caption.text for caption in found[1]] == [caption.text for caption in found[0]]


def test_top_is_torchs_with_ties_by_index() -> None:
    random = torch.Generator().manual_seed(0)
    for width, k in ((5, 5), (40, 3), (1000, 3), (1003, 7), (64 * 40, 2)):
        values = torch.randint(0, 50, (30, width), generator=random).float()
        values[3] = -torch.inf
        values[4, 2:] = -torch.inf
        expected, places = values.sort(dim=1, descending=True, stable=True)
        best, index = top(values, k)
        assert torch.equal(best, expected[:, :k])
        finite = best > -torch.inf
        assert torch.equal(index[finite], places[:, :k][finite])


def test_ranks_count_within_each_key() -> None:
    keys = np.array([1, 0, 1, 1, 0])
    order, rank = ranks(keys, np.array([0.1, 5.0, 0.3, 0.1, 6.0]))
    assert order.tolist() == [4, 1, 2, 0, 3]
    assert rank.tolist() == [0, 1, 0, 1, 2]
    assert counts_within(np.array([0, 0, 0, 1, 1]), np.array([1, 0, 1, 0, 1])).tolist() == [
        0,
        1,
        1,
        0,
        0,
    ]


def test_one_draw_is_taken_at_the_means() -> None:
    assert SearchSettings().latent_temperature == 1.0
    assert SearchSettings(search="beam").latent_temperature == 0.0
    assert SearchSettings(search="diverse", draws=1).latent_temperature == 0.0
    assert SearchSettings(search="beam", draws=2).latent_temperature == 1.0
    assert SearchSettings(search="beam", latent_temperature=0.5).latent_temperature == 0.5
