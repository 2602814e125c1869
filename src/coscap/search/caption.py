"""What a search gives: captions."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Caption:
    """One caption of one picture."""

    units: tuple[str, ...]
    """Its words; a multi-word object name ("fire hydrant") is one of them."""
    log_probability: float
    """The model's own: the sum over the words and the end of log p(word | words before, draw, picture)."""
    draw: int
    """The number of the draw of latents that it was written under."""
    attention: NDArray[np.float32] = field(repr=False, compare=False)
    """(T, R): for each word, how much of the model's attention each region of the picture had."""
    satisfied: bool = True
    """False where a constrained search could not bring in as many of the wanted words as asked."""

    @property
    def text(self) -> str:
        return " ".join(self.units)
