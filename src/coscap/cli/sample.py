"""`coscap sample`: captions for the pictures of a prepared data set, as COCO results."""

from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coscap.search.config import SearchSettings, search_options

if TYPE_CHECKING:
    from coscap.data.prepared import Prepared
    from coscap.seam import Caption
    from coscap.vision.published import Store

EXAMPLE = (
    "\n\nExample: coscap sample runs/small --data coco --regions regions.h5 --split test -n 20 "
    "--out samples.json"
)


@search_options()
def sample(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run of `coscap train`, a saved model, a hub name, or shipped, the model of the package.",
        ),
    ],
    data: Annotated[Path, typer.Option("--data", help="A prepared data set (`coscap data`). Example: coco.")],
    regions: Annotated[
        Path,
        typer.Option(
            "--regions",
            help="Its regions (`coscap features`), or published bottom-up features. Example: regions.h5.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="COCO results JSON to write. Example: samples.json.")],
    split: Annotated[
        str, typer.Option("--split", help="Which pictures: test, validation, train, a subset, or all.")
    ] = "test",
    n: Annotated[int, typer.Option("-n", min=1, help="Captions for each picture. Example: 20.")] = 20,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Only the first pictures; 0 for all. Example: 100.")
    ] = 0,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out pictures that have no regions.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Pictures read at once. Example: 64.")] = 32,
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or auto: a GPU where there is one.")
    ] = "auto",
    *,
    settings: SearchSettings,
) -> None:
    """Write n captions for each picture of a split.

    Each row has image_id, caption, log_probability and draw; a constrained search adds satisfied.
    `coscap evaluate` and `coscap rerank` read the file. The same seed gives the same captions.
    """
    from coscap.captioner import Captioner
    from coscap.data import open_prepared
    from coscap.files import check_output, write_json
    from coscap.progress import bar, say
    from coscap.search.manner import for_model
    from coscap.vision.published import open_regions

    check_output(out, inputs=[regions])
    prepared, store = open_prepared(data), open_regions(regions)
    ids = _pictures(prepared, store, split, limit, skip_missing)
    from coscap.training.distributed import choose_device

    captioner = Captioner.from_pretrained(model, device=str(choose_device(device)))
    captioner.loaded.check_recipe(store.recipe)
    chosen = for_model(settings, captioner.model, n)
    if chosen != settings:
        say("The model has no latents: words are drawn instead (--do-sample).")
    settings = chosen
    rows: list[dict[str, Any]] = []
    with bar("Captioning", len(ids), "pictures") as advance:
        for start in range(0, len(ids), batch):
            here = ids[start : start + batch]
            found = captioner.generate(
                [store.get(image_id) for image_id in here], n, settings, classes=store.recipe.classes
            )
            for image_id, captions in zip(here, found, strict=True):
                rows += [_row(image_id, caption, settings) for caption in captions]
            advance(len(here))
    write_json(out, rows)
    say(f"{len(rows):,} captions of {len(ids):,} pictures in {out}.")


def _pictures(prepared: "Prepared", store: "Store", split: str, limit: int, skip_missing: bool) -> list[int]:
    """The ids of the pictures to caption; all of them must have regions, or the others are left out."""
    from coscap.errors import UserError

    ids = [int(image_id) for image_id in prepared.image_ids[prepared.images(split)]]
    there = [image_id for image_id in ids if image_id in store]
    if len(there) < len(ids) and not skip_missing:
        missing = next(image_id for image_id in ids if image_id not in store)
        raise UserError(
            f"{store.path} has no regions of {len(ids) - len(there):,} of the {len(ids):,} pictures of "
            f"{split!r} (the first is {missing}); make them with `coscap features`, or pass --skip-missing."
        )
    if not there:
        raise UserError(f"{store.path} has regions of none of the pictures of {split!r}; check both paths.")
    return there[: limit or None]


def _row(image_id: int, caption: "Caption", settings: SearchSettings) -> dict[str, Any]:
    row = {
        "image_id": image_id,
        "caption": caption.text,
        "log_probability": round(caption.log_probability, 5),
        "draw": caption.draw,
    }
    return {**row, "satisfied": caption.satisfied} if settings.search == "constrained" else row


sample.__doc__ = cleandoc(sample.__doc__ or "") + EXAMPLE
