"""The search for the nearest contexts, against the matrix products that it consists of.

Vectors of the shape of COCO's: contexts of width 256, eight neighbours for each picture, some contexts with
too many slots. The limit is the time of the products alone, block by block into the same memory. Prints `ratio`,
exits 1 above the bar, and says what all of COCO would take at this speed.
"""

import sys
import time

import numpy as np
import torch
from train_step import clock

from coscap.contexts.neighbours import nearest

BAR = 2.5
PICTURES, CONTEXTS, WIDTH, NEIGHBOURS = 512, 120_000, 256, 8
COCO_PICTURES, COCO_CONTEXTS = 118_287, 590_000
BLOCK = 256  # pictures searched for at once, as the search does
SECONDS = 25


def unit_vectors(count: int, chance: torch.Generator) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, WIDTH, generator=chance), dim=1)


def main() -> int:
    chance = torch.Generator().manual_seed(0)
    pictures, contexts = unit_vectors(PICTURES, chance), unit_vectors(CONTEXTS, chance)
    own = [np.arange(5 * i, 5 * i + 5) for i in range(PICTURES)]
    numbers = np.random.default_rng(0)
    slots, room = numbers.integers(1, 5, CONTEXTS), numbers.integers(2, 12, PICTURES)
    now = clock()
    times: dict[str, float] = {}
    transposed, products = contexts.T.contiguous(), torch.empty(BLOCK, CONTEXTS)
    begin, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - begin < SECONDS:
        start = now()
        for block in pictures.split(BLOCK):
            torch.mm(block, transposed, out=products[: len(block)])
        times["product"] = min(times.get("product", float("inf")), now() - start)
        start = now()
        nearest(pictures, contexts, own, NEIGHBOURS, slots=slots, room=room)
        times["search"] = min(times.get("search", float("inf")), now() - start)
        rounds += 1
    limit = times["product"]
    rate = 2 * PICTURES * CONTEXTS * WIDTH / limit
    print(f"threads {torch.get_num_threads()}, {rounds} rounds, {PICTURES} pictures, {CONTEXTS} contexts")
    print(f"products {rate / 1e9:.0f} GFLOP/s, limit {limit:.2f} s, search {times['search']:.2f} s")
    share = COCO_PICTURES / PICTURES * COCO_CONTEXTS / CONTEXTS
    print(f"{COCO_PICTURES} x {COCO_CONTEXTS} at this speed: {times['search'] * share / 60:.1f} minutes")
    ratio = times["search"] / limit
    print(f"neighbours: ratio {ratio:.2f}, bar {BAR}")
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
