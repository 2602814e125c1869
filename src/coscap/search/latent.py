"""Latent sampling: one caption for each draw of the latents, all draws of all pictures as one batch."""

import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.models.noise import row_keys, uniforms
from coscap.models.step import S, Step
from coscap.search.controls import Controls
from coscap.search.settings import SearchSettings
from coscap.search.top import top
from coscap.search.trace import Ended, Trace
from coscap.text.vocabulary import END, START

_STREAM = 0x776F7264  # names the noise of words, apart from the latents'
_LIKELY = 256  # this many of the likeliest words are looked at before all are sorted


def start(model: Step[S], regions: RegionBatch, draws: range, settings: SearchSettings) -> S:
    """Rows for these draws of each picture, picture-major."""
    state = model.start(regions, draws.stop, seed=settings.seed, temperature=settings.temperature)
    if draws.start == 0:
        return state
    pictures = torch.arange(len(regions.keys), device=regions.keys.device)
    numbers = torch.arange(draws.start, draws.stop, device=regions.keys.device)
    return state.select((pictures[:, None] * draws.stop + numbers).flatten())


def write(
    model: Step[S],
    regions: RegionBatch,
    draws: range,
    settings: SearchSettings,
    controls: Controls,
    state: S | None = None,
) -> tuple[Trace, Ended]:
    """Write one caption for each draw, from `state` if it is given; a row that has ended leaves the batch."""
    device = regions.keys.device
    state = start(model, regions, draws, settings) if state is None else state
    rows = len(regions.keys) * len(draws)
    trace = Trace()
    number = torch.arange(rows, device=device)  # (N,) which caption each row writes
    chance = _word_noise(regions, draws, settings, controls)  # (rows, steps)
    words = torch.empty(rows, 0, dtype=torch.int64, device=device)
    parents, chosen = number, torch.full_like(number, START)
    score = torch.zeros(rows, dtype=torch.float64, device=device)
    end_step, end_row = torch.zeros_like(number), torch.zeros_like(number)
    total = torch.zeros_like(score)
    for step in range(controls.max_length + 1):
        trace.parents.append(parents)
        trace.words.append(chosen)
        log_probabilities, state, attention = model.step(chosen, state)  # (N, V), (N, R)
        trace.attention.append(attention)
        allowed = controls.allow(log_probabilities, words)
        chosen = choose(allowed, chance[number, step] if settings.choose == "sample" else None, settings)
        score = score + log_probabilities.gather(1, chosen[:, None])[:, 0].double()
        ended = chosen == END
        end_step[number[ended]] = step
        end_row[number[ended]] = ended.nonzero()[:, 0]
        total[number[ended]] = score[ended]
        parents = (~ended).nonzero()[:, 0]
        if len(parents) == 0:
            break
        number, chosen, score = number[parents], chosen[parents], score[parents]
        words = torch.cat([words[parents], chosen[:, None]], dim=1)
        if len(parents) < len(ended):
            state = state.select(parents)
    every = torch.arange(rows, device=device)
    return trace, Ended(
        picture=every // len(draws),
        draw=draws.start + every % len(draws),
        step=end_step,
        row=end_row,
        log_probability=total,
        satisfied=torch.ones_like(every, dtype=torch.bool),
    )


def choose(allowed: Tensor, chance: Tensor | None, settings: SearchSettings) -> Tensor:
    """The next word of each row: the likeliest (the first of equal ones), or that at `chance` (N,) in 0..1.

    Each row's chance follows from its names, and it picks from the distribution by the inverse of its
    cumulative sum, so the same row takes the same word in every batch.
    """
    best, chosen = allowed.max(1)
    stuck = best == -torch.inf  # nothing is allowed, so the caption ends
    if chance is not None:
        chosen = _draw(allowed.index_fill(0, stuck.nonzero()[:, 0], 0.0), chance, settings)
    return chosen.masked_fill(stuck, END)


def _draw(allowed: Tensor, chance: Tensor, settings: SearchSettings) -> Tensor:
    scaled = allowed.double() / settings.word_temperature
    if settings.top_k == 0 and settings.top_p == 1.0:
        return _inverse(scaled.softmax(1), chance)
    width = scaled.shape[1]
    best, index = top(scaled, min(settings.top_k or _LIKELY, width))  # (N, K) by falling probability
    whole = (best if settings.top_k else scaled).logsumexp(1, keepdim=True)  # what top_p is a part of
    probabilities = (best - whole).exp()
    if not settings.top_k and bool((probabilities.sum(1) < settings.top_p).any()):  # these were not enough
        best, index = top(scaled, width)
        probabilities = (best - whole).exp()
    before = probabilities.cumsum(1) - probabilities
    probabilities = probabilities.masked_fill(before >= settings.top_p, 0.0)  # the first word always stays
    return index.gather(1, _inverse(probabilities, chance)[:, None])[:, 0]


def _inverse(probabilities: Tensor, chance: Tensor) -> Tensor:
    """The first place whose cumulative sum exceeds chance x the whole."""
    sums = probabilities.cumsum(1)
    place = torch.searchsorted(sums, (chance * sums[:, -1])[:, None], right=True)[:, 0]
    last = (probabilities > 0).cumsum(1).argmax(1)  # rounding must not reach a word of probability 0
    return torch.minimum(place, last)


def _word_noise(regions: RegionBatch, draws: range, settings: SearchSettings, controls: Controls) -> Tensor:
    """One number in (0, 1) for each (seed, picture, draw, step): (rows, steps), float64."""
    keys = row_keys(settings.seed, regions.keys, draws.stop).view(len(regions.keys), draws.stop)
    return uniforms(keys[:, draws.start :].flatten(), _STREAM, 0, controls.max_length + 1)
