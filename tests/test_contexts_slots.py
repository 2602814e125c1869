"""What fills a slot: each rule against a plain version, what it is fitted on, and training with it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coscap.contexts.folder import open_neighbours
from coscap.contexts.pseudo import NovelTerm, slot_tokens
from coscap.contexts.slots import (
    ALIKE,
    RIDGE,
    WEAK,
    class_of_label,
    fit_calibration,
    fit_logistic,
    look_alikes,
    rarity,
    read_detections,
    read_slots,
    slot_rule,
    words_beside,
)
from coscap.data import open_prepared
from coscap.errors import UserError
from coscap.models.pseudo import Asked, Calibration, SlotFiller, SlotRule, SlotTokens, pseudo_loss
from coscap.text.vocabulary import END, SLOT, SLOTS, START
from coscap.training.config import read_config
from coscap.training.run import train_run
from coscap.vision.store import RegionStore
from models_batch import make_batch
from test_models_pseudo import FILL, make_model
from training_world import CLASSES, lines, make_neighbours, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = make_world(tmp_path_factory.mktemp("world"), novel=8)
    make_neighbours(config.parent)
    return config


def opened(world: Path):
    return open_prepared(world.parent / "data"), RegionStore.open(world.parent / "regions.h5")


def slotted(captions: int = 6):
    """Captions with two slots in a row where they are long enough, on pictures with five regions of four labels."""
    batch = make_batch(captions=captions, words=7)
    labels = torch.tensor([[0, 1, 2, 0, 3], [2, 2, 1, -1, 0], [3, 3, 3, -1, -1]])  # the third has no name
    mask = torch.ones_like(labels, dtype=torch.bool)
    scores = torch.tensor([[0.9, 0.7, 0.4, 0.3, 0.8], [0.6, 0.5, 0.5, 1.0, 0.2], [0.9, 0.8, 0.7, 1.0, 1.0]])
    context = batch.context.clone()
    context[batch.lengths > 4, 2] = SLOTS
    pictures = replace(batch.pictures, labels=labels, mask=mask, scores=scores)
    return replace(batch, pictures=pictures, context=context)


def plain_choice(rule, weights, scores, labels, named, used, before, behind, chance) -> int | None:
    """The region that fills a slot, or None; every argument is of one slot."""
    free = [r for r in range(len(labels)) if named[r] and r not in used]
    free = free or [r for r in range(len(labels)) if named[r]]
    if not free:
        return None

    def factor(r):
        found = 1.0
        if rule.rarity is not None:
            found *= float(rule.rarity[labels[r]])
        if rule.left is not None:
            found *= float(rule.left[labels[r], before]) * float(rule.right[labels[r], behind])
        return found

    if not rule.draw:
        return max(free, key=lambda r: (weights[r] * scores[r] * factor(r), -r))
    kinds = {}
    for r in free:
        if (
            labels[r] not in kinds
            or weights[r] * scores[r] > weights[kinds[labels[r]]] * scores[kinds[labels[r]]]
        ):
            kinds[labels[r]] = r
    chosen = sorted(kinds.values())
    goal, total = chance * sum(scores[r] * factor(r) for r in chosen), 0.0
    for r in chosen:
        total += scores[r] * factor(r)
        if total > goal:
            return r
    return chosen[-1]


def made_up(kind: str) -> SlotRule:
    g = torch.Generator().manual_seed(3)
    factors = {"rarity": 4 * torch.rand(4, generator=g)} if kind in ("inverse", "all") else {}
    if kind in ("fitting", "all"):
        factors |= {side: 4 * torch.rand(4, 20, generator=g) for side in ("left", "right")}
    knots = torch.rand(4, 8, generator=g).sort(dim=1).values
    calibration = Calibration(knots, torch.tensor(0.7), torch.tensor([0.5, -0.5, 0.0, 1.0]))
    return SlotRule(
        draw=kind in ("balanced", "all"), calibration=calibration if kind == "all" else None, **factors
    )


@pytest.mark.parametrize("kind", ["attention", "balanced", "inverse", "fitting", "all"])
def test_slots_are_filled_as_the_plain_rule_says(kind):
    model, batch, rule = make_model(), slotted(), made_up(kind)
    forced = model.teacher_force(batch, None, torch.arange(6))
    attention = torch.rand(forced.packing.words, 5, generator=torch.Generator().manual_seed(4))
    filler = SlotFiller(forced, FILL, 5, rule)
    chance = None if filler.chance is None else forced.packing.unpack(filler.chance)
    found = torch.cat([filler.fill(t, attention[a:b]) for t, (a, b) in enumerate(forced.packing.blocks)])
    found, weights = forced.packing.unpack(found), forced.packing.unpack(attention)
    slots = 0
    for row in range(6):
        picture, used = int(batch.rows[row]), set()
        labels, scores = batch.pictures.labels[picture].tolist(), batch.pictures.scores[picture].tolist()
        if rule.calibration is not None:
            scores = [plain_probability(rule.calibration, *each) for each in zip(scores, labels, strict=True)]
        context = [START, *batch.context[row].tolist(), 0]
        for t in range(int(batch.lengths[row])):
            expected = int(batch.words[row, t])
            if context[t + 1] in (SLOT, SLOTS):
                table = FILL.singular if context[t + 1] == SLOT else FILL.plural
                named = [label >= 0 and int(table[label]) >= 0 for label in labels]
                u = 0.0 if chance is None else float(chance[row, t])
                chosen = plain_choice(
                    rule, weights[row, t].tolist(), scores, labels, named, used, context[t], context[t + 2], u
                )
                if chosen is not None:
                    slots += 1
                    used.add(chosen)
                    expected = int(table[labels[chosen]])
            assert int(found[row, t]) == expected, (row, t)
    assert slots >= 6


def plain_probability(calibration: Calibration, score: float, label: int) -> float:
    if label < 0:
        return score
    rank = (sum(float(knot) < score for knot in calibration.knots[label]) + 0.5) / (
        calibration.knots.shape[1] + 1
    )
    logit = float(calibration.slope) * np.log(rank / (1 - rank)) + float(calibration.intercepts[label])
    return float(1 / (1 + np.exp(-logit)))


def test_a_rule_without_factors_is_attention_times_score():
    model, batch, keys = make_model(), slotted(), torch.arange(6)
    plain = pseudo_loss(model, batch, FILL, keys=keys)
    for feed in ("filled", "neighbour"):
        one = pseudo_loss(model, batch, FILL, keys=keys, feed=feed)
        two = pseudo_loss(model, batch, FILL, keys=keys, feed=feed, rule=SlotRule())
        assert torch.equal(one[1], two[1]) and torch.equal(one[0].reconstruction, two[0].reconstruction)
    other = pseudo_loss(
        model, batch, FILL, keys=keys, rule=SlotRule(rarity=torch.tensor([1.0, 1e6, 1.0, 1.0]))
    )
    assert not torch.equal(plain[1], other[1])


def test_balanced_draws_every_class_by_its_score_whatever_is_attended_to():
    model, batch = make_model(), make_batch(captions=1, words=4, pictures=1)
    labels, scores = torch.tensor([[0, 0, 1, 2, -1]]), torch.tensor([[0.8, 0.7, 0.4, 0.4, 1.0]])
    pictures = replace(batch.pictures, labels=labels, scores=scores, mask=torch.ones(1, 5, dtype=torch.bool))
    names, counts = (
        SlotTokens(torch.tensor([6, 7, 8, -1]), torch.tensor([-1] * 4)),
        dict.fromkeys((6, 7, 8), 0),
    )
    rows = 3000
    many = replace(
        batch,
        pictures=pictures,
        rows=torch.zeros(rows, dtype=torch.long),
        words=batch.words.expand(rows, -1),
        context=batch.context.expand(rows, -1),
        objects=batch.objects.expand(rows, -1),
        lengths=batch.lengths.expand(rows),
    )
    forced = model.teacher_force(many, None, torch.arange(rows) * 7919)
    attention = torch.tensor([0.01, 0.9, 0.05, 0.03, 0.01]).expand(forced.packing.words, -1)
    filler = SlotFiller(forced, names, 5, SlotRule(draw=True))
    t = next(t for t, word in enumerate(batch.context[0].tolist()) if word == SLOT)
    start, end = forced.packing.blocks[t]
    for token in filler.fill(t, attention[start:end]).tolist():
        counts[token] += 1
    shares = np.array([counts[6], counts[7], counts[8]]) / rows
    np.testing.assert_allclose(shares, np.array([0.7, 0.4, 0.4]) / 1.5, atol=0.04)


def test_the_logistic_fit_is_at_its_optimum():
    chance = np.random.default_rng(0)
    x, groups = chance.normal(size=900), chance.integers(0, 5, 900)
    logits = 1.5 * x - 0.5 + np.array([0, 1, -1, 2, 0])[groups]
    y = (chance.random(900) < 1 / (1 + np.exp(-logits))).astype(float)
    y[groups == 4], keep = 1, groups != 4

    def cost(a, b, d):
        z = a * x[keep] + b + d[groups[keep]]
        held = WEAK / 2 * ((a - 1) ** 2 + b**2)
        return float(np.sum(np.log1p(np.exp(z)) - y[keep] * z) + RIDGE / 2 * d @ d + held)

    a, b, d = fit_logistic(x[keep], groups[keep], y[keep], 6)
    best = cost(a, b, d)
    for _ in range(30):
        step = chance.normal(size=8) * 0.05
        assert cost(a + step[0], b + step[1], d + step[2:]) > best
    assert d[4] == d[5] == 0 and abs(a - 1.5) < 0.4
    a, b, d = fit_logistic(
        x, groups, np.ones(900), 6
    )  # where everything is named nothing grows beyond measure
    assert np.isfinite([a, b, *d]).all() and 2 < b < 20


def test_scores_are_calibrated_by_what_captions_name(world):
    data, store = opened(world)
    found = read_detections(data, store)
    assert found.looked_at == len(data.images("train")) + 8 and set(found.labels.tolist()) == {0, 1, 2, 3, 4}
    one = found.pictures == found.pictures[0]
    assert np.all(found.scores[one] == pytest.approx(0.9))
    wrong = data.images("train")  # a car in every picture, which hardly anyone names
    found = replace(
        found,
        pictures=np.concatenate([found.pictures, wrong]),
        labels=np.concatenate([found.labels, np.full(len(wrong), 3)]),
        scores=np.concatenate([found.scores, np.linspace(0.3, 0.9, len(wrong))]),
    )
    fitted = fit_calibration(found, data, store)
    np.testing.assert_allclose(rarity(found, 5).min(), 1)
    counts = np.bincount(found.labels)
    assert rarity(found, 5)[counts.argmin()] == rarity(found, 5).max()
    assert (fitted.intercepts[:3] > fitted.intercepts[4]).all() and fitted.intercepts[3] < fitted.intercepts[
        4
    ]
    held = fit_calibration(found, data, store, without=("dog",))
    assert float(held.intercepts[0]) == pytest.approx(float(held.intercepts[4]))
    score = torch.tensor([[0.2, 0.95, 0.95]])
    low, high, cell = fitted(score, torch.tensor([[0, 0, -1]]))[0].tolist()
    assert 0 < low < high < 1 and cell == pytest.approx(0.95)


def test_a_class_that_the_detector_is_unsure_of_counts_as_others():
    knots = torch.stack([torch.linspace(0.3, 0.5, 16), torch.linspace(0.5, 0.99, 16)])
    calibrated = Calibration(knots, torch.tensor(1.0), torch.zeros(2))
    unsure, sure = calibrated(torch.tensor([[0.48, 0.7]]), torch.tensor([[0, 1]]))[0].tolist()
    assert unsure > sure


def test_words_beside_a_slot_are_those_counted_one_by_one(world):
    data, store = opened(world)
    classes, before, behind = read_slots(data)
    rows = []
    for caption in data.trainable("train").tolist():
        context = [START, *data.context(caption).tolist(), END]
        places = [t for t, word in enumerate(context) if word in (SLOT, SLOTS)]
        for t, number in zip(places, data.object_classes(caption).tolist(), strict=True):
            rows.append((number, context[t - 1], context[t + 1]))
    assert rows == list(zip(classes.tolist(), before.tolist(), behind.tolist(), strict=True))
    left, right = words_beside(data, store)
    word, label = data.vocabulary.id("the"), CLASSES.index("horse")
    number = int(class_of_label(data, store)[label])
    share = sum(row[1] == word for row in rows) / len(rows)
    own = [row for row in rows if row[0] == number]
    expected = (sum(row[1] == word for row in own) + ALIKE * share) / (len(own) + ALIKE) / share
    assert left[label, word] == pytest.approx(expected)
    like = int(
        look_alikes(data, store, np.bincount(classes, minlength=len(data.classes)) > 0)[
            class_of_label(data, store)[4]
        ]
    )
    alike = class_of_label(data, store).tolist().index(like)
    assert alike != 4 and (left[4] == left[alike]).all() and (right[4] == right[alike]).all(), (
        "nobody speaks of zebras; they stand where the class stands that looks most like them"
    )
    without = read_slots(data, without=("horse",))[0]
    assert number not in without and len(without) == sum(row[0] != number for row in rows)
    without_horses = words_beside(data, store, without=("horse",))[1]
    assert not (without_horses[label] == right[label]).all()
    assert any((without_horses[label] == without_horses[k]).all() for k in range(4) if k != label)


def test_a_novel_class_looks_like_the_class_with_the_nearest_regions(world):
    data, store = opened(world)
    named = np.array([each.name != "zebra" for each in data.classes.classes])
    numbers = {each.name: k for k, each in enumerate(data.classes.classes)}
    sums: dict[str, list[np.ndarray]] = {}
    for image in [*data.images("train").tolist(), *data.images("unpaired").tolist()]:
        regions = store.get(int(data.image_ids[image]))
        for label, score, feature in zip(regions.labels, regions.scores, regions.features, strict=True):
            if label >= 0 and score >= 0.5:
                sums.setdefault(store.recipe.classes[label], []).append(feature.astype(float))
    means = {name: np.mean(each, 0) for name, each in sums.items()}
    middle = np.mean(list(means.values()), 0)

    def cosine(a, b):
        return float((a - middle) @ (b - middle) / np.linalg.norm(a - middle) / np.linalg.norm(b - middle))

    nearest = max(
        (name for name in means if name != "zebra"), key=lambda name: cosine(means[name], means["zebra"])
    )
    like = look_alikes(data, store, named)
    assert like[numbers["zebra"]] == numbers[nearest]
    assert (like[named] == np.flatnonzero(named)).all()
    assert (look_alikes(data, store, np.ones_like(named)) == np.arange(len(named))).all()


@pytest.mark.parametrize("kind", [None, "balanced", "all"])
def test_what_is_asked_for_is_named_once_where_it_fits_best(kind):
    model, batch = make_model(), slotted(captions=30)
    rule = None if kind is None else made_up(kind)
    fitting = made_up("fitting")
    labels = torch.tensor([1, 2, -1])  # the third picture is asked for nothing
    asked = Asked(labels, fitting.left, fitting.right)
    keys = torch.arange(30)
    _, plain = pseudo_loss(model, batch, FILL, keys=keys, rule=rule)
    _, found = pseudo_loss(model, batch, FILL, keys=keys, rule=rule, asked=asked)
    seen = 0
    for row in range(30):
        label = int(labels[batch.rows[row]])
        if label < 0:
            assert torch.equal(found[row], plain[row])
            continue
        context = [START, *batch.context[row].tolist(), 0]
        slots = [t for t in range(int(batch.lengths[row])) if context[t + 1] in (SLOT, SLOTS)]
        table = {SLOT: FILL.singular, SLOTS: FILL.plural}
        there = [t for t in slots if int(found[row, t]) == int(table[context[t + 1]][label])]
        if not slots:
            continue
        fit = {
            t: float(fitting.left[label, context[t]] * fitting.right[label, context[t + 2]]) for t in slots
        }
        assert there == [max(fit, key=fit.get)] or label == 2  # of class 2 there are two regions
        assert max(fit, key=fit.get) in there
        seen += 1
    assert seen >= 6


def test_rules_by_name(world):
    data, store = opened(world)
    assert slot_rule("attention", False, data, store) is None
    for how, parts in (("balanced", {"draw"}), ("inverse", {"rarity"}), ("fitting", {"left", "right"})):
        rule = slot_rule(how, False, data, store)
        assert {
            name for name, value in vars(rule).items() if value is not None and value is not False
        } == parts
    assert slot_rule("attention", True, data, store).calibration is not None


def test_pictures_without_captions_are_drawn_by_class(world):
    data, store = opened(world)
    neighbours = open_neighbours(world.parent / "contexts", data)
    names = slot_tokens(store.recipe, data.classes, data.vocabulary)
    term = NovelTerm(data, store, neighbours, names, classes=("zebra",))
    assert np.array_equal(term.groups[0], data.images("unpaired"))
    with pytest.raises(UserError, match="'zebra' is detected in none of the 8 pictures"):
        NovelTerm(data, store, neighbours, names, classes=("zebra",), score=1.0)
    drawn, asked = term.draw(torch.arange(0, 40, 4))
    assert asked.labels.tolist() == [4] * 10 and asked.left.shape == (5, len(data.vocabulary))
    assert len(drawn.rows) == 10 and (drawn.pictures.labels[:, 0] == 4).all()
    for name, said in (
        ("yeti", "test/1 does not know 'yeti'"),
        ("dog", "'dog' is detected in none of the 8 pictures"),
    ):
        with pytest.raises(UserError, match=f"field pseudo.classes: {said}"):
            NovelTerm(data, store, neighbours, names, classes=(name,))


@pytest.mark.parametrize("how", ["balanced", "fitting"])
def test_trains_by_every_rule(world, tmp_path, how):
    changes = ["steps=3", "validation=null", "log_steps=1", f"pseudo.contexts={world.parent / 'contexts'}"]
    changes += [
        f"pseudo.slots={how}",
        "pseudo.calibrate=true",
        "pseudo.unpaired=true",
        "pseudo.classes=[zebra]",
    ]
    assert train_run(read_config(world, changes), tmp_path / "run", device="cpu") == "finished"
    assert all(line["pseudo_reconstruction"] > 0 for line in lines(tmp_path / "run", "train"))
