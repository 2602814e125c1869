"""The loop on a toy model: it goes on to the same bits, pieces are one batch, the best is kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from coscap.errors import UserError
from coscap.models import build_model, preset
from coscap.training import loop
from coscap.training.checkpoint import checkpoints, sweep
from coscap.training.config import Clip, TrainConfig
from coscap.training.interrupt import StopRequest
from coscap.training.log import Log, cut_log
from coscap.training.loop import Trainer
from coscap.training.objective import EveryTerm, Objective, figures, weights_at
from coscap.training.optimiser import clip_gradients, moving_average
from coscap.training.pieces import split
from models_batch import make_batch
from training_toys import ToyBatches, ToyModel, export_words, one_process, same, toy_config, weights
from training_world import TINY


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The toy is too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


DIGESTS = {"vocabulary": "v1", "regions": "r1"}


def trainer(config: TrainConfig, run: Path, noise: float = 1.0, **more: Any) -> Trainer:
    digests = more.pop("digests", DIGESTS)
    batches = ToyBatches(config.batch_size, config.seed)
    return Trainer(config, run, ToyModel(noise), batches, one_process(), digests, **more)


def train(config: TrainConfig, run: Path, **more: Any) -> Trainer:
    run.mkdir(exist_ok=True)
    made = trainer(config, run, **more)
    with Log(run, config.steps or 0) as log:
        made.fit(config.steps or 0, log)
    return made


class StopAt(StopRequest):
    """Asks for an end when the loop has looked so many times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks < 0


OPTIMISERS: list[dict[str, Any]] = [
    {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.001},
    {"name": "adamw", "lr": 0.01, "weight_decay": 0.01},
]


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["sgd", "adamw"])
@pytest.mark.parametrize("looks", [1, 3, 7])
def test_goes_on_to_the_same_bits(tmp_path: Path, optimiser: dict[str, Any], looks: int) -> None:
    config = toy_config(optimiser=optimiser, ema_decay=0.9, accumulate=2, kl_context={"schedule": "ramp"})
    whole = train(config, tmp_path / "whole")
    train(config, tmp_path / "cut", stop=StopAt(looks))
    (newest,) = checkpoints(tmp_path / "cut")[-1:]
    resumed = trainer(config, tmp_path / "cut")
    assert resumed.restore(newest) == 12
    assert 0 < resumed.progress.step < 12
    with Log(tmp_path / "cut", 12) as log:
        assert resumed.fit(12, log) == "finished"
    assert same(weights(whole.model), weights(resumed.model))
    assert whole.averaged is not None and resumed.averaged is not None
    assert same(weights(whole.averaged.module), weights(resumed.averaged.module))
    assert not same(weights(ToyModel()), weights(whole.model))


@pytest.mark.parametrize("normalise", ["caption", "word"])
def test_pieces_are_one_batch(tmp_path: Path, normalise: str) -> None:
    """Working in parts is the same as working on the whole batch, noise included."""
    sizes: dict[str, Any] = {"optimiser": {"name": "sgd", "lr": 0.05}, "normalise": normalise}
    whole = train(toy_config(**sizes), tmp_path / "one")
    parts = train(toy_config(**sizes, accumulate=3), tmp_path / "three")
    for name, value in weights(whole.model).items():
        torch.testing.assert_close(value, weights(parts.model)[name])


def test_split_keeps_captions_and_drops_padding() -> None:
    batch = next(iter(ToyBatches(8)))
    parts = split(batch, 3)
    assert [len(part.rows) for part in parts] == [3, 3, 2]
    assert torch.equal(torch.cat([part.image_ids[part.rows] for part in parts]), batch.image_ids[batch.rows])
    for part in parts:
        assert part.words.shape[1] == part.lengths.max()
        assert len(part.image_ids) == len(part.pictures.keys) == len(part.rows.unique())


def test_checkpoints_are_whole_and_few(tmp_path: Path) -> None:
    train(toy_config(checkpoint_minutes=1e-9), tmp_path)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["step-00000011", "step-00000012"]
    files = {file.name for file in checkpoints(tmp_path)[-1].iterdir()}
    assert files == {"model.safetensors", "optimiser.safetensors", "state.json"}
    (tmp_path / "checkpoints" / ".step-00000013.x.part").mkdir()
    (tmp_path / ".best.x.old").mkdir()
    sweep(tmp_path)
    assert not list(tmp_path.rglob(".*"))


