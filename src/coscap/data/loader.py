"""Batches for training, validation and sampling: deterministic, resumable, shared between processes.

    for batch in Loader(prepared, store, "train", batch_size=64, seed=1):    # one epoch; again: the next
        ...

The order follows from (seed, epoch) alone. Step k of `world` processes with `batch_size` items each is,
taken together, step k of one process with `batch_size * world`; process `rank` has every world-th item.
"""

import logging
import queue
import threading
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from coscap.data.batch import Batch, PictureBatch
from coscap.data.collate import caption_batch, region_batch
from coscap.data.order import bucketed, generator
from coscap.data.prepared import Prepared, ranges
from coscap.errors import UserError
from coscap.vision.published import Store

log = logging.getLogger("coscap.data")
T = TypeVar("T")
Captions = Literal["all", "one", "together"]


class Epochs(Generic[T]):
    """Iterates one epoch after the other, and knows where it is; batches are made ahead in a thread."""

    def __init__(self, label: str, batch_size: int, seed: int, rank: int, world: int, prefetch: int) -> None:
        if batch_size < 1 or not 0 <= rank < world:
            raise ValueError(f"batch size {batch_size} and rank {rank} of {world} make no batches")
        self.label = label
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world = world
        self.prefetch = prefetch
        self.epoch = 0
        self._position = 0  # batches of this epoch that have been handed out
        self._plans: dict[int, list[NDArray[np.int64]]] = {}

    @abstractmethod
    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The joint batches of all processes: arrays of item numbers."""

    @abstractmethod
    def _collate(self, items: NDArray[np.int64]) -> T: ...

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._batches(self.epoch))

    def __iter__(self) -> Iterator[T]:
        """The rest of this epoch; a process that has no share of a last, short batch gets none."""
        if self._position >= len(self):  # the last loop stopped right after the last batch
            self.epoch, self._position = self.epoch + 1, 0
        plan = self._batches(self.epoch)[self._position :]
        shares = [share for batch in plan if len(share := batch[self.rank :: self.world])]
        for result in _ahead(shares, self._collate, self.prefetch):
            self._position += 1
            yield result
        self.epoch += 1
        self._position = 0

    def state(self) -> dict[str, Any]:
        """Where we are: after the batch that was handed out last. Plain values, for a checkpoint."""
        return {
            "label": self.label,
            "epoch": self.epoch,
            "position": self._position,
            "seed": self.seed,
            "joint_batch": self.batch_size * self.world,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on at exactly the batch that follows `state`, also with another number of processes."""
        mine = self.state()
        for key, name in (("label", "data"), ("seed", "seed"), ("joint_batch", "joint batch size")):
            if state.get(key) != mine[key]:
                raise UserError(
                    f"the saved position in the data belongs to another {name} ({state.get(key)!r}, "
                    f"now {mine[key]!r}); continue with the same settings, or start anew."
                )
        self.epoch, self._position = int(state["epoch"]), int(state["position"])

    def _batches(self, epoch: int) -> list[NDArray[np.int64]]:
        if epoch not in self._plans:
            self._plans = {epoch: self._plan(epoch)}
        return self._plans[epoch]


