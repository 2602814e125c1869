"""scripts/slot_study.py: known classes stand in for novel ones."""

import runpy
from pathlib import Path

import pytest
import torch

from coscap.data import open_prepared
from coscap.errors import UserError
from coscap.models import build_model
from coscap.training.run import model_config
from coscap.vision.store import RegionStore
from training_world import TINY, make_neighbours, make_world

STUDY = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "slot_study.py"))


def test_f1_counts_pictures():
    counts = STUDY["Counts"]()
    counts.add([1, 2, None], {1, 3}, {1, 2, 3}, {1, 2, 3})
    counts.add([3], {3}, {3}, {3})
    counts.add([2], {1}, {2}, {1, 2})  # class 1 is named but was not detected: nobody could fill it in
    assert (counts.objects, counts.right) == (5, 2)
    assert counts.f1(1) == 100 and counts.f1(2) is None  # never where people name it
    assert [each.get(2) for each in counts.pictures] == ["wrong", None, "wrong"]
    assert counts.average([1, 2, 3]) == pytest.approx((100 + 200 / 3) / 2)
    assert counts.f1(3, [0, 0, 1]) == pytest.approx(200 * 1 / (2 * 1 + 2))
    low, high = STUDY["intervals"]({"one": counts, "same": counts}, [1, 3])["same"]
    assert low == high == 0
    assert counts.f1(3) == pytest.approx(200 / 3)  # one of two pictures


@torch.no_grad()
def test_every_rule_is_measured_on_classes_that_it_did_not_read(tmp_path):
    make_world(tmp_path, novel=4)
    contexts = make_neighbours(tmp_path)
    data, store = open_prepared(tmp_path / "data"), RegionStore.open(tmp_path / "regions.h5")
    torch.manual_seed(0)
    model = build_model(model_config(TINY, data, store)).eval()
    found = STUDY["study"](model, data, store, str(contexts), ["horse"], 100)
    assert len(found) == 9 and next(iter(found)) == "attention alone"
    number = data.classes.index("horse")
    horses = [i for i in data.images("train")[1:].tolist() if "horse" in data.text(data.captions_of(i)[0])]
    for counts in found.values():
        # Each picture shows one class, so that every rule fills it in, and rightly.
        found_again = [each[number] for each in counts.pictures if number in each]
        assert found_again == ["back"] * len(horses) and counts.right == counts.objects > 0
        assert counts.f1(number) == 100
    with pytest.raises(UserError, match="--hold-out yeti is no class"):
        STUDY["study"](model, data, store, str(contexts), ["yeti"], 3)
