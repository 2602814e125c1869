"""Fit the support of captions and the choice of those shown, and measure both on other pictures.

    python scripts/support_pools.py DATA --pictures DIR --out FOLDER [--model RUN] [--regions STORE]
    python scripts/fit_support.py FOLDER DATA --out src/coscap/vision/weights/words/support.json

The first half of the pictures fits the weights of support and chooses what a caption is worth, the second half
measures, with paired intervals over pictures: the five captions shown as by likelihood and difference alone, as by
consensus, as now; `--accurate` as by likelihood, as a plain beam, as now; and how well support is calibrated.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from support_pools import SHOWN, TURNS, Picture, read_pools

from coscap.contexts.judge import UNFITTED, Selection, SupportWeights, open_judge
from coscap.contexts.word_support import calibrated, probably_true
from coscap.files import write_json
from coscap.metrics.chair import ObjectWords, in_pictures
from coscap.metrics.evaluation import Evaluation, compare, evaluate
from coscap.metrics.intervals import mean
from coscap.metrics.table import Material
from coscap.metrics.words import token_groups
from coscap.pool import rank, tier
from coscap.search.manner import VARIETY
from coscap.search.select import per_token, select, unit_interval
from coscap.text import load_classes

FIGURES = (
    "average/CIDEr", "worst/CIDEr", "CIDEr", "Div-2", "self-CIDEr-references", "CHAIR-i", "CHAIR-s", "CHAIR-free",
    "true",
)  # fmt: skip
# The choice of what is shown is made for these: no more Div-2 may be lost, and CHAIR-i is to fall to this share.
MOST_DIV2_LOST, CHAIR_SHARE = 0.028, 0.64
CHOICES = {
    "likelihood": (0.0,), "consensus": (0.2, 0.3, 0.5), "expected": (0.9, 1.1, 1.3, 1.5),
    "support": (0.3, 0.6, 0.9, 1.2), "objects": (0.0,),
}  # fmt: skip
FLOORS = ((0.2, 0.6), (0.3, 0.65), (0.4, 0.7))  # of support and of objects
ENOUGH = (0.5, 0.7)  # fewer captions above these than are shown: drawn again
ALONE = (0.0, 1.25, 0.0, 0.0, 0.0), (0.0, 0.0, 1.25, 0.0, 0.0)  # worth by one thing, to compare with


# ---- the fit --------------------------------------------------------------------------------------------------------


def fit_support(pictures: Sequence[Picture]) -> SupportWeights:
    """Weights of words and captions, from the draws of these pictures."""
    rows, marks = [], []
    for picture in pictures:
        for captions, true in zip(picture.rows[TURNS[0]], picture.marks[TURNS[0]], strict=True):
            rows += [row for row in captions if row is not None]
            marks += [mark for row, mark in zip(captions, true, strict=True) if row is not None]
    word = logistic(np.array(rows), np.array(marks))
    weights = replace(UNFITTED, word=tuple(word.round(5).tolist()))
    judge(pictures, weights, TURNS[0])
    chance = np.array([each.support for p in pictures for each in p.verdicts[TURNS[0]]])
    chance = np.clip(chance, 1e-5, 1 - 1e-5)  # before calibration
    true = np.array([each for p in pictures for each in p.true[TURNS[0]]])
    columns = np.stack([np.ones(len(chance)), np.log(chance), -np.log(1 - chance)], axis=1)
    shift, right, wrong = logistic(columns, true).round(5).tolist()
    if min(right, wrong) < 0:
        raise SystemExit("A caption whose words are likelier would be less likely; fit with more pictures.")
    return replace(weights, caption=(shift, right, wrong), enough=ENOUGH)


def judge(pictures: Sequence[Picture], weights: SupportWeights, *ways: str) -> None:
    """Give the captions the support that they have by these weights."""
    word, objects = np.array(weights.word), load_classes("coco")
    for picture in pictures:
        for way in ways:
            judged = []
            columns = (picture.pools[way], picture.rows[way], picture.verdicts[way])
            for caption, rows, old in zip(*columns, strict=True):
                words = [None if row is None else float(1 / (1 + np.exp(-(word @ row)))) for row in rows]
                true, there = probably_true(caption.tokens, words, objects)
                support = calibrated(true, weights.caption)
                judged.append(replace(old, support=support, objects=there, words=tuple(words)))
            picture.verdicts[way] = judged


def logistic(x: np.ndarray, y: np.ndarray, ridge: float = 1e-3, rounds: int = 60) -> np.ndarray:
    """Weights of a logistic regression, by Newton's method."""
    weights = np.zeros(x.shape[1])
    y = y.astype(float)
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        gradient = x.T @ (p - y) / len(y) + ridge * weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(y) + ridge * np.eye(x.shape[1])
        change = np.linalg.solve(hessian, gradient)
        weights -= change * min(1.0, 5 / max(np.abs(change).max(), 1e-9))
        if np.abs(change).max() < 1e-7:
            break
    return weights


