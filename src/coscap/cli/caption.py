"""`coscap caption`: the main job."""

import sys
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coscap.cli.choices import (
    Accurate,
    BankChoice,
    Detector,
    Device,
    Diverse,
    Model,
    Precision,
    Runtime,
    Variety,
)
from coscap.errors import UserError
from coscap.search.config import SearchSettings, search_options

if TYPE_CHECKING:
    from coscap.cli.outputs import Row

EXAMPLE = "\n\nExample: coscap caption photo.jpg holiday/ -n 5 --html captions.html"
_FILES = "Where it goes"
_ALT = "Alternative texts"


@search_options()
def caption(
    photos: Annotated[
        list[str],
        typer.Argument(
            metavar="PHOTO...", help="Files, folders, patterns such as 'a/*.jpg', or - for standard input."
        ),
    ],
    n: Annotated[
        int | None,
        typer.Option("-n", min=1, max=100, help="Captions for each photograph. Unset: 5; 1 with --alt."),
    ] = None,
    model: Model = "shipped",
    detector: Detector = None,
    bank: BankChoice = "shipped",
    variety: Variety = None,
    accurate: Accurate = False,
    diverse: Diverse = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list.", rich_help_panel=_FILES)
    ] = False,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help="Print a JSON object a line, as they come.", rich_help_panel=_FILES),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write all captions to a .json, .jsonl or .csv file. It appears when it is whole; the same "
            "command goes on after a kill.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    sidecar: Annotated[
        bool,
        typer.Option(
            "--sidecar",
            help="Write the captions of a.jpg to a.txt beside it, a caption a line.",
            rich_help_panel=_FILES,
        ),
    ] = False,
    xmp: Annotated[
        bool,
        typer.Option(
            "--xmp",
            help="Write the alternative text of a.jpg to a.xmp beside it, for photo software.",
            rich_help_panel=_FILES,
        ),
    ] = False,
    embed_xmp: Annotated[
        bool,
        typer.Option(
            "--embed-xmp",
            help="Write the alternative text into the JPEG or PNG file itself; its pixels and all else stay.",
            rich_help_panel=_FILES,
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Write one page that shows which region each word came from.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace files that are there.", rich_help_panel=_FILES),
    ] = False,
    skip_existing: Annotated[
        bool,
        typer.Option(
            "--skip-existing", help="Leave out photographs that have their captions.", rich_help_panel=_FILES
        ),
    ] = False,
    append: Annotated[
        bool,
        typer.Option(
            "--append", help="Add to the text files of --sidecar that are there.", rich_help_panel=_FILES
        ),
    ] = False,
    alt: Annotated[
        bool,
        typer.Option(
            "--alt", help="Show alternative texts for web pages: one sentence each.", rich_help_panel=_ALT
        ),
    ] = False,
    max_chars: Annotated[
        int,
        typer.Option("--max-chars", min=20, help="Most characters of it.", rich_help_panel=_ALT),
    ] = 125,
    prefix: Annotated[
        str, typer.Option("--prefix", help='Put before it, e.g. "Photo: ".', rich_help_panel=_ALT)
    ] = "",
    suffix: Annotated[
        str,
        typer.Option(
            "--suffix", help='Put after it, e.g. " (described by a program)".', rich_help_panel=_ALT
        ),
    ] = "",
    urls: Annotated[bool, typer.Option("--urls", help="Allow http and https addresses as PHOTO.")] = False,
    device: Device = "cpu",
    runtime: Runtime = None,
    precision: Precision = None,
    *,
    settings: SearchSettings,
) -> None:
    """Give each photograph several captions that differ."""
    from coscap.alt import alt_text
    from coscap.captioner import Captioner
    from coscap.cli.outputs import CaptionFile, Embedded, Sidecars, policy
    from coscap.cli.photos import list_photos
    from coscap.files import check_output
    from coscap.progress import bar, say
    from coscap.search.manner import manner
    from coscap.shipped import check_device

    # All that can be wrong is found before the model is loaded.
    count = n or (1 if alt else 5)
    settings, chosen_variety = manner(settings, variety, accurate, diverse)
    if as_json and jsonl:
        raise UserError("--json and --jsonl exclude each other; give one of them.")
    alt_text("a", max_chars, prefix, suffix)
    sources = dict(list_photos(photos, urls))
    what = policy(overwrite, skip_existing, append)
    check_device(device)
    for file_asked in (html, out):
        if file_asked is not None:
            check_output(file_asked, inputs=[each for each in sources.values() if isinstance(each, str)])
    suffixes = [suffix for suffix, given in ((".txt", sidecar), (".xmp", xmp)) if given]
    beside = Sidecars(list(sources), suffixes, what) if suffixes else None
    inside = Embedded(list(sources), what) if embed_xmp else None
    alts = {"max_chars": max_chars, "prefix": prefix, "suffix": suffix}
    made = {
        **{"n": count, "variety": chosen_variety, "model": model, "detector": detector, "bank": bank, **alts},
        **settings.model_dump(mode="json", exclude={"max_rows"}),
    }
    file = None if out is None else CaptionFile(out, what, made)
    try:
        places = [each for each in (file, beside, inside) if each is not None]
        todo = [name for name in sources if not (places and all(each.done(name) for each in places))]
        shown = CaptionPrinter(table=not (as_json or jsonl or file), jsonl=jsonl, alt=alt, alts=alts)
        if len(todo) < len(sources):
            say(f"{len(sources) - len(todo):,} of {len(sources):,} photographs have their captions already.")
        if not (todo or html or as_json):
            if file is not None:
                file.finish(list(sources), {})
            return
        captioner = Captioner.from_pretrained(
            model, device=device, detector=detector, bank=bank, runtime=runtime, precision=precision
        )
        size = captioner.detector.batch
        errors: dict[str, str] = {}
        rows: list[Row] = []
        figures: list[tuple[str, str]] = []
        with bar("captions", len(todo), "photos") as advance:
            for start in range(0, len(todo), size):
                names = todo[start : start + size]
                opened = captioner.open([sources[name] for name in names], names)
                found = captioner.caption(opened, count, variety=chosen_variety, settings=settings)
                here = [shown.row(result) for result in found]
                if file is not None:
                    file.add(here)
                for row in here:
                    shown.emit(row)
                    if "error" in row:
                        errors[row["photo"]] = row["error"]
                        continue
                    if beside is not None:
                        beside.write(row["photo"], shown.sidecars(row))
                    if inside is not None:
                        errors |= inside.write(row["photo"], [each["alt"] for each in row["captions"]])
                figures += page_figures(here, opened) if html is not None else []
                rows += here if as_json else []
                advance(len(here))
        if as_json:
            _print_json(rows)
        if html is not None:
            for name in sources:
                if file is not None and name not in todo:  # captioned by an earlier run
                    figures += page_figures([file.rows[name]], captioner.open([sources[name]], [name]))
            _write_page(html, figures, errors, list(sources))
        if file is not None:
            file.finish(list(sources), errors)
            say(f"Captions of {len(file.rows):,} photographs are in {out}.")
    finally:
        if file is not None:
            file.close()
    if errors:
        for error in errors.values() if not (as_json or jsonl) else ():
            print(error, file=sys.stderr)
        where = "the rows with `error` say why" if as_json or jsonl else "each is named above"
        what_not = "read or written" if embed_xmp else "read"
        raise UserError(f"{len(errors)} of {len(sources)} photographs could not be {what_not}; {where}.")


