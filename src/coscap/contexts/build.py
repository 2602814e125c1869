"""From a prepared data set to the neighbours of each picture: train the embedding, embed, search, store.

{x^m, I} ─▶ joint embedding ─▶ vectors of pictures and of distinct contexts ─▶ k nearest of each picture
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coscap.contexts.embedding import EmbeddingConfig, JointEmbedding, Negatives, contrastive_loss, recall
from coscap.contexts.folder import FORMAT, Neighbours, open_neighbours, save_neighbours
from coscap.contexts.neighbours import Contexts, distinct_contexts, nearest
from coscap.contexts.pseudo import caption_tensors
from coscap.data.batch import Batch
from coscap.data.loader import Loader, PictureLoader
from coscap.data.prepared import Prepared
from coscap.files import whole_folder
from coscap.progress import bar
from coscap.text.vocabulary import SLOT, SLOTS
from coscap.vision.published import Store

Say = Callable[[str], None]


class ContextSettings(BaseModel):
    """How neighbours are found."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    k: int = Field(default=8, gt=0)
    """Neighbours of each picture."""
    epochs: int = Field(default=8, gt=0)
    """Epochs of the joint embedding; an epoch is one caption of each picture."""
    batch: int = Field(default=256, gt=1)
    lr: float = Field(default=1e-3, gt=0)
    width: int = Field(default=256, gt=0)
    """Width of the joint space; the search takes time in proportion."""
    pooling: str = "mean"
    """How the regions of a picture become one vector: mean or attention."""
    negatives: Negatives = "softmax"
    """What a pair is held against in its batch: the hardest negative (VSE++), the mean of all, or all by a
    softmax."""
    seed: int = 0
    need_slot: bool = True
    """Leave out contexts in which no object was named: they cannot name another picture's objects."""
    longest: int = Field(default=20, gt=0)
    """Leave out longer contexts."""
    own: float = Field(default=1.0, ge=0)
    """How much a picture's own contexts count in what is searched for, beside the picture itself; 0 is the
    paper's way. Pictures without captions are searched for by themselves."""
    recall_pictures: int = Field(default=1000, ge=0)
    """Validation pictures among which recall is measured."""


def build_contexts(
    prepared: Prepared,
    store: Store,
    out: Path,
    settings: ContextSettings,
    device: str = "cpu",
    say: Say = print,
) -> Neighbours:
    """Train, search and write the folder `out`; what is there already and was made the same way is used."""
    from safetensors.torch import save_file

    regions = hashlib.sha256(np.ascontiguousarray(store.ids).tobytes()).hexdigest()
    made_from = {
        "format": FORMAT,
        "data": prepared.digest,
        "recipe": store.recipe.name,
        "regions": regions,
        "settings": settings.model_dump(),
    }
    if known := _known(out, prepared, made_from):
        say(f"{out} holds the neighbours of these pictures already.")
        return known
    model, history = train_embedding(prepared, store, settings, device, say)
    images, pictures, room = embed_pictures(model, prepared, store, device)
    contexts, dropped = _distinct(prepared, settings)
    say(f"{len(contexts.caption):,} distinct contexts; left out: " + _counts(dropped))
    numbers, scores = _search(model, prepared, images, pictures, room, contexts, settings, device)
    captions = np.where(numbers >= 0, contexts.caption[numbers], -1).astype(np.int32)
    manifest: dict[str, Any] = made_from | {
        "embedding": model.config.model_dump(),
        "epochs": history,
        "distinct contexts": len(contexts.caption),
        "left out": dropped,
        "pictures": len(images),
        "pictures without neighbours": int((captions[:, 0] < 0).sum()),
    }
    neighbours = Neighbours(manifest, images, captions, scores)
    with whole_folder(out) as folder:
        save_file(model.state_dict(), folder / "embedding.safetensors")
        save_neighbours(folder, neighbours)
    return neighbours


def _known(out: Path, prepared: Prepared, made_from: dict[str, Any]) -> Neighbours | None:
    """The neighbours in `out`, if they are of the same data, regions and settings."""
    if not (out / "manifest.json").is_file():
        return None
    known = open_neighbours(out, prepared)
    return known if made_from.items() <= known.manifest.items() else None