# ---- what is shown --------------------------------------------------------------------------------------------------


def shown(
    picture: Picture, choice: Selection | None, way: str, n: int = SHOWN, variety: float = VARIETY
) -> list[int]:
    """The places of the captions of a pool that are shown; without a choice, by likelihood and difference alone."""
    pool = picture.pools[way]
    ranks = () if choice is None else rank(pool, picture.verdicts[way], choice)
    places = {id(caption): place for place, caption in enumerate(pool)}
    return [places[id(caption)] for caption in select(pool, n, variety, *ranks)]


def shown_of_turns(picture: Picture, weights: SupportWeights, turns: int = len(TURNS)) -> list[int]:
    """The same of the draws of the first turn, or of as many more as are needed for SHOWN that are borne out."""
    return shown(picture, weights.shown, turn_of(picture, weights, turns))


def turn_of(picture: Picture, weights: SupportWeights, turns: int = len(TURNS)) -> str:
    """The turn in which enough captions are borne out, or the last."""
    for way in TURNS[: turns - 1]:
        columns = zip(picture.pools[way], picture.verdicts[way], strict=True)
        if len({caption.text for caption, each in columns if tier(each, weights.enough) == 0}) >= SHOWN:
            return way
    return TURNS[turns - 1]


def shown_before(picture: Picture, n: int = SHOWN, variety: float = VARIETY) -> list[int]:
    """The places of the captions that were shown before there was a judge: by likelihood, and unlike in words and word
    pairs (Jaccard)."""
    pool = picture.pools[TURNS[0]]
    places = list({caption.text: place for place, caption in reversed(list(enumerate(pool)))}.values())
    places.sort(key=lambda place: (-per_token(pool[place]), pool[place].text))
    scores = dict(zip(places, unit_interval([per_token(pool[place]) for place in places]), strict=True))
    grams = {place: {*pool[place].tokens, *pairwise(pool[place].tokens)} for place in places}
    taken = places[:1]

    def gain(place: int) -> float:
        mine = grams[place]
        overlap = max(len(mine & grams[other]) / len(mine | grams[other]) for other in taken)
        return (1 - variety) * scores[place] - variety * overlap

    while len(taken) < min(n, len(places)):
        taken.append(max((place for place in places if place not in taken), key=gain))
    return taken


