"""What fills a slot: rules that give rare and novel objects a chance beside the largest thing of a picture.

training captions, detections ─▶ calibration of scores, rarity of labels, labels beside words ─▶ SlotRule
Nothing is read of pictures outside training; a class that no training caption names has the words of its look-alike.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coscap.data.prepared import Prepared, ranges
from coscap.models.pseudo import Calibration, SlotRule
from coscap.text.vocabulary import END, SLOT, SLOTS, START
from coscap.vision.published import Store

Rule = Literal["attention", "balanced", "inverse", "fitting"]
PICTURES = 20_000  # that detections are read of, evenly from all
SEEN = 5_000  # whose features are read
SURE = 0.5  # the score from which on a region shows its class
KNOTS = 32  # quantiles of a label's scores
FEWEST = 20  # detections from which on a label has quantiles of its own
RIDGE = 10.0  # holds the intercepts of rare labels near that of all
WEAK = 0.1  # holds slope and intercept of all near 1 and 0 where data say nothing against it
ALIKE = 50.0  # slots that speak for no word beside a label before any was counted
LARGEST = 20.0  # factor of a word beside a slot, and its inverse the smallest
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DetectedLabels:
    """The best detection of each label in each picture, M in all."""

    pictures: NDArray[np.int64]  # (M,) indices of the data set
    labels: NDArray[np.int64]  # (M,)
    scores: Floats  # (M,)
    looked_at: int  # pictures, those without detections too


def slot_rule(
    how: Rule, calibrate: bool, prepared: Prepared, store: Store, without: Collection[str] = ()
) -> SlotRule | None:
    """The rule of a configuration; None is attention x score. Classes in `without` count as novel: captions that name
    them are not read."""
    if how == "attention" and not calibrate:
        return None
    labels = len(store.recipe.classes) + len(store.recipe.words)
    found = read_detections(prepared, store) if calibrate or how == "inverse" else None
    left = right = None
    if how == "fitting":
        left, right = (torch.from_numpy(each) for each in words_beside(prepared, store, without))
    return SlotRule(
        draw=how == "balanced",
        calibration=fit_calibration(found, prepared, store, without) if calibrate and found else None,
        rarity=torch.from_numpy(rarity(found, labels)) if how == "inverse" and found else None,
        left=left,
        right=right,
    )


def read_detections(prepared: Prepared, store: Store) -> DetectedLabels:
    """Of training pictures, captioned or not."""
    images, positions = _evenly(prepared, store, PICTURES)
    pictures: list[int] = []
    labels: list[int] = []
    scores: list[float] = []
    for image, position in zip(images.tolist(), positions.tolist(), strict=True):
        best: dict[int, float] = {}
        for label, score in zip(*(each.tolist() for each in store.detected(position)), strict=True):
            if label >= 0:
                best[label] = max(score, best.get(label, 0.0))
        pictures += [image] * len(best)
        labels += best.keys()
        scores += best.values()
    return DetectedLabels(
        np.array(pictures, np.int64), np.array(labels, np.int64), np.array(scores, np.float64), len(images)
    )


def _evenly(prepared: Prepared, store: Store, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training pictures that have regions, captioned or not, evenly from all, and their places in the store."""
    images = np.sort(np.concatenate([prepared.images("train"), prepared.images("unpaired")]))
    positions = store.positions(np.array(prepared.image_ids[images]))
    images, positions = images[positions >= 0], positions[positions >= 0]
    step = max(1, -(-len(images) // most))
    return images[::step], positions[::step]


def rarity(found: DetectedLabels, labels: int) -> NDArray[np.float32]:
    """(L,) one over the share of pictures in which a label was detected, the commonest being 1"""
    share = (np.bincount(found.labels, minlength=labels) + 1) / (found.looked_at + 1)
    return np.asarray(share.max() / share, np.float32)


def class_of_label(prepared: Prepared, store: Store) -> NDArray[np.int64]:
    """(L,) the class of the data set that each label of the regions names, -1 for none"""
    classes, recipe = prepared.classes, store.recipe
    numbers = {each.name: number for number, each in enumerate(classes.classes)}
    names = [*recipe.classes, *(classes.class_of.get(word, "") for word in recipe.words)]
    return np.array([numbers.get(name, -1) for name in names], np.int64)


# Scores


def fit_calibration(
    found: DetectedLabels, prepared: Prepared, store: Store, without: Collection[str] = ()
) -> Calibration:
    """Fit on captioned pictures whether people name what was detected; labels that nobody could name have the
    intercept of all."""
    classes = class_of_label(prepared, store)
    knots = score_knots(found, len(classes))
    novel = {number for number, each in enumerate(prepared.classes.classes) if each.name in without}
    named = {image: _named(prepared, image) for image in np.unique(found.pictures).tolist()}
    ever = set[int]().union(*named.values()) - novel
    used = np.array(
        [
            bool(named[image]) and int(classes[label]) in ever
            for image, label in zip(found.pictures.tolist(), found.labels.tolist(), strict=True)
        ],
        bool,
    )
    if not used.any():  # no caption names anything: ranks alone
        slope, intercept, own = 1.0, 0.0, np.zeros(len(classes))
    else:
        pairs = zip(found.pictures[used].tolist(), found.labels[used].tolist(), strict=True)
        right = np.array([int(classes[label]) in named[image] for image, label in pairs], np.float64)
        ranks = rank(found.scores[used], knots[found.labels[used]])
        slope, intercept, own = fit_logistic(
            np.log(ranks / (1 - ranks)), found.labels[used], right, len(classes)
        )
    return Calibration(
        torch.from_numpy(knots.astype(np.float32)),
        torch.tensor(slope, dtype=torch.float32),
        torch.from_numpy((intercept + own).astype(np.float32)),
    )


def score_knots(found: DetectedLabels, labels: int) -> Floats:
    """(L, KNOTS) quantiles of each label's scores; of all scores where it has few"""
    places = (np.arange(KNOTS) + 0.5) / KNOTS
    every = np.quantile(found.scores, places) if len(found.scores) else places
    knots = np.tile(every, (labels, 1))
    for label in range(labels):
        own = found.scores[found.labels == label]
        if len(own) >= FEWEST:
            knots[label] = np.quantile(own, places)
    return knots


def rank(scores: Floats, knots: Floats) -> Floats:
    """The place of each score among its knots, inside 0..1; scores: (M,), knots: (M, Q)"""
    below = (knots < scores[:, None]).sum(1)
    return np.asarray((below + 0.5) / (knots.shape[1] + 1), np.float64)


def fit_logistic(
    x: Floats, groups: NDArray[np.int64], y: Floats, count: int, rounds: int = 25
) -> tuple[float, float, Floats]:
    """p(y) = sigmoid(a x + b + d_group) with RIDGE / 2 |d|^2 + WEAK / 2 ((a - 1)^2 + b^2), by Newton's method."""
    a, b, d = 1.0, 0.0, np.zeros(count)
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-(a * x + b + d[groups])))
        miss, weight = p - y, p * (1 - p) + 1e-9

        def by_group(values: Floats) -> Floats:
            return np.bincount(groups, values, count).astype(np.float64)

        gradient = np.concatenate(
            [[miss @ x + WEAK * (a - 1), miss.sum() + WEAK * b], by_group(miss) + RIDGE * d]
        )
        hessian = np.zeros((count + 2, count + 2))
        hessian[0, 0], hessian[1, 1], hessian[0, 1] = weight @ (x * x) + WEAK, weight.sum() + WEAK, weight @ x
        hessian[0, 2:], hessian[1, 2:] = by_group(weight * x), by_group(weight)
        hessian += np.triu(hessian, 1).T
        hessian[np.arange(2, count + 2), np.arange(2, count + 2)] = by_group(weight) + RIDGE
        step = np.linalg.solve(hessian, gradient)
        a, b, d = a - step[0], b - step[1], d - step[2:]
        if np.abs(step).max() < 1e-8:
            break
    return float(a), float(b), d