def train_embedding(
    prepared: Prepared, store: Store, settings: ContextSettings, device: str, say: Say
) -> tuple[JointEmbedding, list[dict[str, float]]]:
    """The embedding and its figures after each epoch."""
    torch.manual_seed(settings.seed)
    config = EmbeddingConfig(
        vocabulary=len(prepared.vocabulary),
        region_width=store.recipe.width,
        classes=len(store.recipe.classes) + len(store.recipe.words),
        width=settings.width,
        pooling=settings.pooling,  # type: ignore[arg-type]
    )
    model = JointEmbedding(config).to(device)
    loader = Loader(prepared, store, "train", settings.batch, settings.seed, captions="one")
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr)
    steps = settings.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.lr, total_steps=steps + 1)
    history = []
    with bar("Joint embedding", steps, "steps") as advance:
        for epoch in range(settings.epochs):
            total, count = 0.0, 0
            model.train()
            for batch in loader:
                loss = embedding_loss(model, batch.to(device), settings.negatives)
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                optimiser.step()
                schedule.step()
                total, count = total + loss.item(), count + 1
                advance()
            figures = {"epoch": epoch + 1.0, "loss": total / count} | measure_recall(
                model, prepared, store, settings, device
            )
            history.append(figures)
            say("embedding: " + ", ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    return model, history


def embedding_loss(model: JointEmbedding, batch: Batch, negatives: Negatives) -> Tensor:
    pictures = model.embed_pictures(batch.pictures)[batch.rows]  # (B, W)
    contexts = model.embed_contexts(batch.context, batch.lengths)  # (B, W)
    same = batch.rows[:, None] == batch.rows[None, :]
    same = same | (batch.context[:, None] == batch.context[None, :]).all(2)
    return contrastive_loss(pictures, contexts, same, model.config.margin, negatives)


@torch.no_grad()
def measure_recall(
    model: JointEmbedding, prepared: Prepared, store: Store, settings: ContextSettings, device: str
) -> dict[str, float]:
    """Recall@1, 5, 10 of a picture's own contexts and of a context's own picture, on validation pictures."""
    if not settings.recall_pictures or not len(prepared.images("validation")):
        return {}
    images, pictures, _ = embed_pictures(
        model, prepared, store, device, "validation", settings.recall_pictures
    )
    owned = [list(prepared.captions_of(int(image))) for image in images]
    captions = np.array([caption for mine in owned for caption in mine], np.int64)
    owner = torch.tensor([row for row, mine in enumerate(owned) for _ in mine], device=device)
    vectors = embed_captions(model, prepared, captions, device)
    return recall(pictures, vectors, owner)


@torch.no_grad()
def embed_pictures(
    model: JointEmbedding,
    prepared: Prepared,
    store: Store,
    device: str,
    split: str = "all",
    most: int | None = None,
) -> tuple[NDArray[np.int64], Tensor, NDArray[np.int64]]:
    """Indices of the pictures that have regions, rising; their vectors (I, W); how many objects each shows."""
    model.eval()
    indices, vectors, room, done = [], [], [], 0
    for batch in PictureLoader(prepared, store, split, 512):
        regions = batch.pictures.to(device)
        indices.append(batch.images.numpy())
        vectors.append(model.embed_pictures(regions))
        room.append(((regions.labels >= 0) & regions.mask).sum(1).cpu().numpy())
        done += len(indices[-1])
        if most is not None and done >= most:
            break
    images = np.concatenate(indices)
    order = np.argsort(images)[:most]
    return images[order], torch.cat(vectors)[torch.from_numpy(order).to(device)], np.concatenate(room)[order]


@torch.no_grad()
def embed_captions(
    model: JointEmbedding, prepared: Prepared, captions: NDArray[np.int64], device: str, block: int = 2048
) -> Tensor:
    """Vectors of these captions' contexts, (C, W); sorted by length inside, so that little is padding."""
    model.eval()
    order = np.argsort(prepared.lengths(captions), kind="stable")
    vectors = torch.empty(len(captions), model.config.width, device=device)
    for start in range(0, len(order), block):
        chosen = order[start : start + block]
        _, context, lengths = caption_tensors(prepared, captions[chosen])
        vectors[torch.from_numpy(chosen)] = model.embed_contexts(context.to(device), lengths)
    return vectors


def _distinct(prepared: Prepared, settings: ContextSettings) -> tuple[Contexts, dict[str, int]]:
    return distinct_contexts(
        lambda caption: tuple(prepared.context(caption).tolist()),
        prepared.captions_in("train"),
        prepared.captions,
        slot_ids=(SLOT, SLOTS),
        longest=settings.longest,
        need_slot=settings.need_slot,
    )


def _search(
    model: JointEmbedding,
    prepared: Prepared,
    images: NDArray[np.int64],
    pictures: Tensor,
    room: NDArray[np.int64],
    contexts: Contexts,
    settings: ContextSettings,
    device: str,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    vectors = embed_captions(model, prepared, contexts.caption, device)
    own = []
    for image in images.tolist():
        mine = contexts.of_caption[np.arange(*_bounds(prepared, image))]
        own.append(np.unique(mine[mine >= 0]))
    pictures = queries(pictures, vectors, own, settings.own)
    with bar("Neighbours", len(images), "pictures") as advance:
        return nearest(
            pictures,
            vectors,
            own,
            settings.k,
            slots=contexts.slots,
            room=room,
            advance=advance,
        )


def queries(pictures: Tensor, contexts: Tensor, own: list[NDArray[np.int64]], weight: float) -> Tensor:
    """Unit vectors between each picture (I, W) and the mean of its own contexts, rows of contexts (U, W)."""
    counts = torch.tensor([len(mine) for mine in own], device=pictures.device)
    rows = torch.arange(len(own), device=pictures.device).repeat_interleave(counts)
    numbers = torch.from_numpy(np.concatenate([*own, np.zeros(0, np.int64)])).to(pictures.device)
    means = torch.zeros_like(pictures).index_add_(0, rows, contexts[numbers]) / counts.clamp(min=1)[:, None]
    return torch.nn.functional.normalize(pictures + weight * means, dim=1)


def _bounds(prepared: Prepared, image: int) -> tuple[int, int]:
    captions = prepared.captions_of(image)
    return captions.start, captions.stop


def _counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in dropped.items())
