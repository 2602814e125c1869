"""Pictures with their human captions, retrieved contexts and pseudo captions, as the paper's table 1."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from coscap.contexts.folder import Neighbours
from coscap.contexts.pseudo import PseudoTerm, caption_tensors, slot_tokens
from coscap.data.batch import Batch
from coscap.data.collate import region_batch
from coscap.data.prepared import Prepared
from coscap.errors import UserError
from coscap.models.cos_cvae import CosCvae
from coscap.shipped import model_folder
from coscap.vision.published import Store


@dataclass(frozen=True)
class Example:
    image_id: int
    humans: list[str]
    contexts: list[str]
    pseudo: list[str]  # empty without a model


def examples(
    prepared: Prepared,
    store: Store,
    neighbours: Neighbours,
    images: list[int],
    model: CosCvae | None,
    device: str = "cpu",
) -> list[Example]:
    """The examples of these pictures (indices of the data set); a model fills the slots."""
    found = []
    for image in images:
        near = neighbours.of(image).astype(np.int64)
        units = prepared.vocabulary.units
        contexts = [
            " ".join(units[word] for word in prepared.context(int(caption)).tolist()) for caption in near
        ]
        pseudo: list[str] = []
        if model is not None and len(near):
            pseudo = pseudo_captions(prepared, store, neighbours, image, near, model, device)
        humans = [prepared.text(caption) for caption in prepared.captions_of(image)]
        found.append(Example(int(prepared.image_ids[image]), humans, contexts, pseudo))
    return found


def neighbour_batch(
    prepared: Prepared, store: Store, image: int, near: NDArray[np.int64], model: CosCvae
) -> Batch:
    """One picture, with the regions that the model looks at, and captions of its neighbours; near: their numbers."""
    words, context, lengths = caption_tensors(prepared, near)
    image_id = int(prepared.image_ids[image])
    return Batch(
        pictures=region_batch([store.get(image_id)], model.config.detections, model.config.grid),
        rows=torch.zeros(len(near), dtype=torch.long),
        words=words,
        context=context,
        objects=words.new_zeros(len(near), 1),
        lengths=lengths,
        image_ids=torch.tensor([image_id]),
    )


@torch.no_grad()
def pseudo_captions(
    prepared: Prepared,
    store: Store,
    neighbours: Neighbours,
    image: int,
    near: NDArray[np.int64],
    model: CosCvae,
    device: str,
) -> list[str]:
    """The neighbours' captions with their slots filled as training fills them."""
    batch = neighbour_batch(prepared, store, image, near, model).to(device)
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    keys = torch.arange(len(near), device=device)
    _, filled = PseudoTerm(prepared, neighbours, names).pseudo(model.eval(), batch, keys)
    return [prepared.vocabulary.decode(row) for row in filled.tolist()]


def show_examples(
    prepared: Prepared, store: Store, neighbours: Neighbours, count: int, model: Path | None, device: str
) -> None:
    from rich.console import Console
    from rich.table import Table

    filler: CosCvae | None = None
    if model is not None:
        from coscap.models import load_pretrained

        loaded = load_pretrained(model_folder(model))
        if not loaded.model.learns_from_pseudo:
            raise UserError(f"{model} is a {loaded.model.title}, which cannot fill slots; give a COS-CVAE.")
        loaded.check_vocabulary(prepared.vocabulary)
        loaded.check_recipe(store.recipe)
        filler = cast(CosCvae, loaded.model)
    chosen = np.random.default_rng(0).choice(
        neighbours.images, min(count, len(neighbours.images)), replace=False
    )
    table = Table("picture", "human captions", "retrieved contexts", "pseudo captions", show_lines=True)
    for example in examples(prepared, store, neighbours, sorted(chosen.tolist()), filler, device):
        table.add_row(
            str(example.image_id),
            *(
                "\n".join(f"- {line}" for line in lines)
                for lines in (example.humans, example.contexts, example.pseudo)
            ),
        )
    Console().print(table)
