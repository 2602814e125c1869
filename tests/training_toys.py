"""The smallest model and data that the training loop can work with: they stand for the real ones where a
test is about the loop alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch, RegionBatch
from coscap.models import LossTerms
from coscap.models.noise import normals
from coscap.text.vocabulary import PAD
from coscap.training.config import TrainConfig, check_config
from coscap.training.distributed import Ranks

WORDS, WIDTH, CAPTIONS = 12, 4, 22


class ToyModel(nn.Module):
    """Words from the picture's mean and noise; a latent whose KL is a real function of its parameters."""

    def __init__(self, noise: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.noise = noise
        self.latent = nn.Linear(WIDTH, WIDTH)
        self.words = nn.Linear(WIDTH, WORDS)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3

    def loss(self, batch: Batch, keys: Tensor) -> LossTerms:
        mean = self.latent(batch.pictures.features.mean(1))[batch.rows]  # (B, F)
        longest = batch.words.shape[1]
        noise = torch.stack([normals(keys, 1, t, WIDTH) for t in range(longest)], 1)  # (B, T, F)
        chances = torch.log_softmax(self.words(mean[:, None] + self.noise * noise), -1)
        named = chances.gather(2, batch.words[..., None]).squeeze(2)  # (B, T)
        here = torch.arange(longest) < batch.lengths[:, None]
        kl = mean.square() / 2
        return LossTerms(
            reconstruction=-(named * here).sum(1),
            kl_context=kl.sum(1),
            kl_object=torch.zeros(len(keys)),
            free_context=kl.sum(1),
            free_object=torch.zeros(len(keys)),
            extra=torch.zeros(len(keys)),
            words=batch.lengths,
            context_dimensions=kl.detach().mean(0),
            object_dimensions=torch.zeros(0),
        )


class ToyBatches:
    """Captions in an order that follows from (seed, epoch); this process's share of each batch."""

    def __init__(self, size: int, seed: int = 1, rank: int = 0, world: int = 1) -> None:
        generator = torch.Generator().manual_seed(3)
        self.features = torch.randn(CAPTIONS, 2, WIDTH, generator=generator)
        self.words = torch.randint(4, WORDS, (CAPTIONS, 6), generator=generator)
        self.lengths = torch.randint(2, 7, (CAPTIONS,), generator=generator)
        self.words[torch.arange(6) >= self.lengths[:, None]] = PAD
        self.size, self.seed, self.rank, self.world = size, seed, rank, world
        self.epoch = self.batch = 0

    def __len__(self) -> int:
        return CAPTIONS // self.size

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch}

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]

    def __iter__(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        order = torch.randperm(CAPTIONS, generator=generator)
        while self.batch < len(self):
            chosen = order[self.batch * self.size :][: self.size].tensor_split(self.world)[self.rank]
            self.batch += 1
            if self.batch == len(self):
                self.epoch, self.batch = self.epoch + 1, 0
                yield self.make(chosen)
                return
            yield self.make(chosen)

    def make(self, chosen: Tensor) -> Batch:
        count, longest = len(chosen), int(self.lengths[chosen].max())
        regions = RegionBatch(
            features=self.features[chosen],
            boxes=torch.zeros(count, 2, 4),
            labels=torch.zeros(count, 2, dtype=torch.long),
            scores=torch.ones(count, 2),
            mask=torch.ones(count, 2, dtype=torch.bool),
            keys=chosen,
        )
        words = self.words[chosen, :longest]
        return Batch(
            pictures=regions,
            rows=torch.arange(count),
            words=words,
            context=words,
            objects=words[:, :1],
            lengths=self.lengths[chosen],
            image_ids=chosen,
        )


def toy_config(**values: Any) -> TrainConfig:
    values = {"data": "d", "regions": "r", "steps": 12, "batch_size": 4, "validation": None} | values
    return check_config(values, "test")


def one_process() -> Ranks:
    return Ranks(0, 1, torch.device("cpu"))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def export_words(model: nn.Module, folder: Path, notes: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "words.txt").write_text(str(float(model.words.weight.detach().sum())))  # type: ignore[union-attr]
