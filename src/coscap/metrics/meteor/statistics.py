"""From alignments to scores: the 23 statistics of a sentence pair and METEOR's formula.

    P = sum_i w_i (d c_i + (1 - d) f_i) / (d C + (1 - d) F)      content and function words, weighted by module
    score = P R / (a P + (1 - a) R) * (1 - g (chunks / matches)^b)

Columns: length, function words (caption and reference each), then for exact, stem, synonym and paraphrase the
content words of caption and reference and the function words of both, then chunks and matched words of both.
Statistics are whole numbers that add up: the score of a corpus is the score of their sum, in which captions that
are the same as a reference have no chunk.
"""

from typing import Any

import numpy as np

from coscap.metrics.compiled import compiled
from coscap.metrics.meteor.beam import BEAM, fixed_matches, search
from coscap.metrics.meteor.matches import by_position, find_matches

Array = np.ndarray[Any, Any]

COLUMNS = 23
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
_CHUNKS = 20


@compiled
def exact_product(a: float, b: float) -> tuple[float, float]:
    """a * b as a sum of two numbers without rounding (Dekker)."""
    high = a * b
    a_big, b_big = 134217729.0 * a, 134217729.0 * b
    a_high, b_high = a_big - (a_big - a), b_big - (b_big - b)
    a_low, b_low = a - a_high, b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


@compiled
def power_beta(x: float) -> float:
    """x ** BETA, rounded correctly: mathematics libraries differ in the last bit, and the score would too.

    BETA = 0.2 is a little more than a fifth as a floating-point number (by 1.1e-17), which the last term respects.
    """
    y = x**BETA
    square, square_low = exact_product(y, y)
    fourth, fourth_low = exact_product(square, square)
    fourth_low += 2.0 * square * square_low
    fifth, fifth_low = exact_product(fourth, y)
    fifth_low += fourth_low * y
    excess = 5.0 * 1.1102230246251565e-17 * x * np.log(x)
    return float(y + ((x - fifth) - fifth_low + excess) / (5.0 * fourth))


@compiled
def is_same(statistics: Array) -> bool:
    """Whether all words of both sentences are matched in one chunk: the official program then takes no penalty."""
    return bool(statistics[21] == statistics[0] and statistics[22] == statistics[1] and statistics[20] == 1)


@compiled
def score_of(statistics: Array) -> float:
    """The score of one row of statistics. Sums run in the official order, so the last bit is the same."""
    weights = (1.0, 0.6, 0.8, 0.6)
    rates = np.zeros(2)
    for side in range(2):
        total = 0.0
        for module in range(4):
            total += weights[module] * statistics[4 + 4 * module + side] * DELTA
        for module in range(4):
            total += weights[module] * statistics[6 + 4 * module + side] * (1.0 - DELTA)
        function = statistics[2 + side]
        length = DELTA * (statistics[side] - function) + (1.0 - DELTA) * function
        rates[side] = total / length if length > 0 else 0.0
    if rates[0] == 0.0 or rates[1] == 0.0:
        return 0.0
    mean = 1.0 / ((1.0 - ALPHA) / rates[0] + ALPHA / rates[1])
    chunks, ours, theirs = statistics[_CHUNKS], statistics[_CHUNKS + 1], statistics[_CHUNKS + 2]
    if chunks == 0 or is_same(statistics):
        return float(mean)
    return float(mean * (1.0 - GAMMA * power_beta(chunks / ((ours + theirs) / 2.0))))


@compiled
def added_of(statistics: Array) -> Array:
    """What each caption adds to a corpus, (N, COLUMNS): its statistics, without the chunk of a perfect match."""
    added = statistics.copy()
    for row in added:
        if is_same(row):
            row[_CHUNKS] -= 1
    return added


@compiled
def sum_of(statistics: Array) -> Array:
    """The statistics of a corpus from those of its captions (N, COLUMNS)."""
    total = np.zeros(COLUMNS, np.int64)
    for row in added_of(statistics):
        total += row
    return total