class Loader(Epochs[Batch]):
    """Captions with their pictures' regions.

    captions: "all" takes every caption once an epoch; "one" a random caption of each picture; "together"
    all captions of a picture in the same batch, where `batch_size` counts pictures, so that what the model
    computes of the regions serves all of them.
    shuffle=False gives every caption once, by rising length: for validation.
    detections, grid: how many detections, and whether the grid's cells, are given to the model.
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        split: str = "train",
        batch_size: int = 64,
        seed: int = 0,
        captions: Captions = "all",
        *,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        detections: int | None = None,
        grid: bool = True,
        prefetch: int = 3,
    ) -> None:
        label = f"{prepared.digest[:16]}/{split}/{captions}/{'shuffled' if shuffle else 'in order'}"
        super().__init__(label, batch_size, seed, rank, world, prefetch)
        if captions not in ("all", "one", "together"):
            raise ValueError(f"captions is {captions!r}, not all, one or together")
        self.prepared, self.store, self.split, self.captions = prepared, store, split, captions
        self.shuffle, self.detections, self.grid = shuffle, detections, grid
        usable = prepared.trainable(split)
        if not len(usable):
            raise UserError(f"{prepared.path} has no captions to learn from in its split {split}.")
        images = prepared.arrays["caption_image"][usable]
        self._positions, self.missing = _positions(prepared, store, np.unique(images), split)
        self._usable = usable[self._positions[images] >= 0]  # (N,) captions
        images = prepared.arrays["caption_image"][self._usable]
        self._images, first = np.unique(images, return_index=True)  # pictures, where their captions begin
        self._first = np.append(first, len(self._usable)).astype(np.int64)
        self._lengths = np.minimum(prepared.lengths(self._usable), prepared.max_length)
        if len(self._images) < world:
            raise UserError(
                f"the split {split} has {len(self._images)} pictures for {world} processes; use fewer."
            )

    @property
    def pictures(self) -> int:
        """Pictures that an epoch sees."""
        return len(self._images)

    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        chance = generator(self.seed, epoch) if self.shuffle else None
        size = self.batch_size * self.world
        if self.captions == "all":
            return bucketed(self._lengths, size, chance)
        if self.captions == "one":
            counts = np.diff(self._first)
            within = np.zeros(len(counts), dtype=np.int64)
            if chance is not None:
                within = (chance.random(len(counts)) * counts).astype(np.int64)
            picked = self._first[:-1] + within
            return [picked[batch] for batch in bucketed(self._lengths[picked], size, chance)]
        longest = np.maximum.reduceat(self._lengths, self._first[:-1])
        return bucketed(longest, size, chance)

    def _collate(self, items: NDArray[np.int64]) -> Batch:
        if self.captions == "together":
            items = ranges(self._first[items], self._first[items + 1])
        captions = self._usable[items]
        images = np.unique(self.prepared.arrays["caption_image"][captions])
        regions = [self.store.at(int(position)) for position in self._positions[images]]
        return caption_batch(
            self.prepared, captions, images, region_batch(regions, self.detections, self.grid)
        )


class PictureLoader(Epochs[PictureBatch]):
    """Pictures without captions' words: for sampling, for validation, and for pseudo supervision.

    which: "all" pictures of the split, only the "captioned", or only the "captionless".
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        split: str = "test",
        batch_size: int = 32,
        seed: int = 0,
        which: Literal["all", "captioned", "captionless"] = "all",
        *,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = False,
        detections: int | None = None,
        grid: bool = True,
        prefetch: int = 3,
    ) -> None:
        label = f"{prepared.digest[:16]}/{split}/{which} pictures/{'shuffled' if shuffle else 'in order'}"
        super().__init__(label, batch_size, seed, rank, world, prefetch)
        self.prepared, self.store, self.split = prepared, store, split
        self.shuffle, self.detections, self.grid = shuffle, detections, grid
        images = prepared.images(split)
        captioned = np.diff(prepared.arrays["image_captions"])[images] > 0
        if which != "all":
            images = images[captioned if which == "captioned" else ~captioned]
        if not len(images):
            raise UserError(f"{prepared.path} has no {which} pictures in its split {split}.")
        self._positions, self.missing = _positions(prepared, store, images, split)
        self._images = images[self._positions[images] >= 0]

    @property
    def pictures(self) -> int:
        return len(self._images)

    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        size = self.batch_size * self.world
        chance = generator(self.seed, epoch) if self.shuffle else None
        return bucketed(np.zeros(len(self._images), dtype=np.int64), size, chance)

    def _collate(self, items: NDArray[np.int64]) -> PictureBatch:
        images = self._images[items]
        regions = [self.store.at(int(position)) for position in self._positions[images]]
        offsets = self.prepared.arrays["image_captions"]
        return PictureBatch(
            region_batch(regions, self.detections, self.grid),
            torch.from_numpy(np.array(self.prepared.image_ids[images])),
            torch.from_numpy(images.astype(np.int64)),
            torch.from_numpy(np.array(offsets[images + 1] > offsets[images])),
        )


def _positions(
    prepared: Prepared, store: Store, images: NDArray[np.int64], split: str
) -> tuple[NDArray[np.int64], int]:
    """Where each picture of the data set is in the store, -1 for none; and how many of `images` have none."""
    positions = np.full(len(prepared), -1, dtype=np.int64)
    positions[images] = store.positions(np.array(prepared.image_ids[images]))
    missing = int((positions[images] < 0).sum())
    if missing == len(images):
        raise UserError(
            f"none of the {len(images):,} pictures of the split {split} of {prepared.path} is in {store.path}; "
            "make their regions with `coscap features`."
        )
    if missing:
        log.warning(
            "%s of %s pictures of the split %s are not in %s and are left out",
            f"{missing:,}",
            f"{len(images):,}",
            split,
            store.path,
        )
    return positions, missing


def _ahead(shares: list[NDArray[np.int64]], make: Any, depth: int) -> Iterator[Any]:
    """make(share) for each share, in order, made by a thread at most `depth` ahead."""
    if depth < 1:
        yield from map(make, shares)
        return
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: tuple[bool, Any]) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for share in shares:
                if not put((True, make(share))):
                    return
        except BaseException as error:  # handed to the reader, who raises it
            put((False, error))

    thread = threading.Thread(target=work, name="coscap-batches", daemon=True)
    thread.start()
    try:
        for _ in shares:
            fine, value = ready.get()
            if not fine:
                raise value
            yield value
    finally:
        stop.set()
        thread.join()