def _named(prepared: Prepared, image: int) -> set[int]:
    """The classes that people name in a picture."""
    return {int(k) for caption in prepared.captions_of(image) for k in prepared.object_classes(caption)}


# Words beside a slot


def words_beside(
    prepared: Prepared, store: Store, without: Collection[str] = ()
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(L, V) twice: how much more often than others a label stands behind and before each word of a context.

    p(word | class) / p(word), counted in training captions and held near 1 by ALIKE slots of all classes. A class that
    no caption names has the words of the named class that it looks most like; 1 everywhere if it was never detected.
    """
    classes, before, behind = read_slots(prepared, without)
    known = len(prepared.classes)
    rows = class_of_label(prepared, store)
    like = look_alikes(prepared, store, np.bincount(classes, minlength=known) > 0)
    tables = []
    for words in (before, behind):
        counts = np.zeros((known, len(prepared.vocabulary)))
        np.add.at(counts, (classes, words), 1)
        share = counts.sum(0) / max(1, len(words))  # (V,)
        expected = (counts.sum(1, keepdims=True) + ALIKE) * share
        factor = np.divide(counts + ALIKE * share, expected, out=np.ones_like(counts), where=expected > 0)
        factor = factor[like]
        table = np.ones((len(rows), counts.shape[1]), np.float32)
        table[rows >= 0] = factor.clip(1 / LARGEST, LARGEST)[rows[rows >= 0]]
        tables.append(table)
    return tables[0], tables[1]


def look_alikes(prepared: Prepared, store: Store, named: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(K,) of each class that captions do not name the named one whose regions look most alike, by the cosine of the
    mean features of surely detected regions; named classes, and those never seen, are their own. named: (K,)"""
    like = np.arange(len(named))
    if named.all() or not named.any():
        return like
    rows, sums, seen = class_of_label(prepared, store), None, np.zeros(len(named))
    for position in _evenly(prepared, store, SEEN)[1].tolist():
        regions = store.at(position)
        sure = (regions.labels >= 0) & (regions.labels < len(store.recipe.classes)) & (regions.scores >= SURE)
        for label, feature in zip(regions.labels[sure], regions.features[sure], strict=True):
            if rows[label] >= 0:
                sums = np.zeros((len(named), len(feature))) if sums is None else sums
                sums[rows[label]] += feature
                seen[rows[label]] += 1
    if sums is None:
        return like
    means = sums[seen > 0] / seen[seen > 0, None]
    vectors = np.zeros_like(sums)
    vectors[seen > 0] = means - means.mean(0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    known = np.flatnonzero(named & (seen > 0))
    novel = np.flatnonzero(~named & (seen > 0))
    if len(known):
        like[novel] = known[(vectors[novel] @ vectors[known].T).argmax(1)]
    return like


def read_slots(
    prepared: Prepared, without: Collection[str] = ()
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The class of every slot of the training captions, and the word or slot before and behind it, (S,) each; captions
    that name one of `without` are left out."""
    captions = prepared.trainable("train")
    arrays, novel = (
        prepared.arrays,
        [number for number, c in enumerate(prepared.classes.classes) if c.name in without],
    )
    if novel:
        owners = np.repeat(np.arange(prepared.captions), np.diff(arrays["object_offsets"]))
        named = np.zeros(prepared.captions, bool)
        named[owners[np.isin(arrays["object_classes"], novel)]] = True
        captions = captions[~named[captions]]
    starts, stops = arrays["word_offsets"][captions], arrays["word_offsets"][captions + 1]
    places = ranges(starts, stops)
    context = np.asarray(arrays["contexts"][places], np.int64)
    first = np.zeros(len(places), bool)
    first[np.cumsum(np.concatenate([[0], (stops - starts)[:-1]]))[stops > starts]] = True
    before = np.where(first, START, np.roll(context, 1))
    behind = np.where(np.roll(first, -1), END, np.roll(context, -1))
    slots = (context == SLOT) | (context == SLOTS)
    own = ranges(arrays["object_offsets"][captions], arrays["object_offsets"][captions + 1])
    return np.asarray(arrays["object_classes"][own], np.int64), before[slots], behind[slots]
