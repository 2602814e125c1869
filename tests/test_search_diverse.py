"""Diverse beam search against a plain version that follows the definition, one hypothesis at a time."""

from dataclasses import dataclass

import numpy as np
import pytest

from coscap.data.batch import RegionBatch
from coscap.seam import Floats, RegionArrays
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from search_tiny import IDS, VOCABULARY, TinyModel, one_picture, pictures, same
from search_tiny import one_thread as one_thread


@dataclass
class Hypothesis:
    words: tuple[int, ...]
    score: float


def plain_diverse(
    model: TinyModel, batch: RegionBatch, groups: int, width: int, strength: float, longest: int, each: int
) -> list[list[Hypothesis]]:
    """The finished captions of each group, the best first. One model call for each hypothesis and step."""
    live = [[Hypothesis((), 0.0)] for _ in range(groups)]
    done: list[list[Hypothesis]] = [[] for _ in range(groups)]
    for step in range(longest + 1):
        taken = dict.fromkeys(IDS.values(), 0)
        for group in range(groups):
            options = []
            for hypothesis in live[group]:
                logs = _next(model, batch, hypothesis.words)
                words = [VOCABULARY.END] if step == longest else list(IDS.values())
                if 0 < step < longest:
                    words.append(VOCABULARY.END)
                for word in words:
                    new = Hypothesis((*hypothesis.words, word), hypothesis.score + float(logs[word]))
                    options.append((new.score - strength * taken.get(word, 0), new))
            options.sort(key=lambda option: -option[0])
            ends = [new for _, new in options[:width] if new.words[-1] == VOCABULARY.END]
            live[group] = [new for _, new in options if new.words[-1] != VOCABULARY.END][:width]
            for new in live[group]:
                taken[new.words[-1]] += 1
            done[group] = sorted(done[group] + ends, key=lambda new: -new.score / len(new.words))
            if len(done[group]) >= each and live[group]:
                wanted = done[group][each - 1]
                if wanted.score / len(wanted.words) >= max(new.score for new in live[group]) / (step + 1):
                    live[group] = []
    return done


def _next(model: TinyModel, batch: RegionBatch, words: tuple[int, ...]) -> Floats:
    state = model.start(RegionArrays.of(batch), 1)
    logs, state, _ = model.logs(np.array([VOCABULARY.START]), state)
    for word in words:
        logs, state, _ = model.logs(np.array([word]), state)
    return logs[0]


@pytest.mark.parametrize(
    ("groups", "width", "strength"), [(3, 1, 0.5), (3, 2, 1.5), (2, 3, 0.2), (4, 2, 0.0)]
)
def test_groups_choose_as_the_definition_says(groups: int, width: int, strength: float) -> None:
    model, batch = TinyModel(seed=11), pictures(3)
    settings = SearchSettings(
        search="diverse",
        latent_temperature=1.0,
        num_beam_groups=groups,
        num_beams=width,
        diversity_penalty=strength,
        max_length=4,
    )
    found = generate(model, batch, VOCABULARY, groups * width, settings)
    for picture, captions in enumerate(found):
        only = one_picture(batch, picture)
        done = plain_diverse(model, only, groups, width, strength, 4, each=width)
        expected = [
            done[group][rank] for rank in range(width) for group in range(groups) if rank < len(done[group])
        ]
        assert [VOCABULARY.encode(c.tokens) for c in captions] == [list(h.words[:-1]) for h in expected]
        assert [c.log_probability for c in captions] == pytest.approx([h.score for h in expected])


def test_a_stronger_penalty_gives_more_different_captions() -> None:
    model, batch = TinyModel(seed=12), pictures(8)
    different = []
    for strength in (0.0, 0.5, 5.0):
        settings = SearchSettings(search="diverse", diversity_penalty=strength, max_length=6)
        found = generate(model, batch, VOCABULARY, 5, settings)
        different.append(sum(len({caption.text for caption in row}) for row in found))
    assert different[0] == 8 < different[1] < different[2]


def test_one_group_is_beam_search() -> None:
    model, batch = TinyModel(seed=13), pictures(5)
    beam = generate(model, batch, VOCABULARY, 3, SearchSettings(search="beam", num_beams=4, max_length=6))
    one = generate(
        model,
        batch,
        VOCABULARY,
        3,
        SearchSettings(search="diverse", num_beam_groups=1, num_beams=4, max_length=6),
    )
    assert same(beam, one)


def test_more_groups_than_captions_and_results_do_not_depend_on_the_batch() -> None:
    model, batch = TinyModel(seed=14), pictures(6)
    settings = SearchSettings(
        search="diverse", num_beam_groups=4, num_beams=2, draws=2, diversity_penalty=1.0, max_length=6
    )
    together = generate(model, batch, VOCABULARY, 4, settings)
    assert [[caption.draw for caption in row] for row in together] == [[0, 0, 1, 1]] * 6
    alone = [generate(model, one_picture(batch, p), VOCABULARY, 4, settings)[0] for p in range(6)]
    small = generate(model, batch, VOCABULARY, 4, settings.model_copy(update={"max_rows": 1}))
    assert same(together, alone) and same(together, small)


def test_distinct_takes_the_next_best_of_a_group() -> None:
    model, batch = TinyModel(seed=12), pictures(8)
    settings = SearchSettings(
        search="diverse", diversity_penalty=0.1, num_beams=3, max_length=6, distinct=True
    )
    for row in generate(model, batch, VOCABULARY, 3, settings):
        assert len({caption.text for caption in row}) == len(row) == 3
