"""How close drawing 100 captions of one picture with the `paper` configuration is to the machine's limit.

The limit is the time that its own multiplications would take at the rate of one large matrix
multiplication, measured in the same run. The same captions are also drawn one at a time; how much faster 100
rows are than 100 times one is also measured for the bare multiplications of a row, with nothing around them.
Every caption is 20 words long. Prints `ratio`, exits 1 above the bar or below 25 times the speed of single draws.
"""

import sys
import time

import torch
from torch import Tensor
from train_step import REGIONS, VOCABULARY, WORDS, clock, make_batch, rate

from coscap.data.batch import RegionBatch
from coscap.models import CaptionModel, ModelConfig, build_model, keep_freed_memory, preset
from coscap.text.vocabulary import START

BAR, FASTER = 1.8, 25
DRAWS = 100
SECONDS = 35


def multiplications(c: ModelConfig, said: int) -> float:
    """Multiply-adds of drawing all captions as the model does it. Less than each row on its own would need:
    a word that several rows say is projected once (`said` words in all), and so is each region."""
    f, e = c.value_width, c.word_width
    att, lang, p_m, p_o = c.attention_lstm, c.language_lstm, c.context_prior, c.object_prior
    rows = sum(inputs * outputs for inputs, outputs in products(c))
    picture = REGIONS * f * (c.attention_width + 4 * lang) + f * 4 * (att + p_m + p_o)
    word = e * 4 * (p_m + p_o) + c.decoder_words * 4 * att
    attended = REGIONS * (c.attention_width + 4 * lang)
    return float(picture + said * word + DRAWS * WORDS * (rows + attended))


def products(c: ModelConfig) -> list[tuple[int, int]]:
    """Inputs and outputs of the matrices that every row is multiplied with at each word."""
    z_m, z_o = c.context_latent, c.object_latent
    att, lang, p_m, p_o = c.attention_lstm, c.language_lstm, c.context_prior, c.object_prior
    return [
        *[(z_m + p_m, 4 * p_m), (p_m, 2 * z_m)],  # p(z^m)
        *[(z_m + z_o + p_o, 4 * p_o), (p_o, 2 * z_o)],  # p(z^o)
        *[(z_m + z_o + lang + att, 4 * att), (att, c.attention_width)],  # attention LSTM and query
        *[(att + lang, 4 * lang), (lang, c.vocabulary)],  # language LSTM and words
    ]


def multiply(matrices: list[Tensor], rows: int) -> None:
    """The bare multiplications of whole captions."""
    given = [torch.ones(rows, len(matrix)) for matrix in matrices]
    for _ in range(WORDS):
        for row, matrix in zip(given, matrices, strict=True):
            torch.mm(row, matrix)


def draw(model: CaptionModel, regions: RegionBatch, draws: int, words: int = WORDS) -> list[Tensor]:
    """The words given to each step."""
    state = model.start(regions, draws)
    tokens = torch.full((draws,), START)
    given = []
    for _ in range(words):
        given.append(tokens)
        logs, state, _ = model.step(tokens, state)
        tokens = logs.argmax(1)
    return given


def main() -> int:
    config = preset("paper", vocabulary=VOCABULARY)
    torch.manual_seed(0)
    model = build_model(config).eval()
    keep_freed_memory()
    regions = make_batch(config, 1).pictures
    now = clock()
    matrices = [torch.randn(inputs, outputs) for inputs, outputs in products(config)]
    gemm = together = alone = bare_together = bare_alone = float("inf")
    begin = time.perf_counter()
    rounds = 0
    draw(model, regions, DRAWS, 2)
    draw(model, regions, 1, 2)
    while rounds < 3 or time.perf_counter() - begin < SECONDS:
        gemm = min(gemm, rate(now))
        start = now()
        given = draw(model, regions, DRAWS)
        middle = now()
        draw(model, regions, 1)
        end = now()
        together, alone = min(together, middle - start), min(alone, end - middle)
        multiply(matrices, DRAWS)
        middle = now()
        multiply(matrices, 1)
        bare_together, bare_alone = min(bare_together, middle - end), min(bare_alone, now() - middle)
        rounds += 1
    said = sum(len(tokens.unique()) for tokens in given)
    limit = multiplications(config, said) * gemm
    faster = DRAWS * alone / together
    print(f"threads {torch.get_num_threads()}, multiplication {2 / gemm / 1e9:.1f} GFLOP/s, {rounds} rounds")
    print(f"{DRAWS} captions with {said} words that differ at their step: limit {limit:.3f} s")
    print(f"measured {together:.3f} s; one caption alone {alone:.3f} s")
    print(f"{faster:.1f} times as fast as one draw at a time (bar {FASTER})")
    bare = DRAWS * bare_alone / bare_together
    print(
        f"the bare multiplications: {bare_together:.3f} s, one row {bare_alone:.3f} s, {bare:.1f} times as fast"
    )
    ratio = together / limit
    print(f"sampling: ratio {ratio:.2f}, bar {BAR}")
    return 0 if ratio <= BAR and faster >= FASTER else 1


if __name__ == "__main__":
    sys.exit(main())
