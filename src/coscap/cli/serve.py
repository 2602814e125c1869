"""`coscap serve`: captions over HTTP, and a page in the browser."""

from typing import Annotated

import typer

from coscap.errors import UserError


def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    model: Annotated[
        str, typer.Option("--model", help="A run of `coscap train`, a saved model, or a hub name.")
    ] = "shipped",
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
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request is given up.")] = 60.0,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
) -> None:
    """Answer requests for captions over HTTP, with a page at the same address.

    Example: coscap serve --port 8000, then open http://127.0.0.1:8000/
    """
    try:
        from coscap.serve.run import run
    except ImportError as error:
        raise UserError(
            f"The server needs the package {error.name}; run: pip install 'coscap[serve]'."
        ) from None
    from coscap.serve.limits import Limits

    limits = Limits(
        photos=max_photos,
        bytes=max_bytes,
        pixels=max_pixels,
        captions=max_n,
        seconds=timeout,
        waiting=max_waiting,
        batch=batch,
    )
    run(model, device, host, port, limits, token, allow_host or [])
