"""Latent sampling: one caption for each draw of the latents, all draws of all pictures as one batch."""

import numpy as np
from numpy.typing import NDArray

from coscap.noise import row_keys, uniforms
from coscap.seam import Candidates, Floats, Ints, LatentValues, RegionArrays, S, SearchModel
from coscap.search.beam import Ended, Trace
from coscap.search.config import SearchSettings
from coscap.search.constraints import TokenConstraints
from coscap.text.vocabulary import END, START

_TOKEN_STREAM = 0x776F7264  # names the noise of tokens, apart from the latents'
_LIKELY = 256  # this many of the likeliest tokens are sorted before all are


def start(
    model: SearchModel[S],
    regions: RegionArrays,
    draws: range,
    settings: SearchSettings,
    latents: LatentValues | None = None,
) -> S:
    """Rows for these draws of each picture, picture-major; `latents` are one row of values for all draws."""
    state = model.start(
        regions,
        draws.stop,
        seed=settings.seed,
        latent_temperature=settings.latent_temperature,
        latents=None if latents is None else latents.repeat(draws.stop),
    )
    if draws.start == 0:
        return state
    return state.select((np.arange(len(regions))[:, None] * draws.stop + np.array(draws)).ravel())


def write(
    model: SearchModel[S],
    regions: RegionArrays,
    draws: range,
    settings: SearchSettings,
    constraints: TokenConstraints,
    state: S | None = None,
) -> tuple[Trace, Ended]:
    """Write one caption for each draw, from `state` if it is given; a row that has ended leaves the batch."""
    state = start(model, regions, draws, settings) if state is None else state
    count = len(regions) * len(draws)
    trace = Trace()
    number = np.arange(count)  # (N,) which caption each row writes
    chance = _token_noise(regions, draws, settings, constraints) if settings.do_sample else None
    written = np.empty((count, 0), np.int64)
    parents, token = number, np.full(count, START)
    score = np.zeros(count)
    end_step, end_row, total = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count)
    k = (settings.top_k or None) if settings.do_sample else 1
    for step in range(constraints.max_length + 1):
        candidates, state, attention = constraints.step(model, token, state, written, k)
        trace.add(parents, token, attention)
        token, log_probability = choose(
            candidates, None if chance is None else chance[number, step], settings
        )
        score = score + log_probability
        ended = token == END
        end_step[number[ended]] = step
        end_row[number[ended]] = np.flatnonzero(ended)
        total[number[ended]] = score[ended]
        parents = np.flatnonzero(~ended)
        if len(parents) == 0:
            break
        number, token, score = number[parents], token[parents], score[parents]
        written = np.concatenate([written[parents], token[:, None]], axis=1)
        if len(parents) < len(ended):
            state = state.select(parents)
    every = np.arange(count)
    return trace, Ended(
        picture=every // len(draws),
        draw=draws.start + every % len(draws),
        step=end_step,
        row=end_row,
        log_probability=total,
        satisfied=np.ones(count, np.bool_),
    )


def choose(
    candidates: Candidates, chance: Floats | None, settings: SearchSettings
) -> tuple[Ints, NDArray[np.float64]]:
    """The next token of each row and its log-probability: the likeliest (the first of equal ones), or that at
    `chance` (N,) in 0..1.

    Each row's chance follows from its names, and it picks from the distribution by the inverse of its cumulative
    sum, so the same row takes the same token in every batch.
    """
    logs = candidates.log_probabilities.astype(np.float64)  # (N, K)
    column = logs.argmax(axis=1)
    rows = np.arange(len(logs))
    stuck = logs[rows, column] == -np.inf  # nothing is allowed, so the caption ends
    if chance is not None:
        column = _draw(np.where(stuck[:, None], 0.0, logs), chance, settings)
    return np.where(stuck, END, candidates.ids[rows, column]), logs[rows, column]


def _draw(logs: NDArray[np.float64], chance: Floats, settings: SearchSettings) -> Ints:
    """The column that each row draws; logs: (N, K)"""
    scaled = logs / settings.temperature
    if settings.top_k == 0 and settings.top_p == 1.0:
        return _inverse(np.exp(scaled - scaled.max(axis=1, keepdims=True)), chance)
    best, index = _top(scaled, settings.top_k or _LIKELY)  # (N, K') by falling probability
    whole = _logsumexp(best if settings.top_k else scaled)  # what top_p is a part of
    probabilities = np.exp(best - whole)
    if not settings.top_k and (probabilities.sum(axis=1) < settings.top_p).any():  # these were not enough
        best, index = _top(scaled, scaled.shape[1])
        probabilities = np.exp(best - whole)
    before = np.cumsum(probabilities, axis=1) - probabilities
    probabilities = np.where(before >= settings.top_p, 0.0, probabilities)  # the first token always stays
    return index[np.arange(len(index)), _inverse(probabilities, chance)]


def _top(values: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], Ints]:
    """The k largest of each row by falling value, equal ones by rising column: (N, k) twice."""
    if 8 * k < values.shape[1]:
        border = np.partition(values, -k, axis=1)[:, -k]  # (N,) the k-th largest
        wide = int((values >= border[:, None]).sum(axis=1).max())  # more than k where some are equal
        if wide <= 4 * k:
            some = np.sort(np.argpartition(-values, wide - 1, axis=1)[:, :wide], axis=1)
            order = np.argsort(-np.take_along_axis(values, some, 1), axis=1, kind="stable")[:, :k]
            index = np.take_along_axis(some, order, 1)
            return np.take_along_axis(values, index, 1), index
    index = np.argsort(-values, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(values, index, 1), index


def _logsumexp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 1)"""
    largest = values.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = largest + np.log(np.exp(values - largest).sum(axis=1, keepdims=True))
    return result


def _inverse(probabilities: NDArray[np.float64], chance: Floats) -> Ints:
    """The first column whose cumulative sum exceeds chance x the whole."""
    sums = np.cumsum(probabilities, axis=1)
    column = np.count_nonzero(sums <= (chance * sums[:, -1])[:, None], axis=1)
    possible = probabilities > 0
    last = (
        possible.shape[1] - 1 - possible[:, ::-1].argmax(axis=1)
    )  # rounding must not pass a probability of 0
    result: Ints = np.minimum(column, last)
    return result


def _token_noise(
    regions: RegionArrays, draws: range, settings: SearchSettings, constraints: TokenConstraints
) -> NDArray[np.float64]:
    """One number in (0, 1) for each (seed, picture, draw, step): (rows, steps), float64."""
    rows = row_keys(settings.seed, regions.keys, draws)
    return uniforms(rows, _TOKEN_STREAM, 0, constraints.max_length + 1)
