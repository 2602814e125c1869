"""`coscap train`: learn a captioner from prepared captions and regions."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "\n\nExample: coscap train configs/small.yaml --out runs/small --set batch_size=50"


def _fields(value: bool) -> None:
    if not value:
        return
    from rich.console import Console
    from rich.table import Table

    from coscap.training.config import describe

    table = Table("field", "default", "what it says")
    for name, default, text in describe():
        table.add_row(name, default, text)
    Console().print(table)
    raise typer.Exit


def train(
    config: Annotated[Path, typer.Argument(help="A YAML file such as configs/small.yaml.", metavar="CONFIG")],
    out: Annotated[
        Path, typer.Option("--out", help="The run folder: weights, checkpoints, log. Example: runs/small.")
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in --out, if there is one.")
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a field; repeatable. Example: optimiser.lr=0.001.", metavar="KEY=VALUE"
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or auto: a GPU where there is one.")
    ] = "auto",
    fields: Annotated[
        bool,
        typer.Option("--fields", callback=_fields, is_eager=True, help="List the fields of CONFIG."),
    ] = False,
) -> None:
    """Train a captioner as CONFIG says.

    A run that was broken off, even by kill -9, goes on with --resume to the same weights. Ctrl-C saves first.
    Several processes: python -m torch.distributed.run --nproc_per_node 2 -m coscap train CONFIG --out RUN
    """
    from coscap.files import check_output
    from coscap.shipped import model_folder
    from coscap.training.config import read_config
    from coscap.training.distributed import leave
    from coscap.training.run import train_run

    wanted = read_config(config, change)
    if wanted.start is not None:
        wanted = wanted.model_copy(update={"start": str(model_folder(wanted.start))})
    check_output(out, folder=True)
    outcome = train_run(wanted, out, resume=resume, device=device)
    if outcome == "interrupted":
        changes = "".join(f" --set {item}" for item in change or [])
        typer.echo(f"Saved. Go on with: coscap train {config} --out {out}{changes} --resume", err=True)
    code = 130 if outcome == "interrupted" else 0
    leave(code)
    raise typer.Exit(code)


train.__doc__ = (train.__doc__ or "") + EXAMPLE
