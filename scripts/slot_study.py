"""How often the objects that fill the slots of pseudo captions are named by people who captioned the picture.

python scripts/slot_study.py MODEL --data coco --regions regions.h5 --contexts coco/contexts --pictures 400

Slots are filled by attention times the detector's score, as in training, and by attention alone.
"""

import argparse
import sys
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from coscap.contexts.examples import neighbour_batch
from coscap.contexts.folder import open_neighbours
from coscap.contexts.pseudo import slot_tokens
from coscap.data import open_prepared
from coscap.data.batch import Batch
from coscap.errors import UserError
from coscap.models import CosCvae, load_pretrained
from coscap.models.pseudo import SlotFiller, SlotTokens
from coscap.text.vocabulary import SLOT, SLOTS
from coscap.vision.published import open_regions

EACH = 3  # pseudo captions a picture


def fill_both_ways(model: CosCvae, batch: Batch, names: SlotTokens) -> dict[str, torch.Tensor]:
    """The filled captions (B, T) by attention times score and by attention alone; the neighbours' words are read."""
    forced = model.teacher_force(batch, None, torch.arange(len(batch.rows)) + batch.image_ids[0])
    latents, regions = model.infer(forced, "prior"), model.decoder.encode(forced.regions)
    words = model.decoder_words(forced.previous)
    _, attention = model.decoder(words, latents.z, latents.objects, regions, batch.rows, forced.packing)
    alike = replace(batch.pictures, scores=torch.ones_like(batch.pictures.scores))
    found = {}
    for name, pictures in (("attention x score", batch.pictures), ("attention", alike)):
        here = replace(forced, batch=replace(batch, pictures=pictures))
        filler = SlotFiller(here, names, attention.shape[1])
        blocks = enumerate(forced.packing.blocks)
        filled = torch.cat([filler.fill(t, attention[start:end]) for t, (start, end) in blocks])
        found[name] = forced.packing.unpack(filled)
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--regions", required=True)
    parser.add_argument("--contexts", required=True)
    parser.add_argument("--pictures", type=int, default=400)
    asked = parser.parse_args()
    model = load_pretrained(asked.model).model
    assert isinstance(model, CosCvae)
    prepared, store = open_prepared(asked.data), open_regions(asked.regions)
    neighbours = open_neighbours(asked.contexts, prepared)
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    encode = prepared.vocabulary.encode
    class_of = {
        encode([form])[0]: k
        for k, known in enumerate(prepared.classes.classes)
        for form in (known.singular, known.plural)
    }
    images = [
        i
        for i in prepared.images("train").tolist()
        if int(prepared.image_ids[i]) in store and len(neighbours.of(i)) >= EACH
    ]
    chosen = np.random.default_rng(0).choice(images, min(asked.pictures, len(images)), replace=False)
    counts = {"attention x score": [0, 0], "attention": [0, 0]}  # objects named by people, all objects
    for image in chosen.tolist():
        near = neighbours.of(image)[:EACH].astype(np.int64)
        batch = neighbour_batch(prepared, store, image, near, model)
        named = {int(k) for caption in prepared.captions_of(image) for k in prepared.object_classes(caption)}
        for name, filled in fill_both_ways(model, batch, names).items():
            tokens = filled[(batch.context == SLOT) | (batch.context == SLOTS)].tolist()
            counts[name][0] += sum(class_of.get(token) in named for token in tokens)
            counts[name][1] += len(tokens)
    table = Table("slots filled by", "objects", "named by people", title=f"{len(chosen)} pictures")
    for name, (right, total) in counts.items():
        table.add_row(name, str(total), f"{100 * right / total:.1f} %")
    Console().print(table)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
