"""`coscap serve`: captions over HTTP, and a page in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from coscap.cli.choices import Model
from coscap.errors import UserError


def serve(
    samples: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[SAMPLES...]",
            help="With --study: a file of captions (`coscap sample`) for each method. Example: a.json b.json.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    model: Model = "shipped",
    token: Annotated[
        str | None,
        typer.Option(envvar="COSCAP_TOKEN", help="Ask for this word: Authorization: Bearer TOKEN."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name that the server answers to, as behind a proxy. Example: captions.example."
        ),
    ] = None,
    max_photos: Annotated[int, typer.Option(min=1, help="Photographs in a request.")] = 16,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 32_000_000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of a photograph.")] = 50_000_000,
    max_n: Annotated[int, typer.Option(min=1, max=100, help="Captions of a photograph.")] = 20,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Photographs that are captioned together.")] = 16,
    voices: Annotated[int, typer.Option(min=1, help="Such batches in work at once.")] = 2,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request is given up.")] = 60.0,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    study: Annotated[
        bool,
        typer.Option(
            "--study", help="Let people rate captions blindly instead: coscap serve --study a.json b.json."
        ),
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            help="The study's pictures, by image id; the folder of the first file if left out. Example: val2014."
        ),
    ] = None,
    database: Annotated[Path, typer.Option(help="The study's ratings, SQLite.")] = Path("study.sqlite"),
    captions: Annotated[int, typer.Option(min=1, help="Captions that the study shows of each method.")] = 5,
    pictures: Annotated[int, typer.Option(min=0, help="Pictures of the study; 0 for all. Example: 50.")] = 0,
) -> None:
    """Answer requests for captions over HTTP, with a page at the same address.

    Example: coscap serve --port 8000, then open http://127.0.0.1:8000/
    """
    if bool(samples) != study:
        raise UserError("Files of captions and --study belong together: coscap serve --study a.json b.json.")
    try:
        from coscap.serve.run import Address, run, run_study
    except ImportError as error:
        raise UserError(
            f"The server needs the package {error.name}; run: pip install 'coscap[serve]'."
        ) from None
    from coscap.serve.limits import Limits

    address = Address(host, port, token, tuple(allow_host or ()))
    if study:
        return run_study(samples or [], images, database, captions, pictures, address)
    limits = Limits(
        photos=max_photos,
        bytes=max_bytes,
        pixels=max_pixels,
        captions=max_n,
        seconds=timeout,
        waiting=max_waiting,
        batch=batch,
        voices=voices,
    )
    run(model, device, limits, address)