def test_other_data_and_damage_are_refused(tmp_path: Path) -> None:
    config = toy_config()
    train(config, tmp_path)
    newest = checkpoints(tmp_path)[-1]
    other = trainer(config, tmp_path, digests=DIGESTS | {"vocabulary": "v2"})
    with pytest.raises(UserError, match="another vocabulary"):
        other.restore(newest)
    weights_file = newest / "optimiser.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"optimiser\.safetensors is missing or damaged; remove the folder"):
        trainer(config, tmp_path).restore(newest)
    (newest / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"state\.json is damaged"):
        trainer(config, tmp_path).restore(newest)


def test_best_is_kept_and_patience_ends(tmp_path: Path) -> None:
    figures = iter([5.0, 3.0, 4.0, 6.0, 1.0])
    validation = {"every_epochs": 0.2, "figure": "loss", "patience": 2}
    config = toy_config(validation=validation, steps=40, schedule={"name": "constant"})
    made = trainer(
        config, tmp_path, validate=lambda model, stop: {"loss": next(figures)}, export=export_words
    )
    with Log(tmp_path, 40) as log:
        assert made.fit(40, log) == "stopped early"
    assert (made.progress.step, made.progress.best_step, made.progress.best) == (4, 2, -3.0)
    best, last = (tmp_path / name / "words.txt" for name in ("best", "last"))
    assert best.read_text() != last.read_text()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert kinds.count("validation") == 4


def test_a_validation_that_is_broken_off_is_done_again(tmp_path: Path) -> None:
    config = toy_config(validation={"every_epochs": 1, "figure": "loss"}, steps=5)
    stop = StopRequest()

    def broken(model: object, asked: StopRequest) -> None:
        asked.stop = True

    first = trainer(config, tmp_path, validate=broken, stop=stop)
    with Log(tmp_path, 5) as log:
        assert first.fit(5, log) == "interrupted"
    assert first.progress.step == 5 and first.progress.validated == -1
    second = trainer(config, tmp_path, validate=lambda model, asked: {"loss": 1.0})
    second.restore(checkpoints(tmp_path)[-1])
    with Log(tmp_path, 5) as log:
        assert second.fit(5, log) == "finished"
    assert second.progress.validated == 5


def test_the_average_is_what_is_exported(tmp_path: Path) -> None:
    made = train(toy_config(ema_decay=0.9), tmp_path, export=export_words)
    assert made.averaged is not None
    exported = float((tmp_path / "last" / "words.txt").read_text())
    assert exported == float(weights(made.averaged.module)["words.weight"].sum())
    assert exported != float(made.model.words.weight.detach().sum())  # type: ignore[union-attr]


def test_the_moving_average_is_the_formula() -> None:
    """d * average + (1 - d) * weights with d = min(decay, (1 + n) / (10 + n)), to the bit."""
    model = ToyModel()
    averaged, plain = moving_average(model, 0.4), weights(model)
    for n in range(1, 9):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape))
        averaged.update_parameters(model)
        d = min(0.4, (1 + n) / (10 + n))
        plain = {name: torch.lerp(plain[name], value, 1 - d) for name, value in weights(model).items()}
        assert same(weights(averaged.module), plain)
    again = moving_average(model, 0.4, step=8)
    assert int(again.n_averaged) == int(averaged.n_averaged)


def test_log_names_the_terms(tmp_path: Path) -> None:
    train(toy_config(log_steps=3, optimiser=OPTIMISERS[0]), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    names = {
        "loss",
        "reconstruction",
        "kl_context",
        "kl_object",
        "extra",
        "gradient_norm",
        "captions_per_second",
    }
    assert names <= lines[0].keys()
    assert lines[0]["loss"] == pytest.approx(lines[0]["reconstruction"] + lines[0]["kl_context"], rel=1e-5)
    assert lines[-1]["loss"] < lines[0]["loss"]
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    cut_log(tmp_path, 7)
    kept = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in kept] == [3, 6]


