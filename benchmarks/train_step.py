"""How close a training step of the `paper` configuration is to the machine's limit.

The limit is the time that the step's own multiplications would take at the rate of one large matrix
multiplication, measured in the same run. A multiplication counts once forward and twice backward (once
for each of its factors), and not where a factor needs no gradient. Also runs a step with 150 captions for
the memory it takes. Prints `ratio`, exits 1 above a bar.
"""

import os
import resource
import sys
import time
from collections.abc import Callable

import torch

from coscap.data.batch import Batch, RegionBatch
from coscap.models import ModelConfig, build_model, keep_freed_memory, preset
from coscap.text.vocabulary import END, SLOT

BAR = 1.5
CAPTIONS, REGIONS, WORDS, OBJECTS, VOCABULARY = 64, 36, 20, 3, 10_000
MOST_CAPTIONS, MEMORY_BAR = 150, 12
SECONDS = 30


def make_batch(config: ModelConfig, captions: int = CAPTIONS) -> Batch:
    """One caption of full length for each picture: nothing is saved by short captions."""
    g = torch.Generator().manual_seed(0)
    corners = torch.rand(captions, REGIONS, 2, generator=g) * 0.5
    pictures = RegionBatch(
        features=torch.rand(captions, REGIONS, config.region_width, generator=g),
        boxes=torch.cat([corners, corners + 0.4], dim=2),
        labels=torch.zeros(captions, REGIONS, dtype=torch.long),
        scores=torch.ones(captions, REGIONS),
        mask=torch.ones(captions, REGIONS, dtype=torch.bool),
        keys=torch.arange(captions),
    )
    words = torch.randint(6, config.vocabulary, (captions, WORDS), generator=g)
    words[:, -1] = END
    named = torch.tensor([1, 4, 8])
    context = words.clone()
    context[:, named] = SLOT
    return Batch(
        pictures=pictures,
        rows=torch.arange(captions),
        words=words,
        context=context,
        objects=words[:, named],
        lengths=torch.full((captions,), WORDS),
        image_ids=torch.arange(captions),
    )


def multiplications(c: ModelConfig, captions: int = CAPTIONS) -> float:
    """Multiply-adds of one step forward and backward."""
    n, once, listed = captions * WORDS, captions, captions * OBJECTS  # words, pictures, objects
    later = captions * (WORDS - 1)  # words whose recurrence has a state before it
    objects_later = captions * (OBJECTS - 1)
    f, z_m, z_o, e = c.value_width, c.context_latent, c.object_latent, c.word_width
    att, lang, width = c.attention_lstm, c.language_lstm, c.attention_width
    q_m, q_o, p_m, p_o = c.context_posterior, c.object_posterior, c.context_prior, c.object_prior
    # Factors that both need a gradient: forward, and backward for each.
    three = [
        n * (c.decoder_words + z_m + z_o) * 4 * att,  # words and latents into the attention LSTM
        later * (lang + att) * 4 * att,  # its recurrence
        n * att * width,  # query
        n * REGIONS * width,  # scores
        n * (f + att) * 4 * lang,  # attended region and attention LSTM into the language LSTM
        later * lang * 4 * lang,  # its recurrence
        n * lang * c.vocabulary,
        2 * n * e * 4 * q_m,  # q(z^m), two directions
        2 * later * q_m * 4 * q_m,
        n * 2 * q_m * 2 * z_m + later * z_m * 2 * z_m,
        listed * (e + z_m) * 4 * q_o,  # q(z^o)
        objects_later * q_o * 4 * q_o,
        n * (q_o + z_m) * 2 * z_o + later * z_o * 2 * z_o,
        n * (e + z_m) * 4 * p_m + later * p_m * 4 * p_m + n * p_m * 2 * z_m,  # p(z^m)
        n * (e + z_m + z_o) * 4 * p_o + later * p_o * 4 * p_o + n * p_o * 2 * z_o,  # p(z^o)
    ]
    # Regions are given, so only the weights need a gradient.
    two = [
        once * REGIONS * f * width,  # keys
        once * f * 4 * (att + 2 * q_m + q_o + p_m + p_o),  # v-bar
        n * REGIONS * f,  # attended region: gradient of the attention
    ]
    return 3.0 * sum(three) + 2.0 * sum(two)


def clock() -> Callable[[], float]:
    """Time on the wall with all threads; on a busy machine, where threads wait for each other and for
    other programs, processor time with one thread. Both sides of a ratio use the same."""
    busy = os.getloadavg()[0] > 0.6 * torch.get_num_threads()
    if not busy:
        return time.perf_counter
    print("this machine is busy: one thread, processor time")
    torch.set_num_threads(1)
    return time.process_time


def rate(now: Callable[[], float]) -> float:
    """Seconds of one multiply-add in a large multiplication, the best of three."""
    a, b, out = torch.rand(1280, 2048), torch.rand(2048, 4096), torch.empty(1280, 4096)
    best = float("inf")
    for _ in range(3):
        start = now()
        torch.mm(a, b, out=out)
        best = min(best, now() - start)
    return best / (a.shape[0] * a.shape[1] * b.shape[1])


def main() -> int:
    config = preset("paper", vocabulary=VOCABULARY)
    torch.manual_seed(0)
    model = build_model(config)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.015, momentum=0.9, weight_decay=0.001, fused=True)

    def step(batch: Batch) -> None:
        optimiser.zero_grad(set_to_none=True)
        model.loss(batch).objective().backward()
        optimiser.step()

    keep_freed_memory()
    begin = time.perf_counter()
    batch = make_batch(config)
    now = clock()
    step(batch)
    gemm = best = float("inf")
    rounds = 0
    while rounds < 2 or time.perf_counter() - begin < SECONDS:
        gemm = min(gemm, rate(now))
        start = now()
        step(batch)
        best = min(best, now() - start)
        rounds += 1
    step(make_batch(config, MOST_CAPTIONS))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    count = multiplications(config)
    limit = count * gemm
    print(f"threads {torch.get_num_threads()}, multiplication {2 / gemm / 1e9:.1f} GFLOP/s, {rounds} rounds")
    print(f"a step has {2 * count / 1e9:.0f} GFLOP: limit {limit:.3f} s, measured {best:.3f} s")
    print(f"memory at batch {MOST_CAPTIONS}: {memory:.1f} GB, bar {MEMORY_BAR}")
    ratio = best / limit
    print(f"train_step: ratio {ratio:.2f}, bar {BAR}")
    return 0 if ratio <= BAR and memory <= MEMORY_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
