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
    onnx: Annotated[Path, typer.Option("--onnx", help="The folder to write, e.g. captioner-onnx.")],
) -> None:
    """Write a captioner as ONNX graphs that onnxruntime runs without torch, checked against torch.

    The folder holds the graphs, the vocabulary and a manifest; examples/onnx_caption.py captions with it.

    Example: coscap export shipped --onnx captioner-onnx
    """
    from importlib.util import find_spec

    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise UserError("coscap export needs onnx and onnxscript; run: pip install 'coscap[export]'.")
    from coscap.export.onnx import export as write
    from coscap.files import check_output
    from coscap.models.hub import load_pretrained
    from coscap.shipped import model_folder

    check_output(onnx, folder=True)
    written = write(load_pretrained(model_folder(run)), onnx)
    for name, size in written.files.items():
        typer.echo(f"{onnx / name}  {size / 1e6:.1f} MB")
    typer.echo(f"checked against torch: the largest difference is {written.difference:.1e}")
