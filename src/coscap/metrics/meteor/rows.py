"""Reading the paraphrase table: 5.3 million lines of three become a tree of words and pairs of its nodes.

Every phrase of the table is a path of words from the root of one tree, so a phrase is one number (its last node),
and all phrases of a sentence are found by walking the tree from each word:

    root ── in ── front ── of          "in front of" is the node of this "of"
             └─── the ── middle

The kernels fill arrays that the caller owns and say how far they came, so the text is never held as a whole.
"""

from typing import Any

import numpy as np

from coscap.metrics.compiled import compiled

Array = np.ndarray[Any, Any]

WORD_SLOTS = 1 << 18
NODE_SLOTS = 1 << 23
WORDS = WORD_SLOTS // 2
NODES = NODE_SLOTS * 3 // 5
_NEWLINE, _SPACE = 10, 32


@compiled
def word_number(
    text: Array, start: int, end: int, slots: Array, pool: Array, pool_start: Array, counts: Array
) -> int:
    """The number of the word text[start:end]; a new word gets the next number (or -1 when there is no room)."""
    key = np.uint64(14695981039346656037)
    for i in range(start, end):
        key = (key ^ np.uint64(text[i])) * np.uint64(1099511628211)
    slot = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
    length = end - start
    while slots[slot] >= 0:
        word = slots[slot]
        first = pool_start[word]
        if pool_start[word + 1] - first == length:
            same = True
            for i in range(length):
                if pool[first + i] != text[start + i]:
                    same = False
                    break
            if same:
                return int(word)
        slot = (slot + 1) & (slots.size - 1)
    word = counts[0]
    first = pool_start[word]
    if word + 2 >= pool_start.size or first + length > pool.size:
        return -1
    pool[first : first + length] = text[start:end]
    pool_start[word + 1] = first + length
    slots[slot] = word
    counts[0] += 1
    return int(word)


@compiled
def child_number(
    parent: int, word: int, keys: Array, values: Array, node_parent: Array, node_word: Array, counts: Array
) -> int:
    """The node that `word` leads to from `parent`; made when it is new (or -1 when there is no room)."""
    key = (np.int64(parent) << 20) | np.int64(word)
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64((mixed >> np.uint64(32)) & np.uint64(keys.size - 1))
    while keys[slot] != -1:
        if keys[slot] == key:
            return int(values[slot])
        slot = (slot + 1) & (keys.size - 1)
    node = counts[1]
    if node >= node_parent.size:
        return -1
    keys[slot] = key
    values[slot] = node
    node_parent[node] = parent
    node_word[node] = word
    counts[1] += 1
    return int(node)


@compiled
def read_rows(
    text: Array,
    words: Array,
    pool: Array,
    pool_start: Array,
    keys: Array,
    values: Array,
    node_parent: Array,
    node_word: Array,
    counts: Array,
    sources: Array,
    targets: Array,
) -> tuple[int, int]:
    """Read the whole rows (score, phrase, paraphrase) of `text`; returns rows read and bytes used, -1 without room.

    `words`, `keys` and `values` are hash tables, `counts` the numbers of words and nodes so far.
    """
    row, position, used = 0, 0, 0
    while True:
        node = 0
        first = 0
        line = 0
        while line < 3 and position < text.size:
            start = position
            if line == 0:
                while position < text.size and text[position] != _NEWLINE:
                    position += 1
            else:
                node = 0
                while position < text.size:
                    if text[position] == _SPACE or text[position] == _NEWLINE:
                        if position > start:
                            word = word_number(text, start, position, words, pool, pool_start, counts)
                            if word < 0:
                                return -1, used
                            node = child_number(node, word, keys, values, node_parent, node_word, counts)
                            if node < 0:
                                return -1, used
                        start = position + 1
                        if text[position] == _NEWLINE:
                            break
                    position += 1
            if position == text.size:
                return row, used
            position += 1
            if line == 1:
                first = node
            line += 1
        if line < 3 or row == sources.size:
            return row, used
        sources[row] = first
        targets[row] = node
        row += 1
        used = position


@compiled
def depths(parent: Array) -> Array:
    """How far each node is from the root; a parent is always older than its children."""
    depth = np.zeros(parent.size, np.int32)
    for node in range(1, parent.size):
        depth[node] = depth[parent[node]] + 1
    return depth


def ordered_tree(parent: Array, word: Array) -> tuple[Array, Array, Array]:
    """Renumber nodes level by level so that the children of a node are next to each other, sorted by word.

    Returns the new number of each node, the first child of each new node (one entry more than nodes) and the words.
    """
    count = len(parent)
    depth = depths(parent)
    number = np.zeros(count, np.int64)
    assigned = 1
    for level in range(1, int(depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(depth == level)
        nodes = nodes[np.argsort((number[parent[nodes]] << 20) | word[nodes])]
        number[nodes] = np.arange(assigned, assigned + len(nodes))
        assigned += len(nodes)
    children = np.bincount(number[parent[1:]], minlength=count)
    first_child = np.concatenate(([1], 1 + np.cumsum(children)))
    words = np.zeros(count, np.int64)
    words[number] = word
    return number, first_child, words