def choose(pictures: Sequence[Picture], weights: SupportWeights) -> SupportWeights:
    """Factors of the worth and the floor, the best of a grid."""
    pools = [[caption.text for caption in p.pools[TURNS[-1]]] for p in pictures]
    references = token_groups([p.references for p in pictures])
    material, words = Material(pools, references), ObjectWords.official()
    cider = np.split(material.overlap.cider_d, material.starts[1:-1])
    named = [[words.mentions(text) for text in pool] for pool in pools]
    there = in_pictures(references, words)

    def figures(chosen: Sequence[Sequence[int]]) -> tuple[float, float, float, float, float]:
        """Mean and worst CIDEr, the share that is true, Div-2 and CHAIR-i of what is shown."""
        average, worst, true, div2, wrong, mentions = [], [], [], [], 0, 0
        for number, places in enumerate(chosen):
            scores, tokens = cider[number][places], [pools[number][at].split() for at in places]
            average.append(scores.mean())
            worst.append(scores.min())
            true.append(np.mean([pictures[number].true[TURNS[-1]][at] for at in places]))
            pairs = {pair for each in tokens for pair in pairwise(each)}
            div2.append(len(pairs) / sum(map(len, tokens)))
            kinds = [kind for at in places for kind in named[number][at]]
            wrong, mentions = wrong + sum(kind not in there[number] for kind in kinds), mentions + len(kinds)
        means = [float(np.mean(each)) for each in (average, worst, true, div2)]
        return means[0], means[1], means[2], means[3], 100 * wrong / mentions

    *_, div2, chair = figures([shown_before(picture) for picture in pictures])

    def score(tried: SupportWeights) -> float:
        average, worst, true, div2_now, chair_now = figures(
            [shown_of_turns(picture, tried) for picture in pictures]
        )
        lost, kept = div2 - MOST_DIV2_LOST - div2_now, chair_now - CHAIR_SHARE * chair
        return average + worst + true - 20 * max(0.0, lost) - 0.1 * max(0.0, kept)

    tried = [
        replace(weights, shown=Selection(worth, floors))
        for worth in product(*CHOICES.values())
        for floors in FLOORS
    ]
    scores = [score(each) for each in tried]
    best = tried[int(np.argmax(scores))]
    print(f"chosen: {best.shown.json()}; score {max(scores):.4f}", flush=True)
    return best


# ---- the measurement ------------------------------------------------------------------------------------------------


def evaluated(pictures: Sequence[Picture], way: str, places: Sequence[Sequence[int]]) -> Evaluation:
    samples = {
        p.image: [p.pools[way][at].text for at in here] for p, here in zip(pictures, places, strict=True)
    }
    metrics = "cider,chair" if len(places[0]) == 1 else "cider,chair,diversity"
    found = evaluate(samples, {p.image: p.references for p in pictures}, metrics=metrics)
    true = mean([np.mean([p.true[way][at] for at in here]) for p, here in zip(pictures, places, strict=True)])
    return replace(found, figures={**found.figures, "true": true})


