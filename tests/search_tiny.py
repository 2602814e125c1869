"""A tiny recurrent model for the tests of the searches, and the plain, slow ways to find the same captions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coscap.data.batch import RegionBatch
from coscap.models.noise import normals, row_keys
from coscap.seam import Candidates, Caption, Floats, Ints, LatentValues, RegionArrays, TokenMask
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
    hidden: Floats  # (N, H)
    keys: Ints  # (N,)
    picture: Ints  # (N,)
    regions: Floats  # (P, R, F)
    mask: NDArray[np.bool_]  # (P, R)
    temperature: float
    step: int = 0

    @property
    def rows(self) -> int:
        return len(self.keys)

    def select(self, rows: Ints) -> "TinyState":
        return replace(self, hidden=self.hidden[rows], keys=self.keys[rows], picture=self.picture[rows])

    def latents(self) -> LatentValues:
        raise NotImplementedError("its noise is no latent sequence")


class TinyModel:
    """h_t = tanh(h_{t-1} W + word + noise_t + picture); float64, so that no tie is made by rounding.

    It is a SearchModel in NumPy, with candidates found in the plainest way.
    """

    latent_names: tuple[str, ...] = ("context",)
    digest = "tiny"

    def __init__(
        self, seed: int = 0, vocabulary: int = len(VOCABULARY), hidden: int = 8, sharp: float = 1.0
    ) -> None:
        random = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> NDArray[np.float64]:
            return torch.randn(*shape, generator=random, dtype=torch.float64).numpy()

        self.recurrent, self.words = weights(hidden, hidden) / 2, weights(vocabulary, hidden)
        self.look, self.output = weights(4, hidden), weights(hidden, vocabulary) * sharp
        self.favour = np.array([-3.0, -3.0, 1.0, -3.0, -3.0, -3.0] + [0.0] * (vocabulary - 6))
        self.steps = 0
        self.row_steps = 0

    def start(
        self,
        regions: RegionArrays,
        draws: int,
        *,
        seed: int = 0,
        latent_temperature: float = 1.0,
        latents: LatentValues | None = None,
        record: bool = False,
    ) -> TinyState:
        assert latents is None and not record
        regions = RegionArrays.of(regions)
        pictures = np.repeat(np.arange(len(regions)), draws)
        return TinyState(
            hidden=np.zeros((len(pictures), len(self.recurrent))),
            keys=row_keys(seed, torch.from_numpy(regions.keys), draws).numpy(),
            picture=pictures,
            regions=regions.features.astype(np.float64),
            mask=regions.mask,
            temperature=latent_temperature,
        )

    def step(
        self,
        tokens: Ints,
        state: TinyState,
        k: int | None,
        *,
        named: Ints | None = None,
        mask: TokenMask | None = None,
    ) -> tuple[Candidates, TinyState, Floats]:
        self.steps += 1
        self.row_steps += len(tokens)
        logs, state, attention = self.logs(tokens, state)
        return plain_candidates(logs, k, named, mask), state, attention

    def logs(self, tokens: Ints, state: TinyState) -> tuple[Floats, TinyState, Floats]:
        """Log-probabilities (N, V) of the next tokens, the state after them, attention (N, R)."""
        seen = state.regions[state.picture] @ self.look  # (N, R, H)
        scores = np.where(state.mask[state.picture], (seen * state.hidden[:, None]).sum(2), -np.inf)
        attention = np.exp(scores - scores.max(1, keepdims=True))
        attention /= attention.sum(1, keepdims=True)  # (N, R)
        context = (attention[:, :, None] * seen).sum(1)
        noise = normals(torch.from_numpy(state.keys), 5, state.step, state.hidden.shape[1]).double().numpy()
        inputs = self.words[tokens] + context + noise * state.temperature
        hidden = np.tanh(state.hidden @ self.recurrent + inputs)
        logits = hidden @ self.output + self.favour
        largest = logits.max(1, keepdims=True)
        logs = logits - largest - np.log(np.exp(logits - largest).sum(1, keepdims=True))
        return logs, replace(state, hidden=hidden, step=state.step + 1), attention


def plain_candidates(logs: Floats, k: int | None, named: Ints | None, mask: TokenMask | None) -> Candidates:
    """What a step returns, one row and one token at a time."""
    ids, values = [], []
    struck = set() if mask is None else set(zip(mask.rows.tolist(), mask.row_tokens.tolist(), strict=True))
    everywhere = set() if mask is None else set(mask.tokens.tolist())
    for row, given in enumerate(logs.tolist()):
        left = [-np.inf if t in everywhere or (row, t) in struck else v for t, v in enumerate(given)]
        asked = [] if named is None else named[row].tolist()
        others = [t for t in range(len(left)) if t not in asked]
        if k is not None:
            others = sorted(others, key=lambda t: (-left[t], t))[:k]
        ids.append([*asked, *others])
        values.append([-np.inf if t < 0 else left[t] for t in ids[-1]])
        if named is not None and k:  # rows may name different numbers of tokens, so some have more others
            ids[-1] = [*ids[-1], *[0] * (len(asked) + k - len(ids[-1]))]
            values[-1] = [*values[-1], *[-np.inf] * (len(ids[-1]) - len(values[-1]))]
    return Candidates(np.array(ids), np.array(values))


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
    captions: Ints,
    draw: int = 0,
    seed: int = 0,
    latent_temperature: float = 1.0,
) -> Floats:
    """The log-probability of each of many captions of the first picture; captions: (C, T), without the end."""
    state = model.start(RegionArrays.of(batch), draw + 1, seed=seed, latent_temperature=latent_temperature)
    state = state.select(np.full(len(captions), draw))
    token = np.full(len(captions), START)
    total = np.zeros(len(captions))
    for step in range(captions.shape[1] + 1):
        logs, state, _ = model.logs(token, state)
        token = captions[:, step] if step < captions.shape[1] else np.full_like(token, END)
        total += logs[np.arange(len(token)), token]
    return total


def every_caption(
    model: TinyModel,
    batch: RegionBatch,
    longest: int,
    *,
    shortest: int = 1,
    draw: int = 0,
    seed: int = 0,
    latent_temperature: float = 1.0,
) -> list[tuple[tuple[str, ...], float]]:
    """All captions of the first picture with their log-probabilities."""
    found = []
    for length in range(shortest, longest + 1):
        captions = np.array(list(product(IDS.values(), repeat=length)), np.int64).reshape(-1, length)
        for ids, score in zip(
            captions.tolist(),
            scores_of(model, batch, captions, draw, seed, latent_temperature).tolist(),
            strict=True,
        ):
            found.append((tuple(VOCABULARY.units[word] for word in ids), score))
    return found


def ranked(
    captions: list[tuple[tuple[str, ...], float]], length_penalty: float
) -> list[tuple[tuple[str, ...], float]]:
    return sorted(captions, key=lambda item: -item[1] / (len(item[0]) + 1) ** length_penalty)


def contains(tokens: tuple[str, ...], phrase: tuple[str, ...]) -> bool:
    return any(tokens[at : at + len(phrase)] == phrase for at in range(len(tokens) - len(phrase) + 1))


def same(one: list[list[Caption]], other: list[list[Caption]]) -> bool:
    """The same captions; batches of another size may round the last digits of a probability otherwise."""
    pairs = [pair for rows in zip(one, other, strict=True) for pair in zip(*rows, strict=True)]
    return all(
        a.tokens == b.tokens
        and a.draw == b.draw
        and a.satisfied == b.satisfied
        and abs(a.log_probability - b.log_probability) < 1e-4
        and a.attention.shape == b.attention.shape
        and abs(a.attention - b.attention).max(initial=0) < 1e-4
        for a, b in pairs
    )
