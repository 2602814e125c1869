"""The command on a small world: it learns, goes on after every kind of death, and refuses in sentences."""

import hashlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.models import load_pretrained
from coscap.training.config import TrainConfig, read_config
from coscap.training.lock import run_lock
from coscap.training.run import train_run
from coscap.training.start import check_start
from coscap.vision.regions import Recipe
from training_world import lines, make_neighbours, make_world

HERE = Path(__file__).parent
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def config(world: Path, *changes: str) -> TrainConfig:
    return read_config(world, ["validation.pictures=0", *changes])


def test_learns_and_leaves_a_folder_that_says_everything(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train_run(read_config(world, ["steps=40"]), run, device="cpu") == "finished"
    assert read_config(run / "config.yaml") == read_config(world, ["steps=40"])
    assert json.loads((run / "environment.json").read_text())[0]["torch"] == torch.__version__
    losses = [line["loss"] for line in lines(run, "train")]
    assert losses[-1] < 0.75 * losses[0]
    last = lines(run, "validation")[-1]
    named = {"loss", "reconstruction", "kl_context", "kl_object", "active_context", "active_object"}
    assert named | {"cider_greedy", "cider_draw", "cider_oracle", "unique"} <= last.keys()
    assert last["loss"] == pytest.approx(
        last["reconstruction"] + last["kl_context"] + last["kl_object"], rel=1e-4
    )
    assert last["cider_draw"] <= last["cider_oracle"]
    best = load_pretrained(run / "best")
    losses = [line["loss"] for line in lines(run, "validation")]
    assert best.notes["validation"]["loss"] == pytest.approx(min(losses), rel=1e-4)
    assert best.recipe is not None and best.recipe.name == "test/1"


@pytest.mark.parametrize("kind", ["seq_cvae", "updown"])
def test_every_model_trains(world: Path, tmp_path: Path, kind: str) -> None:
    train_run(config(world, f"model.kind={kind}", "steps=3", "log_steps=1"), tmp_path / "run", device="cpu")
    first, *_, last = lines(tmp_path / "run", "train")
    assert last["loss"] < first["loss"]
    assert ("active_context" in last) == (kind == "seq_cvae") and "active_object" not in last


def test_begins_with_the_weights_of_another_model(world: Path, tmp_path: Path) -> None:
    train_run(config(world, "steps=30"), tmp_path / "first", device="cpu")
    known = load_pretrained(tmp_path / "first" / "last").model.state_dict()
    begin = [f"start={tmp_path / 'first' / 'last'}", "ema_decay=0.5"]
    train_run(config(world, "steps=1", "optimiser.lr=1e-12", *begin), tmp_path / "next", device="cpu")
    for name, tensor in load_pretrained(tmp_path / "next" / "last").model.state_dict().items():
        torch.testing.assert_close(tensor, known[name], rtol=1e-6, atol=1e-8)
    with pytest.raises(UserError, match=r"field start: .* has another shape .*give `model` the sizes"):
        train_run(config(world, "steps=1", "model.language_lstm=8", *begin), tmp_path / "other", device="cpu")


@pytest.mark.parametrize("change", ["region_scale=8", "region_layers=2"])
def test_other_units_and_new_layers_are_the_same_function(world: Path, tmp_path: Path, change: str) -> None:
    wide = ["model.region_projection=6", "model.geometry=true", "validation=null"]
    train_run(config(world, "steps=3", *wide), tmp_path / "first", device="cpu")
    begin = [
        f"start={tmp_path / 'first' / 'last'}",
        f"model.{change}",
        "model.region_heads=3",
        "optimiser.lr=1e-12",
    ]
    train_run(config(world, "steps=1", *wide, *begin), tmp_path / "next", device="cpu")
    before, after = (load_pretrained(tmp_path / name / "last").model for name in ("first", "next"))
    regions = RegionBatch(
        features=torch.randn(2, 3, before.config.region_width),
        boxes=torch.rand(2, 3, 4),
        labels=torch.zeros(2, 3, dtype=torch.long),
        scores=torch.rand(2, 3),
        mask=torch.ones(2, 3, dtype=torch.bool),
        keys=torch.zeros(2, dtype=torch.long),
    )
    torch.testing.assert_close(after.regions(regions).values, before.regions(regions).values)
    name, _, value = change.partition("=")
    assert getattr(after.config, name) == int(value) != getattr(before.config, name)


def test_eyes_that_were_tuned_further_are_learnt_and_others_refused(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_run(config(world, "steps=1"), tmp_path / "first", device="cpu")
    before = Recipe("eyes-1/2", 4, ("dog",), 3, 1, words=("red", "grass"), most_words=2)
    loaded = replace(load_pretrained(tmp_path / "first" / "last"), recipe=before)
    check_start(loaded, replace(before, name="eyes-2/2"))
    assert "saw regions of eyes-1/2 before, and learns those of eyes-2/2" in caplog.text
    for other in (replace(before, name="eyes-2/2", words=("grass", "red")), replace(before, most_words=3)):
        with pytest.raises(UserError, match="was trained on regions of the recipe eyes-1/2"):
            check_start(loaded, other)


@pytest.mark.parametrize("kind", ["seq_cvae", "cos_cvae", "ag_cvae", "lnfmm"])
def test_an_up_down_decoder_is_given_latents(world: Path, tmp_path: Path, kind: str) -> None:
    train_run(config(world, "steps=5", "model.kind=updown"), tmp_path / "first", device="cpu")
    known = load_pretrained(tmp_path / "first" / "last").model.state_dict()
    begin = [f"start={tmp_path / 'first' / 'last'}", f"model.kind={kind}", "optimiser.lr=1e-12"]
    train_run(config(world, "steps=1", *begin), tmp_path / "next", device="cpu")
    begun = load_pretrained(tmp_path / "next" / "last").model.state_dict()
    for name, tensor in known.items():
        mine = begun[name][:, : tensor.shape[1]] if tensor.ndim == 2 else begun[name]
        torch.testing.assert_close(mine, tensor, rtol=1e-6, atol=1e-8)
    assert begun["decoder.gates.step"].shape[1] > known["decoder.gates.step"].shape[1]
    with pytest.raises(UserError, match="another shape"):
        back = ["model.kind=updown", f"start={tmp_path / 'next' / 'last'}"]
        train_run(config(world, "steps=1", *back), tmp_path / "back", device="cpu")


@pytest.mark.parametrize("kind", ["lstm_p", "nbt"])
def test_an_up_down_decoder_is_given_a_pointer(world: Path, tmp_path: Path, kind: str) -> None:
    train_run(config(world, "steps=5", "model.kind=updown"), tmp_path / "first", device="cpu")
    known = load_pretrained(tmp_path / "first" / "last").model.state_dict()
    begin = [f"start={tmp_path / 'first' / 'last'}", f"model.kind={kind}", "optimiser.lr=1e-12"]
    train_run(config(world, "steps=1", *begin), tmp_path / "next", device="cpu")
    begun = load_pretrained(tmp_path / "next" / "last").model.state_dict()
    for name, tensor in known.items():
        torch.testing.assert_close(begun[name], tensor, rtol=1e-6, atol=1e-8)
    assert len(begun) > len(known)


def test_minutes_become_steps(world: Path, tmp_path: Path) -> None:
    content = config(world).model_dump() | {"steps": None, "minutes": 0.005, "validation": None}
    train_run(TrainConfig.model_validate(content), tmp_path / "run", device="cpu")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["steps"] == max(1, round(0.3 / plan["seconds_per_step"]))
    assert (tmp_path / "run" / "checkpoints" / f"step-{plan['steps']:08d}").is_dir()


def test_goes_on_to_the_same_bits_after_any_death(world: Path, tmp_path: Path) -> None:
    script = [sys.executable, str(HERE / "training_kills.py"), str(world), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, env=ONE_THREAD, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    plain = found["plain"]
    assert found["random"]["kills"] >= 3 and found["writes"]["kills"] >= 4
    for one in (found["random"], found["writes"], found["SIGINT"]):
        assert one["weights"] == plain["weights"]
        assert one["steps"] == plain["steps"] and one["validation"] == plain["validation"]
        assert one["left"] == [] and one["checkpoints"] == 2
    for one in (found["SIGINT"], found["SIGTERM"]):
        assert one["code"] == 130
        assert "Go on with: coscap train" in one["said"] and "--resume" in one["said"]


ONE_NODE = ("--standalone", "--nproc_per_node", "2")


def torchrun(world: Path, run: Path, changes: list[str], *options: str) -> list[str]:
    train = ["-m", "coscap", "train", str(world), "--out", str(run), "--device", "cpu", "--resume"]
    settings = [word for change in changes for word in ("--set", change)]
    return [sys.executable, "-m", "torch.distributed.run", *options, *train, *settings]


def test_two_processes_are_one(world: Path, tmp_path: Path) -> None:
    """The same joint batches under torchrun and gloo: noise, pseudo captions, and pieces included."""
    contexts = make_neighbours(world.parent)
    changes = ["steps=6", "log_steps=3", "optimiser.name=sgd", "optimiser.lr=0.05", "accumulate=2"]
    changes += [f"pseudo.contexts={contexts}", "pseudo.from_epoch=0.5", "kl_object.schedule=constant"]
    train_run(config(world, *changes), tmp_path / "one", device="cpu")
    command = torchrun(world, tmp_path / "two", ["validation.pictures=0", *changes], *ONE_NODE)
    done = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=300)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6)
    for key in ("loss", "reconstruction", "kl_object", "pseudo_reconstruction", "gradient_norm"):
        expected = [line.get(key, 0.0) for line in lines(tmp_path / "one", "train")]
        assert [line.get(key, 0.0) for line in lines(tmp_path / "two", "train")] == pytest.approx(
            expected, rel=1e-3
        )


def test_early_stopping_ends_all_processes_as_finished(world: Path, tmp_path: Path) -> None:
    """Only the first process validates; the others must not take its patience for an interruption."""
    changes = ["steps=50", "optimiser.lr=1e-30", "validation.pictures=0", "validation.patience=1"]
    command = torchrun(world, tmp_path / "run", [*changes, "validation.every_steps=1"], *ONE_NODE)
    done = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "stopped early at step 2" in done.stderr


@contextmanager
def two_nodes(world: Path, run: Path, changes: list[str]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two agents of torchrun with one process each, which meet at an address, as on two machines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    meet = ["--rdzv_backend", "c10d", "--rdzv_endpoint", place, "--rdzv_id", run.name, "--nnodes", "2"]
    commands = [torchrun(world, run, changes, *meet, "--node_rank", node) for node in "01"]
    nodes = [
        subprocess.Popen(command, env=ONE_THREAD, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for command in commands
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="the process to kill is found in /proc")
def test_two_nodes_go_on_to_the_same_bits_after_a_rank_was_killed(world: Path, tmp_path: Path) -> None:
    changes = ["steps=80", "validation=null", "checkpoint_minutes=1e-6"]
    done = subprocess.run(
        torchrun(world, tmp_path / "whole", changes, *ONE_NODE),
        capture_output=True,
        text=True,
        env=ONE_THREAD,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "killed"
    with two_nodes(world, run, changes) as nodes:
        while not list(run.glob("checkpoints/step-*")):
            assert all(node.poll() is None for node in nodes)
            time.sleep(0.01)
        ranks = [Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split() for node in nodes]
        assert all(ranks), "each node has a process of its own"
        os.kill(int(ranks[1][0]), signal.SIGKILL)
        assert [node.wait(240) for node in nodes] == [1, 1]
    assert not (run / "last").exists(), "it was killed before its end"
    with two_nodes(world, run, changes) as nodes:
        errors = [node.communicate(timeout=240)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], errors
    assert file_digest(run) == file_digest(tmp_path / "whole")


def test_one_of_several_processes_leaves_without_taking_the_interpreter_down() -> None:
    """There, a thread of gloo that still holds a tensor aborts the process."""
    code = "import atexit; atexit.register(print, 'taken down')\n"
    code += "from coscap.training.distributed import leave; print('said'); leave(3)"
    for world, said, status in (("2", "said\n", 3), ("1", "said\ntaken down\n", 0)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=ONE_THREAD | {"WORLD_SIZE": world},
        )
        assert (done.stdout, done.returncode) == (said, status), done.stderr


def file_digest(run: Path) -> str:
    return hashlib.sha256((run / "last" / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("fcntl", [True, False])
def test_a_run_folder_has_one_training_at_a_time(
    world: Path, tmp_path: Path, fcntl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fcntl:
        monkeypatch.setitem(sys.modules, "fcntl", None)
    run, asked = tmp_path / "run", config(world, "steps=2")
    train_run(asked, run, device="cpu")
    (run / ".best.part").mkdir()  # as another process would just be writing it
    with run_lock(run):
        with pytest.raises(
            UserError, match=f"{run} is in use by another training .process {os.getpid()}."
        ) as error:
            train_run(asked, run, resume=True, device="cpu")
        assert str(error.value).count("\n") == 0 and (run / ".best.part").is_dir()
    assert train_run(asked, run, resume=True, device="cpu") == "finished"
    assert not (run / ".best.part").exists()


def test_a_dead_training_leaves_no_lock(world: Path, tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from coscap.training.lock import run_lock\n"
    code += f"with run_lock(Path({str(tmp_path)!r})): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], env=ONE_THREAD).returncode == 9
    assert (tmp_path / ".lock").exists()
    with run_lock(tmp_path):
        pass


def test_refusals_are_sentences(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_run(config(world, "steps=2"), run, device="cpu")

    def refused(said: str, *changes: str, out: Path = run, resume: bool = True, **more: Any) -> None:
        with pytest.raises(UserError, match=said) as error:
            train_run(config(world, "steps=2", *changes), out, resume=resume, **({"device": "cpu"} | more))
        assert str(error.value).count("\n") == 0

    refused("holds a run already; go on with --resume", resume=False)
    refused("field seed differs from .*config.yaml", "seed=5")
    refused("no GPU here|expected cpu", device="tpu")
    refused("is not a prepared data set", "data=/nowhere", out=tmp_path / "a")
    refused("does not exist; make a store of regions", "regions=/nowhere.h5", out=tmp_path / "b")
    refused("model.vocabulary follows from the data", "model.vocabulary=9", out=tmp_path / "c")
    refused("no model preset 'huge'", "model.preset=huge", out=tmp_path / "d")
    refused("float16 needs a GPU", "precision=float16", out=tmp_path / "e")
    if importlib.util.find_spec("tensorboard") is None:
        refused("needs the package tensorboard", "tensorboard=true", out=tmp_path / "f")
    refused("nowhere", "start=/nowhere", out=tmp_path / "g")
    contexts = world.parent / "contexts"
    if not contexts.exists():
        make_neighbours(world.parent)
    for letter, kind in (("h", "seq_cvae"), ("i", "updown")):
        asked = [f"model.kind={kind}", f"pseudo.contexts={contexts}"]
        refused(
            f"a {kind} cannot learn from pseudo captions, only a cos_cvae can", *asked, out=tmp_path / letter
        )
    refused("no model of the kind 'huge'; choose one of cos_cvae", "model.kind=huge", out=tmp_path / "j")
    assert not any((tmp_path / name).exists() for name in "abcdefghij")  # what was mended can be typed again
    other = make_world(tmp_path, seed=1)
    refused("another data set", f"data={other.parent / 'data'}", f"regions={other.parent / 'regions.h5'}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    refused("is not empty and holds no run", out=tmp_path / "full")
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["thesis.txt"]


def test_help_has_an_example_and_fields_are_listed() -> None:
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and "coscap train configs/small.yaml" in shown.output
    listed = CliRunner().invoke(app, ["train", "--fields"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0 and "kl_object.schedule" in listed.output


@pytest.mark.parametrize("path", sorted((HERE.parent / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path: Path) -> None:
    from coscap.models import build_model, preset

    text = path.read_text()
    assert f"coscap train configs/{path.name}" in text and "# time" in text and "# score" in text
    shipped = read_config(path)
    settings = dict(shipped.model)
    with torch.device("meta"):
        build_model(preset(settings.pop("preset"), **settings))
