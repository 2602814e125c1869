"""POS: part-of-speech templates by k-medoids, a classifier of pictures, a decoder that follows a template."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coscap.data import open_prepared
from coscap.errors import UserError
from coscap.models import load_pretrained, read_config
from coscap.models.pos import Pos
from coscap.models.templates import (
    LENGTH,
    TAGS,
    k_medoids,
    load_tagger,
    nearest_medoid,
    tag_sequences,
    token_tags,
)
from coscap.report.runs import open_run
from coscap.training.config import read_config as read_run
from coscap.training.run import train_run
from models_batch import make_batch, make_regions
from models_kinds import (
    KEYS,
    files_give_the_model_back,
    greedy,
    learns,
    nothing_depends_on_the_batch,
    steps_give_the_reconstruction,
    tiny,
)
from test_models_reference import SIZES, doubled
from training_world import make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def sequences(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    found = np.unique(
        chance.integers(1, 4, (count, LENGTH)).astype(np.uint8) * (np.arange(LENGTH) < 6), axis=0
    )
    return found.astype(np.uint8), chance.integers(1, 9, len(found))


def pos(**changes) -> Pos:
    """A tiny model with made-up tags and templates."""
    model = tiny("pos", templates=6, **changes)
    chance = torch.Generator().manual_seed(5)
    model.token_tags.copy_(torch.randint(1, 4, (20,), generator=chance))
    model.token_tags[:6] = 0
    model.templates[:, :5] = torch.randint(1, 4, (6, 5), generator=chance)
    with torch.no_grad():
        model.classifier[2].weight.mul_(4)
    return model


def distance(a, b) -> int:
    return sum(one != other for one, other in zip(a, b, strict=True))


def plain_template(model: Pos, tags: list[int]) -> torch.Tensor:
    """h after the tags of one template, tag by tag; padding is not read."""
    lstm, while_there = model.encoder.lstm, tags[: max([0, *(t for t, tag in enumerate(tags) if tag)]) + 1]
    h = c = torch.zeros(1, lstm.hidden_size, dtype=lstm.bias_ih_l0.dtype)
    for tag in while_there:
        x = model.encoder.tags.weight[tag][None]
        gates = x @ lstm.weight_ih_l0.t() + lstm.bias_ih_l0 + h @ lstm.weight_hh_l0.t() + lstm.bias_hh_l0
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h[0]


def test_medoids_are_those_of_comparing_every_pair():
    found, counts = sequences(150)
    medoids = k_medoids(found, counts, 7)
    nearest = nearest_medoid(found, medoids)
    assert len({tuple(each) for each in medoids.tolist()}) == 7
    for number, each in enumerate(found.tolist()):
        every = [distance(each, medoid) for medoid in medoids.tolist()]
        assert nearest[number] == every.index(min(every))
    for group, medoid in enumerate(medoids.tolist()):  # at rest: no other member is nearer to its group
        members = np.flatnonzero(nearest == group)
        costs = {
            tuple(found[one].tolist()): sum(
                counts[other] * distance(found[one], found[other]) for other in members
            )
            for one in members
        }
        assert costs[tuple(medoid)] == min(costs.values())


def test_medoids_are_nearer_than_the_commonest_sequences():
    found, counts = sequences(300, seed=1)

    def cost(medoids):
        nearest = medoids[nearest_medoid(found, medoids)]
        return int((counts * (nearest != found).sum(1)).sum())

    commonest = found[np.sort(np.argsort(-counts, kind="stable")[:12])]
    assert cost(k_medoids(found, counts, 12)) < cost(commonest)
    assert cost(k_medoids(found, counts, len(found))) == 0


def test_the_tagger_and_what_is_made_of_the_captions(world):
    pytest.importorskip("textblob")
    assert [TAGS[tag] for tag in load_tagger()("a brown dog is running on the grass".split())] == [
        "determiner", "adjective", "noun", "verb", "verb", "adposition", "determiner", "noun",
    ]  # fmt: skip
    data = open_prepared(world.parent / "data")
    tags = token_tags(data, load_tagger())
    of = {unit: TAGS[tag] for unit, tag in zip(data.vocabulary.units, tags, strict=True)}
    assert of["dog"] == of["horses"] == of["snow"] == "noun" and of["a"] == of["the"] == "determiner"
    assert of["is"] == "verb" and of["on"] == of["near"] == "adposition" and of["<end>"] == ""
    found, counts = tag_sequences(data, tags)
    assert counts.sum() == len(data.trainable("train"))
    caption = int(data.trainable("train")[0])
    expected = [of[unit] for unit in data.units(caption)]
    assert [*expected, *[""] * (LENGTH - len(expected))] in [[TAGS[tag] for tag in each] for each in found]


def test_loss_equals_a_plain_one():
    model, batch = pos().double(), doubled(make_batch(captions=5))
    chosen = []
    for words in batch.words.tolist():
        tags = [int(model.token_tags[word]) for word in words]
        tags += [0] * (LENGTH - len(tags))
        every = [distance(tags, template) for template in model.templates.tolist()]
        chosen.append(every.index(min(every)))
    assert model.template_of(batch.words).tolist() == chosen and len(set(chosen)) > 1
    regions = batch.pictures
    mean = (regions.features * regions.mask[:, :, None]).sum(1) / regions.mask.sum(1, keepdim=True)
    logits = model.classifier[2](torch.relu(model.classifier[0](mean)))
    expected = torch.nn.functional.cross_entropy(logits[batch.rows], torch.tensor(chosen), reduction="none")
    found = model.loss(batch, keys=KEYS)
    torch.testing.assert_close(found.kl_context, expected)
    z = torch.stack([plain_template(model, model.templates[each].tolist()) for each in chosen])
    torch.testing.assert_close(model.encode(batch).context[:, 0], z)
    assert float(found.extra.sum() + found.kl_object.sum()) == 0


@pytest.mark.parametrize("choice", ["likeliest", "gumbel"])
def test_holds_what_every_model_holds(choice, tmp_path):
    model = pos(template_choice=choice)
    steps_give_the_reconstruction(model)
    nothing_depends_on_the_batch(model)
    files_give_the_model_back(model, tmp_path / "model")


def test_k_captions_follow_the_k_likeliest_templates():
    model, regions = pos(), make_regions(pictures=3)
    state = model.start(regions, 8)
    logits = model.classifier(model.regions(regions).mean)
    ranked = logits.argsort(dim=1, descending=True)  # (3, 6)
    followed = torch.cat([ranked, ranked[:, :2]], 1).flatten().tolist()
    expected = torch.stack([plain_template(model, model.templates[each].tolist()) for each in followed])
    torch.testing.assert_close(state.context.z, expected)
    assert torch.equal(model.start(regions, 8, seed=9).context.z, state.context.z)


def test_gumbel_noise_samples_templates_by_their_probability():
    model, regions = pos(template_choice="gumbel"), make_regions(pictures=1)
    p = torch.softmax(model.classifier(model.regions(regions).mean), dim=1)[0]
    logs, keys = torch.log(p)[None].expand(4000, -1), torch.arange(4000) * 7919
    drawn = model.choose(logs, keys, 2, 1.0)  # (4000, 2)
    shares = torch.bincount(drawn[:, 0], minlength=6) / 4000
    assert (shares - p).abs().max() < 0.03
    assert bool((drawn[:, 0] != drawn[:, 1]).all())
    second = torch.bincount(drawn[drawn[:, 0] == int(p.argmax())][:, 1], minlength=6).double()
    rest = p.clone().double().index_fill(0, p.argmax(), 0)
    assert (second / second.sum() - rest / rest.sum()).abs().max() < 0.06
    assert torch.equal(model.choose(logs[:1], keys[:1], 6, 0.0)[0], p.argsort(descending=True))
    one, two = (greedy(model, make_regions(), 4, seed=seed)[1] for seed in (1, 2))
    assert not torch.allclose(one, two)


def test_learns_and_keeps_its_templates(world, tmp_path, monkeypatch):
    pytest.importorskip("textblob")
    changes = ["model.kind=pos", "model.templates=2"]
    model = learns(world, tmp_path / "run", *changes)
    monkeypatch.setitem(sys.modules, "textblob.en", None)  # what has begun goes on without the tagger
    again = train_run(read_run(world, ["steps=40", *changes]), tmp_path / "run", resume=True, device="cpu")
    assert again == "finished"
    assert torch.equal(load_pretrained(tmp_path / "run" / "last").model.templates, model.templates)
    assert model.templates.any() and model.token_tags.any()
    assert open_run(str(tmp_path / "run")).name == "POS"


def test_bad_requests_are_refused_in_a_sentence(world, tmp_path, monkeypatch):
    pytest.importorskip("textblob")
    run = tmp_path / "run"
    with pytest.raises(
        UserError, match=r"field model.templates is 1024, .* only \d different .* at most \d\."
    ):
        train_run(read_run(world, ["model.kind=pos"]), run, device="cpu")
    with pytest.raises(UserError, match="templates is a setting of pos; a cos_cvae does not know it"):
        read_config({**SIZES, "templates": 5}, "run.yaml")
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    with pytest.raises(UserError, match=r"needs a part-of-speech tagger: pip install 'coscap\[pos\]'"):
        train_run(read_run(world, ["model.kind=pos", "model.templates=2"]), run, device="cpu")
    assert not run.exists()
