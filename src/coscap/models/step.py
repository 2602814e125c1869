"""The one protocol between models and searches: every search works with every model.

A *row* is one caption being written. `start` makes `draws` rows for each picture (picture-major: the rows
of picture p are p * draws .. (p + 1) * draws - 1); `step` takes the word each row chose last and gives the
log-probabilities of the next; `select` copies, drops or reorders rows between steps.
"""

from typing import Protocol, Self, TypeVar

from torch import Tensor

from coscap.data.batch import RegionBatch


class State(Protocol):
    """All that a model remembers of its rows. Immutable: `step` and `select` give new ones."""

    @property
    def rows(self) -> int: ...

    def select(self, rows: Tensor) -> Self:
        """The state whose row i is this state's row rows[i]; rows: (N',) int64."""
        ...


S = TypeVar("S", bound=State)


class Step(Protocol[S]):
    def start(self, regions: RegionBatch, draws: int, *, seed: int = 0, temperature: float = 1.0) -> S:
        """The state before the first word, with `draws` rows a picture.

        A draw's latents follow from (seed, the picture, the number of the draw) alone, so captions do
        not depend on the batch. `temperature` scales the standard deviation of the latents' noise.
        """
        ...

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S, Tensor]:
        """tokens: (N,) the words chosen last, START at first.

        Gives log-probabilities (N, V), the next state, and attention over regions (N, R). The caller may
        overwrite the log-probabilities: a search strikes out the words that it does not allow.
        """
        ...
