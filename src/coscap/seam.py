"""The seam between searches and models. Nothing here, and nothing in a search, needs torch.

A *row* is one caption that is being written. `start` makes `draws` rows for each picture (picture-major: the rows
of picture p are p * draws .. (p + 1) * draws - 1). `step` takes the token that each row chose last and returns the
best candidates for the next one. `select` copies, drops or reorders rows between steps. Tokens, candidates and rows
are NumPy arrays; a state lives where its model lives: in memory, on a GPU, in a runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from coscap.vision.regions import Regions, noise_key

Ints = NDArray[np.int64]
Floats = NDArray[np.floating]
Check = Callable[[], None]
"""Called before each step of a search; it may raise, and so ends work that is no longer wanted."""


@dataclass(frozen=True)
class Caption:
    """One caption of one picture."""

    tokens: tuple[str, ...]
    """Its words; a multi-word object name ("fire hydrant") is one token."""
    log_probability: float
    """The model's own: the sum over the tokens and the end of log p(token | tokens before, draw, picture)."""
    draw: int
    """The number of the draw of latents that it was written under."""
    attention: NDArray[np.float32] = field(repr=False, compare=False)
    """(T, R): for each token, the model's attention on each region of the picture."""
    satisfied: bool = True
    """False where a constrained search could not bring in as many of the required words as asked."""

    @property
    def text(self) -> str:
        return " ".join(self.tokens)


class RegionLike(Protocol):
    """A RegionArrays, or a batch of tensors with the same fields (coscap.data.batch.RegionBatch)."""

    @property
    def features(self) -> Any: ...
    @property
    def boxes(self) -> Any: ...
    @property
    def labels(self) -> Any: ...
    @property
    def scores(self) -> Any: ...
    @property
    def mask(self) -> Any: ...
    @property
    def keys(self) -> Any: ...


@dataclass(frozen=True)
class RegionArrays:
    """The regions of P pictures, padded to the largest set among them (R)."""

    features: Floats  # (P, R, F)
    boxes: Floats  # (P, R, 4) 0..1
    labels: Ints  # (P, R) -1 for a cell of the grid and for padding
    scores: Floats  # (P, R) 0 for padding
    mask: NDArray[np.bool_]  # (P, R) True where there is a region
    keys: Ints  # (P,) what the noise of a picture's draws is seeded with, besides the user's seed

    @classmethod
    def of(cls, batch: RegionLike) -> "RegionArrays":
        """The same batch if it is one already, or that of a batch of tensors with the same fields."""
        if isinstance(batch, cls):
            return batch
        return cls(**{each.name: _array(getattr(batch, each.name)) for each in fields(cls)})

    @classmethod
    def stack(cls, pictures: Sequence[Regions]) -> "RegionArrays":
        """Several pictures' regions, padded."""
        count, most = len(pictures), max(1, *(len(each) for each in pictures))
        (width,) = {each.features.shape[1] for each in pictures}
        arrays = cls(
            features=np.zeros((count, most, width), np.float32),
            boxes=np.zeros((count, most, 4), np.float32),
            labels=np.full((count, most), -1),
            scores=np.zeros((count, most), np.float32),
            mask=np.zeros((count, most), np.bool_),
            keys=np.zeros(count, np.int64),
        )
        for row, each in enumerate(pictures):
            size = len(each)
            arrays.features[row, :size] = each.features
            arrays.boxes[row, :size] = each.boxes
            arrays.labels[row, :size] = each.labels
            arrays.scores[row, :size] = each.scores
            arrays.mask[row, :size] = True
            arrays.keys[row] = noise_key(each)
        return arrays

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, pictures: Ints) -> "RegionArrays":
        return RegionArrays(**{each.name: getattr(self, each.name)[pictures] for each in fields(self)})


def _array(values: Any) -> NDArray[Any]:
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


@dataclass(frozen=True)
class LatentValues:
    """Values of z^m and z^o for the tokens of N rows. What is None is drawn from its prior."""

    lengths: Ints  # (N,) tokens that the values are given for; later ones are drawn
    context: Floats | None = None  # (N, T, Zm)
    objects: Floats | None = None  # (N, T, Zo), or (N, K, Zo) where z^o is drawn once for each object
    object_lengths: Ints | None = None  # (N,) how many of K are given

    def repeat(self, count: int) -> "LatentValues":
        """`count` copies of a single row."""

        def copies(values: Any) -> Any:
            return None if values is None else np.repeat(values, count, axis=0)

        return LatentValues(**{each.name: copies(getattr(self, each.name)) for each in fields(self)})


@dataclass(frozen=True)
class TokenMask:
    """Tokens that a step must not return: some for all rows, and single ones of single rows."""

    tokens: Ints  # (M,) struck out of every row
    rows: Ints  # (F,) row_tokens[i] is struck out of row rows[i]
    row_tokens: Ints  # (F,)


@dataclass(frozen=True)
class Candidates:
    """The next tokens to choose from. Struck-out and missing ones have log-probability -inf."""

    ids: Ints  # (N, K)
    log_probabilities: Floats  # (N, K)


class SearchState(Protocol):
    """All that a model remembers of its rows. Immutable: `step` and `select` return new ones."""

    @property
    def rows(self) -> int: ...

    def select(self, rows: Ints) -> Self:
        """The state whose row i is this state's row rows[i]; rows: (N',)."""
        ...

    def latents(self) -> LatentValues:
        """The values drawn so far, if the state was started with record=True."""
        ...


S = TypeVar("S", bound=SearchState)


class SearchModel(Protocol[S]):
    @property
    def latent_names(self) -> tuple[str, ...]:
        """("context", "objects"), ("context",) or (): the latents that draws differ in."""
        ...

    @property
    def digest(self) -> str:
        """A checksum of the weights: models with equal digests write equal captions."""
        ...

    def start(
        self,
        regions: RegionArrays,
        draws: int,
        *,
        seed: int = 0,
        latent_temperature: float = 1.0,
        latents: LatentValues | None = None,
        record: bool = False,
    ) -> S:
        """The state before the first token, with `draws` rows for each picture.

        A draw's latents follow from (seed, the picture, the number of the draw) alone, so captions do not depend
        on the batch. `latent_temperature` scales the standard deviation of their noise; `latents` gives values
        (one row of them for each row) instead of draws; `record` keeps those drawn for `state.latents()`.
        """
        ...

    def step(
        self,
        tokens: Ints,
        state: S,
        k: int | None,
        *,
        named: Ints | None = None,
        mask: TokenMask | None = None,
    ) -> tuple[Candidates, S, Floats]:
        """tokens: (N,) the tokens chosen last, START at first.

        Returns candidates, the next state, and attention over regions (N, R). The candidates of a row are the
        tokens in `named`, (N, A) with -1 for padding after the first, in that order; then the k likeliest others, by
        falling probability, equal ones by rising id. k=None returns the whole vocabulary in its order;
        `named` is then None.
        """
        ...


class Checked:
    """A model whose every step asks first whether the work is still wanted."""

    def __init__(self, model: Any, check: Check) -> None:
        self._model, self._check = model, check
        self.latent_names: tuple[str, ...] = model.latent_names
        self.start = model.start

    @property
    def digest(self) -> str:
        digest: str = self._model.digest
        return digest

    def step(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return self._model.step(*arguments, **options)
