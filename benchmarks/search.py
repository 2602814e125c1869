"""Beam search over 64 pictures at once against one picture at a time, and the model's share of the time.

The model is the `small` preset as it is shipped (COS-CVAE, for a CPU) with random weights, a vocabulary of
9,000 and 36 regions a picture, beam 5, captions of 20 words: an untrained model never ends by itself, so
all pictures cost the same, and 8 of them stand for the 64 taken one at a time. Both ways are timed in turns,
up to four times within half a minute, and the best of each counts. The ratio comes from multiplications that
are large enough to be fast and to use several cores, so other work on the machine changes it.
The model's share is the time inside its `start` and `step`; all the rest is the search.

    python benchmarks/search.py      exit code 1 if the ratio is under 8 or the share under 70 %
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from coscap.data.batch import RegionBatch
from coscap.models import build_model, preset
from coscap.models.stepper import TorchStepper
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text.vocabulary import SPECIAL, Vocabulary

PICTURES, ALONE, REGIONS, UNITS = 64, 8, 36, 9000
ROUNDS, ENOUGH = 4, 30.0  # rounds, and seconds after which no further one begins
RATIO_BAR, SHARE_BAR = 8.0, 0.70
SETTINGS = SearchSettings(search="beam", num_beams=5, max_length=20)


class Timed:
    """A model that counts the seconds spent in it."""

    def __init__(self, model: Any) -> None:
        self.model, self.latent_names, self.seconds = model, model.latent_names, 0.0

    def start(self, *arguments: Any, **options: Any) -> Any:
        return self._count(self.model.start, *arguments, **options)

    def step(self, *arguments: Any, **options: Any) -> Any:
        return self._count(self.model.step, *arguments, **options)

    def _count(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - begin


def pictures(width: int) -> RegionBatch:
    random = torch.Generator().manual_seed(0)
    corner = torch.rand(PICTURES, REGIONS, 2, generator=random) / 2
    return RegionBatch(
        features=torch.randn(PICTURES, REGIONS, width, generator=random) / width**0.5,
        boxes=torch.cat([corner, corner + 0.4], dim=2),
        labels=torch.randint(0, 80, (PICTURES, REGIONS), generator=random),
        scores=torch.rand(PICTURES, REGIONS, generator=random),
        mask=torch.ones(PICTURES, REGIONS, dtype=torch.bool),
        keys=torch.arange(PICTURES),
    )


def one(batch: RegionBatch, picture: int) -> RegionBatch:
    return RegionBatch(**{name: value[picture : picture + 1] for name, value in vars(batch).items()})


def main() -> int:
    torch.manual_seed(0)
    config = preset("small", vocabulary=UNITS)
    model = Timed(TorchStepper(build_model(config).eval()))
    vocabulary = Vocabulary((*SPECIAL, *(f"word{number}" for number in range(UNITS - len(SPECIAL)))))
    batch = pictures(config.region_width)
    singles = [one(batch, picture) for picture in range(0, PICTURES, PICTURES // ALONE)]

    def together() -> tuple[float, float]:
        model.seconds = 0.0
        begin = time.perf_counter()
        generate(model, batch, vocabulary, 1, SETTINGS)
        seconds = time.perf_counter() - begin
        return seconds / PICTURES, model.seconds / seconds

    def alone() -> float:
        begin = time.perf_counter()
        for single in singles:
            generate(model, single, vocabulary, 1, SETTINGS)
        return (time.perf_counter() - begin) / len(singles)

    generate(model, singles[0], vocabulary, 1, SETTINGS)  # warm up
    rounds: list[tuple[float, float, float]] = []
    begin = time.perf_counter()
    while len(rounds) < ROUNDS and time.perf_counter() - begin < ENOUGH:
        rounds.append((*together(), alone()))
    batched, share, single = min(r[0] for r in rounds), max(r[1] for r in rounds), min(r[2] for r in rounds)
    ratio = single / batched
    print(
        f"preset small ({config.kind}), random weights, beam 5; {torch.get_num_threads()} threads; {len(rounds)} rounds"
    )
    print(
        f"{PICTURES} pictures at once: {1000 * batched:.1f} ms a picture; one at a time: {1000 * single:.1f} ms"
    )
    print(f"share of the model's own step: {share:.0%}, bar {SHARE_BAR:.0%}")
    print(f"search: ratio {ratio:.1f}, bar {RATIO_BAR:.0f}")
    return 0 if ratio >= RATIO_BAR and share >= SHARE_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
