"""Published formats of regions: written here as they are published, read through one interface."""

import base64
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from coscap.data.records import Troubles
from coscap.data.regions import convert
from coscap.errors import UserError
from coscap.vision.published import FolderStore, Hdf5Store, TsvStore, open_regions
from coscap.vision.store import RegionStore
from data_made import made_store

WIDTH, HEIGHT, F = 640, 480, 6
IDS = (42, 7, 391895)


def features(image_id: int) -> NDArray[np.float32]:
    """(R, F); pictures have 2, 3 or 4 regions."""
    return np.random.default_rng(image_id).random((2 + image_id % 3, F), dtype=np.float32)


def pixels(image_id: int) -> NDArray[np.float32]:
    count = len(features(image_id))
    return np.tile(np.array([64, 48, 320, 480], dtype=np.float32), (count, 1))


def encoded(array: NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def write_tsv(folder: Path) -> Path:
    lines = []
    for image_id in IDS:
        count = len(features(image_id))
        row = [image_id, WIDTH, HEIGHT, count, encoded(pixels(image_id)), encoded(features(image_id))]
        lines.append("\t".join(map(str, row)))
    (folder / "up.tsv").write_text("\n".join(lines) + "\n")
    return folder / "up.tsv"


def write_tsv_with_classes(folder: Path) -> Path:
    lines = []
    for image_id in IDS:
        count = len(features(image_id))
        ids, scores = np.arange(count) + 5, np.full(count, 0.5, dtype=np.float32)
        row = [f"COCO_val2014_{image_id:012d}", HEIGHT, WIDTH, encoded(ids), encoded(scores), encoded(ids)]
        row += [encoded(scores), count, encoded(pixels(image_id)), encoded(features(image_id))]
        lines.append("\t".join(map(str, row)))
    (folder / "lx.tsv").write_text("\n".join(lines) + "\n")
    return folder / "lx.tsv"


def write_vlen(folder: Path, classes: bool = False) -> Path:
    with h5py.File(folder / "up.h5", "w") as file:
        floats = h5py.vlen_dtype(np.float32)
        file["image_id"] = np.array(IDS, dtype=np.uint32)
        file["image_w"], file["image_h"] = np.full(3, WIDTH), np.full(3, HEIGHT)
        file["num_boxes"] = np.array([len(features(i)) for i in IDS])
        file.create_dataset("boxes", (3,), floats)
        file.create_dataset("features", (3,), floats)
        for row, image_id in enumerate(IDS):
            file["boxes"][row] = pixels(image_id).ravel()
            file["features"][row] = features(image_id).ravel()
        if classes:
            file.create_dataset("classes", (3,), h5py.vlen_dtype(np.uint32))
            file.create_dataset("scores", (3,), floats)
            for row, image_id in enumerate(IDS):
                file["classes"][row] = np.arange(len(features(image_id))) + 5
                file["scores"][row] = np.full(len(features(image_id)), 0.5)
    return folder / "up.h5"


def write_vlen_with_classes(folder: Path) -> Path:
    return write_vlen(folder, classes=True)


def write_padded(folder: Path) -> Path:
    with h5py.File(folder / "padded.h5", "w") as file:
        file["image_id"] = np.array(IDS)
        file["width"], file["height"] = np.full(3, WIDTH), np.full(3, HEIGHT)
        file["num_boxes"] = np.array([len(features(i)) for i in IDS])
        boxes, values = np.zeros((3, 9, 4), np.float32), np.zeros((3, 9, F), np.float32)
        for row, image_id in enumerate(IDS):
            boxes[row, : len(features(image_id))] = pixels(image_id)
            values[row, : len(features(image_id))] = features(image_id)
        file["boxes"], file["features"] = boxes, values
    return folder / "padded.h5"


def write_npz(folder: Path) -> Path:
    (folder / "npz").mkdir()
    for image_id in IDS:
        np.savez(
            folder / "npz" / f"{image_id}.npz",
            x=features(image_id),
            bbox=pixels(image_id),
            num_bbox=len(features(image_id)),
            image_w=WIDTH,
            image_h=HEIGHT,
            info=np.array([{"pickled": "and never opened"}], dtype=object),
        )
    return folder / "npz"


def write_npy(folder: Path) -> Path:
    (folder / "npy").mkdir()
    for image_id in IDS:
        np.save(folder / "npy" / f"{image_id}.npy", features(image_id))
    return folder / "npy"


WRITERS: list[Callable[[Path], Path]] = [
    write_tsv,
    write_tsv_with_classes,
    write_vlen,
    write_vlen_with_classes,
    write_padded,
    write_npz,
    write_npy,
]


@pytest.mark.parametrize("writer", WRITERS)
def test_every_format_gives_the_same_regions(tmp_path: Path, writer: Callable[[Path], Path]) -> None:
    store = open_regions(writer(tmp_path))
    assert len(store) == 3 and sorted(store.ids.tolist()) == sorted(IDS)
    assert store.recipe.width == F and 42 in store and 43 not in store
    places = store.positions(np.array([7, 43, 391895]))
    assert places[1] == -1 and store.ids[places[[0, 2]]].tolist() == [7, 391895]
    for image_id in IDS:
        regions = store.get(image_id)
        np.testing.assert_array_equal(regions.features, features(image_id))
        box = [0, 0, 1, 1] if writer is write_npy else [0.1, 0.1, 0.5, 1]
        np.testing.assert_allclose(regions.boxes, np.tile(box, (len(regions), 1)), rtol=1e-6)
        named = "classes" in writer.__name__
        assert regions.labels.tolist() == (
            [5 + i for i in range(len(regions))] if named else [-1] * len(regions)
        )
        assert (regions.scores == (0.5 if named else 1)).all()
        assert len(store.recipe.classes) == (1600 if named else 0)
    with pytest.raises(UserError, match="no regions of picture 43"):
        store.get(43)


def test_the_content_chooses_the_reader(tmp_path: Path) -> None:
    assert isinstance(open_regions(write_tsv(tmp_path)), TsvStore)
    assert isinstance(open_regions(write_vlen(tmp_path)), Hdf5Store)
    assert isinstance(open_regions(write_npz(tmp_path)), FolderStore)
    made_store(tmp_path / "ours.h5", [1, 2])
    assert isinstance(open_regions(tmp_path / "ours.h5"), RegionStore)
    (tmp_path / "x.txt").write_text("not regions")
    with pytest.raises(UserError, match="no store of regions"):
        open_regions(tmp_path / "x.txt")
    with pytest.raises(UserError, match="does not exist"):
        open_regions(tmp_path / "nothing.h5")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no regions"):
        open_regions(tmp_path / "empty")


def test_class_names_come_from_the_list_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "objects_vocab.txt").write_text("yolk\ngoggles,glasses\n")
    assert open_regions(write_tsv_with_classes(tmp_path)).recipe.classes == ("yolk", "goggles")


