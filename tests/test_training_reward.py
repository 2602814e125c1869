"""The second stage after PS-NOC: the model's own samples, rewarded, against slow versions and finite differences."""

import json
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from itertools import product
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coscap.data import open_prepared
from coscap.errors import UserError
from coscap.models import build_model
from coscap.report.runs import open_run
from coscap.seam import Caption
from coscap.text.vocabulary import END
from coscap.training.config import Reward, check_config, read_config
from coscap.training.objective import weights_at
from coscap.training.reward import CiderD, RewardTerm, added_by_each, unlike
from coscap.training.run import model_config, train_run
from coscap.vision.store import RegionStore
from test_training_run import ONE_NODE, ONE_THREAD, torchrun
from training_world import TINY, lines, make_world

UPDOWN = {**TINY, "kind": "updown"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    config = make_world(folder, novel=8)
    rows = [
        {"image_id": 37 + n, "caption": f"a zebra {place}"}
        for n in range(8)
        for place in ("here", "on the grass")
    ]
    (folder / "pseudo.json").write_text(json.dumps(rows))
    return config


def term_and_model(world: Path, kind: dict = UPDOWN, **settings):
    data, store = open_prepared(world.parent / "data"), RegionStore.open(world.parent / "regions.h5")
    torch.manual_seed(0)
    model = build_model(model_config(kind, data, store))
    model.set_names(store.recipe, data.classes, data.vocabulary)
    return RewardTerm(Reward(captions=world.parent / "pseudo.json", **settings), data, store), model


def written(*texts: str) -> list[Caption]:
    return [Caption(tuple(text.split()), 0.0, 0, np.zeros((0, 0), np.float32)) for text in texts]


def every_caption(term, model, monkeypatch, words: tuple[str, ...]):
    """A picture in float64, its id, and all captions of at most two of these words, the only ones left to a model."""
    monkeypatch.setattr(type(term.prepared), "max_length", 2, raising=False)
    vocabulary = term.prepared.vocabulary
    with torch.no_grad():
        shut = torch.ones(len(vocabulary.units), dtype=torch.bool)
        shut[[END, *(vocabulary.id(word) for word in words)]] = False
        model.output.bias[shut] = -1e9
    regions, ids = term.draw(torch.tensor([5]))
    regions = replace(regions, features=regions.features.double(), boxes=regions.boxes.double())
    texts = ["", *words, *(f"{one} {two}" for one, two in product(words, words))]
    return regions, ids, [written(*texts)]


def plain_cider_d(caption: str, references: list[str], training: list[list[str]]) -> float:
    """CIDEr-D as its paper has it: clipped tf-idf vectors of n-grams, a Gaussian of the lengths, times 10."""

    def counts(text: str, n: int) -> Counter:
        words = text.split()
        return Counter(tuple(words[t : t + n]) for t in range(len(words) - n + 1))

    total = 0.0
    for n in range(1, 5):
        frequency = Counter(
            gram for texts in training for gram in set().union(*(counts(t, n) for t in texts))
        )

        def vector(text: str, n: int = n, frequency: Counter = frequency) -> dict:
            return {
                gram: count * (log(len(training)) - log(max(1, frequency[gram])))
                for gram, count in counts(text, n).items()
            }

        own = vector(caption)
        for reference in references:
            other = vector(reference)
            along = sum(min(own.get(gram, 0.0), value) * value for gram, value in other.items())
            norms = sqrt(sum(v * v for v in own.values())) * sqrt(sum(v * v for v in other.values()))
            apart = len(caption.split()) - len(reference.split())
            total += (along / norms if norms else 0.0) * exp(-(apart**2) / 72)
    return 10 * total / 4 / len(references)


def test_cider_d_of_a_sample_is_that_of_its_definition():
    training = [
        ["a dog on the grass", "the dog is here"],
        ["a cat near a tree"],
        ["two cats on the grass", "cats"],
    ]
    score = CiderD(training)
    captions = [
        ["a dog on the grass", "a zebra on the grass", "", "the the the"],
        ["a cat", "a tree near a cat"],
    ]
    for _ in range(2):  # n-grams that it met before make no difference
        found = score(captions, training[:2])
        expected = [
            plain_cider_d(text, refs, training)
            for one, refs in zip(captions, training, strict=False)
            for text in one
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found[0] > found[1] > found[2] == 0


def test_f1_counts_what_is_named_against_what_is_sure(world):
    term, _ = term_and_model(world)
    regions, _ = term.draw(torch.arange(3))
    labels = torch.full((3, regions.labels.shape[1]), -1)
    labels[0, 0], labels[1, 0] = 0, 4
    scores = torch.zeros(labels.shape)
    scores[0, 0], scores[1, 0] = 0.9, 0.4
    assert term.sure(replace(regions, labels=labels, scores=scores)) == [{0}, set(), set()]
    dog, zebra = 0, 4
    for text, sure, expected in (
        ("a dog here", {dog}, 1.0),
        ("two dogs", {dog, zebra}, 2 / 3),
        ("a dog and a cat", {dog}, 2 / 3),
        ("a cat", {dog}, 0.0),
        ("grass", set(), 1.0),
        ("a zebra", set(), 0.0),
    ):
        assert term.f1(term.named(text.split()), sure) == pytest.approx(expected)
    novel, _ = term_and_model(world, classes=("zebra",))
    assert novel.f1(novel.named(["dog"]), set()) == 1.0 and novel.named(["zebras"]) == {zebra}


def test_rewards_and_baselines_are_those_of_each_caption(world):
    term, model = term_and_model(world, cider=2.0, f1=0.5)
    regions, ids = term.draw(torch.arange(2) * 7)
    samples = [written("a zebra here", "a dog on the grass", ""), written("a horse", "a horse today", "the")]
    rewards, parts = term.rewards(regions, ids, samples)
    training = [term.references[int(name)] for name in term.captioned]
    for row, one in enumerate(samples):
        references, sure = term.references[int(ids[row])], term.sure(regions)[row]
        for place, each in enumerate(one):
            cider = plain_cider_d(each.text, references, training)
            assert rewards[row, place] == pytest.approx(
                2 * cider + 0.5 * term.f1(term.named(each.tokens), sure), rel=1e-4
            )
    assert parts["f1"].shape == (6,)
    gained = term.advantage(model, regions, ids, rewards)
    assert 3 * gained[1, 0] == pytest.approx(rewards[1, 0] - (rewards[1, 1] + rewards[1, 2]) / 2)
    greedy, model = term_and_model(world, baseline="greedy", cider=2.0, f1=0.5)
    model.eval()
    expected, _ = term.rewards(regions, ids, term.sample(model, regions, 0))
    assert expected.shape == (2, 1)
    np.testing.assert_allclose(
        3 * greedy.advantage(model, regions, ids, rewards), rewards - expected, rtol=1e-6
    )


def test_a_class_that_nobody_names_or_detects_is_invented(world):
    term, _ = term_and_model(world, cider=0.0, f1=0.0, invented=0.5)
    regions, ids = term.draw(torch.arange(2) * 7)
    blank = replace(regions, scores=torch.zeros_like(regions.scores))
    term.references = {int(name): ["a dog here", "grass"] for name in ids}
    samples = [written("a dog", "dogs and a zebra", "a cat with a zebra")] * 2
    rewards, parts = term.rewards(blank, ids, samples)
    assert rewards[0].tolist() == [0.0, -0.5, -1.0] and parts["invented"].tolist() == [0, 1, 2] * 2
    zebra = replace(
        regions, labels=torch.full_like(regions.labels, 4), scores=torch.ones_like(regions.scores)
    )
    assert term.rewards(zebra, ids, samples)[0][0].tolist() == [0.0, 0.0, -0.5]


def test_a_content_word_that_no_reference_bears_out_costs_its_part(world):
    term, _ = term_and_model(world, cider=0.0, f1=0.0, unsaid=0.25)
    regions, ids = term.draw(torch.arange(2) * 7)
    term.references = {int(name): ["a dog here", "grass"] for name in ids}
    samples = [written("a dog", "dogs with a zebra", "a cat with a zebra")] * 2
    rewards, parts = term.rewards(regions, ids, samples)
    assert rewards[0].tolist() == [0.0, -0.25, -0.5] and parts["unsaid"].tolist() == [0, 1, 2] * 2


def test_a_soft_best_is_worth_what_a_caption_adds_to_the_others(world):
    rewards = np.random.default_rng(0).normal(0.7, 0.5, (3, 4)).astype(np.float32)

    def worth(values: list[float], tau: float) -> float:
        return tau * log(sum(exp(value / tau) for value in values) / len(values))

    for tau in (0.05, 0.4, 3.0):
        term, model = term_and_model(world, soft_best=tau)
        found = term.advantage(model, None, None, rewards)
        for row, values in enumerate(rewards.tolist()):
            for place in range(4):
                others = values[:place] + values[place + 1 :]
                assert found[row, place] == pytest.approx(worth(values, tau) - worth(others, tau), abs=1e-5)
    mean, model = term_and_model(world)
    flat, _ = term_and_model(world, soft_best=1e4)
    np.testing.assert_allclose(
        flat.advantage(model, None, None, rewards), mean.advantage(model, None, None, rewards), atol=2e-3
    )


def test_how_unlike_samples_are_is_shared_out_by_what_each_adds(world):
    samples = [written("a dog here", "a dog there", "a cat", ""), written("a", "a", "a", "b c d")]
    apart = unlike(samples)
    one, two = (
        {("a", "dog"), ("dog", "here"), ("here", ".")},
        {("a", "dog"), ("dog", "there"), ("there", ".")},
    )
    assert apart[0, 0, 1] == pytest.approx(1 - len(one & two) / len(one | two)) == apart[0, 1, 0]
    assert apart[1, 0, 1] == 0 and apart[1, 0, 3] == 1 and not apart[:, range(4), range(4)].any()

    def mean_of_pairs(row: int, places: list[int]) -> float:
        return float(np.mean([apart[row, i, j] for i in places for j in places if i < j]))

    added = added_by_each(apart)
    for row, place in product(range(2), range(4)):
        rest = [other for other in range(4) if other != place]
        expected = mean_of_pairs(row, [0, 1, 2, 3]) - mean_of_pairs(row, rest)
        assert added[row, place] == pytest.approx(expected, abs=1e-6)
    assert added[1].argmax() == 3
    term, model = term_and_model(world, share=1.0, draws=3, unlike=2.0)
    plain, _ = term_and_model(world, share=1.0, draws=3)
    with torch.no_grad():
        model.output.bias[[END, term.prepared.vocabulary.id("a")]] = 6.0  # short captions, some of them alike
    keys = torch.arange(4) * (1 << 20) + 7
    more, less = term(model, None, keys), plain(model, None, keys)
    assert not torch.equal(more.reconstruction, less.reconstruction)
    assert 0 < float(more.figures["unlike"]) / float(more.figures["captions"]) <= 1


def test_the_gradient_is_that_of_the_expected_reward(world, monkeypatch):
    """All captions of at most two of four words: the mean of the loss's gradient, and finite differences of E[r]."""
    term, model = term_and_model(world, draws=2)
    model = model.double().eval()
    regions, ids, samples = every_caption(term, model, monkeypatch, ("a", "dog", "zebra", "grass"))
    rewards = torch.from_numpy(term.rewards(regions, ids, samples)[0][0]).double()
    batch = term.batch_of(regions, ids, samples)
    assert batch.lengths.tolist()[:2] == [1, 2] and batch.lengths.max() == 2

    def expected() -> torch.Tensor:
        p = torch.exp(-model.loss(batch, keys=batch.rows).reconstruction)
        assert float(p.sum()) == pytest.approx(1.0)
        return (p * rewards).sum()

    surprise = model.loss(batch, keys=batch.rows).reconstruction
    p = torch.exp(-surprise.detach())
    baseline = 0.7  # any number that does not depend on the caption
    (p * (rewards - baseline) * surprise).sum().backward()
    weight = model.decoder.attention_hidden
    with torch.no_grad():
        for place in [(0, 1), (5, 3), (9, 0)]:
            kept, step = float(weight[place]), 1e-5
            weight[place] = kept + step
            above = expected()
            weight[place] = kept - step
            below = expected()
            weight[place] = kept
            assert float(-weight.grad[place]) == pytest.approx(
                float((above - below) / (2 * step)), rel=1e-4, abs=1e-9
            )


def test_the_term_is_the_mean_over_samples_and_follows_from_the_keys(world):
    term, model = term_and_model(world, share=0.5, draws=3)
    model.train()
    keys = torch.arange(40) * 100_003 + 7
    chosen = keys[keys % (1 << 20) < 0.5 * (1 << 20)] // (1 << 20)
    found = term(model, None, keys)
    assert (
        model.training and len(found.reconstruction) == 3 * len(chosen) == int(found.figures["captions"]) > 0
    )
    assert torch.equal(found.reconstruction, term(model, None, keys.clone()).reconstruction)
    model.eval()
    regions, ids = term.draw(chosen)
    samples = term.sample(model, regions, 3)
    value, _ = term.rewards(regions, ids, samples)
    logs = torch.tensor([[each.log_probability for each in one] for one in samples])
    advantage = torch.from_numpy(value - (value.sum(1, keepdims=True) - value) / 2)
    whole = np.array([[len(each.tokens) < term.prepared.max_length for each in one] for one in samples])
    expected = (-advantage * logs / 3).flatten()
    found_here = found.reconstruction.detach().flatten()
    torch.testing.assert_close(
        found_here[whole.ravel()], expected.float()[whole.ravel()], rtol=1e-3, atol=1e-4
    )
    assert 0 < float(found.figures["unique"]) <= float(found.figures["captions"])
    half = keys[: len(keys) // 2]
    torch.testing.assert_close(
        term(model.train(), None, half).reconstruction, found.reconstruction[: len(term(model, None, half).words)],
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    none = keys[keys % (1 << 20) >= 0.5 * (1 << 20)]
    assert term(model, None, none).figures.keys() == found.figures.keys()


def test_only_pictures_that_training_may_see_are_drawn(world):
    term, _ = term_and_model(world, novel=0.5)
    data = term.prepared
    seen = {int(image) for image in term.draw(torch.arange(300) * 9_999_991)[1]}
    train = {int(data.image_ids[image]) for image in data.images("train")}
    unpaired = {int(data.image_ids[image]) for image in data.images("unpaired")}
    assert seen & train and seen & unpaired and seen <= train | unpaired
    only, _ = term_and_model(world, novel=0.0)
    assert {int(image) for image in only.draw(torch.arange(50) * 9_999_991)[1]} <= train


CHANGES = ["model.kind=updown", "reward.share=0.5", "reward.draws=3", "log_steps=3", "optimiser.name=sgd"]


def test_raises_the_reward_and_goes_on_to_the_same_bits(world, tmp_path):
    changes = [*CHANGES, f"reward.captions={world.parent / 'pseudo.json'}", "validation=null"]
    changes += ["steps=12", "checkpoint_minutes=1e-6", "optimiser.lr=0.3", "reward.weight=3"]
    run, again = tmp_path / "run", tmp_path / "again"
    assert train_run(read_config(world, changes), run, device="cpu") == "finished"
    first, *_, last = lines(run, "train")
    assert last["reward_value"] > first["reward_value"] and 0 < last["reward_unique"] <= 1
    assert last["reward_captions"] > 0 and {"reward_cider", "reward_f1"} <= last.keys()
    assert open_run(str(run)).name == "UpDown (reward)"
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "step-00000012")
    assert train_run(read_config(world, changes), again, resume=True, device="cpu") == "finished"
    one, two = (load_file(each / "last" / "model.safetensors") for each in (run, again))
    assert all(torch.equal(two[name], value) for name, value in one.items())


def test_two_processes_are_one(world, tmp_path):
    changes = [*CHANGES, f"reward.captions={world.parent / 'pseudo.json'}", "steps=4", "optimiser.lr=0.05"]
    changes += ["validation=null", "model.word_dropout=0"]
    train_run(read_config(world, changes), tmp_path / "one", device="cpu")
    command = torchrun(world, tmp_path / "two", changes, *ONE_NODE)
    done = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=500)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6)
    for key in ("loss", "reward_value", "reward_unique"):
        expected = [line[key] for line in lines(tmp_path / "one", "train")]
        assert [line[key] for line in lines(tmp_path / "two", "train")] == pytest.approx(expected, rel=1e-3)


def test_the_weight_comes_in_after_some_epochs():
    content = {"data": "d", "regions": "r.h5", "steps": 1, "reward": {"weight": 0.5, "from_epoch": 2}}
    config = check_config(content, "run.yaml")
    assert weights_at(config, 1.9)["reward_reconstruction"] == 0
    assert weights_at(config, 2)["reward_reconstruction"] == 0.5


def test_where_it_cannot_apply_it_is_refused_in_a_sentence(world, tmp_path):
    run, pseudo = tmp_path / "run", tmp_path / "pseudo.json"
    pseudo.write_text('[{"image_id": 1, "caption": "a picture that is captioned"}]')
    for changes, said in (
        (
            ["model.kind=ag_cvae", "reward.draws=3"],
            "field reward: a ag_cvae cannot learn from rewarded samples, ",
        ),
        (
            ["model.kind=lstm_p", "reward.word_temperature=0.5"],
            r"field reward\.word_temperature is 0\.5, and a lstm_p",
        ),
        (["reward.soft_best=0.5", "reward.baseline=greedy"], "field reward: soft_best compares"),
        (
            ["model.kind=updown", "reward.classes=[yeti]"],
            r"field reward\.classes: test/1 does not know 'yeti'",
        ),
        (
            ["model.kind=updown", f"reward.captions={pseudo}"],
            r"field reward\.captions: .* has no caption of a picture",
        ),
        (
            ["model.kind=updown", "reward.cider=0", "reward.f1=0"],
            "field reward: cider, f1, invented and unsaid are all 0",
        ),
        (["model.kind=updown", "reward.draws=1"], r"field reward\.draws is 1"),
    ):
        with pytest.raises(UserError, match=said):
            train_run(read_config(world, changes), run, device="cpu")
    assert not run.exists()