@compiled
def scores_of(statistics: Array) -> Array:
    out = np.zeros(statistics.shape[0])
    for n in range(out.size):
        out[n] = score_of(statistics[n])
    return out


@compiled
def pair_statistics(
    hypothesis: Array, reference: Array, function: Array, matches: Array, chosen: Array, out: Array
) -> None:
    """Write the statistics of an alignment into `out`."""
    out[:] = 0
    out[0] = hypothesis.size
    out[1] = reference.size
    for word in hypothesis:
        out[2] += function[word]
    for word in reference:
        out[3] += function[word]
    r_end, h_end = -1, -1
    for j in range(reference.size):
        k = chosen[j]
        if k < 0:
            continue
        module, r_first, r_length = matches[k, 0], matches[k, 1], matches[k, 2]
        h_first, h_length = matches[k, 3], matches[k, 4]
        for i in range(h_first, h_first + h_length):
            out[4 + 4 * module + 2 * function[hypothesis[i]]] += 1
        for i in range(r_first, r_first + r_length):
            out[5 + 4 * module + 2 * function[reference[i]]] += 1
        if r_first != r_end or h_first != h_end:
            out[_CHUNKS] += 1
        r_end, h_end = r_first + r_length, h_first + h_length
        out[_CHUNKS + 1] += h_length
        out[_CHUNKS + 2] += r_length


@compiled
def score_groups(
    low: int,
    high: int,
    h_start: Array,
    h_sentence: Array,
    r_start: Array,
    r_sentence: Array,
    words: Array,
    start: Array,
    lexicon: tuple[Array, Array, Array, Array, Array],
    phrases: Array,
    phrase_start: Array,
    phrase_rows: tuple[Array, Array],
    out: Array,
) -> None:
    """For each group (picture) in low..high, the statistics of each caption against its best reference into `out`.

    The reference with the highest score wins, the first of equals. `lexicon` is (stem, function, synset_start,
    synsets, signature), `phrases` the rows (first, length, local node) of all sentences.
    """
    stem, function, synset_start, synsets, signature = lexicon
    longest = 1
    for sentence in range(start.size - 1):
        longest = max(longest, start[sentence + 1] - start[sentence])
    marks = np.full(phrase_rows[0].size, -1, np.int64)
    found = np.zeros((256, 5), np.int64)
    matches = np.zeros((256, 5), np.int64)
    position = np.zeros(longest + 2, np.int64)
    fixed = np.zeros(longest, np.int64)
    chosen = np.zeros(longest, np.int64)
    h_cover, r_cover = np.zeros(longest, np.int64), np.zeros(longest, np.int64)
    parents = np.zeros((longest, BEAM), np.int64)
    choices = np.zeros((longest, BEAM), np.int64)
    row = np.zeros(COLUMNS, np.int64)
    for group in range(low, high):
        for h in range(h_start[group], h_start[group + 1]):
            best = -1.0
            s = h_sentence[h]
            hypothesis = words[start[s] : start[s + 1]]
            h_phrases = phrases[phrase_start[s] : phrase_start[s + 1]]
            for r in range(r_start[group], r_start[group + 1]):
                t = r_sentence[r]
                reference = words[start[t] : start[t + 1]]
                r_phrases = phrases[phrase_start[t] : phrase_start[t + 1]]
                while True:
                    count = find_matches(
                        hypothesis, reference, stem, synset_start, synsets, signature,
                        h_phrases, r_phrases, phrase_rows, marks, found,
                    )  # fmt: skip
                    if count <= found.shape[0]:
                        break
                    found = np.zeros((2 * count, 5), np.int64)
                    matches = np.zeros((2 * count, 5), np.int64)
                by_position(found, count, reference.size, matches, position)
                fixed_matches(matches, count, hypothesis.size, reference.size, fixed, h_cover, r_cover)
                search(matches, position, fixed, hypothesis.size, reference.size, parents, choices, chosen)
                pair_statistics(hypothesis, reference, function, matches, chosen, row)
                score = score_of(row)
                if score > best:
                    best = score
                    out[h] = row
