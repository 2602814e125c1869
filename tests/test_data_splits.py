"""Splits: the published ones have their published sizes, the drawn ones hold still."""

import json
from pathlib import Path

import pytest

from coscap.data.records import Picture
from coscap.data.splits import Choice, assign, heldout_ids, mrnn_test_ids, read_ids
from coscap.errors import UserError
from data_made import write


def pictures(ids: list[int], captionless: tuple[int, ...] = ()) -> tuple[Picture, ...]:
    return tuple(Picture(i, f"{i}.jpg", () if i in captionless else ("a cat",)) for i in ids)


def members(split: tuple[Picture, ...], name: str) -> set[int]:
    return {one.id for one in split if one.split == name}


def test_the_shipped_splits_have_their_published_sizes() -> None:
    test = mrnn_test_ids()
    assert len(test) == len(set(test)) == 1000 and test[:3] == [192, 488, 636]
    parts = {name: set(ids.tolist()) for name, ids in heldout_ids().items()}
    assert {name: len(ids) for name, ids in parts.items()} == {
        "train": 70194,
        "val_half": 20252,
        "test_half": 20252,
        "val_novel": 3018,
        "test_novel": 3024,
    }
    assert parts["val_novel"] < parts["val_half"] and parts["test_novel"] < parts["test_half"]
    assert not parts["train"] & (parts["val_half"] | parts["test_half"])
    assert {9, 25, 30} < parts["train"] and 294 in parts["test_novel"]


def test_mrnn_takes_its_test_pictures_and_draws_validation() -> None:
    ids = list(range(1, 6000))
    split = assign(pictures(ids), Choice("mrnn", validation=100))
    test = members(split, "test")
    assert test == set(mrnn_test_ids()) & set(ids) and len(test) > 5
    assert len(members(split, "validation")) == 100
    assert len(members(split, "train")) == len(ids) - 100 - len(test)
    with pytest.raises(UserError, match="COCO 2014"):
        assign(pictures([1, 2, 3]), Choice("mrnn"))


def test_excluding_pictures_moves_no_other(tmp_path: Path) -> None:
    ids = list(range(1, 6000))
    before = assign(pictures(ids), Choice("mrnn", validation=100))
    gone = sorted(members(before, "validation"))[:10] + sorted(members(before, "train"))[:500]
    after = assign(
        pictures(ids), Choice("mrnn", validation=100, exclude_ids=(write(tmp_path / "x.json", gone),))
    )
    assert not {one.id for one in after} & set(gone)
    kept = members(before, "validation") - set(gone)
    assert kept < members(after, "validation")
    assert members(after, "test") == members(before, "test")


def test_heldout_keeps_pictures_of_novel_objects_without_their_captions() -> None:
    train, novel = int(heldout_ids()["train"][0]), int(heldout_ids()["test_novel"][0])
    half = int(
        next(i for i in heldout_ids()["val_half"] if i not in set(heldout_ids()["val_novel"].tolist()))
    )
    outside = 1  # in no part of the split
    split = {
        one.id: one for one in assign(pictures(sorted([train, novel, half, outside])), Choice("heldout"))
    }
    assert (split[train].split, split[half].split, split[novel].split) == ("train", "validation", "test")
    assert split[novel].subsets == ("test_novel",) and split[half].subsets == ("validation_known",)
    assert split[train].subsets == ()
    assert split[outside].split == "unpaired" and split[outside].captions == ()


def test_heldout_reads_a_split_file_and_says_what_it_lacks(tmp_path: Path) -> None:
    parts: dict[str, list[int]] = {
        "train": [1],
        "val_half": [2],
        "test_half": [3],
        "val_novel": [],
        "test_novel": [3],
    }
    file = write(tmp_path / "s.json", parts)
    split = assign(pictures([1, 2, 3]), Choice("heldout", split_file=file))
    assert [one.split for one in split] == ["train", "validation", "test"]
    del parts["test_novel"]
    with pytest.raises(UserError, match='"test_novel"'):
        assign(pictures([1, 2, 3]), Choice("heldout", split_file=write(file, parts)))


def test_random_is_the_same_for_a_seed_and_another_for_another() -> None:
    ids = list(range(200))
    one, same, other = (assign(pictures(ids), Choice("random", 20, 30, seed)) for seed in (1, 1, 2))
    assert members(one, "validation") == members(same, "validation") != members(other, "validation")
    assert (len(members(one, "validation")), len(members(one, "test")), len(members(one, "train"))) == (
        20,
        30,
        150,
    )
    with pytest.raises(UserError, match="nothing to train on"):
        assign(pictures(ids), Choice("random", 150, 50))


def test_pictures_without_captions_are_unpaired_and_never_drawn() -> None:
    split = assign(pictures(list(range(30)), captionless=tuple(range(20))), Choice("random", 3, 3))
    assert members(split, "unpaired") == set(range(20))
    assert members(split, "validation") | members(split, "test") <= set(range(20, 30))


def test_ids_come_from_json_or_lines(tmp_path: Path) -> None:
    assert read_ids(write(tmp_path / "a.json", [1, 2])) == [1, 2]
    assert read_ids(write(tmp_path / "b.json", [{"image_id": 3, "caption": "x"}, {"id": 4}])) == [3, 4]
    assert read_ids(write(tmp_path / "c.json", {"images": [{"id": 5}]})) == [5]
    assert read_ids(write(tmp_path / "d.txt", "6\n7\n\n")) == [6, 7]
    for bad in (json.dumps(["x"]), json.dumps([None])):
        with pytest.raises(UserError, match="entry 1"):
            read_ids(write(tmp_path / "e.json", bad))
    with pytest.raises(UserError, match="list of image ids"):
        read_ids(write(tmp_path / "f.json", "3"))


def test_ids_from_files_move_pictures_and_must_belong_to_the_data(tmp_path: Path) -> None:
    file = write(tmp_path / "t.json", [1, 2])
    split = assign(pictures([1, 2, 3, 4]), Choice("random", 0, 0, test_ids=file))
    assert members(split, "test") == {1, 2} and members(split, "train") == {3, 4}
    with pytest.raises(UserError, match="none of the 2 image ids"):
        assign(pictures([8, 9]), Choice("random", 0, 0, test_ids=file))
    with pytest.raises(UserError, match="no picture is left"):
        assign(pictures([1, 2]), Choice("random", 0, 0, exclude_ids=(file,)))


def test_a_split_that_a_file_names_is_that_and_no_more(tmp_path: Path) -> None:
    file = write(tmp_path / "t.json", [1, 2])
    usual = assign(pictures(list(range(40))), Choice("random", test_ids=file))
    assert members(usual, "test") == {1, 2} and len(members(usual, "validation")) == 3
    more = assign(pictures(list(range(40))), Choice("random", 5, 4, test_ids=file))
    assert members(more, "test") > {1, 2} and len(members(more, "test")) == 6
    assert len(members(more, "validation")) == 5
