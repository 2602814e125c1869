"""The inner loops: what captions of a picture share with its references.

For each picture, the n-grams of its references go into lists ("postings"): n-gram -> (reference, count).
A caption then walks only over the postings of its own n-grams, which gives BLEU's clipped matches and
CIDEr's dot products with all references at once.
"""

import numpy as np

from coscap.metrics.compiled import compiled
from coscap.metrics.grams import ORDERS, Floats, Ints, Longs

CIDER = 0  # what `pairs` computes: CIDEr-D of a caption and one reference
FSCORE = 1  # or the mean F-score of their n-grams

_SIGMA = 6.0  # CIDEr-D's penalty for length: exp(-d^2 / (2 sigma^2)), d = difference in numbers of bigrams


@compiled
def _most_words(offsets: Longs, index: Longs, group_starts: Longs) -> int:
    """The largest number of words that the captions of one group have together."""
    most = 0
    for group in range(group_starts.size - 1):
        words = 0
        for item in range(group_starts[group], group_starts[group + 1]):
            words += offsets[index[item] + 1] - offsets[index[item]]
        most = max(most, words)
    return most


@compiled
def _post(
    grams: Ints,
    offsets: Longs,
    index: Longs,
    first: int,
    last: int,
    head: Ints,
    postings: Ints,
) -> int:
    """Put the n-grams of captions index[first:last] into postings (reference, count, next, n-gram, order)."""
    posted = 0
    for item in range(first, last):
        caption = index[item]
        reference = item - first
        for position in range(offsets[caption], offsets[caption + 1]):
            for order in range(ORDERS):
                gram = grams[position, order]
                if gram < 0:
                    break
                post = head[gram]
                if post >= 0 and postings[post, 0] == reference:
                    postings[post, 1] += 1
                else:
                    postings[posted, 0] = reference
                    postings[posted, 1] = 1
                    postings[posted, 2] = post
                    postings[posted, 3] = gram
                    postings[posted, 4] = order
                    head[gram] = posted
                    posted += 1
    return posted


@compiled
def _norms(postings: Ints, posted: int, idf: Floats, norms: Floats) -> None:
    """Lengths of the references' tf-idf vectors, one for each n."""
    norms[:] = 0.0
    for post in range(posted):
        weight = postings[post, 1] * idf[postings[post, 3]]
        norms[postings[post, 4], postings[post, 0]] += weight * weight
    for order in range(norms.shape[0]):
        for reference in range(norms.shape[1]):
            norms[order, reference] = np.sqrt(norms[order, reference])


@compiled
def _clear(postings: Ints, posted: int, head: Ints) -> None:
    for post in range(posted):
        head[postings[post, 3]] = -1


@compiled
def _tally(grams: Ints, begin: int, end: int, tally: Ints, distinct: Ints) -> int:
    """Count the caption's n-grams in `tally`; list the distinct ones, with their order, in `distinct`."""
    found = 0
    for order in range(ORDERS):
        for position in range(begin, end - order):
            gram = grams[position, order]
            if tally[gram] == 0:
                distinct[found, 0] = gram
                distinct[found, 1] = order
                found += 1
            tally[gram] += 1
    return found


@compiled
def _penalties(most: int) -> Floats:
    return np.exp(-(np.arange(most + 1).astype(np.float64) ** 2) / (2.0 * _SIGMA**2))


