"""The configuration: errors that name the field, changes from the command line, schedules."""

import math
from pathlib import Path

import pytest

from coscap.errors import UserError
from coscap.training.config import (
    KlWeight,
    Pseudo,
    Schedule,
    check_config,
    describe,
    differences,
    read_config,
    write_config,
)
from coscap.training.objective import weights_at
from coscap.training.schedules import kl_weight, lr_factor

MINIMAL = "data: d\nregions: r.h5\nepochs: 2\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_changes_reach_into_sections(tmp_path: Path) -> None:
    path = written(tmp_path, MINIMAL + "clip: null\n")
    config = read_config(path, ["optimiser.lr=1e-4", "kl_object.schedule=ramp", "clip.norm=3", "epochs=1.5"])
    assert config.optimiser.lr == 1e-4
    assert config.kl_object.schedule == "ramp"
    assert config.clip is not None and config.clip.norm == 3
    assert config.epochs == 1.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL + "optimizer: {name: sgd}\n", "no field optimizer; did you mean optimiser"),
        (MINIMAL + "optimiser: {rl: 1}\n", "no field optimiser.rl; did you mean optimiser.lr"),
        (
            MINIMAL + "validation: {captions: 0}\n",
            "field validation: figure: loss is measured on validation.captions, which is 0",
        ),
        (
            MINIMAL + "validation: {pictures: 0, figure: cider_draw}\n",
            "field validation: figure: cider_draw is measured on validation.pictures, which is 0",
        ),
        (MINIMAL + "optimiser: {name: lion}\n", "optimiser.name is 'lion'"),
        (MINIMAL + "batch_size: 0\n", "batch_size is 0"),
        (MINIMAL + "steps: 5\n", "exactly one of epochs, steps and minutes, not epochs and steps"),
        ("data: d\nepochs: 1\n", "field regions is missing"),
        ("data: [\n", "not valid YAML (line 2"),
        ("- a\n", "must hold `field: value` lines"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        read_config(written(tmp_path, text))
    assert said in str(error.value) and "run.yaml" in str(error.value)


def test_a_change_without_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected key=value"):
        read_config(written(tmp_path, MINIMAL), ["epochs"])
    with pytest.raises(UserError, match="epochs has no fields"):
        read_config(written(tmp_path, MINIMAL), ["epochs.lr=1"])


def test_written_configuration_reads_back(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, MINIMAL), ["pseudo.contexts=c", "model.word_dropout=0.5"])
    write_config(tmp_path / "again.yaml", config)
    assert read_config(tmp_path / "again.yaml") == config


def test_differences_leave_out_what_does_not_change_the_weights() -> None:
    one = check_config({"data": "a", "regions": "b", "epochs": 1}, "test")
    other = one.model_copy(update={"data": Path("moved"), "checkpoint_minutes": 1.0, "seed": 9})
    assert differences(one, other) == ["seed"]


def test_every_field_has_a_sentence() -> None:
    rows = describe()
    assert "kl_object.hold" in {name for name, _, _ in rows}
    assert [name for name, _, text in rows if not text] == []


def test_learning_rate_schedules() -> None:
    linear = Schedule(name="linear")
    assert [lr_factor(linear, s, 10) for s in (0, 5, 10, 11)] == [1, 0.5, 0, 0]  # never negative
    cycle = Schedule(name="cosine", warmup=0.25)
    assert lr_factor(cycle, 0, 100) == pytest.approx(1 / 25)
    assert lr_factor(cycle, 25, 100) == 1
    assert lr_factor(cycle, 50, 100) == pytest.approx((1 + math.cos(math.pi / 3)) / 2)
    assert lr_factor(cycle, 100, 100) == pytest.approx(0)
    assert lr_factor(Schedule(name="constant"), 99, 100) == 1


def test_kl_schedules() -> None:
    at = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]
    assert [kl_weight(KlWeight(), e) for e in at] == [1] * 6
    released = KlWeight(schedule="step", first=0.2)
    assert [kl_weight(released, e) for e in at] == [0.2, 0.2, 1, 1, 1, 1]
    ramp = KlWeight(schedule="ramp", epochs=2, hold=1)
    assert [kl_weight(ramp, e) for e in at] == [0, 0, 0, 0.25, 0.5, 1]
    cycle = KlWeight(schedule="cyclical", epochs=2, weight=0.8)
    assert [kl_weight(cycle, e) for e in at] == [0, 0.4, 0.8, 0.8, 0, 0.8]


def test_weights_of_the_released_code() -> None:
    """First epoch paired only with KL 0.2; then 0.8 NLL + 0.8 KL + 0.2 NLL^ + 0.15 KL^."""
    step = KlWeight(schedule="step", first=0.2)
    config = check_config({"data": "a", "regions": "b", "epochs": 3}, "test").model_copy(
        update={
            "kl_context": step,
            "kl_object": step,
            "pseudo": Pseudo(contexts=Path("c"), weight=0.2, kl=0.75, from_epoch=1),
        }
    )
    first, then = weights_at(config, 0.5), weights_at(config, 1.0)
    assert first["reconstruction"] == 1 and first["kl_object"] == 0.2 and first["pseudo_reconstruction"] == 0
    assert then["reconstruction"] == then["kl_context"] == 0.8
    assert then["pseudo_reconstruction"] == pytest.approx(0.2)
    assert then["pseudo_kl_context"] == pytest.approx(0.15)
