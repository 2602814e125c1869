"""Pictures under the ids of their data set, where those are not the ids of file names."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coscap.errors import UserError
from coscap.shipped import model_folder
from coscap.vision.extract import Entry, ExtractJob, extract, list_pictures
from coscap.vision.ids import image_id_of
from coscap.vision.store import RegionStore


def _picture(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    pixels = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    Image.fromarray(pixels).save(path)


def test_ids_go_by_the_whole_name_or_its_last_part(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "b/1.jpg", "b/other.jpg", "b/stranger.jpg"):
        _picture(tmp_path / name)
    with pytest.raises(UserError, match="the same id 1"):
        list_pictures(tmp_path)  # by file name the first two are one
    found = list_pictures(tmp_path, {"a/1.jpg": 70, "b/1.jpg": 80, "elsewhere/other.jpg": 90})
    assert [(entry.name, entry.id) for entry in found] == [
        ("a/1.jpg", 70),
        ("b/1.jpg", 80),
        ("b/other.jpg", 90),
    ]
    assert Entry("b/other.jpg", "x").id == image_id_of("other.jpg")
    with pytest.raises(UserError, match=r"none of its 4 pictures has the name .* \(such as cat.jpg\)"):
        list_pictures(tmp_path, {"cat.jpg": 1})


def test_a_store_under_other_ids_is_not_taken_for_this_one(tmp_path: Path) -> None:
    _picture(tmp_path / "photos" / "cat.jpg")
    plain = list_pictures(tmp_path / "photos")
    extract(plain, tmp_path / "regions.h5", ExtractJob())
    named = list_pictures(tmp_path / "photos", {"cat.jpg": 7})
    with pytest.raises(UserError, match="holds other pictures"):
        extract(named, tmp_path / "regions.h5", ExtractJob())
    extract(named, tmp_path / "regions.h5", ExtractJob(), overwrite=True)
    store = RegionStore.open(tmp_path / "regions.h5")
    assert list(store.ids) == [7] and 7 in store and "cat.jpg" in store


def test_where_a_model_lies(tmp_path: Path) -> None:
    assert (Path(model_folder("shipped")) / "model.safetensors").is_file()
    (tmp_path / "run" / "best").mkdir(parents=True)
    assert model_folder(tmp_path / "run") == tmp_path / "run" / "best"
    assert model_folder("owner/name") == "owner/name"
