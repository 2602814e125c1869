"""LSTM-P and NBT: words from the vocabulary and from the names of regions, against slow versions word by word."""

from dataclasses import replace
from math import exp, log
from pathlib import Path

import pytest
import torch

from coscap.errors import UserError
from coscap.export.graphs import graphs_of
from coscap.models import read_config
from coscap.models.nbt import class_words
from coscap.report.runs import open_run
from coscap.text.objects import ObjectClass, ObjectClasses
from coscap.text.vocabulary import SLOT, SPECIAL, START, Vocabulary
from coscap.vision.regions import Recipe
from models_batch import make_batch, make_regions
from models_kinds import (
    KEYS,
    files_give_the_model_back,
    learns,
    nothing_depends_on_the_batch,
    steps_give_the_reconstruction,
    tiny,
)
from models_plain import cell
from test_models_reference import SIZES, doubled
from training_world import make_world

KINDS = ["lstm_p", "nbt"]
UNITS = (
    "cat",
    "cats",
    "kitten",
    "kittens",
    "dog",
    "dogs",
    "sheep",
    "a",
    "the",
    "on",
    "bed",
    "red",
    "two",
    "beds",
)
VOCABULARY = Vocabulary((*SPECIAL, *UNITS))
CLASSES = ObjectClasses(
    "made up",
    (
        ObjectClass("cat", ("cat", "kitten", "tomcat"), ("cats", "kittens")),
        ObjectClass("dog", ("dog",), ("dogs",)),
        ObjectClass("sheep", ("sheep",), ("sheep",)),
        ObjectClass("unicorn", ("unicorn",), ("unicorns",)),  # in no vocabulary
    ),
)
RECIPE = Recipe("made-up/1", 6, ("cat", "dog", "sheep", "unicorn"), 5, 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def pointing(kind: str, **changes):
    changes = {"finer_names": 2, **changes} if kind == "nbt" else changes
    model = tiny(kind, **changes)
    model.set_names(RECIPE, CLASSES, VOCABULARY)
    return model


def naming_batch(captions: int = 5):
    """Every object of a caption is one of its picture's classes where it has any; the second picture has none."""
    batch = make_batch(captions=captions)
    labels = batch.pictures.labels.clone()
    labels[1] = -1
    labels[0, 0], labels[0, 1], labels[0, 2] = 0, 0, 2
    words, objects = batch.words.clone(), batch.objects.clone()
    names = torch.tensor([6, 9, 10, 12])  # cat, kittens, dog, sheep
    slots = batch.context == SLOT
    words[slots] = names[torch.arange(int(slots.sum())) % 4]
    for row in range(captions):
        own = words[row][slots[row]]
        objects[row, : len(own)] = own
    words[-1, 0] = 6  # "cat" where it names nothing, as the colour "orange" does
    return doubled(
        replace(batch, words=words, objects=objects, pictures=replace(batch.pictures, labels=labels))
    )


def plain_steps(model, batch, row):
    """x_{t-1}, h_{t-1} and h_t of each word of one caption, by the up-down cell."""
    d, picture = model.decoder, int(batch.rows[row])
    mask = batch.pictures.mask[picture]
    values = batch.pictures.features[picture][mask]
    mean, keys = values.mean(0, keepdim=True), d.key(values)
    h1 = c1 = torch.zeros(1, d.query.shape[1], dtype=mean.dtype)
    h2 = c2 = torch.zeros(1, d.language_bias.shape[0] // 4, dtype=mean.dtype)
    before = START
    for t in range(int(batch.lengths[row])):
        word = model.own_words(torch.tensor([before]))
        gates = word @ d.gates.step.t() + mean @ d.gates.picture.t() + d.gates.bias
        h1, c1 = cell(gates + torch.cat([h2, h1], 1) @ d.attention_hidden.t(), c1)
        a = torch.softmax(torch.tanh(keys + h1 @ d.query.t()) @ d.score, 0)
        last, seen = h2, (a[:, None] * values).sum(0, keepdim=True)
        h2, c2 = cell(torch.cat([seen, h1, h2], 1) @ d.language_hidden.t() + d.language_bias, c2)
        before = int(batch.words[row, t])
        yield word[0], last[0], h2[0], before


def plain_vocabulary(model, hidden) -> list[float]:
    logits = model.output.weight @ hidden + model.output.bias
    logits[[0, 1, 4, 5]] = float("-inf")
    return torch.softmax(logits, 0).tolist()


def plain_names(batch, picture: int, names: dict[int, list]) -> list[tuple[int, object]]:
    """The regions of a picture that have a name, with it."""
    found = []
    for region in range(batch.pictures.mask.shape[1]):
        label = int(batch.pictures.labels[picture, region])
        if batch.pictures.mask[picture, region] and names.get(label):
            found.append((region, names[label]))
    return found


@torch.no_grad()
def plain_lstm_p(model, batch, row) -> tuple[float, float]:
    """-log p of one caption and its coverage loss."""
    names = {0: [6, 7], 1: [10, 11], 2: [12, 12]}
    picture, total, covered = int(batch.rows[row]), 0.0, {}
    for word, _, hidden, target in plain_steps(model, batch, row):
        copies = []
        for region, tokens in plain_names(batch, picture, names):
            for number, token in enumerate(tokens):
                key = torch.tanh(
                    model.copy_key(batch.pictures.features[picture, region]) + model.copy_number[number]
                )
                weight = float(batch.pictures.scores[picture, region]) * exp(
                    float(key @ model.copy_query(hidden))
                )
                copies.append((token, int(batch.pictures.labels[picture, region]), weight))
        gate = float(torch.sigmoid(model.gate(torch.cat([hidden, word])))) if copies else 0.0
        whole = sum(weight for *_, weight in copies)
        p = (1 - gate) * plain_vocabulary(model, hidden)[target]
        for token, label, weight in copies:
            covered[label] = covered.get(label, 0.0) + gate * weight / whole
            p += gate * weight / whole * (token == target)
        total -= log(p)
    wanted = {label for label in covered if set(names[label]) & set(batch.objects[row].tolist())}
    return total, sum(log(1 + exp(-covered[label])) for label in wanted)


def plain_nbt(model, batch, row) -> tuple[float, float]:
    """-log p of one caption, and its published loss."""
    names = {0: [[6, 8], [7, 9]], 1: [[10], [11]], 2: [[12], [12]]}
    picture, total, published = int(batch.rows[row]), 0.0, 0.0
    embed, features = model.own_words, batch.pictures.features[picture]

    def softmax(scores):
        return torch.softmax(torch.stack(scores), 0).tolist()

    for t, (word, before, hidden, target) in enumerate(plain_steps(model, batch, row)):
        regions = plain_names(batch, picture, names)
        query = model.pointer_query(hidden)
        scores = [
            torch.tanh(model.pointer_key(features[r]) + query) @ model.pointer_score for r, _ in regions
        ]
        s = torch.sigmoid(model.sentinel_gate(torch.cat([word, before]))) * hidden
        scores.append(torch.tanh(model.sentinel_key(s) + query) @ model.pointer_score)
        *choice, sentinel = softmax(scores)
        copied = 0.0
        for share, (region, forms) in zip(choice, regions, strict=True):
            seen = torch.relu(model.number_region(features[region]) + model.number_word(hidden))
            number = torch.softmax(model.number(seen), 0).tolist()
            for kind, tokens in enumerate(forms):
                ask = model.name_region(features[region]) + model.name_word(hidden)
                prior = [log(10), log(1)]
                logits = [
                    embed.weight[token] @ ask + prior[place] for place, token in enumerate(tokens)
                ]  # embeddings without their scale
                for token, p in zip(tokens, softmax(logits), strict=True):
                    copied += share * number[kind] * p * (token == target)
        words = sentinel * plain_vocabulary(model, hidden)[target]
        total -= log(words + copied)
        names_object = int(batch.context[row, t]) == SLOT
        published -= log(copied if copied and names_object else words)
    return total, published


def test_lstm_p_equals_a_plain_one():
    model, batch = pointing("lstm_p").double(), naming_batch()
    found = model.loss(batch, keys=KEYS)
    expected = torch.tensor([plain_lstm_p(model, batch, row) for row in range(5)], dtype=torch.double)
    torch.testing.assert_close(found.reconstruction, expected[:, 0])
    torch.testing.assert_close(found.extra, 0.3 * expected[:, 1])
    assert (expected[:, 1] > 0).any() and (expected[:, 1] == 0).any()


def test_nbt_equals_a_plain_one_and_with_its_extra_the_published_loss():
    model, batch = pointing("nbt").double(), naming_batch()
    assert model.names[0].tolist() == [[6, 8], [7, 9]] and model.names[3].max() == -1
    found = model.loss(batch, keys=KEYS)
    expected = torch.tensor([plain_nbt(model, batch, row) for row in range(5)], dtype=torch.double)
    torch.testing.assert_close(found.reconstruction, expected[:, 0])
    torch.testing.assert_close(found.reconstruction + found.extra, expected[:, 1])
    assert (found.extra > 0.01).any()


@pytest.mark.parametrize("kind", KINDS)
def test_all_parts_learn_and_no_gradient_is_nan(kind):
    model = pointing(kind).double().train()
    model.loss(naming_batch(), keys=KEYS).objective().backward()
    for name, weight in model.named_parameters():
        if name != "words.weight":
            assert weight.grad is not None and torch.isfinite(weight.grad).all() and weight.grad.any(), name


@pytest.mark.parametrize("kind", KINDS)
def test_holds_what_every_model_holds(kind, tmp_path):
    model = pointing(kind)
    steps_give_the_reconstruction(model)
    nothing_depends_on_the_batch(model)
    files_give_the_model_back(model, tmp_path / "model")


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_sum_to_one(kind):
    """With what <unk> would have, which no search may choose."""
    model, regions = pointing(kind), make_regions(pictures=4)
    state = model.start(regions, 2)
    logs, state, _ = model.step(torch.full((8,), START), state)
    logs, state, _ = model.step(logs.argmax(1), state)
    total = logs.exp().sum(1)
    assert (total < 1).all() and (total > 0.7).all()
    with torch.no_grad():
        model.output.bias[3] = -1e9  # <unk> has nothing now
    logs, _, _ = model.step(torch.full((8,), START), model.start(regions, 2))
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(8))


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_caption_ever_named_can_be_said(kind):
    """The vocabulary gives a word nothing; where it is detected it is said, elsewhere it is not."""
    model, regions = pointing(kind), make_regions(pictures=2)
    labels = torch.full_like(regions.labels, -1)
    labels[0, 0] = 1  # a dog in the first picture
    regions = replace(regions, labels=labels)
    with torch.no_grad():
        model.output.bias[10:12] = -1e9
    logs, _, _ = model.step(torch.full((2,), START), model.start(regions, 1))
    assert logs[0, 10:12].exp().sum() > 0.1 and logs[1, 10:12].exp().sum() == 0


def test_a_novel_class_looks_and_reads_like_a_seen_one_and_is_called_by_its_own_name():
    """A picture of a dog that is like a cat: what is said of it is what is said of a cat, but for the names."""
    model = pointing("nbt", novel_like={"dog": "cat"}, class_embedding=3, finer_names=1)
    regions = make_regions(pictures=2)
    labels = torch.full_like(regions.labels, -1)
    labels[0, 0], labels[1, 0] = 0, 1  # a cat, a dog
    same = {name: getattr(regions, name)[:1].expand_as(getattr(regions, name)) for name in vars(regions)}
    regions = replace(regions, **{**same, "labels": labels})
    values = model.regions(regions).values
    assert torch.equal(values[0], values[1])
    assert not torch.equal(model.regions(replace(regions, labels=labels * 2)).values[1], values[1])
    cat, cats, dog, dogs = VOCABULARY.encode(["cat", "cats", "dog", "dogs"])
    with torch.no_grad():
        model.output.bias[[cat, cats, dog, dogs]] = -1e9
    logs, state, _ = model.step(torch.full((2,), START), model.start(regions, 1))
    torch.testing.assert_close(logs[0, [cat, cats]], logs[1, [dog, dogs]])
    logs, _, _ = model.step(torch.tensor([cat, dog]), state)
    torch.testing.assert_close(logs[0, [cat, cats]], logs[1, [dog, dogs]])
    with pytest.raises(UserError, match=r"field model\.novel_like: made-up/1 does not know 'yeti'"):
        pointing("nbt", novel_like={"yeti": "cat"})


@pytest.mark.parametrize(("kind", "name"), [("lstm_p", "LSTM-P"), ("nbt", "NBT")])
def test_learns_to_name_regions(world, tmp_path, kind, name):
    """In 40 steps, with all searches; a picture's class then comes from its regions, also one that was never named."""
    model = learns(world, tmp_path / "run", f"model.kind={kind}")
    assert open_run(str(tmp_path / "run")).name == name
    assert (model.name_tokens() >= 0).any()


def test_the_words_of_a_class_are_those_that_captions_have_most_often(world):
    from coscap.data import open_prepared

    model = pointing("nbt", finer_names=1)
    assert class_words(RECIPE, CLASSES, VOCABULARY) == [
        ([6, 8], [7, 9]),
        ([10], [11]),
        ([12], [12]),
        ([], []),
    ]
    counts = torch.zeros(20)
    counts[8] = 50  # kitten
    model._keep(counts)
    assert model.names[0].tolist() == [[8], [7]]
    data = open_prepared(world.parent / "data")
    recipe = Recipe("test/1", 8, ("dog", "cat", "horse", "car"), 3, 0)
    other = tiny("nbt", vocabulary=len(data.vocabulary), finer_names=2)
    other.set_names(recipe, data.classes, data.vocabulary)
    other.read_captions(data)
    captions = [data.units(int(caption)) for caption in data.trainable("train")]
    seen = sum(caption.count("dog") for caption in captions)
    assert float(other.name_prior[0, 0, 0]) == pytest.approx(log(seen + 10))


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_cannot_do_is_refused_in_a_sentence(kind):
    for settings, said in (
        ({"classes": 0}, f"run.yaml: kind: {kind} needs regions with classes"),
        ({"classes": 4, "detections": 0}, f"run.yaml: kind: {kind} needs detections"),
        ({"classes": 4, "label_smoothing": 0.1}, f"run.yaml: kind: {kind} has no label smoothing"),
    ):
        with pytest.raises(UserError, match=said):
            read_config({**SIZES, "kind": kind, **settings}, "run.yaml")
    with pytest.raises(UserError, match="cannot be exported"):
        graphs_of(pointing(kind))
    with pytest.raises(UserError, match="finer_names is a setting of nbt; a updown does not know it"):
        read_config({**SIZES, "kind": "updown", "finer_names": 3}, "run.yaml")
