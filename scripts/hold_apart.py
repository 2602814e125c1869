"""Measure on validation pictures what changes when one latent is held and the other drawn anew.

python scripts/hold_apart.py RUN_OR_MODEL --data coco --regions regions.h5 --pictures 200
"""

import argparse

from rich.console import Console
from rich.table import Table

from coscap.analysis.apart import hold_apart
from coscap.data import open_prepared
from coscap.data.collate import region_batch
from coscap.models import CosCvae, load_pretrained
from coscap.vision.published import open_regions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--regions", required=True)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.0)
    asked = parser.parse_args()
    loaded = load_pretrained(asked.model)
    assert isinstance(loaded.model, CosCvae) and loaded.classes is not None
    prepared, store = open_prepared(asked.data), open_regions(asked.regions)
    ids = [int(i) for i in prepared.image_ids[prepared.images("validation")] if int(i) in store]
    pictures = [region_batch([store.get(image_id)]) for image_id in ids[: asked.pictures]]
    found = hold_apart(
        loaded.model, pictures, loaded.vocabulary, loaded.classes, temperature=asked.temperature
    )
    table = Table("held", "pairs", "objects kept", "context kept", "same objects", "same context")
    for name, told in {"z^m": found["context"], "z^o": found["objects"], "neither": found["neither"]}.items():
        figures = (told.objects_kept, told.context_kept, told.same_objects, told.same_context)
        table.add_row(name, str(told.pairs), *(f"{100 * figure:.1f} %" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
