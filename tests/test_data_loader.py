"""Batches: what is in them, their order, resuming, sharing, and what a picture's key depends on."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from coscap.data.batch import Batch
from coscap.data.collate import choose, region_batch
from coscap.data.loader import Loader, PictureLoader
from coscap.data.order import bucketed, generator
from coscap.data.prepared import Prepared
from coscap.errors import UserError
from coscap.text.vocabulary import END, PAD, SLOT, SLOTS
from coscap.vision.regions import Regions
from coscap.vision.store import RegionStore
from data_made import made_prepared, made_regions, made_store

Made = tuple[Prepared, RegionStore]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("loader")
    data = made_prepared(folder / "d", pictures=60, captionless=6)
    return data, made_store(folder / "r.h5", data.image_ids.tolist()[::-1])


def captions(batch: Batch) -> list[tuple[int, ...]]:
    """(image id, words...) of each caption of a batch."""
    rows = zip(batch.rows.tolist(), batch.words.tolist(), batch.lengths.tolist(), strict=True)
    return [(int(batch.image_ids[row]), *words[:length]) for row, words, length in rows]


def expected(data: Prepared, split: str) -> Counter[tuple[int, ...]]:
    return Counter(
        (int(data.image_ids[data.image_of(c)]), *data.words(c).tolist(), END)
        for c in data.trainable(split).tolist()
    )


def test_a_batch_holds_captions_with_their_own_picture(made: Made) -> None:
    data, store = made
    for batch in Loader(data, store, "train", batch_size=16, seed=3):
        size, longest = batch.words.shape
        assert longest == int(batch.lengths.max()) and batch.pictures.mask.any(0).all()
        for row in range(size):
            picture, length = int(batch.rows[row]), int(batch.lengths[row])
            words, context = batch.words[row], batch.context[row]
            assert batch.pictures.features[picture, 0, 0] == batch.image_ids[picture]
            assert words[length - 1] == END == context[length - 1] and (words[length:] == PAD).all()
            slots = (context == SLOT) | (context == SLOTS)
            objects = batch.objects[row]
            assert objects[objects != PAD].tolist() == words[slots].tolist()
            assert (words[~slots] == context[~slots]).all()
        assert len(set(batch.image_ids.tolist())) == len(batch.image_ids)  # a picture is there once
        assert batch.objects.shape[1] >= 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_every_caption_once(made: Made, shuffle: bool) -> None:
    data, store = made
    total = sum(expected(data, "train").values())
    loader = Loader(data, store, "train", batch_size=8, shuffle=shuffle)
    seen = Counter(one for batch in loader for one in captions(batch))
    assert not seen - expected(data, "train")
    assert sum(seen.values()) == (total // 8 * 8 if shuffle else total)
    other = Counter(one for batch in loader for one in captions(batch))  # the next epoch
    assert other == seen or shuffle


def test_one_caption_of_each_picture_another_each_epoch(made: Made) -> None:
    data, store = made
    loader = Loader(data, store, "train", batch_size=1, captions="one", seed=1)
    first = {one[0]: one for batch in loader for one in captions(batch)}
    second = {one[0]: one for batch in loader for one in captions(batch)}
    assert set(first) == set(second) == set(data.image_ids[data.images("train")].tolist())
    assert first != second
    assert not Counter(first.values()) - expected(data, "train")


def test_together_keeps_the_captions_of_a_picture_in_one_batch(made: Made) -> None:
    data, store = made
    loader = Loader(data, store, "train", batch_size=4, captions="together")
    for batch in loader:
        assert len(batch.image_ids) == 4
        for picture, image_id in enumerate(batch.image_ids.tolist()):
            count = len(data.captions_of(data.index(image_id)))
            assert int((batch.rows == picture).sum()) == count


def same(one: Batch, two: Batch) -> bool:
    return torch.equal(one.words, two.words) and torch.equal(one.pictures.features, two.pictures.features)


def test_the_order_follows_from_seed_and_epoch_alone(made: Made) -> None:
    data, store = made
    loader = Loader(data, store, "train", 8, seed=5)
    epochs = [list(loader), list(loader)]
    again = Loader(data, store, "train", 8, seed=5, prefetch=0)
    for epoch in epochs:
        assert all(same(a, b) for a, b in zip(epoch, again, strict=True))
    assert not all(same(a, b) for a, b in zip(epochs[0], epochs[1], strict=True))
    assert not all(
        same(a, b) for a, b in zip(epochs[0], Loader(data, store, "train", 8, seed=6), strict=True)
    )


@pytest.mark.parametrize("mode", ["all", "one", "together"])
@pytest.mark.parametrize("stop", [1, 3, -1])
def test_a_saved_position_continues_at_the_exact_batch(made: Made, mode: str, stop: int) -> None:
    data, store = made

    def fresh() -> Loader:
        return Loader(data, store, "train", 4, 2, mode)  # type: ignore[arg-type]

    whole = fresh()
    run = [batch for _ in range(2) for batch in whole]
    loader = fresh()
    stop = stop % len(loader) + (len(loader) if stop < 0 else 0)  # -1: the last batch of the first epoch
    stop = min(stop, len(loader))
    state = {}
    for number, _ in enumerate(loader, start=1):
        if number == stop:
            state = json.loads(json.dumps(loader.state()))
            break
    continued = fresh()
    continued.restore(state)
    rest = [batch for _ in range(2 if stop < len(loader) else 1) for batch in continued]
    assert len(rest) == len(run) - stop
    assert all(same(a, b) for a, b in zip(rest, run[stop:], strict=True))


def test_a_position_of_other_data_is_refused(made: Made) -> None:
    data, store = made
    state = Loader(data, store, "train", 4, 2).state()
    for other in (
        Loader(data, store, "train", 4, 3),
        Loader(data, store, "train", 8, 2),
        Loader(data, store, "test", 4, 2),
    ):
        with pytest.raises(UserError, match="saved position"):
            other.restore(state)


@pytest.mark.parametrize("mode", ["all", "one", "together"])
def test_processes_share_what_one_process_would_do(made: Made, mode: str) -> None:
    data, store = made
    alone = Loader(data, store, "train", 12, 1, mode)  # type: ignore[arg-type]
    shares = [Loader(data, store, "train", 4, 1, mode, rank=rank, world=3) for rank in range(3)]  # type: ignore[arg-type]
    for _ in range(2):
        for joint, *parts in zip(alone, *shares, strict=True):
            assert Counter(captions(joint)) == Counter(one for part in parts for one in captions(part))
            if mode != "together":
                assert [len(part.words) for part in parts] == [4, 4, 4]
    moved = Loader(data, store, "train", 6, 1, mode, rank=1, world=2)  # type: ignore[arg-type]
    moved.restore(shares[0].state())  # the same joint batch in another number of processes


def test_pictures_that_the_store_does_not_have_are_left_out_and_told(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, _ = made
    train = data.image_ids[data.images("train")].tolist()
    store = made_store(tmp_path / "part.h5", train[:10])
    loader = Loader(data, store, "train", 4)
    assert loader.missing == len(train) - 10 and loader.pictures == 10
    assert f"{len(train) - 10} of {len(train)} pictures of the split train are not in" in caplog.text
    assert {one[0] for batch in loader for one in captions(batch)} <= set(train[:10])
    with pytest.raises(UserError, match="none of the 5 pictures of the split test"):
        Loader(data, store, "test", 4)


def test_fewer_captions_than_a_batch_make_one_batch(made: Made) -> None:
    data, store = made
    loader = Loader(data, store, "train", 1000)
    batches = list(loader)
    assert len(loader) == len(batches) == 1 and len(batches[0].words) == len(data.trainable("train"))


def test_pictures_alone_for_sampling_and_for_pseudo_supervision(made: Made) -> None:
    data, store = made
    loader = PictureLoader(data, store, "all", batch_size=7)
    ids = [image_id for batch in loader for image_id in batch.image_ids.tolist()]
    assert ids == data.image_ids.tolist() and len(loader) == 9
    shares = [
        image_id
        for rank in range(2)
        for batch in PictureLoader(data, store, "all", batch_size=4, rank=rank, world=2)
        for image_id in batch.image_ids.tolist()
    ]
    assert sorted(shares) == ids
    bare = list(PictureLoader(data, store, "all", 4, which="captionless", shuffle=True))
    assert all(not batch.captioned.any() for batch in bare) and sum(len(batch.images) for batch in bare) == 4
    assert {data.split_of(int(i)) for batch in bare for i in batch.images} == {"unpaired"}
    with pytest.raises(UserError, match="no captionless pictures"):
        PictureLoader(data, store, "train", 4, which="captionless")


def test_cut_captions_keep_the_objects_that_are_left(tmp_path: Path) -> None:
    data = made_prepared(tmp_path / "d", max_length=5, long="cut")
    store = made_store(tmp_path / "r.h5", data.image_ids.tolist())
    batches = list(Loader(data, store, "train", 8))
    assert max(int(batch.lengths.max()) for batch in batches) == 6  # with END
    for batch in batches:
        slots = (batch.context == SLOT) | (batch.context == SLOTS)
        assert (slots.sum(1) == (batch.objects != PAD).sum(1)).all()
        assert (batch.words.gather(1, batch.lengths[:, None] - 1) == END).all()


def test_a_picture_has_the_same_key_alone_in_any_batch_and_at_full_precision() -> None:
    one, two, three = (made_regions(i) for i in (1, 2, 3))
    alone = region_batch([two])
    together = region_batch([three, two, one])
    assert together.keys[1] == alone.keys[0] and len(set(together.keys.tolist())) == 3
    full = Regions(two.features.astype(np.float32), two.boxes, two.labels, two.scores)
    assert region_batch([full]).keys[0] == alone.keys[0]
    size = len(two)
    assert (
        torch.equal(together.features[1, :size], alone.features[0]) and alone.features.dtype == torch.float32
    )
    assert together.mask.sum(1).tolist() == [len(three), len(two), len(one)]
    assert (together.labels[~together.mask] == -1).all() and (together.scores[~together.mask] == 0).all()


def test_detections_and_grid_can_be_chosen() -> None:
    regions = made_regions(3)  # 4 detections, 2 cells
    assert choose(regions, detections=2).labels.tolist() == [0, 1, -1, -1]
    assert choose(regions, grid=False).labels.tolist() == [0, 1, 2, 3]
    assert choose(regions, detections=1, grid=False).labels.tolist() == [0]
    cells = choose(regions, detections=0)
    assert cells.labels.tolist() == [-1, -1]
    assert choose(cells, grid=False).labels.tolist() == [-1, -1]  # nothing detected: the grid stays


def test_unequal_widths_are_refused() -> None:
    narrow = Regions(
        np.zeros((1, 3), np.float16),
        np.zeros((1, 4), np.float32),
        np.zeros(1, np.int16),
        np.ones(1, np.float32),
    )
    with pytest.raises(ValueError, match=r"\[3, 8\]"):
        region_batch([made_regions(1), narrow])


def test_buckets_waste_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(5, 21, 20_000)
    batches = bucketed(lengths, 50, generator(1, 1))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert lengths.sum() / padded > 0.97
    means = np.array([lengths[batch].mean() for batch in batches])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.2  # long and short batches in turn, by chance


def test_an_error_while_loading_reaches_the_loop(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    data, store = made
    loader = Loader(data, store, "train", 4)
    monkeypatch.setattr(store, "at", lambda position: (_ for _ in ()).throw(UserError("the disk is gone")))
    with pytest.raises(UserError, match="the disk is gone"):
        list(loader)