def test_clipping_global_and_by_module() -> None:
    def gradients(scope: str | None) -> tuple[float, dict[str, float]]:
        model = ToyModel()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)
        clip = None if scope is None else Clip(norm=1.0, scope=scope)  # type: ignore[arg-type]
        norm = float(clip_gradients(clip, model))
        lengths = {}
        for name, child in model.named_children():
            total = torch.cat([p.grad.flatten() for p in child.parameters() if p.grad is not None])
            lengths[name] = float(total.norm())
        return norm, lengths

    plain, untouched = gradients(None)
    norm, once = gradients("global")
    assert norm == pytest.approx(plain) and norm == pytest.approx(
        sum(v**2 for v in untouched.values()) ** 0.5
    )
    assert sum(v**2 for v in once.values()) ** 0.5 == pytest.approx(1, rel=1e-4)
    norm, each = gradients("module")
    assert norm == pytest.approx(plain)
    assert each["latent"] == pytest.approx(1, rel=1e-4) and each["words"] == pytest.approx(1, rel=1e-4)


def test_the_objective_counts_what_the_model_says() -> None:
    """Free bits are counted, not logged; weights are those of the schedule."""
    sizes: dict[str, Any] = TINY | {"vocabulary": 20, "region_width": 6, "classes": 4}
    sizes |= {"word_dropout": 0.0, "free_bits_object": 60.0}
    model = build_model(preset(sizes.pop("preset"), **sizes))
    batch, keys = make_batch(), torch.arange(4)
    weights_now = {"reconstruction": 1.0, "kl_context": 0.5, "kl_object": 0.25, "extra": 1.0}
    total, sums = Objective(model)(batch, keys, weights_now)
    with torch.no_grad():
        parts = model.loss(batch, keys=keys)
    torch.testing.assert_close(total.detach() / 4, parts.objective(kl_context=0.5, kl_object=0.25))
    assert float(sums["kl_object"]) == pytest.approx(float(parts.kl_object.sum()))
    assert float(parts.free_object.sum()) > 1.5 * float(parts.kl_object.sum())
    shown = figures(sums, 4)
    assert shown["active_object"] == float((parts.object_dimensions > 0.01).sum())


def test_mixed_precision_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "use_bfloat16", lambda device: True)
    made = train(toy_config(precision="bfloat16", optimiser=OPTIMISERS[0]), tmp_path)
    assert made.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in made.model.parameters())


def test_a_processor_without_bfloat16_trains_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False, raising=False)
    exact = train(toy_config(optimiser=OPTIMISERS[0]), tmp_path / "exact")
    assert "bfloat16" not in caplog.text
    made = train(toy_config(precision="bfloat16", optimiser=OPTIMISERS[0]), tmp_path / "made")
    assert "no instructions for bfloat16; training goes on in float32" in caplog.text
    for name, value in weights(exact.model).items():
        assert torch.equal(value, weights(made.model)[name])


def test_a_second_term_is_weighed_and_logged(tmp_path: Path) -> None:
    """objective = (1 - a) L + a L^; without noise, the paired parts again change nothing but the log."""
    sgd = OPTIMISERS[0]
    plain = train(toy_config(optimiser=sgd), tmp_path / "plain", noise=0.0)
    both = train(
        toy_config(optimiser=sgd, log_steps=4, pseudo={"contexts": "c", "weight": 0.25}),
        tmp_path / "both",
        noise=0.0,
        terms={"pseudo_": lambda model, batch, keys: model.loss(batch, keys)},
    )
    for name, value in weights(plain.model).items():
        torch.testing.assert_close(value, weights(both.model)[name])
    line = json.loads((tmp_path / "both" / "log.jsonl").read_text().splitlines()[0])
    assert line["pseudo_reconstruction"] == pytest.approx(line["reconstruction"])


def test_a_term_of_every_third_step_counts_for_the_others(tmp_path: Path) -> None:
    """Its calls are those of steps 0, 3, 6, ...; each counts three times, so the log shows the same mean."""
    calls: list[int] = []

    def term(model: Any, batch: Any, keys: torch.Tensor) -> Any:
        calls.append(1)
        return model.loss(batch, keys)

    made = toy_config(
        optimiser={"name": "sgd", "lr": 1e-9},
        steps=6,
        log_steps=6,
        pseudo={"contexts": "c", "weight": 0.25, "every": 3},
    )
    train(made, tmp_path, noise=0.0, terms={"pseudo_": EveryTerm(term, 3)})
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert len(calls) == 2
    assert line["pseudo_reconstruction"] == pytest.approx(line["reconstruction"], rel=0.2)
    assert weights_at(made, 0.0, 4)["pseudo_reconstruction"] == 0
    assert weights_at(made, 0.0, 4)["reconstruction"] == weights_at(made, 0.0, 3)["reconstruction"] == 0.75
