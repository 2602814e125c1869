"""DCC and NOC: a language model that reads text alone and what a picture adds to it, against slow versions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as yes_or_no

from coscap.data import open_prepared
from coscap.data.sentences import Sentences, read_sentences, training_sentences
from coscap.errors import UserError
from coscap.export.graphs import graphs_of
from coscap.models import load_pretrained, read_config
from coscap.models.word_vectors import counted_vectors, nearest, read_vectors
from coscap.report.runs import open_run
from coscap.text.vocabulary import END, PAD
from coscap.training.config import read_config as read_run
from coscap.training.run import train_run
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
from training_world import lines, make_world

KINDS = ["dcc", "noc"]
NAMES = torch.tensor([[6, 7], [8, 9], [10, 11], [12, 13]])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    places = ("on the grass", "near a tree", "in the snow")
    animals = ("zebra", "horse", "dog", "zebras", "horses")
    sentences = [f"the {name} is {place} today" for name in animals for place in places]
    (folder / "text.txt").write_text("\n".join(sentences) + "\n\n")
    return make_world(folder, novel=8)


def language(kind: str, **changes):
    model = tiny(kind, decoder="text", concepts=3, **changes)
    model.names.copy_(NAMES)
    model.concept_tokens.copy_(torch.tensor([14, 15, PAD]))
    return model


def plain_states(model, words: torch.Tensor) -> list[torch.Tensor]:
    """[x_{t-1}, h_t] of every word"""
    d = model.decoder
    h = c = torch.zeros(len(words), d.hidden.shape[1], dtype=d.hidden.dtype)
    before, found = torch.full((len(words),), 1), []
    for t in range(words.shape[1]):
        x = model.own_words(before)
        h, c = cell(x @ d.gates.step.t() + d.gates.bias + h @ d.hidden.t(), c)
        found.append(torch.cat([x, h], 1))
        before = words[:, t]
    return found


def plain_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = logits.clone()
    logits[:, [0, 1, 4, 5]] = float("-inf")
    return -torch.log_softmax(logits, 1).gather(1, targets.clamp(min=END)[:, None])[:, 0]


def plain_scores(regions, classes: int = 4) -> torch.Tensor:
    table = torch.zeros(len(regions.labels), classes, dtype=regions.features.dtype)
    for p, (labels, scores, mask) in enumerate(
        zip(regions.labels, regions.scores, regions.mask, strict=True)
    ):
        for label, score, here in zip(labels.tolist(), scores.tolist(), mask.tolist(), strict=True):
            if here and 0 <= label < classes:
                table[p, label] = max(float(table[p, label]), score)
    return table


def plain_mean(batch) -> torch.Tensor:
    mask = batch.pictures.mask[:, :, None]
    return (batch.pictures.features * mask).sum(1) / mask.sum(1)


def plain_presence(batch, logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """The loss of saying which of some words each caption has; logits: (P, K)"""
    total = []
    for row, words in enumerate(batch.words.tolist()):
        here = logits[batch.rows[row]]
        each = [yes_or_no(here[k], here.new_tensor(float(token in words))) for k, token in enumerate(tokens)]
        total.append(sum(each))
    return torch.stack(total)


@pytest.mark.parametrize("training", [False, True])
def test_dcc_equals_a_plain_one(training):
    model, batch = language("dcc").double().train(training), doubled(make_batch(captions=5))
    model.similar[2] = 0  # class 2 is novel and like class 0
    found = model.loss(batch, keys=KEYS)
    mean, width = plain_mean(batch), model.config.decoder_words + model.config.language_lstm
    f = torch.cat([plain_scores(batch.pictures), torch.sigmoid(model.classifier(mean))], 1)[batch.rows]
    weight, bias = model.caption_weight.clone(), model.caption_bias.clone()
    if not training:
        for own, other in ((10, 6), (11, 7)):
            weight[own], bias[own] = model.caption_weight[other], model.caption_bias[other]
            weight[own, width + 2], weight[own, width] = model.caption_weight[other, width], 0
            weight[other, width + 2] = 0
    total = torch.zeros(5, dtype=mean.dtype)
    for t, h in enumerate(plain_states(model, batch.words)):
        scored = plain_nll(torch.cat([h, f], 1) @ weight.t() + bias, batch.words[:, t])
        total = total + torch.where(t < batch.lengths, scored, 0)
    torch.testing.assert_close(found.reconstruction, total)
    torch.testing.assert_close(
        found.extra, 0.1 * plain_presence(batch, model.classifier(mean)[:, :2], [14, 15])
    )


def test_noc_equals_a_plain_one():
    model, batch = language("noc").double(), doubled(make_batch(captions=5))
    with torch.no_grad():
        model.picture.weight.mul_(30)
    found = model.loss(batch, keys=KEYS)
    mean = plain_mean(batch)
    image = mean @ model.picture.weight.t() + model.picture.bias  # (P, V)
    total = torch.zeros(5, dtype=mean.dtype)
    for t, h in enumerate(plain_states(model, batch.words)):
        text = h @ model.output.weight.t() + model.output.bias
        total = total + torch.where(
            t < batch.lengths, plain_nll(text + image[batch.rows], batch.words[:, t]), 0
        )
    torch.testing.assert_close(found.reconstruction, total)
    concepts = plain_presence(batch, image[:, [14, 15]] - 6, [14, 15])
    sure = (plain_scores(batch.pictures) >= 0.5).double()
    classes = yes_or_no(image[:, [6, 8, 10, 12]] - 6, sure, reduction="none").sum(1)
    torch.testing.assert_close(found.extra, 0.1 * (concepts + classes[batch.rows]))
    torch.testing.assert_close(model.picture_loss(batch.pictures), 0.1 * classes)
    assert 0 < sure.sum() < sure.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_text_alone_is_scored_as_by_a_plain_language_model(kind):
    model, batch = language(kind).double(), make_batch(captions=5)
    found = model.text_loss(batch.words, batch.lengths)
    total = torch.zeros(5, dtype=torch.double)
    for t, h in enumerate(plain_states(model, batch.words)):
        scored = plain_nll(h @ model.output.weight.t() + model.output.bias, batch.words[:, t])
        total = total + torch.where(t < batch.lengths, scored, 0)
    torch.testing.assert_close(found, total)


def test_captions_teach_the_language_model_of_a_noc_and_not_that_of_a_dcc():
    batch = make_batch(captions=5)
    for kind, taught in (("dcc", False), ("noc", True)):
        model = language(kind).train()
        model.loss(batch, keys=KEYS).objective().backward()
        gradient = model.decoder.hidden.grad
        assert (gradient is not None and bool(gradient.any())) == taught
        model.zero_grad()
        model.unpaired_loss(batch.words, batch.lengths, batch.pictures).objective().backward()
        assert model.decoder.hidden.grad.any()


def test_the_words_of_a_noc_stay_as_they_were_read_unless_asked():
    """Captions and text move everything else."""
    batch = make_batch(captions=5)
    for fixed in (True, False):
        model = language("noc", fixed_words=fixed).train()
        terms = model.loss(batch, keys=KEYS)
        (terms.objective() + model.text_loss(batch.words, batch.lengths).mean()).backward()
        still = [name for name, weight in model.named_parameters() if weight.grad is None]
        assert ("own_words.weight" in still) == fixed
        assert model.decoder.gates.step.grad.any() and model.picture.weight.grad.any()


def test_a_novel_word_is_said_where_it_is_detected_and_its_similar_word_where_that_is():
    model, regions = language("dcc"), make_regions(pictures=2)
    regions.labels.fill_(-1)
    regions.labels[0, 0], regions.labels[1, 0] = 2, 0
    regions.scores[:, 0] = 0.9
    with torch.no_grad():
        model.caption_weight.zero_()
        model.caption_weight[6, model.language_width(model.config)] = 9.0  # who sees class 0 says 6
    model.similar[2] = 0
    logs, _, _ = model.step(torch.full((2,), 1), model.start(regions, 1))
    assert logs.argmax(1).tolist() == [10, 6]
    model.similar[2] = 2
    logs, _, _ = model.step(torch.full((2,), 1), model.start(regions, 1))
    assert logs[0].argmax() != 10, "the layer is made anew when what is borrowed changes"


@pytest.mark.parametrize("kind", KINDS)
def test_holds_what_every_model_holds(kind, tmp_path):
    model = language(kind)
    steps_give_the_reconstruction(model)
    nothing_depends_on_the_batch(model)
    files_give_the_model_back(model, tmp_path / "model")


def test_sentences_are_read_in_the_tokens_of_the_data(world, tmp_path):
    data = open_prepared(world.parent / "data")
    text = read_sentences(world.parent / "text.txt", data)
    assert len(text) == 15
    words, lengths = text.padded(np.array([0, 14]))
    assert data.vocabulary.decode(words[0].tolist()) == "the zebra is on the grass today"
    assert lengths.tolist() == [8, 8] and words[0, 7] == END
    (tmp_path / "captions.json").write_text('{"annotations": [{"caption": "A dog  near a tree"}]}')
    (one,) = read_sentences(tmp_path / "captions.json", data).padded(np.array([0]))[0]
    assert data.vocabulary.decode(one.tolist()) == "a dog near a tree"
    own = training_sentences(data)
    captions = data.trainable("train")
    assert len(own) == len(captions) and np.array_equal(
        own.words[: own.offsets[1]], data.words(int(captions[0]))
    )
    for name, content in (("empty.txt", "\n\n"), ("rows.json", '{"images": []}')):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=name):
            read_sentences(tmp_path / name, data)


def test_words_that_stand_beside_the_same_words_are_near_each_other():
    chance = np.random.default_rng(0)
    rows = []
    for _ in range(400):
        group = chance.integers(2)
        rows.append([int(chance.integers(6, 9)) + 3 * group, 12 + group, 14 + group, 16 + group])
    text = Sentences(np.array(rows, np.int32).ravel(), np.arange(401) * 4)
    vectors = counted_vectors([text], 20, 4)
    np.testing.assert_allclose(np.linalg.norm(vectors[6:18], axis=1), 1, rtol=1e-5)
    assert not vectors[18:].any()
    assert nearest(vectors, 6, np.array([9, 10, 7])) == 7 and nearest(vectors, 11, np.array([6, 7, 10])) == 10
    assert nearest(vectors, 19, np.array([6, 7])) is None


def test_vectors_of_a_file(world, tmp_path):
    data = open_prepared(world.parent / "data")
    path = tmp_path / "vectors.txt"
    path.write_text("dog 3 4\nthe 1 0\nother 5 5\n")
    vectors = read_vectors(path, data.vocabulary)
    np.testing.assert_allclose(vectors[data.vocabulary.id("dog")], [0.6, 0.8], rtol=1e-6)
    assert vectors.any(1).sum() == 2
    path.write_text("dog 3 4\nthe 1\n")
    with pytest.raises(UserError, match="one width"):
        read_vectors(path, data.vocabulary)


@pytest.mark.parametrize(("kind", "name"), [("dcc", "DCC"), ("noc", "NOC")])
def test_learns_from_captions_and_text(world, tmp_path, kind, name):
    run = tmp_path / "run"
    model = learns(
        world, run, f"model.kind={kind}", "model.decoder=text", f"text.file={world.parent / 'text.txt'}"
    )
    read = [line["text_reconstruction"] for line in lines(run, "train")]
    assert read[-1] < 0.8 * read[0]
    assert open_run(str(run)).name == name
    if kind == "dcc":  # "zebra" stands where "horse" and "dog" stand
        assert int(model.similar[4]) in (0, 2) and model.similar[:4].tolist() == [0, 1, 2, 3]
        assert torch.equal(load_pretrained(run / "last").model.similar, model.similar)


def test_what_it_cannot_do_is_refused_in_a_sentence(world, tmp_path):
    with pytest.raises(UserError, match="kind: dcc needs decoder: text"):
        read_config({**SIZES, "kind": "dcc", "classes": 4}, "run.yaml")
    with pytest.raises(UserError, match="kind: noc needs regions with classes"):
        read_config({**SIZES, "kind": "noc", "decoder": "text"}, "run.yaml")
    with pytest.raises(UserError, match="cannot be exported"):
        graphs_of(language("noc"))
    run = tmp_path / "run"
    for changes, said in (
        (["model.kind=noc", "model.decoder=text"], "field text: a noc learns from sentences"),
        (
            ["model.kind=updown", "text.file=x.txt"],
            "field text: a updown cannot learn from sentences, only a dcc or noc",
        ),
        (["model.kind=noc", "model.decoder=text", f"text.file={tmp_path / 'none.txt'}"], "none.txt"),
    ):
        with pytest.raises(UserError, match=said):
            train_run(read_run(world, changes), run, device="cpu")
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("dog 3 4\n")
    text = [f"text.file={world.parent / 'text.txt'}", f"text.vectors={vectors}"]
    with pytest.raises(
        UserError, match=r"field text.vectors: its vectors have 2 numbers and the model's words 12"
    ):
        train_run(read_run(world, ["model.kind=noc", "model.decoder=text", *text]), run, device="cpu")
    assert not run.exists()
