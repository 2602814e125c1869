"""The searches with the real models, small and random: brute force, batches, and what a model must share."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coscap.data.batch import RegionBatch
from coscap.models import CaptionModel, ModelConfig, build_model
from coscap.models.stepper import TorchStepper, candidates
from coscap.seam import TokenMask
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text.vocabulary import END, START
from models_batch import make_regions
from search_tiny import IDS, VOCABULARY, contains, one_picture, plain_candidates, same
from search_tiny import one_thread as one_thread

KINDS = ("updown", "seq_cvae", "cos_cvae", "ag_cvae", "pos", "lnfmm")
LONGEST = 3


def small(kind: str) -> CaptionModel:
    torch.manual_seed(7)
    sizes = dict.fromkeys(
        ("attention_lstm", "language_lstm", "attention_width", "context_latent", "object_latent",
         "context_posterior", "object_posterior", "context_prior", "object_prior", "word_width"), 8,
    )  # fmt: skip
    config = ModelConfig(
        kind=kind, vocabulary=len(VOCABULARY), region_width=6, decoder_word_width=8, classes=4, **sizes
    )
    model = build_model(config).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3.0)  # far from uniform
    return model


def double(batch: RegionBatch) -> RegionBatch:
    parts = {
        name: value.double() if value.is_floating_point() else value for name, value in vars(batch).items()
    }
    return RegionBatch(**parts)


@torch.no_grad()
def brute_force(
    model: CaptionModel, batch: RegionBatch, draw: int, seed: int
) -> list[tuple[tuple[str, ...], float]]:
    """All captions of the first picture, the best by log-probability a word first."""
    found = []
    for length in range(1, LONGEST + 1):
        captions = torch.tensor(list(product(IDS.values(), repeat=length)))
        state = model.start(batch, draw + 1, seed=seed).select(torch.full((len(captions),), draw))
        token, total = torch.full((len(captions),), START), torch.zeros(len(captions), dtype=torch.float64)
        for step in range(length + 1):
            logs, state, _ = model.step(token, state)
            token = captions[:, step] if step < length else torch.full_like(token, END)
            total += logs.gather(1, token[:, None])[:, 0]
        for ids, score in zip(captions.tolist(), total.tolist(), strict=True):
            found.append((tuple(VOCABULARY.units[word] for word in ids), score))
    return sorted(found, key=lambda item: -item[1] / (len(item[0]) + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_full_beams_equal_brute_force(kind: str) -> None:
    model, batch = small(kind), double(make_regions(1))
    draws = 1 if kind == "updown" else 2
    every = [brute_force(model, batch, draw, seed=3) for draw in range(draws)]
    full = {"num_beams": 6**LONGEST, "max_length": LONGEST, "seed": 3, "exhaustive": True, "draws": draws}
    found = generate(
        TorchStepper(model), batch, VOCABULARY, 3 * draws, SearchSettings(search="beam", **full)
    )[0]
    for draw in range(draws):
        here = found[3 * draw : 3 * draw + 3]
        assert [caption.tokens for caption in here] == [units for units, _ in every[draw][:3]]
        assert [c.log_probability for c in here] == pytest.approx([score for _, score in every[draw][:3]])
    settings = SearchSettings(search="constrained", must=("near a", "zebra"), **full)
    found = generate(TorchStepper(model), batch, VOCABULARY, draws, settings)[0]
    for caption, captions in zip(found, every, strict=True):
        best = next(u for u, _ in captions if contains(u, ("near", "a")) and {"zebra", "zebras"} & set(u))
        assert caption.tokens == best and caption.satisfied


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "given_settings",
    [
        SearchSettings(max_length=6, seed=2),
        SearchSettings(max_length=6, seed=2, do_sample=True, top_p=0.9),
        SearchSettings(max_length=6, seed=2, search="beam", num_beams=3, draws=2),
        SearchSettings(max_length=6, seed=2, search="diverse", num_beams=2),
        SearchSettings(max_length=6, seed=2, search="constrained", must=("zebra", "near a"), num_beams=2),
    ],
    ids=["greedy", "sample", "beam", "diverse", "constrained"],
)
def test_results_do_not_depend_on_the_batch(kind: str, given_settings: SearchSettings) -> None:
    model, batch = small(kind), double(make_regions(5))
    together = generate(TorchStepper(model), batch, VOCABULARY, 4, given_settings)
    alone = [
        generate(TorchStepper(model), one_picture(batch, p), VOCABULARY, 4, given_settings)[0]
        for p in range(5)
    ]
    few = generate(
        TorchStepper(model), batch, VOCABULARY, 4, given_settings.model_copy(update={"max_rows": 6})
    )
    assert same(together, alone) and same(together, few)
    assert [len(row) for row in together] == [4] * 5


def test_a_model_without_latents_gives_the_n_best_of_a_constrained_search() -> None:
    settings = SearchSettings(search="constrained", must=("zebra",), num_beams=4, max_length=5)
    for row in generate(TorchStepper(small("updown")), double(make_regions(3)), VOCABULARY, 4, settings):
        assert [caption.draw for caption in row] == [0, 0, 0, 0]
        assert len({caption.text for caption in row}) == 4


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_candidates_are_those_found_one_by_one(data: st.DataObject) -> None:
    """Masks, named tokens with padding, ties and rows without a token left, against the plainest way."""
    rows, size = data.draw(st.integers(1, 4)), data.draw(st.integers(3, 9))
    logs = np.array(data.draw(st.lists(st.lists(st.integers(-3, 0), min_size=size, max_size=size),
                                       min_size=rows, max_size=rows)), np.float64)  # fmt: skip
    token = st.integers(0, size - 1)
    pairs = data.draw(st.lists(st.tuples(st.integers(0, rows - 1), token), max_size=6))
    everywhere = data.draw(st.lists(token, unique=True, max_size=2))
    mask = TokenMask(
        np.array(everywhere, np.int64),
        np.array([row for row, _ in pairs], np.int64),
        np.array([token for _, token in pairs], np.int64),
    )
    named = None
    if data.draw(st.booleans()):
        most = data.draw(st.integers(1, 2))
        each = [data.draw(st.lists(token, unique=True, min_size=1, max_size=most)) for _ in range(rows)]
        named = np.array([[*some, *[-1] * (most - len(some))] for some in each])
    k = data.draw(st.sampled_from([0, 1, 2, None] if named is None else [0, 1, 2]))
    found = candidates(torch.from_numpy(logs.copy()), k, named, mask)
    plain = plain_candidates(logs, k, named, mask)
    assert np.array_equal(found.log_probabilities, plain.log_probabilities)
    there = np.isfinite(plain.log_probabilities)
    assert np.array_equal(found.ids[there], plain.ids[there])