@compiled
def overlap(
    grams: Ints,
    offsets: Longs,
    starts: Longs,
    ref_grams: Ints,
    ref_offsets: Longs,
    ref_starts: Longs,
    idf: Floats,
    leave_out: bool,
) -> tuple[Ints, Ints, Floats, Floats]:
    """BLEU's and CIDEr's parts for every caption of every picture.

    With `leave_out` the references are the captions themselves, and caption i is compared with all but i.
    Returns clipped matches (C, 4), length of the closest reference (C,), CIDEr-D (C,), plain CIDEr (C,).
    """
    captions = offsets.size - 1
    correct = np.zeros((captions, ORDERS), np.int32)
    closest = np.zeros(captions, np.int32)
    cider_d = np.zeros(captions, np.float64)
    cider = np.zeros(captions, np.float64)
    lengths = np.diff(offsets)
    ref_lengths = np.diff(ref_offsets)
    longest = lengths.max() if captions else 0
    index = np.arange(ref_offsets.size - 1)
    head = np.full(idf.size, -1, np.int32)
    tally = np.zeros(idf.size, np.int32)
    postings = np.empty((ORDERS * _most_words(ref_offsets, index, ref_starts), 5), np.int32)
    distinct = np.empty((ORDERS * longest, 2), np.int32)
    penalties = _penalties(max(longest, ref_lengths.max() if ref_lengths.size else 0))
    for image in range(starts.size - 1):
        first, last = ref_starts[image], ref_starts[image + 1]
        references = last - first
        posted = _post(ref_grams, ref_offsets, index, first, last, head, postings)
        norms = np.empty((ORDERS, references), np.float64)
        _norms(postings, posted, idf, norms)
        clipped = np.empty((ORDERS, references), np.float64)
        whole = np.empty((ORDERS, references), np.float64)
        for caption in range(starts[image], starts[image + 1]):
            own = caption - starts[image] if leave_out else -1
            begin, end = offsets[caption], offsets[caption + 1]
            found = _tally(grams, begin, end, tally, distinct)
            clipped[:] = 0.0
            whole[:] = 0.0
            square = np.zeros(ORDERS, np.float64)
            for item in range(found):
                gram, order = distinct[item, 0], distinct[item, 1]
                count = tally[gram]
                tally[gram] = 0
                weight = count * idf[gram]
                square[order] += weight * weight
                most = 0
                post = head[gram]
                while post >= 0:
                    reference = postings[post, 0]
                    if reference != own:
                        times = postings[post, 1]
                        most = max(most, times)
                        ref_weight = times * idf[gram]
                        clipped[order, reference] += min(weight, ref_weight) * ref_weight
                        whole[order, reference] += weight * ref_weight
                    post = postings[post, 2]
                correct[caption, order] += min(most, count)
            difference = np.int64(1) << 40
            for reference in range(references):
                if reference == own:
                    continue
                ref_length = ref_lengths[first + reference]
                away = abs(ref_length - lengths[caption])
                if away < difference or (away == difference and ref_length < closest[caption]):
                    difference = away
                    closest[caption] = ref_length
                bigrams = abs(max(0, lengths[caption] - 1) - max(0, ref_length - 1))
                for order in range(ORDERS):
                    norm = np.sqrt(square[order]) * norms[order, reference]
                    if norm != 0.0:
                        cider_d[caption] += clipped[order, reference] / norm * penalties[bigrams]
                        cider[caption] += whole[order, reference] / norm
            others = references - 1 if leave_out else references
            if others > 0:
                cider_d[caption] *= 10.0 / (ORDERS * others)
                cider[caption] *= 10.0 / (ORDERS * others)
        _clear(postings, posted, head)
    return correct, closest, cider_d, cider


