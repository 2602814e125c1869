"""Which of many captions are shown: what each is worth when its own draw is forgotten, and how they differ.

Under its own draw a caption is always likely: the latents ask for it. `rescore` reads every caption again with the
latents at the means of their priors, which are the same for all captions of a picture. `select` is greedy maximal
marginal relevance: take the likeliest, then again and again the caption with the best
    (1 - variety) * score - variety * (the share of its word pairs that the captions already taken have),
score being the log-probability of a token mapped to 0..1 over the candidates, or what a judge says of the caption.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coscap.seam import Caption, Check, Checked, Ints, RegionArrays, RegionLike, S, SearchModel
from coscap.search.beam import counts_within
from coscap.text.content import gist
from coscap.text.faults import mended
from coscap.text.vocabulary import END, PAD, START, Vocabulary


def rescore(
    model: SearchModel[S],
    regions: RegionLike,
    found: Sequence[Sequence[Caption]],
    vocabulary: Vocabulary,
    check: Check | None = None,
) -> list[list[Caption]]:
    """The same captions with their log-probability under the means of the priors."""
    rows = [(picture, caption) for picture, captions in enumerate(found) for caption in captions]
    if not rows:
        return [[] for _ in found]
    watched: SearchModel[S] = model if check is None else Checked(model, check)
    owners = np.array([picture for picture, _ in rows])
    tokens = _padded([caption for _, caption in rows], vocabulary)
    scores = iter(_score(watched, RegionArrays.of(regions), owners, tokens, len(vocabulary)).tolist())
    return [[replace(caption, log_probability=next(scores)) for caption in captions] for captions in found]


def _padded(captions: Sequence[Caption], vocabulary: Vocabulary) -> Ints:
    """(N, T) the tokens of each caption, END, then PAD."""
    longest = max(len(caption.tokens) for caption in captions)
    tokens = np.full((len(captions), longest + 1), PAD)
    for row, caption in enumerate(captions):
        tokens[row, : len(caption.tokens) + 1] = [*vocabulary.encode(caption.tokens), END]
    return tokens


def _score(
    model: SearchModel[S], regions: RegionArrays, owners: Ints, tokens: Ints, size: int
) -> NDArray[np.float64]:
    """log p of each caption, (N,); owners: (N,) the picture of each caption, tokens: (N, T), size: of the vocabulary.

    Without noise, a model's state after the same tokens of the same picture is the same. So a row is a beginning,
    and captions that begin alike share it.
    """
    state = model.start(regions, 1, latent_temperature=0.0)
    total = np.zeros(len(tokens))
    row = owners  # (N,) the beginning of each caption
    last = np.full(len(regions), START)  # (rows,) the last token of each beginning
    captions = np.arange(len(tokens))
    for step in range(tokens.shape[1]):
        token = tokens[captions, step]
        wanted, which = np.unique(row * size + token, return_inverse=True)  # pairs of a beginning and a token
        place = counts_within(wanted // size, np.ones_like(wanted))
        named = np.full((len(last), int(place.max()) + 1), -1)
        named[wanted // size, place] = wanted % size
        found, state, _ = model.step(last, state, 0, named=named)
        values = found.log_probabilities[wanted // size, place].astype(np.float64)
        total[captions] += values[which]
        going = token != END
        captions = captions[going]
        if len(captions) == 0:
            break
        longer, row = np.unique((row * size + token)[going], return_inverse=True)
        last, state = longer % size, state.select(longer // size)
    return total


def select(
    captions: Sequence[Caption],
    n: int,
    variety: float,
    worth: Sequence[float] | None = None,
    tiers: Sequence[int] | None = None,
) -> list[Caption]:
    """n different captions of one picture; variety 0 takes the best, 1 the most different.

    `worth` says how good each is; without it, the likeliest are the best. Captions of a higher tier are taken only
    where none of a lower one is left, and captions that say the same as a better one ("a cat on the bed" beside "a
    cat is on a bed") only where nothing else of their tier is, unless `variety` is 0.
    """
    if not captions:
        return []
    worth = unit_interval([per_token(caption) for caption in captions]) if worth is None else worth
    tiers = [0] * len(captions) if tiers is None else tiers
    first: dict[str, int] = {}  # the best place of each text as it is shown
    for place in sorted(range(len(captions)), key=lambda i: (tiers[i], -worth[i], captions[i].text)):
        first.setdefault(mended(captions[place].text), place)
    gists = set[tuple[str, ...]]()  # what the better ones say
    steps = dict[int, tuple[int, bool]]()  # of each caption: its tier, and whether a better one says the same
    for place in first.values():
        key = gist(captions[place].tokens)
        steps[place] = tiers[place], variety > 0 and key in gists
        gists.add(key)
    rest, taken = sorted(steps, key=lambda place: steps[place]), list[int]()
    pairs = {place: _pairs(captions[place].tokens) for place in rest}
    taken_pairs = set[tuple[str, ...]]()  # pairs of the captions taken
    while rest and len(taken) < n:
        lowest = steps[rest[0]]
        among = [place for place in rest if steps[place] == lowest]
        gains = [
            (1 - variety) * worth[place] - variety * _share(pairs[place], taken_pairs) for place in among
        ]
        best = among[int(np.argmax(gains))] if taken else among[0]
        taken.append(best)
        rest.remove(best)
        taken_pairs |= pairs[best]
    return [captions[place] for place in taken]


def per_token(caption: Caption) -> float:
    return caption.log_probability / (len(caption.tokens) + 1)  # the end of the caption is a token, too


def unit_interval(values: Sequence[float]) -> list[float]:
    """Mapped to 0..1; 1 for all where they are equal."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 1.0 for value in values]


def _pairs(tokens: Sequence[str]) -> set[tuple[str, ...]]:
    """Its pairs of words; of a single word, that."""
    return set(pairwise(tokens)) or {tuple(tokens)}


def _share(pairs: set[tuple[str, ...]], others: set[tuple[str, ...]]) -> float:
    """The share of word pairs that are among others."""
    return len(pairs & others) / len(pairs)