caption.__doc__ = cleandoc(caption.__doc__ or "") + EXAMPLE


class CaptionPrinter:
    """How captions are shown: as a table, as JSON lines, in the texts beside photographs."""

    def __init__(self, table: bool, jsonl: bool, alt: bool, alts: dict[str, Any]) -> None:
        self.table, self.jsonl, self.alt, self.alts = table, jsonl, alt, alts

    def row(self, result: Any) -> "Row":
        """A photograph's captions as JSON has them, with alternative texts as asked for."""
        from coscap.alt import alt_text

        row: Row = result.to_json()
        for each in row.get("captions", ()):
            each["alt"] = alt_text(each["text"], **self.alts)
        return row

    def emit(self, row: "Row") -> None:
        if self.jsonl:
            _print_json(row)
        elif self.table and "error" not in row:
            self._print_table(row)

    def sidecars(self, row: "Row") -> dict[str, str]:
        """The contents of files beside a photograph, by suffix."""
        from coscap.cli.xmp import packet

        captions = row["captions"]
        lines = "".join(f"{each['alt' if self.alt else 'text']}\n" for each in captions)
        alt = captions[0]["alt"] if captions else ""
        return {".txt": lines, ".xmp": packet(alt, [each["alt"] for each in captions])}

    def _print_table(self, row: "Row") -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        shown.add_column(justify="right", style="dim")
        shown.add_column()
        for each in row["captions"]:
            line = Text(each["alt" if self.alt else "text"])
            if not each.get("satisfied", True):
                line.append("  (without what was asked for)", style="dim")
            judged = each.get("support")
            shown.add_row(f"{each['log_probability']:.1f}" if judged is None else f"{judged:.0%}", line)
        console = Console()
        console.print(Text(row["photo"], style="bold"))
        console.print(shown)
        console.print()


def page_figures(rows: Sequence["Row"], opened: Sequence[Any]) -> list[tuple[str, str]]:
    """Names and figures for `--html`, made while the photographs are in memory."""
    from coscap.cli.page import figure
    from coscap.photos import OpenedPhoto

    pairs = zip(rows, opened, strict=True)
    return [(row["photo"], figure(row, each.picture)) for row, each in pairs if isinstance(each, OpenedPhoto)]


def _write_page(
    path: Path, figures: Sequence[tuple[str, str]], errors: dict[str, str], order: Sequence[str]
) -> None:
    from coscap.cli.page import render
    from coscap.files import write_text
    from coscap.progress import say

    made = dict(figures)
    write_text(path, render([(name, made[name]) for name in order if name in made], list(errors.items())))
    say(f"The page is {path}.")


def _print_json(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()
