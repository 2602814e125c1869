"""Choosing the n captions to show out of more: likely ones that say different things.

Greedy maximal marginal relevance: take the likeliest, then again and again the caption with the best
    (1 - variety) * score - variety * (largest overlap with a caption already taken),
score being the log-probability a word, mapped to 0..1 over the candidates.
"""

from collections.abc import Sequence

from coscap.search.caption import Caption


def select(captions: Sequence[Caption], n: int, variety: float) -> list[Caption]:
    """n different captions of one picture; variety 0 takes the likeliest, 1 the most different."""
    pool = list({caption.text: caption for caption in sorted(captions, key=_per_word)}.values())
    pool.sort(key=lambda caption: (-_per_word(caption), caption.text))
    if not pool:
        return []
    scores = _unit_interval([_per_word(caption) for caption in pool])
    grams = [_grams(caption.units) for caption in pool]
    taken = [0]
    overlap = [_overlap(gram, grams[0]) for gram in grams]
    while len(taken) < min(n, len(pool)):
        rest = (i for i in range(len(pool)) if i not in taken)
        best = max(rest, key=lambda i: (1 - variety) * scores[i] - variety * overlap[i])
        taken.append(best)
        overlap = [max(old, _overlap(gram, grams[best])) for old, gram in zip(overlap, grams, strict=True)]
    return [pool[i] for i in taken]


def _per_word(caption: Caption) -> float:
    return caption.log_probability / (len(caption.units) + 1)  # the end of the caption is a word, too


def _unit_interval(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 1.0 for value in values]


def _grams(units: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(units[i : i + size]) for size in (1, 2) for i in range(len(units) - size + 1)}


def _overlap(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    """The share of words and word pairs that two captions have in common (Jaccard)."""
    return len(one & other) / max(1, len(one | other))
