"""Options that several verbs have, with one name and one help text."""

from typing import Annotated, Literal

import typer

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="A run of `coscap train`, a saved model, a hub name, or shipped, the model of the package.",
    ),
]
Detector = Annotated[
    str | None,
    typer.Option(
        "--detector",
        help="What finds the regions: builtin, hf:NAME_OR_DIR or torchvision:NAME. Unset: the one that the model was "
        "trained with.",
    ),
]
BankChoice = Annotated[
    str,
    typer.Option(
        "--bank",
        help="Captions of similar pictures to agree with: a folder of `coscap bank`, shipped, or none, which shows "
        "captions by likelihood alone.",
    ),
]
Runtime = Annotated[
    Literal["onnx", "torch"] | None,
    typer.Option(
        "--runtime",
        help="onnx (onnxruntime; the model needs graphs, see `coscap export`) or torch. Unset: onnx where there are "
        "graphs.",
    ),
]
Precision = Annotated[
    Literal["float32", "int8"] | None,
    typer.Option(
        "--precision",
        help="Of the captioner's large products in onnxruntime. float32 gives the captions of torch, int8 takes half "
        "the time or less. Unset: int8 where the model has it, as that of the package.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Variety = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="0 keeps the best captions of those drawn, 1 the most different. Unset: 0.5.",
    ),
]
Accurate = Annotated[
    bool,
    typer.Option(
        "--accurate",
        help="Safe captions: a low latent temperature and variety, and a beam's captions among those to choose from.",
    ),
]
Diverse = Annotated[bool, typer.Option("--diverse", help="Captions as different as they get.")]
