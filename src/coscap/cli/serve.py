"""`coscap serve`: captions over HTTP, and a page in the browser."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from coscap.cli.choices import BankChoice, Model, Precision, Runtime
from coscap.errors import UserError

_ACCESS, _LIMITS, _STUDY = "Who may ask", "Limits", "Study"
TOKEN = "COSCAP_TOKEN"


class LogFormat(StrEnum):
    text = "text"
    json = "json"
    none = "none"


def _limit(help: str, low: float = 1, high: float | None = None) -> Any:
    return typer.Option(min=low, max=high, help=help, rich_help_panel=_LIMITS)


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
    bank: BankChoice = "shipped",
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    runtime: Runtime = None,
    precision: Precision = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="A line for each request on standard error: text, json or none.")
    ] = LogFormat.text,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds to finish what was taken after SIGTERM or Ctrl-C.")
    ] = 30.0,
    token: Annotated[
        list[str] | None,
        typer.Option(
            envvar=TOKEN,
            help="Ask for this word: Authorization: Bearer TOKEN. Repeatable, one for each client.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that the server answers to, as behind a proxy; others get 421. Example: captions.example.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="The address of a proxy whose X-Forwarded-For is believed; 127.0.0.1 and ::1 if left out.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    max_photos: Annotated[int, _limit("Photographs in a request.")] = 16,
    max_bytes: Annotated[int, _limit("Bytes of a request.")] = 32_000_000,
    max_pixels: Annotated[int, _limit("Pixels of a photograph.")] = 50_000_000,
    max_request_pixels: Annotated[int, _limit("Pixels of all photographs in a request.")] = 200_000_000,
    max_n: Annotated[int, _limit("Captions of a photograph.", high=100)] = 20,
    max_waiting: Annotated[
        int, _limit("Requests under way at once; three quarters of them of one client.")
    ] = 128,
    max_connections: Annotated[int, _limit("Open connections.")] = 512,
    max_rate: Annotated[
        float, _limit("Requests that a client may send a minute; 0 for any number.", 0)
    ] = 0.0,
    batch: Annotated[int, _limit("Photographs that are captioned together.")] = 16,
    workers: Annotated[int, _limit("Such batches in work at once.")] = 2,
    timeout: Annotated[float, _limit("Seconds until a request is given up.", 0.1)] = 60.0,
    study: Annotated[
        bool,
        typer.Option(
            "--study",
            help="Let people rate captions blindly instead: coscap serve --study a.json b.json.",
            rich_help_panel=_STUDY,
        ),
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            help="The study's pictures, by image id; the folder of the first file if left out. Example: val2014.",
            rich_help_panel=_STUDY,
        ),
    ] = None,
    database: Annotated[
        Path, typer.Option(help="The study's ratings, SQLite.", rich_help_panel=_STUDY)
    ] = Path("study.sqlite"),
    captions: Annotated[
        int, typer.Option(min=1, help="Captions that the study shows of each method.", rich_help_panel=_STUDY)
    ] = 5,
    pictures: Annotated[
        int,
        typer.Option(min=0, help="Pictures of the study; 0 for all. Example: 50.", rich_help_panel=_STUDY),
    ] = 0,
) -> None:
    """Answer requests for captions over HTTP, with a page at the same address.

    Example: coscap serve --port 8000, then open http://127.0.0.1:8000/
    """
    if bool(samples) != study:
        raise UserError("Files of captions and --study belong together: coscap serve --study a.json b.json.")
    if not token and os.environ.get(TOKEN, "unset").strip() == "":
        raise UserError(f"{TOKEN} is set, but empty; give it a word, or unset it to serve without a token.")
    try:
        from coscap.serve.run import Address, run, run_study
    except ImportError as error:
        raise UserError(
            f"The server needs the package {error.name}; run: pip install 'coscap[serve]'."
        ) from None
    from coscap.serve.limits import Limits

    address = Address(
        host,
        port,
        tokens=tuple(token or ()),
        allowed=tuple(allow_host or ()),
        proxies=tuple(trusted_proxy or ("127.0.0.1", "::1")),
        drain=drain,
        log=log_format.value,
    )
    limits = Limits(
        photos=max_photos,
        bytes=max_bytes,
        pixels=max_pixels,
        request_pixels=max_request_pixels,
        total_pixels=max(Limits.total_pixels, max_request_pixels),
        total_bytes=max(Limits.total_bytes, max_bytes),
        captions=max_n,
        seconds=timeout,
        waiting=max_waiting,
        client_waiting=max(1, max_waiting * 3 // 4),
        client_rate=max_rate,
        connections=max_connections,
        batch=batch,
        workers=workers,
    )
    if study:
        return run_study(samples or [], images, database, captions, pictures, address, limits)
    run(model, limits, address, device=device, bank=bank, runtime=runtime, precision=precision)
