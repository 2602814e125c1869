"""What every kind of model has to hold, for the tests of each kind."""

from dataclasses import fields
from pathlib import Path

import torch

from coscap.data import open_prepared
from coscap.data.batch import RegionBatch
from coscap.data.loader import Loader
from coscap.models import CaptionModel, ModelConfig, build_model, load_pretrained
from coscap.models.stepper import TorchStepper
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text.vocabulary import END, START
from coscap.training.config import read_config
from coscap.training.pieces import split
from coscap.training.run import train_run
from coscap.vision.store import RegionStore
from models_batch import make_batch, make_regions
from test_models_files import VOCABULARY
from test_models_reference import SIZES
from training_world import lines

KEYS = torch.arange(5)


def tiny(kind: str, **changes) -> CaptionModel:
    torch.manual_seed(0)
    return build_model(ModelConfig(kind=kind, **{**SIZES, "classes": 4, **changes})).eval()


def take(regions: RegionBatch, rows: torch.Tensor) -> RegionBatch:
    return RegionBatch(**{field.name: getattr(regions, field.name)[rows] for field in fields(regions)})


def greedy(model: CaptionModel, regions: RegionBatch, draws: int, seed: int = 3, **options):
    """Five likeliest words of each draw, (P, draws, 5), and their log-probabilities."""
    state = model.start(regions, draws, seed=seed, **options)
    tokens, words, logs = torch.full((state.rows,), START), [], []
    for _ in range(5):
        log, state, attention = model.step(tokens, state)
        torch.testing.assert_close(attention.sum(1).float(), torch.ones(state.rows))
        tokens = log.argmax(1)
        words.append(tokens)
        logs.append(log.gather(1, tokens[:, None])[:, 0])
    shape = len(regions.keys), draws, -1
    return torch.stack(words, 1).view(shape), torch.stack(logs, 1).view(shape)


def steps_give_the_reconstruction(model: CaptionModel) -> None:
    """Word by word with the latents of the posterior: the loss."""
    batch = make_batch(captions=5)
    latents = model.encode(batch, keys=KEYS) if hasattr(model, "encode") else None
    state = model.start(take(batch.pictures, batch.rows), 1, latents=latents)
    tokens, total = torch.full((5,), START), torch.zeros(5)
    for t in range(batch.words.shape[1]):
        logs, state, _ = model.step(tokens, state)
        tokens = batch.words[:, t]
        total -= torch.where(t < batch.lengths, logs.gather(1, tokens.clamp(min=END)[:, None])[:, 0], 0)
    torch.testing.assert_close(total, model.loss(batch, keys=KEYS).reconstruction, rtol=1e-5, atol=1e-5)


def nothing_depends_on_the_batch(model: CaptionModel) -> None:
    """Captions and losses are those of a picture and a caption alone; the same seed gives the same."""
    regions = make_regions(pictures=4)
    words, logs = greedy(model, regions, 6)
    for order in (torch.tensor([2]), torch.tensor([3, 0])):
        some, some_logs = greedy(model, take(regions, order), 4)
        assert torch.equal(some, words[order, :4])
        torch.testing.assert_close(some_logs, logs[order, :4], rtol=1e-5, atol=1e-5)
    assert torch.equal(greedy(model, regions, 6)[1], logs)
    if model.draws:
        assert not torch.allclose(logs[:, 0], logs[:, 1])
    batch = make_batch(captions=5)
    whole = model.loss(batch, keys=KEYS)
    parts = [
        model.loss(part, keys=KEYS[[2 * n, 2 * n + 1][: len(part.rows)]])
        for n, part in enumerate(split(batch, 3))
    ]
    for name in ("reconstruction", "kl_context", "kl_object", "extra"):
        torch.testing.assert_close(
            torch.cat([getattr(part, name) for part in parts]), getattr(whole, name), rtol=1e-4, atol=1e-5
        )


def files_give_the_model_back(model: CaptionModel, folder: Path) -> None:
    model.save_pretrained(folder, vocabulary=VOCABULARY)
    again = load_pretrained(folder).model
    assert type(again) is type(model) and again.config == model.config
    for one, other in zip(greedy(model, make_regions(), 3), greedy(again, make_regions(), 3), strict=True):
        assert torch.equal(one, other)


def learns(world: Path, run: Path, *changes: str) -> CaptionModel:
    """40 steps of training on the small world; then every search captions its pictures."""
    assert train_run(read_config(world, ["steps=40", *changes]), run, device="cpu") == "finished"
    losses = [line["loss"] for line in lines(run, "train")]
    assert losses[-1] < 0.75 * losses[0], losses
    assert {"cider_greedy", "cider_oracle"} <= lines(run, "validation")[-1].keys()
    loaded = load_pretrained(run / "last")
    data, store = open_prepared(world.parent / "data"), RegionStore.open(world.parent / "regions.h5")
    batch = next(iter(Loader(data, store, "validation", batch_size=4, seed=1)))
    model = TorchStepper(loaded.model)
    for settings in (
        SearchSettings(max_length=9),
        SearchSettings(search="beam", max_length=9),
        SearchSettings(search="diverse", max_length=9),
    ):
        found = [generate(model, batch.pictures, data.vocabulary, 3, settings) for _ in range(2)]
        texts = [[[caption.text for caption in each] for each in one] for one in found]
        assert texts[0] == texts[1] and all(len(each) == 3 for each in texts[0])
    return loaded.model
