"""`coscap contexts`: which contexts of other pictures fit each picture."""

from pathlib import Path
from typing import Annotated

import typer


def contexts(
    data: Annotated[Path, typer.Argument(help="A prepared data set, made by `coscap data`.", metavar="DIR")],
    regions: Annotated[
        Path, typer.Option("--regions", help="The region store of its pictures. Example: regions.h5.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where the neighbours go; DIR/contexts by default."),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--neighbours", min=1, help="Neighbours of each picture.")] = 8,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the joint embedding.")] = 8,
    width: Annotated[int, typer.Option(min=8, help="Width of the joint embedding.")] = 256,
    pooling: Annotated[str, typer.Option(help="mean or attention: how regions become one vector.")] = "mean",
    negatives: Annotated[
        str, typer.Option(help="hardest (VSE++), mean or softmax: what a pair is held against in its batch.")
    ] = "softmax",
    own: Annotated[
        float,
        typer.Option(
            min=0,
            help="How much a picture's own contexts count in what is searched for; 0: the picture alone.",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same neighbours.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    examples: Annotated[
        int, typer.Option(min=0, help="Show this many pictures with their captions and neighbours.")
    ] = 5,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", help="A trained COS-CVAE that fills the slots of the examples: pseudo captions."
        ),
    ] = None,
) -> None:
    """Learn a joint embedding of pictures and contexts, and find the contexts nearest to each picture.

    Example: coscap contexts coco --regions regions.h5
    """
    from coscap.contexts.build import ContextSettings, build_contexts
    from coscap.contexts.examples import show_examples
    from coscap.data import open_prepared
    from coscap.errors import UserError
    from coscap.files import check_output
    from coscap.vision.published import open_regions

    if pooling not in ("mean", "attention"):
        raise UserError(f"--pooling is {pooling!r}, and it is mean or attention.")
    if negatives not in ("hardest", "mean", "softmax"):
        raise UserError(f"--negatives is {negatives!r}, and it is hardest, mean or softmax.")
    settings = ContextSettings(
        k=k,
        negatives=negatives,  # type: ignore[arg-type]
        epochs=epochs,
        width=width,
        pooling=pooling,
        seed=seed,
        own=own,
    )
    prepared, store = open_prepared(data), open_regions(regions)
    target = out or data / "contexts"
    check_output(target, folder=True)
    neighbours = build_contexts(prepared, store, target, settings, device, say=typer.echo)
    typer.echo(f"{len(neighbours.images):,} pictures with up to {k} neighbours each are in {target}.")
    if examples:
        show_examples(prepared, store, neighbours, examples, model, device)