def table(title: str, found: dict[str, Evaluation]) -> dict[str, Any]:
    """Print the figures of systems, and the differences of the last from the first."""
    names = [name for name in FIGURES if name in next(iter(found.values())).figures]
    print(f"\n{title}\n| chosen by | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    for system, each in found.items():
        print(f"| {system} | {' | '.join(f'{each.values[name]:.3f}' for name in names)} |")
    systems = list(found.values())
    changes = compare(systems[-1], systems[0])
    cells = [
        f"{c.difference:+.3f} ({c.low:+.3f} to {c.high:+.3f})" for c in (changes[name] for name in names)
    ]
    print(f"| last minus first | {' | '.join(cells)} |", flush=True)
    return {
        **{system: {name: each.values[name] for name in names} for system, each in found.items()},
        "difference": {
            name: [changes[name].difference, changes[name].low, changes[name].high] for name in names
        },
    }


def calibration(title: str, support: np.ndarray, true: np.ndarray) -> list[list[float]]:
    """Print the mean support and the share of true captions in ten bins."""
    print(
        f"\n{title}: {len(support):,} captions, {true.mean():.3f} true\n| support | captions | mean support | true |"
    )
    print("| --- | --- | --- | --- |")
    rows = []
    for number in range(10):
        inside = np.minimum((support * 10).astype(int), 9) == number
        if inside.any():
            rows.append(
                [number / 10, int(inside.sum()), float(support[inside].mean()), float(true[inside].mean())]
            )
            low, count, mean_, share = rows[-1]
            print(f"| {low:.1f} to {low + 0.1:.1f} | {count:,} | {mean_:.2f} | {share:.2f} |")
    print(f"largest gap {max(abs(row[2] - row[3]) for row in rows):.3f}", flush=True)
    return rows


def fit(asked: argparse.Namespace) -> None:
    judging = open_judge(asked.bank, UNFITTED)
    assert judging is not None
    pictures = read_pools(asked.folder, asked.data, judging, asked.count)
    size = asked.fit or len(pictures) // 2
    first, second = pictures[:size], pictures[-(asked.measure or len(pictures) - size) :]
    weights = fit_support(first)
    judge(pictures, weights, *TURNS, "accurate")
    if asked.worth and asked.floors:
        weights = replace(weights, shown=Selection(tuple(asked.worth), tuple(asked.floors)))
    else:
        weights = choose(first[: asked.choose_on], weights)
    print(json.dumps(weights.json()))
    if asked.out is not None:
        write_json(asked.out, weights.json())
    print(f"{len(first)} pictures fitted, {len(second)} others measure")
    consensus, expected = (Selection(each, (0.0, 0.0)) for each in ALONE)
    chosen = {
        "likelihood and difference, as before": [shown_before(p) for p in second],
        "likelihood and difference, as now without a judge": [shown(p, None, TURNS[0]) for p in second],
        "consensus and difference": [shown(p, consensus, TURNS[0]) for p in second],
        "what is expected and difference": [shown(p, expected, TURNS[0]) for p in second],
        "all, of the first draws alone": [shown_of_turns(p, weights, 1) for p in second],
        "as now": [shown_of_turns(p, weights) for p in second],
    }
    five = {name: evaluated(second, TURNS[-1], places) for name, places in chosen.items()}
    drawn = [turn_of(p, weights) for p in second]
    print({name: drawn.count(name) for name in TURNS}, "pictures by the turn that was enough")
    one = {
        "likelihood, of 20 draws": [shown(p, None, "before", 1) for p in second],
        "a plain beam": [[0] for _ in second],
        "by what several are chosen by": [shown(p, weights.shown, "accurate", 1) for p in second],
        "as now": [shown(p, weights.accurate, "accurate", 1) for p in second],
    }
    pools = {"likelihood, of 20 draws": "before", "a plain beam": "beam"}
    single = {name: evaluated(second, pools.get(name, "accurate"), places) for name, places in one.items()}
    results = {
        "shown": table("Five captions shown of 20 draws", five),
        "accurate": table("--accurate, the first caption", single),
    }
    for title, ways, places in (
        ("Draws", [TURNS[0]] * len(second), [range(len(p.pools[TURNS[0]])) for p in second]),
        ("Shown", drawn, chosen["as now"]),
        ("Shown with --accurate", ["accurate"] * len(second), one["as now"]),
    ):
        each = [(p, way, at) for p, way, here in zip(second, ways, places, strict=True) for at in here]
        support = [p.verdicts[way][at].support for p, way, at in each]
        true = [p.true[way][at] for p, way, at in each]
        results[title] = calibration(title, np.array(support), np.array(true))
    if asked.results is not None:
        write_json(asked.results, results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, help="where the weights go (support.json)")
    parser.add_argument("--results", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--bank", default="shipped")
    parser.add_argument("--count", type=int, help="of the pictures; all if not given")
    parser.add_argument("--fit", type=int, help="pictures that fit, the first ones; half if not given")
    parser.add_argument(
        "--measure", type=int, help="pictures that measure, the last ones; all others if not given"
    )
    parser.add_argument(
        "--choose-on", type=int, default=600, help="pictures of the first half that choose the worth"
    )
    parser.add_argument(
        "--worth", type=float, nargs=5, help="factors that are not to be chosen, e.g. 0 0.3 1.25 0.6 0"
    )
    parser.add_argument("--floors", type=float, nargs=2, help="and floors, e.g. 0.3 0.65")
    fit(parser.parse_args())


if __name__ == "__main__":
    main()