@pytest.mark.parametrize("cut", [3, 30, 200])
def test_a_tsv_that_ends_early_names_the_picture(tmp_path: Path, cut: int) -> None:
    file = write_tsv(tmp_path)
    file.write_bytes(file.read_bytes()[:-cut])
    store = open_regions(file)
    assert len(store.get(42)) == 2
    with pytest.raises(UserError, match=r"up\.tsv, image 391895"):
        store.get(391895)


def test_an_hdf5_that_ends_early_names_the_file(tmp_path: Path) -> None:
    for writer in (write_vlen, write_padded):
        file = writer(tmp_path)
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(UserError, match=file.name):
            store = open_regions(file)
            [store.get(image_id) for image_id in IDS]


def test_an_npz_that_ends_early_names_the_file(tmp_path: Path) -> None:
    file = write_npz(tmp_path) / "42.npz"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(UserError, match=r"42\.npz"):
        open_regions(tmp_path / "npz").get(42)


def test_features_of_unequal_width_name_the_picture(tmp_path: Path) -> None:
    folder = write_npy(tmp_path)
    np.save(folder / "7.npy", np.zeros((2, F + 1), np.float32))
    with pytest.raises(UserError, match=r"image 7: features are 7 wide, and those of the first picture 6"):
        open_regions(folder).get(7)


def test_missing_datasets_and_pixels_without_a_size_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image_id"] = [1]
    with pytest.raises(UserError, match="no dataset features"):
        open_regions(tmp_path / "a.h5")
    with h5py.File(write_padded(tmp_path), "a") as file:
        del file["width"]
    with pytest.raises(UserError, match="boxes are in pixels"):
        open_regions(tmp_path / "padded.h5")


def test_the_same_picture_twice_is_refused(tmp_path: Path) -> None:
    file = write_tsv(tmp_path)
    file.write_text(file.read_text() + file.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match="image 42 twice"):
        open_regions(file)


def test_published_regions_become_a_store_of_ours(tmp_path: Path) -> None:
    source = open_regions(write_vlen_with_classes(tmp_path))
    assert convert(source, tmp_path / "ours.h5", Troubles(skip=False)) == 3
    ours = RegionStore.open(tmp_path / "ours.h5")
    assert ours.recipe == source.recipe and ours.ids.tolist() == list(IDS)
    for image_id in IDS:
        one, two = source.get(image_id), ours.get(image_id)
        np.testing.assert_allclose(two.features, one.features, rtol=1e-3)
        np.testing.assert_array_equal(two.labels, one.labels)
        np.testing.assert_array_equal(two.boxes, one.boxes)
