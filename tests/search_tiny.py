"""A tiny recurrent model for the tests of the searches, and the plain, slow ways to find the same captions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.models.noise import normals, row_keys
from coscap.search import Caption
from coscap.text.vocabulary import END, SPECIAL, START, Vocabulary

WORDS = ("a", "zebra", "zebras", "near", "car", "fire hydrant")
VOCABULARY = Vocabulary((*SPECIAL, *WORDS))
IDS = {word: VOCABULARY.id(word) for word in WORDS}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class TinyState:
    hidden: Tensor  # (N, H)
    keys: Tensor  # (N,)
    picture: Tensor  # (N,)
    regions: Tensor  # (P, R, F)
    mask: Tensor  # (P, R)
    step: int = 0

    @property
    def rows(self) -> int:
        return len(self.keys)

    def select(self, rows: Tensor) -> "TinyState":
        return replace(self, hidden=self.hidden[rows], keys=self.keys[rows], picture=self.picture[rows])


class TinyModel:
    """h_t = tanh(h_{t-1} W + word + noise_t + picture); float64, so that no tie is made by rounding."""

    def __init__(
        self, seed: int = 0, vocabulary: int = len(VOCABULARY), hidden: int = 8, sharp: float = 1.0
    ) -> None:
        random = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        self.recurrent, self.words = weights(hidden, hidden) / 2, weights(vocabulary, hidden)
        self.look, self.output = weights(4, hidden), weights(hidden, vocabulary) * sharp
        self.favour = torch.tensor([-3.0, -3.0, 1.0, -3.0, -3.0, -3.0] + [0.0] * (vocabulary - 6)).double()
        self.steps = 0
        self.row_steps = 0

    def start(
        self, regions: RegionBatch, draws: int, *, seed: int = 0, temperature: float = 1.0
    ) -> TinyState:
        pictures = torch.arange(len(regions.keys)).repeat_interleave(draws)
        self.temperature = temperature
        return TinyState(
            hidden=torch.zeros(len(pictures), len(self.recurrent), dtype=torch.float64),
            keys=row_keys(seed, regions.keys, draws),
            picture=pictures,
            regions=regions.features.double(),
            mask=regions.mask,
        )

    def step(self, tokens: Tensor, state: TinyState) -> tuple[Tensor, TinyState, Tensor]:
        self.steps += 1
        self.row_steps += len(tokens)
        seen = state.regions[state.picture] @ self.look  # (N, R, H)
        scores = (seen * state.hidden[:, None]).sum(2).masked_fill(~state.mask[state.picture], -torch.inf)
        attention = scores.softmax(1)  # (N, R)
        context = (attention[:, :, None] * seen).sum(1)
        noise = normals(state.keys, 5, state.step, state.hidden.shape[1]).double() * self.temperature
        hidden = torch.tanh(state.hidden @ self.recurrent + self.words[tokens] + context + noise)
        logs = (hidden @ self.output + self.favour).log_softmax(1)
        return logs, replace(state, hidden=hidden, step=state.step + 1), attention


def pictures(count: int, seed: int = 0, regions: int = 3) -> RegionBatch:
    """Pictures with 2 regions and more; picture i is the same in every batch."""
    features, masks = [], []
    for picture in range(count):
        random = torch.Generator().manual_seed(1000 * seed + picture)
        features.append(torch.randn(regions, 4, generator=random))
        masks.append(torch.arange(regions) < 2 + picture % (regions - 1))
    return RegionBatch(
        features=torch.stack(features),
        boxes=torch.zeros(count, regions, 4),
        labels=torch.full((count, regions), -1),
        scores=torch.zeros(count, regions),
        mask=torch.stack(masks),
        keys=torch.arange(count) + 77 * seed,
    )


def one_picture(batch: RegionBatch, picture: int) -> RegionBatch:
    parts = {name: value[picture : picture + 1] for name, value in vars(batch).items()}
    return RegionBatch(**parts)


def scores_of(
    model: TinyModel,
    batch: RegionBatch,
    captions: Tensor,
    draw: int = 0,
    seed: int = 0,
    temperature: float = 1.0,
) -> Tensor:
    """The log-probability of each of many captions of the first picture; captions: (C, T), without the end."""
    state = model.start(batch, draw + 1, seed=seed, temperature=temperature)
    state = state.select(torch.full((len(captions),), draw))
    token = torch.full((len(captions),), START)
    total = torch.zeros(len(captions), dtype=torch.float64)
    for step in range(captions.shape[1] + 1):
        logs, state, _ = model.step(token, state)
        token = captions[:, step] if step < captions.shape[1] else torch.full_like(token, END)
        total += logs.gather(1, token[:, None])[:, 0]
    return total


def every_caption(
    model: TinyModel,
    batch: RegionBatch,
    longest: int,
    *,
    shortest: int = 1,
    draw: int = 0,
    seed: int = 0,
    temperature: float = 1.0,
) -> list[tuple[tuple[str, ...], float]]:
    """All captions of the first picture with their log-probabilities."""
    found = []
    for length in range(shortest, longest + 1):
        captions = torch.tensor(list(product(IDS.values(), repeat=length))).view(-1, length)
        for ids, score in zip(
            captions.tolist(),
            scores_of(model, batch, captions, draw, seed, temperature).tolist(),
            strict=True,
        ):
            found.append((tuple(VOCABULARY.units[word] for word in ids), score))
    return found


def ranked(
    captions: list[tuple[tuple[str, ...], float]], length_norm: float
) -> list[tuple[tuple[str, ...], float]]:
    return sorted(captions, key=lambda item: -item[1] / (len(item[0]) + 1) ** length_norm)


def contains(units: tuple[str, ...], phrase: tuple[str, ...]) -> bool:
    return any(units[at : at + len(phrase)] == phrase for at in range(len(units) - len(phrase) + 1))


def same(one: list[list[Caption]], other: list[list[Caption]]) -> bool:
    """The same captions; batches of another size may round the last digits of a probability otherwise."""
    pairs = [pair for rows in zip(one, other, strict=True) for pair in zip(*rows, strict=True)]
    return all(
        a.units == b.units
        and a.draw == b.draw
        and a.satisfied == b.satisfied
        and abs(a.log_probability - b.log_probability) < 1e-4
        and a.attention.shape == b.attention.shape
        and abs(a.attention - b.attention).max(initial=0) < 1e-4
        for a, b in pairs
    )
