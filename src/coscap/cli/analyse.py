"""`coscap analyse`: what the two latents of a COS-CVAE do."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def analyse(
    model: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run of `coscap train` or a saved COS-CVAE.")
    ],
    data: Annotated[Path, typer.Option("--data", help="A prepared data set (`coscap data`). Example: coco.")],
    regions: Annotated[
        list[Path],
        typer.Option("--regions", help="Regions of its pictures; may be repeated. Example: regions.h5."),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The folder to write: analysis.md, analysis.json, images/.")
    ],
    split: Annotated[str, typer.Option("--split", help="Which pictures. Example: test.")] = "validation",
    pictures: Annotated[
        int, typer.Option("--pictures", min=2, help="How many pictures, drawn at random. Example: 200.")
    ] = 100,
    draws: Annotated[
        int,
        typer.Option("--draws", min=2, help="Noises of z^m, crossed with as many of z^o. Example: 8."),
    ] = 8,
    photo: Annotated[
        list[Path] | None,
        typer.Option(
            "--photo",
            help="A photograph for the figures; may be repeated. Example: --photo examples/cat.jpg.",
        ),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--ways",
            help="Of which of these photographs latents are moved; the first two if not given. Example: cat.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of pictures and noise. Example: 1.")] = 0,
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or auto: a GPU where there is one.")
    ] = "auto",
) -> None:
    """Swap the latents of pictures, move them one by one, and measure what each explains.

    Numbers are of pictures of a data set; figures show the photographs that are given.

    Example: coscap analyse runs/small --data coco --regions regions.h5 --photo examples/cat.jpg --out docs
    """
    from coscap.analysis.page import page
    from coscap.analysis.run import AnalysisRequest
    from coscap.analysis.run import analyse as run
    from coscap.errors import UserError
    from coscap.files import check_output, write_json, write_text
    from coscap.pages import shown
    from coscap.training.distributed import choose_device

    check_output(out, folder=True)
    photos = photo or []
    unknown = [name for name in ways or [] if name not in [path.stem for path in photos]]
    if unknown:
        raise UserError(f"--ways {unknown[0]}: no --photo has that name; give the photograph, too.")
    request = AnalysisRequest(
        model, data, tuple(regions), split, pictures, draws, seed, str(choose_device(device))
    )
    found = run(request, photos, ways or [path.stem for path in photos[:2]], out / "images")
    command = " ".join(["coscap", *(shown(word) for word in sys.argv[1:])])
    write_text(out / "analysis.md", page(found, "images", command))
    write_json(out / "analysis.json", found.json(), indent=1)
    typer.echo(f"{out / 'analysis.md'}: {found.pictures:,} pictures of {split}.", err=True)