@compiled
def pairs(
    grams: Ints,
    offsets: Longs,
    starts: Longs,
    ref_grams: Ints,
    ref_offsets: Longs,
    ref_index: Longs,
    ref_starts: Longs,
    idf: Floats,
    kind: int,
    best: int,
    out: Floats,
) -> None:
    """Compare each caption with each single reference of its picture.

    The references of picture i are the captions ref_index[ref_starts[i]:ref_starts[i + 1]].
    best = 0 writes all values to `out`, picture by picture, caption by caption;
    best > 0 writes for each caption the sum of its `best` highest values.
    """
    lengths = np.diff(offsets)
    ref_lengths = np.diff(ref_offsets)
    longest = lengths.max() if lengths.size else 0
    head = np.full(idf.size, -1, np.int32)
    tally = np.zeros(idf.size, np.int32)
    postings = np.empty((ORDERS * _most_words(ref_offsets, ref_index, ref_starts), 5), np.int32)
    distinct = np.empty((ORDERS * longest, 2), np.int32)
    penalties = _penalties(max(longest, ref_lengths.max() if ref_lengths.size else 0))
    cursor = 0
    for image in range(starts.size - 1):
        first, last = ref_starts[image], ref_starts[image + 1]
        references = last - first
        posted = _post(ref_grams, ref_offsets, ref_index, first, last, head, postings)
        norms = np.empty((ORDERS, references), np.float64)
        if kind == CIDER:
            _norms(postings, posted, idf, norms)
        shared = np.empty((ORDERS, references), np.float64)
        values = np.empty(references, np.float64)
        for caption in range(starts[image], starts[image + 1]):
            found = _tally(grams, offsets[caption], offsets[caption + 1], tally, distinct)
            shared[:] = 0.0
            square = np.zeros(ORDERS, np.float64)
            for item in range(found):
                gram, order = distinct[item, 0], distinct[item, 1]
                count = tally[gram]
                tally[gram] = 0
                weight = count * idf[gram]
                square[order] += weight * weight
                post = head[gram]
                while post >= 0:
                    times = postings[post, 1]
                    if kind == CIDER:
                        ref_weight = times * idf[gram]
                        shared[order, postings[post, 0]] += min(weight, ref_weight) * ref_weight
                    else:
                        shared[order, postings[post, 0]] += min(count, times)
                    post = postings[post, 2]
            for reference in range(references):
                ref_length = ref_lengths[ref_index[first + reference]]
                value = 0.0
                for order in range(ORDERS):
                    if kind == CIDER:
                        norm = np.sqrt(square[order]) * norms[order, reference]
                    else:  # F = 2 matches / (n-grams of the one + n-grams of the other)
                        norm = 0.5 * (max(0, lengths[caption] - order) + max(0, ref_length - order))
                    if norm != 0.0:
                        value += shared[order, reference] / norm
                if kind == CIDER:
                    bigrams = abs(max(0, lengths[caption] - 1) - max(0, ref_length - 1))
                    value *= 10.0 * penalties[bigrams]
                values[reference] = value / ORDERS
            if best > 0:
                values.sort()
                out[cursor] = values[max(0, references - best) :].sum()
                cursor += 1
            else:
                out[cursor : cursor + references] = values
                cursor += references
        _clear(postings, posted, head)


@compiled
def longest_common(
    words: Ints, offsets: Longs, starts: Longs, ref_words: Ints, ref_offsets: Longs, ref_starts: Longs
) -> tuple[Floats, Floats]:
    """ROUGE-L's parts: for each caption the largest precision and the largest recall over its references."""
    captions = offsets.size - 1
    precision = np.zeros(captions, np.float64)
    recall = np.zeros(captions, np.float64)
    most = np.diff(ref_offsets).max() if ref_offsets.size > 1 else 0
    row = np.zeros(most + 1, np.int32)
    for image in range(starts.size - 1):
        for caption in range(starts[image], starts[image + 1]):
            begin, end = offsets[caption], offsets[caption + 1]
            for reference in range(ref_starts[image], ref_starts[image + 1]):
                ref_begin, ref_end = ref_offsets[reference], ref_offsets[reference + 1]
                length = ref_end - ref_begin
                row[: length + 1] = 0
                for position in range(begin, end):
                    word = words[position]
                    corner = 0  # the cell above and to the left
                    left = 0
                    for column in range(length):
                        above = row[column + 1]
                        left = corner + 1 if word == ref_words[ref_begin + column] else max(above, left)
                        row[column + 1] = left
                        corner = above
                # The official code counts an empty caption as one empty word.
                common = row[length] if end > begin and length > 0 else int(end == begin and length == 0)
                precision[caption] = max(precision[caption], common / max(1, end - begin))
                recall[caption] = max(recall[caption], common / max(1, length))
    return precision, recall
