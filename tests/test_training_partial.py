"""PS3: captions completed by constrained search teach a model the names of what was detected."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coscap.data import open_prepared
from coscap.errors import UserError
from coscap.models import build_model
from coscap.report.runs import open_run
from coscap.text.vocabulary import SLOT, SLOTS
from coscap.training.config import Partial, check_config, read_config
from coscap.training.objective import weights_at
from coscap.training.partial import PartialTerm
from coscap.training.run import model_config, train_run
from coscap.vision.store import RegionStore
from training_world import TINY, lines, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"), novel=8)


def term_and_model(world: Path, **settings):
    data, store = open_prepared(world.parent / "data"), RegionStore.open(world.parent / "regions.h5")
    torch.manual_seed(0)
    model = build_model(model_config({**TINY, "kind": "updown"}, data, store))
    return PartialTerm(Partial(constraints=1, **settings), data, store), model, data


def test_completed_captions_name_what_was_detected_and_are_learnt_as_any_other(world):
    term, model, data = term_and_model(world)
    model.train()
    regions, ids = term.pictures.draw(torch.arange(5) * 3)
    batch = term.completed(model, regions, ids)
    assert model.training and batch is not None and len(batch.rows) == 5
    zebra = set(data.vocabulary.encode(["zebra", "zebras"]))
    for row, (words, context) in enumerate(zip(batch.words.tolist(), batch.context.tolist(), strict=True)):
        named = zebra & set(words)
        assert named, data.vocabulary.decode(words)
        place = next(t for t, word in enumerate(words) if word in named)
        assert context[place] in (SLOT, SLOTS)
        assert int(batch.lengths[row]) == words.index(2) + 1
    assert term.required(regions) == [("zebra",)] * 5
    captions = term.search(model, regions)
    assert [caption.text for caption in captions] == [
        data.vocabulary.decode(row) for row in batch.words.tolist()
    ]
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    keys = torch.arange(5)
    first = float(model.loss(batch, keys=keys).reconstruction.sum().detach())
    optimiser = torch.optim.SGD(model.parameters(), 0.02)
    model.loss(batch, keys=keys).objective().backward()
    optimiser.step()
    assert float(model.loss(batch, keys=keys).reconstruction.sum().detach()) < first
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_what_is_required_is_sure_asked_for_and_can_be_said(world):
    term, model, data = term_and_model(world)
    regions, _ = term.pictures.draw(torch.arange(3))
    labels, scores = regions.labels.clone(), torch.tensor([[0.9, 0.6], [0.55, 0.8], [0.4, 0.3]])
    labels[0], labels[1] = torch.tensor([0, 4]), torch.tensor([1, 2])
    regions = replace(regions, labels=labels, scores=scores)
    two = PartialTerm(Partial(constraints=2), data, term.store)
    assert two.required(regions) == [("dog", "zebra"), ("horse", "cat"), ()]
    assert term.required(regions) == [("dog",), ("horse",), ()]
    novel = PartialTerm(Partial(constraints=2, classes=("zebra",)), data, term.store)
    assert novel.required(regions) == [("zebra",), (), ()]
    found = novel.search(model, regions)
    assert found[0].satisfied and "zebra" in found[0].text and found[1] is None
    with pytest.raises(UserError, match=r"field partial\.classes: test/1 does not know 'yeti'"):
        PartialTerm(Partial(classes=("yeti",)), data, term.store)


def test_which_pictures_are_completed_follows_from_the_keys(world):
    term, model, _ = term_and_model(world, share=0.5)
    keys = torch.arange(40) * 100_003 + 7
    assert torch.equal(term(model, None, keys).reconstruction, term(model, None, keys.clone()).reconstruction)
    completed = len(term(model, None, keys).reconstruction)
    expected = int((keys % (1 << 20) < 0.5 * (1 << 20)).sum())
    assert 0 < completed <= expected < 40
    none = keys[keys % (1 << 20) >= 0.5 * (1 << 20)]
    assert len(term(model, None, none).reconstruction) == 0


def test_the_weight_comes_in_after_some_epochs():
    content = {"data": "d", "regions": "r.h5", "steps": 1, "partial": {"weight": 0.5, "from_epoch": 2}}
    config = check_config(content, "run.yaml")
    assert weights_at(config, 1.9)["partial_reconstruction"] == 0
    assert weights_at(config, 2)["partial_reconstruction"] == 0.5
    assert weights_at(config, 2)["reconstruction"] == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_trains_and_is_called_as_the_paper_calls_it(world, tmp_path, precision):
    run = tmp_path / "run"
    changes = [
        "model.kind=updown",
        "steps=12",
        "partial.constraints=1",
        "partial.from_epoch=0.5",
        "partial.share=0.5",
        f"precision={precision}",
    ]
    changes += ["validation=null", "log_steps=3"]
    assert train_run(read_config(world, changes), run, device="cpu") == "finished"
    assert "partial_reconstruction" in lines(run, "train")[-1]
    assert open_run(str(run)).name == "PS3"


def test_data_without_such_pictures_are_refused(tmp_path):
    (tmp_path / "world").mkdir()
    world = make_world(tmp_path / "world")
    with pytest.raises(
        UserError, match="has no pictures without captions that have regions; leave out partial"
    ):
        train_run(read_config(world, ["partial.constraints=1"]), tmp_path / "run", device="cpu")
