"""What pseudo supervision adds to a training step, against a paired step of the same size.

Both are forward and backward passes over the same pictures with captions of the same lengths, with the `small`
configuration at batch 100. The pseudo caption is fed with the objects that fill its slots, found while the decoder
runs. Prints `ratio`, exits 1 above the bar.
"""

import sys
import time

import torch
from train_step import VOCABULARY, clock, make_batch

from coscap.models import CosCvae, build_model, keep_freed_memory, preset
from coscap.models.pseudo import SlotTokens, pseudo_loss

BAR = 1.1
CAPTIONS, CLASSES = 100, 80
SECONDS = 30


def main() -> int:
    config = preset("small", vocabulary=VOCABULARY, region_width=1024, classes=CLASSES)
    torch.manual_seed(0)
    model = build_model(config)
    assert isinstance(model, CosCvae)
    batch = make_batch(config, CAPTIONS)
    names = SlotTokens(torch.arange(10, 10 + CLASSES), torch.arange(100, 100 + CLASSES))
    keys = torch.arange(CAPTIONS)
    keep_freed_memory()
    now = clock()
    times = {}
    begin = time.perf_counter()
    rounds = 0
    while rounds < 3 or time.perf_counter() - begin < SECONDS:
        for name in ("paired", "filled", "neighbour"):
            model.zero_grad()
            start = now()
            if name == "paired":
                terms = model.loss(batch, keys=keys)
            else:
                terms, _ = pseudo_loss(model, batch, names, feed=name, keys=keys)  # type: ignore[arg-type]
            terms.objective().backward()
            times[name] = min(times.get(name, float("inf")), now() - start)
        rounds += 1
    print(f"threads {torch.get_num_threads()}, {rounds} rounds, {CAPTIONS} captions")
    print(", ".join(f"{name} {seconds:.3f} s" for name, seconds in times.items()))
    print(f"fed with the neighbour's own words: {times['neighbour'] / times['paired']:.2f}")
    ratio = times["filled"] / times["paired"]
    print(f"pseudo_step: ratio {ratio:.2f}, bar {BAR}")
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
