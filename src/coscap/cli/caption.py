"""`coscap caption`: the main job."""

import sys
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coscap.cli.choices import Accurate, Diverse, Model, Variety
from coscap.errors import UserError
from coscap.search.options import search_options
from coscap.search.settings import SearchSettings

if TYPE_CHECKING:
    from PIL.Image import Image

    from coscap.captioner import Captioner, PhotoCaptions

EXAMPLE = "\n\nExample: coscap caption photo.jpg holiday/ -n 5 --html captions.html"
ACCURATE, DIVERSE = (0.4, 0.1), (1.0, 0.9)  # temperature and variety


@search_options()
def caption(
    photos: Annotated[
        list[str],
        typer.Argument(
            metavar="PHOTO...", help="Files, folders, patterns such as 'a/*.jpg', or - for standard input."
        ),
    ],
    n: Annotated[int, typer.Option("-n", min=1, max=100, help="Captions for each photograph.")] = 5,
    model: Model = "shipped",
    variety: Variety = 0.5,
    accurate: Accurate = False,
    diverse: Diverse = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print a JSON object a line, as they come.")] = False,
    sidecar: Annotated[
        bool,
        typer.Option("--sidecar", help="Write the captions of a.jpg to a.txt beside it, a caption a line."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write one page that shows which region each word came from."),
    ] = None,
    urls: Annotated[bool, typer.Option("--urls", help="Allow http and https addresses as PHOTO.")] = False,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    *,
    settings: SearchSettings,
) -> None:
    """Give each photograph several captions that differ."""
    from coscap.captioner import Captioner
    from coscap.cli.photos import list_photos

    settings, variety = manner(settings, variety, accurate, diverse)
    if as_json and jsonl:
        raise UserError("--json and --jsonl exclude each other; give one of them.")
    sources = list_photos(photos, urls)
    captioner = Captioner.from_pretrained(model, device=device)
    results, pictures, bad = [], [], []
    for group in _groups(sources, captioner.detector.batch):
        found, shown, failed = _caption_group(captioner, group, n, variety, settings)
        for result in found:
            _emit(result, jsonl, sidecar, table=not (as_json or jsonl))
        results += found
        pictures += shown if html else []
        bad += failed
    if as_json:
        _print_json([result.to_json() for result in results])
    if html is not None:
        from coscap.files import write_text
        from coscap.page import render

        write_text(html, render(results, pictures))
        typer.echo(f"The page is {html}.", err=True)
    if bad:
        told = "; ".join(bad[:3]) + ("" if len(bad) <= 3 else f"; and {len(bad) - 3} more")
        raise UserError(f"{len(bad)} of {len(sources)} photographs could not be read: {told}")


caption.__doc__ = cleandoc(caption.__doc__ or "") + EXAMPLE


def manner(
    settings: SearchSettings, variety: float, accurate: bool, diverse: bool
) -> tuple[SearchSettings, float]:
    """Settings and variety as the two plain choices have them, if one of them is taken."""
    if accurate and diverse:
        raise UserError("--accurate and --diverse exclude each other; give one of them.")
    if not (accurate or diverse):
        return settings, variety
    temperature, variety = ACCURATE if accurate else DIVERSE
    return settings.model_copy(update={"temperature": temperature}), variety


def _groups(sources: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(sources), size):
        yield sources[start : start + size]


def _caption_group(
    captioner: "Captioner", group: Sequence[tuple[str, Any]], n: int, variety: float, settings: SearchSettings
) -> tuple[list["PhotoCaptions"], list["Image"], list[str]]:
    """Captions of a batch, its pictures, and a sentence for each that cannot be read."""
    from coscap.captioner import as_picture

    names, pictures, bad = [], [], []
    least = captioner.detector.least_side
    for name, source in group:
        try:
            given = source() if callable(source) else source
            pictures.append(as_picture(given, least))
            names.append(name)
        except UserError as error:
            bad.append(str(error).rstrip("."))
    if not pictures:
        return [], [], bad
    regions = captioner.detector.regions(pictures)
    return captioner.describe(names, regions, n, variety=variety, settings=settings), pictures, bad


def _emit(result: "PhotoCaptions", jsonl: bool, sidecar: bool, table: bool) -> None:
    if sidecar:
        from coscap.files import write_text

        lines = "".join(f"{caption.text}\n" for caption in result.captions)
        write_text(Path(result.photo).with_suffix(".txt"), lines)
    if jsonl:
        _print_json(result.to_json())
    if table:
        _show(result)


def _show(result: "PhotoCaptions") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    shown.add_column(justify="right", style="dim")
    shown.add_column()
    for caption in result.captions:
        row = Text(caption.text)
        if not caption.found.satisfied:
            row.append("  (without what was asked for)", style="dim")
        shown.add_row(f"{caption.log_probability:.1f}", row)
    console = Console()
    console.print(Text(result.photo, style="bold"))
    console.print(shown)
    console.print()


def _print_json(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()
