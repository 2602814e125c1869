"""Options that several verbs have, with one name and one help text."""

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="A run of `coscap train`, a saved model, a hub name, or shipped, the model of the package.",
    ),
]
Variety = Annotated[
    float,
    typer.Option(min=0, max=1, help="0 keeps the likeliest captions of those drawn, 1 the most different."),
]
Accurate = Annotated[bool, typer.Option("--accurate", help="Safe captions: a low temperature and variety.")]
Diverse = Annotated[bool, typer.Option("--diverse", help="Captions as different as they get.")]
