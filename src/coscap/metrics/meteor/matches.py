"""Everything in a caption that could stand for something in a reference: words, stems, synonyms, paraphrases."""

from typing import Any

import numpy as np

from coscap.metrics.compiled import compiled

Array = np.ndarray[Any, Any]

EXACT, STEM, SYNONYM, PARAPHRASE = 0, 1, 2, 3
_LONGEST = 16  # words of a phrase; the table's longest has 7


@compiled
def find_phrases(
    words: Array,
    start: Array,
    number: Array,
    first_child: Array,
    node_word: Array,
    row_start: Array,
    is_target: Array,
    out_start: Array,
    out_first: Array,
    out_length: Array,
    out_node: Array,
) -> int:
    """All phrases of the paraphrase table in each sentence: first word, length, node. Returns how many there are.

    Writes as many as there is room for, so a first call with no room counts them.
    """
    count = 0
    for sentence in range(start.size - 1):
        out_start[sentence] = count
        end = start[sentence + 1]
        for first in range(start[sentence], end):
            node = np.int64(0)
            for last in range(first, min(end, first + _LONGEST)):
                word = number[words[last]]
                low, high = np.int64(first_child[node]), np.int64(first_child[node + 1])
                stop = high
                while low < high:
                    middle = (low + high) >> 1
                    if node_word[middle] < word:
                        low = middle + 1
                    else:
                        high = middle
                if word < 0 or low == stop or node_word[low] != word:
                    break
                node = low
                if is_target[node] or row_start[node + 1] > row_start[node]:
                    if count < out_node.size:
                        out_first[count] = first - start[sentence]
                        out_length[count] = last + 1 - first
                        out_node[count] = node
                    count += 1
    out_start[start.size - 1] = count
    return count


@compiled
def local_rows(
    nodes: Array, place: Array, row_start: Array, row_target: Array, out_start: Array, out_target: Array
) -> int:
    """The paraphrases between the phrases at hand: `place` is the local number of a node or -1. Returns their count."""
    count = 0
    for i in range(nodes.size):
        out_start[i] = count
        for row in range(row_start[nodes[i]], row_start[nodes[i] + 1]):
            local = place[row_target[row]]
            if local >= 0:
                if count < out_target.size:
                    out_target[count] = local
                count += 1
    out_start[nodes.size] = count
    return count


@compiled
def share_synset(a: int, b: int, synset_start: Array, synsets: Array, signature: Array) -> bool:
    if signature[a] & signature[b] == 0:
        return False
    i, j = synset_start[a], synset_start[b]
    while i < synset_start[a + 1] and j < synset_start[b + 1]:
        if synsets[i] == synsets[j]:
            return True
        if synsets[i] < synsets[j]:
            i += 1
        else:
            j += 1
    return False


@compiled
def find_matches(
    hypothesis: Array,
    reference: Array,
    stem: Array,
    synset_start: Array,
    synsets: Array,
    signature: Array,
    h_phrases: Array,
    r_phrases: Array,
    phrase_rows: tuple[Array, Array],
    marks: Array,
    out: Array,
) -> int:
    """All matches of a caption with a reference into `out` rows; returns how many there are, also beyond its room.

    A match: module, first reference word, their number, first caption word, their number. The order within one
    reference position is the official one, because ties are broken by it. Phrases are (first, length, local node);
    `marks` is (2, phrases at hand) of -1: first phrase of the sentence with that node, and the chain is built here.
    """
    count = 0
    chain = np.full(max(h_phrases.shape[0], r_phrases.shape[0]), -1, np.int64)
    mark(h_phrases, marks, chain)
    at = 0
    for j in range(reference.size):
        word = reference[j]
        for module in range(3):
            for i in range(hypothesis.size):
                other = hypothesis[i]
                if module == EXACT:
                    same = other == word
                elif other == word:
                    same = False
                elif module == STEM:
                    same = stem[other] == stem[word]
                else:
                    same = share_synset(word, other, synset_start, synsets, signature)
                if same:
                    count = put(out, count, module, j, 1, i, 1)
        while at < r_phrases.shape[0] and r_phrases[at, 0] == j:
            node = r_phrases[at, 2]
            for row in range(phrase_rows[0][node], phrase_rows[0][node + 1]):
                found = marks[phrase_rows[1][row]]
                while found >= 0:
                    length = h_phrases[found, 1]
                    count = put(out, count, PARAPHRASE, j, r_phrases[at, 1], h_phrases[found, 0], length)
                    found = chain[found]
            at += 1
    unmark(h_phrases, marks)
    mark(r_phrases, marks, chain)
    for at in range(h_phrases.shape[0]):
        node = h_phrases[at, 2]
        for row in range(phrase_rows[0][node], phrase_rows[0][node + 1]):
            found = marks[phrase_rows[1][row]]
            while found >= 0:
                length = h_phrases[at, 1]
                count = put(
                    out, count, PARAPHRASE, r_phrases[found, 0], r_phrases[found, 1], h_phrases[at, 0], length
                )
                found = chain[found]
    unmark(r_phrases, marks)
    return count


@compiled
def put(
    out: Array, count: int, module: int, first: int, length: int, other_first: int, other_length: int
) -> int:
    if count < out.shape[0]:
        out[count, 0] = module
        out[count, 1] = first
        out[count, 2] = length
        out[count, 3] = other_first
        out[count, 4] = other_length
    return count + 1


@compiled
def mark(phrases: Array, marks: Array, chain: Array) -> None:
    """Let marks[node] be the first phrase with that node, and chain[phrase] the next with the same node."""
    for at in range(phrases.shape[0] - 1, -1, -1):
        chain[at] = marks[phrases[at, 2]]
        marks[phrases[at, 2]] = at


@compiled
def unmark(phrases: Array, marks: Array) -> None:
    for at in range(phrases.shape[0]):
        marks[phrases[at, 2]] = -1


@compiled
def by_position(found: Array, count: int, positions: int, out: Array, start: Array) -> None:
    """Sort matches by their first reference word without changing the order within one (counting sort)."""
    start[: positions + 1] = 0
    for k in range(count):
        start[found[k, 1] + 1] += 1
    for j in range(positions):
        start[j + 1] += start[j]
    for k in range(count):
        j = found[k, 1]
        out[start[j]] = found[k]
        start[j] += 1
    for j in range(positions, 0, -1):
        start[j] = start[j - 1]
    start[0] = 0
