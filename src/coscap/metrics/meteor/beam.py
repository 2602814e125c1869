"""The choice of matches: a beam search over the reference, with the official program's small print.

A path goes through the reference from left to right and takes at each word one of its matches or none. Paths are
ordered by covered words, then chunks, then distance; equal paths keep their order; 40 survive each word.

- A match that is not exact counts half of its words, rounded down: a single synonym counts nothing here.
- A chunk is counted when it ends, so an open chunk is still free.
- The distance of a match is added to the path that it was taken from, after that was copied: a path pays for its
  elder sisters, not for itself.
- Matches whose words have no other match are fixed before the search.
"""

from typing import Any

import numpy as np

from coscap.metrics.compiled import compiled
from coscap.metrics.meteor.matches import EXACT

Array = np.ndarray[Any, Any]

BEAM = 40
# Columns of a path's state.
_ORDER, _DISTANCE, _LAST, _COVERED, _PARENT, _MATCH = 0, 1, 2, 3, 4, 5
_COLUMNS = 6
_MANY = 1 << 24  # one covered word weighs more than any number of chunks


@compiled
def fixed_matches(
    matches: Array, count: int, h_length: int, r_length: int, fixed: Array, h_cover: Array, r_cover: Array
) -> None:
    """fixed[j] = the match that begins at reference word j and shares no word with any other match, or -1."""
    h_cover[:h_length] = 0
    r_cover[:r_length] = 0
    fixed[:r_length] = -1
    for k in range(count):
        for j in range(matches[k, 1], matches[k, 1] + matches[k, 2]):
            r_cover[j] += 1
        for i in range(matches[k, 3], matches[k, 3] + matches[k, 4]):
            h_cover[i] += 1
    for k in range(count):
        alone = True
        for j in range(matches[k, 1], matches[k, 1] + matches[k, 2]):
            alone = alone and r_cover[j] == 1
        for i in range(matches[k, 3], matches[k, 3] + matches[k, 4]):
            alone = alone and h_cover[i] == 1
        if alone:
            fixed[matches[k, 1]] = k


@compiled
def is_free(used: Array, first: int, length: int) -> bool:
    taken = np.uint64(0)
    for i in range(first, first + length):
        taken |= (used[i >> 6] >> np.uint64(i & 63)) & np.uint64(1)
    return bool(taken == 0)


@compiled
def offer(
    order: int,
    distance: int,
    last: int,
    covered: int,
    parent: int,
    match: int,
    best: Array,
    size: int,
    slots: Array,
) -> int:
    """Put a path into the sorted list `best` of slots if it is among the first BEAM; returns the list's size.

    best[BEAM] names the slot that is free next, so a path that falls out leaves its slot to the next one.
    """
    at = size
    if size == BEAM:
        worst = slots[best[BEAM - 1]]
        if order > worst[_ORDER] or (order == worst[_ORDER] and distance >= worst[_DISTANCE]):
            return size
    slot = best[BEAM] if size == BEAM else size
    row = slots[slot]
    row[_ORDER] = order
    row[_DISTANCE] = distance
    row[_LAST] = last
    row[_COVERED] = covered
    row[_PARENT] = parent
    row[_MATCH] = match
    if size == BEAM:
        at = BEAM - 1
        best[BEAM] = best[at]
    while at > 0:
        before = slots[best[at - 1]]
        if before[_ORDER] < order or (before[_ORDER] == order and before[_DISTANCE] <= distance):
            break
        best[at] = best[at - 1]
        at -= 1
    best[at] = slot
    if size < BEAM:
        return size + 1
    return size


@compiled
def extend(
    path: Array,
    index: int,
    j: int,
    matches: Array,
    start: Array,
    fixed: Array,
    used: Array,
    best: Array,
    size: int,
    slots: Array,
) -> int:
    """Offer all ways in which one path can go on at reference word j."""
    order, distance, last, covered = path[_ORDER], path[_DISTANCE], path[_LAST], path[_COVERED]
    k = fixed[j]
    if k >= 0:
        if last >= 0 and matches[k, 3] != last:
            order += 1
        end = matches[k, 3] + matches[k, 4]
        return offer(order, distance, end, j + matches[k, 2], index, -1, best, size, slots)
    if covered > j:
        return offer(order, distance, last, covered, index, -1, best, size, slots)
    for k in range(start[j], start[j + 1]):
        if not is_free(used, matches[k, 3], matches[k, 4]):
            continue
        words = 2 if matches[k, 0] == EXACT else matches[k, 2] // 2 + matches[k, 4] // 2
        closes = 1 if last >= 0 and matches[k, 3] != last else 0
        end = matches[k, 3] + matches[k, 4]
        size = offer(
            order + closes - words * _MANY, distance, end, j + matches[k, 2], index, k, best, size, slots
        )
        distance += abs(matches[k, 1] - matches[k, 3])
    if last >= 0:
        order += 1
    return offer(order, distance, -1, covered, index, -1, best, size, slots)


@compiled
def search(
    matches: Array,
    start: Array,
    fixed: Array,
    h_length: int,
    r_length: int,
    parents: Array,
    choices: Array,
    chosen: Array,
) -> None:
    """chosen[j] = the match taken at reference word j or -1; `parents` and `choices` are (r_length, BEAM) scratch."""
    blocks = (h_length + 63) >> 6
    used = np.zeros((2, BEAM, blocks), np.uint64)
    paths = np.zeros((2, BEAM, _COLUMNS), np.int64)
    slots = np.zeros((BEAM + 1, _COLUMNS), np.int64)
    best = np.zeros(BEAM + 1, np.int64)
    now, count = 0, 1
    paths[0, 0, _LAST] = -1
    for j in range(r_length):
        size = 0
        best[BEAM] = BEAM
        for index in range(count):
            size = extend(
                paths[now, index], index, j, matches, start, fixed, used[now, index], best, size, slots
            )
        after = 1 - now
        for index in range(size):
            path = slots[best[index]]
            paths[after, index] = path
            parent, k = path[_PARENT], path[_MATCH]
            used[after, index] = used[now, parent]
            if k >= 0:
                for i in range(matches[k, 3], matches[k, 3] + matches[k, 4]):
                    used[after, index, i >> 6] |= np.uint64(1) << np.uint64(i & 63)
            parents[j, index] = parent
            choices[j, index] = k
        now, count = after, size
    winner = 0
    for index in range(count):
        if paths[now, index, _LAST] >= 0:
            paths[now, index, _ORDER] += 1
        path, first = paths[now, index], paths[now, winner]
        if path[_ORDER] < first[_ORDER] or (
            path[_ORDER] == first[_ORDER] and path[_DISTANCE] < first[_DISTANCE]
        ):
            winner = index
    for j in range(r_length - 1, -1, -1):
        chosen[j] = fixed[j] if fixed[j] >= 0 else choices[j, winner]
        winner = parents[j, winner]
