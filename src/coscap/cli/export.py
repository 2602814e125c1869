"""`coscap export`: a captioner as ONNX."""

from pathlib import Path
from typing import Annotated

import typer

from coscap.errors import UserError


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run of `coscap train`, a saved model, a hub name, or shipped, the model of the package.",
        ),
    ],
    onnx: Annotated[
        Path | None, typer.Option("--onnx", help="The folder to write, e.g. captioner-onnx.")
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Put the graphs beside the weights, in the model's own folder.")
    ] = False,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Add a graph with 8-bit products, which is then used unless float32 is asked for: twice as fast, but "
            "some captions differ from those of torch.",
        ),
    ] = False,
) -> None:
    """Write a captioner as ONNX graphs that onnxruntime runs without torch, checked against torch.

    The folder holds weights, graphs, vocabulary and a manifest; --model takes it, and examples/onnx_caption.py captions
    with it without coscap.

    Example: coscap export shipped --onnx captioner-onnx
    """
    from coscap.extras import needed
    from coscap.files import check_output
    from coscap.shipped import model_folder

    if (onnx is None) != here:
        raise UserError("coscap export writes either --onnx FOLDER or, with --here, the model's own folder.")
    if onnx is not None:
        check_output(onnx, folder=True)
    with needed("coscap export"):
        from coscap.export.onnx import add_graphs
        from coscap.export.onnx import export as write
        from coscap.models.hub import load_pretrained

    source = model_folder(run)
    if onnx is None and not Path(source).is_dir():
        raise UserError(f"--here: {run} is no folder; write its graphs to a folder with --onnx.")
    loaded = load_pretrained(source)
    folder = Path(source) if onnx is None else onnx
    written = add_graphs(loaded, folder, int8) if onnx is None else write(loaded, folder, int8)
    for name, size in written.files.items():
        typer.echo(f"{folder / name}  {size / 1e6:.1f} MB")
    typer.echo(f"checked against torch: the largest difference is {written.difference:.1e}")
    if written.int8_difference is not None:
        typer.echo(f"in int8 it is {written.int8_difference:.1e}")
