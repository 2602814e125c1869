"""The store: what goes in comes out, by id, by name and in batches; damaged files are refused."""

import pickle
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest

from coscap.errors import UserError
from coscap.vision.regions import Recipe, Regions
from coscap.vision.store import RegionStore, StoreWriter

RECIPE = Recipe(name="test/1", width=6, classes=("cat", "dog"), detections=4, grid=0)


def some_regions(count: int, seed: int) -> Regions:
    dice = np.random.default_rng(seed)
    return Regions(
        features=dice.normal(size=(count, 6)).astype(np.float16),
        boxes=dice.uniform(size=(count, 4)).astype(np.float32),
        labels=dice.integers(-1, 2, count).astype(np.int16),
        scores=dice.uniform(size=count).astype(np.float32),
    )


PICTURES = {907: some_regions(3, 1), 12: some_regions(0, 2), 55: some_regions(5, 3), 13: some_regions(1, 4)}


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "regions.h5"
    with StoreWriter(target, RECIPE) as writer:
        for image_id, regions in PICTURES.items():
            writer.add(image_id, regions, name=f"photos/{image_id} é.jpg" if image_id != 13 else "")
    return target


def same(one: Regions, other: Regions) -> bool:
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in vars(one))


def test_what_goes_in_comes_out(path) -> None:
    store = RegionStore.open(path)
    assert store.recipe == RECIPE and len(store) == 4
    assert store.ids.tolist() == list(PICTURES)  # the order in which they were added
    for image_id, regions in PICTURES.items():
        assert image_id in store and same(store.get(image_id), regions)
    assert same(store.get("photos/55 é.jpg"), PICTURES[55]) and "photos/55 é.jpg" in store
    for absent in (1, 14, 10_000, -5, "photos/1.jpg", "", None):
        assert absent not in store
    with pytest.raises(UserError, match="no regions of picture 14"):
        store.get(14)
    assert store.positions([55, 14, 907]).tolist() == [2, -1, 0]


def test_rows_are_views_of_the_file(path) -> None:
    regions = RegionStore.open(path).get(55)
    assert not regions.features.flags.writeable and not regions.features.flags.owndata


def test_another_process_can_have_it(path) -> None:
    store = pickle.loads(pickle.dumps(RegionStore.open(path)))  # noqa: S301  what multiprocessing does
    assert same(store.get(55), PICTURES[55])


def test_any_hdf5_reader_can_read_it(path) -> None:
    with h5py.File(path) as file:
        assert file["image_id"][()].tolist() == list(PICTURES)
        assert file["num_boxes"][()].tolist() == [3, 0, 5, 1]
        assert file["offsets"][()].tolist() == [0, 3, 3, 8, 9]
        assert file["features"].shape == (9, 6) and file["features"].chunks is None


def test_the_same_pictures_make_the_same_bytes(path, tmp_path) -> None:
    with StoreWriter(tmp_path / "again.h5", RECIPE) as writer:
        for image_id, regions in PICTURES.items():
            writer.add(image_id, regions, name=f"photos/{image_id} é.jpg" if image_id != 13 else "")
    assert (tmp_path / "again.h5").read_bytes() == path.read_bytes()


def test_an_empty_store(tmp_path) -> None:
    with StoreWriter(tmp_path / "empty.h5", RECIPE):
        pass
    store = RegionStore.open(tmp_path / "empty.h5")
    assert len(store) == 0 and 1 not in store and store.positions([1]).tolist() == [-1]


def test_a_failed_writer_leaves_nothing(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError), StoreWriter(tmp_path / "a.h5", RECIPE) as writer:
        writer.add(1, PICTURES[55])
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_the_writer_refuses(tmp_path) -> None:
    with StoreWriter(tmp_path / "a.h5", RECIPE) as writer:
        writer.add(1, PICTURES[55], "one.jpg")
        with pytest.raises(UserError, match=r"two\.jpg and one\.jpg have the same id 1"):
            writer.add(1, PICTURES[55], "two.jpg")
        wide = Regions(np.zeros((1, 7), np.float16), np.zeros((1, 4)), np.zeros(1), np.zeros(1))
        with pytest.raises(UserError, match="width 7"):
            writer.add(2, wide)


