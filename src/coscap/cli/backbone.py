"""`coscap backbone`: tune the built-in vision on the words of captions."""

from pathlib import Path

import typer


def backbone(
    data: Path = typer.Argument(..., metavar="DATA", help="A prepared data set, e.g. data/coco."),
    pictures: Path = typer.Option(..., "--pictures", help="The folder of its pictures, e.g. train2017."),
    out: Path = typer.Option(..., "--out", help="The run folder, e.g. runs/eyes."),
    start: str = typer.Option("", "--start", help="Begin with the network of another run, e.g. runs/eyes."),
    words: int = typer.Option(2000, min=10, help="How many content words to learn, e.g. 1500."),
    epochs: float = typer.Option(2.0, min=0.001, help="Passes over the pictures, e.g. 5."),
    side: int = typer.Option(192, min=64, help="Pixels of a crop's side, e.g. 256."),
    batch_size: int = typer.Option(64, min=1, help="Pictures in a step, e.g. 128."),
    lr: float = typer.Option(5e-4, min=0, help="Learning rate of the network, e.g. 2e-4."),
    head_lr: float = typer.Option(2e-3, min=0, help="Learning rate of the words' head, e.g. 1e-3."),
    frozen: int = typer.Option(10, min=0, help="Convolutions from the picture on that stay as they are."),
    precision: str = typer.Option("bf16", help="bf16 or fp32."),
    limit: int = typer.Option(0, min=0, help="Take only so many pictures, e.g. 32000; 0 for all."),
    validation: int = typer.Option(2000, min=1, help="Validation pictures, e.g. 500."),
    seed: int = typer.Option(0, help="Of order, crops and flips, e.g. 1."),
    workers: int = typer.Option(0, min=0, help="Processes that read pictures beside this one, e.g. 4."),
    device: str = typer.Option("cpu", help="cpu or cuda."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on from the last checkpoint in --out, if there is one."
    ),
) -> None:
    """Teach the built-in vision the words that people write about pictures like yours.

    The network learns which content words the captions of a picture have, and where their evidence is. A run that was
    broken off goes on with --resume to the same weights.

    Example: coscap backbone data/coco --pictures train2017 --out runs/eyes --epochs 2
    """
    from coscap.errors import UserError
    from coscap.files import check_output
    from coscap.training.backbone import BackboneConfig, tune_backbone

    check_output(out, folder=True)
    if precision not in ("bf16", "fp32"):
        raise UserError(f"--precision is {precision}; give bf16 or fp32.")
    config = BackboneConfig(
        data=str(data), pictures=str(pictures), start=start, words=words, epochs=epochs, side=side,
        batch_size=batch_size, lr=lr, head_lr=head_lr, frozen=frozen, precision=precision,  # type: ignore[arg-type]
        limit=limit, validation=validation, seed=seed,
    )  # fmt: skip
    if tune_backbone(config, out, resume=resume, device=device, workers=workers) == "interrupted":
        typer.echo("Saved. Go on with the same command and --resume.", err=True)
        raise typer.Exit(130)
    typer.echo(f"{out}/best: the tuned network and its words")