def test_damaged_files_are_refused(path, tmp_path) -> None:
    whole = path.read_bytes()
    dice = np.random.default_rng(0)
    refused = 0
    for end in [0, 1, 8, 100, len(whole) - 1, *dice.integers(0, len(whole), 40).tolist()]:
        damaged = tmp_path / "damaged.h5"
        damaged.write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"damaged\.h5"):
            RegionStore.open(damaged)
        refused += 1
    assert refused == 45


def test_foreign_files_are_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        RegionStore.open(tmp_path / "none.h5")
    text = tmp_path / "text.h5"
    text.write_text("image_id,features\n")
    with pytest.raises(UserError, match="not a whole store"):
        RegionStore.open(text)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["features"] = np.zeros(3)
    with pytest.raises(UserError, match="not a store of regions"):
        RegionStore.open(tmp_path / "other.h5")


def test_arrays_that_do_not_fit_are_refused(path) -> None:
    with h5py.File(path, "r+") as file:
        file["offsets"][2] = 1000
    with pytest.raises(UserError, match="do not fit"):
        RegionStore.open(path)


def resident(path) -> int:
    """Kilobytes of this process's memory that are pages of the file."""
    here, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            here = line.endswith(str(path))
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_pages_that_were_read_are_let_go_of(tmp_path, monkeypatch) -> None:
    path = tmp_path / "large.h5"
    wide = Recipe(name="test/1", width=1 << 16, classes=("cat",), detections=4, grid=0)
    features = np.ones((16, 1 << 16), np.float16)  # 2 MB a picture
    rest = {"boxes": np.zeros((16, 4), np.float32), "labels": np.zeros(16, np.int16)}
    with StoreWriter(path, wide) as writer:
        for image_id in range(8):
            writer.add(image_id, Regions(features * image_id, **rest, scores=np.ones(16, np.float32)))
    store = RegionStore.open(path)
    for position in range(8):
        assert (store.at(position).features == position).all()
    assert resident(path) > 8_000
    monkeypatch.setattr("coscap.vision.store.HELD", 3_000_000)
    for position in range(8):
        assert (store.at(position).features == position).all()
    assert resident(path) < 8_000


def test_overwritten_numbers_are_seen(path) -> None:
    """What no shape can tell: the features by the picture's checksum when it is read, the rest by the hash at once."""
    with h5py.File(path, "r+") as file:
        file["features"][4, 2] = 3.5
    store = RegionStore.open(path)
    assert same(store.get(907), PICTURES[907])
    with pytest.raises(
        UserError, match=r"damaged \(the features of picture 55 are not those that were written\)"
    ):
        store.get(55)
    with h5py.File(path, "r+") as file:
        file["scores"][0] = 0.5
    with pytest.raises(UserError, match=r"damaged \(its arrays are not those that were written\)"):
        RegionStore.open(path)


def test_a_store_of_an_earlier_version_is_read_without_hashes(path) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs["sha256"], file["checksum"]
    store = RegionStore.open(path)
    assert all(same(store.get(image_id), regions) for image_id, regions in PICTURES.items())


def test_a_store_cannot_name_other_files_of_the_machine(path, tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(108)))
    with h5py.File(path, "r+") as file:
        del file.attrs["sha256"], file["features"]
        file.create_dataset("features", (9, 6), np.float16, external=[(str(secret), 0, 108)])
    with pytest.raises(UserError, match="features is not an array inside the file"):
        RegionStore.open(path)


def test_a_full_disk_leaves_no_part(tmp_path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        for count in (2, 400):  # in the store itself, and in the file where features wait
            refused = pytest.raises(UserError, match=r"r\.h5 cannot be written")
            with refused, StoreWriter(tmp_path / "r.h5", RECIPE) as writer:
                for image_id in range(count):
                    writer.add(image_id, PICTURES[55])
            assert list(tmp_path.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
