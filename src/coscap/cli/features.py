"""`coscap features`: pictures to regions, and a look at them."""

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from coscap.errors import shown


class _MakeByDefault(TyperGroup):
    """`coscap features DIR --out X` is short for `coscap features make DIR --out X`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["make", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_MakeByDefault,
    no_args_is_help=True,
    help="Find the regions of pictures: `coscap features DIR --out regions.h5` (short for `features make`), "
    "or see them: `coscap features show PHOTO --html out.html`.",
)


@app.command("make")
def make(
    source: Path = typer.Argument(
        ...,
        metavar="DIR|LIST",
        help="A folder of pictures, or a text file with one path a line, e.g. photos/.",
    ),
    out: Path = typer.Option(..., "--out", help="The store to make, e.g. regions.h5."),
    detector: str = typer.Option(
        "builtin",
        help="builtin, builtin:imagenet (recipe 1), builtin:RUN, hf:NAME_OR_DIR (e.g. hf:PekingU/rtdetr_r18vd) or "
        "torchvision:NAME.",
    ),
    classes: str = typer.Option(
        "", help="What an open-vocabulary detector looks for, e.g. 'zebra,fire hydrant'."
    ),
    device: str = typer.Option("cpu", help="Where a hf: or torchvision: detector runs, e.g. cuda."),
    processes: int = typer.Option(0, min=0, help="How many processes work; 0 for one a core, e.g. 2."),
    limit: int = typer.Option(
        0, min=0, help="Take only the first pictures of the list, e.g. 1000; 0 for all."
    ),
    data: Path | None = typer.Option(
        None,
        help="A prepared data set: only its pictures, under its ids. Needed where ids are not file names, e.g. mine.",
    ),
    reuse: Path | None = typer.Option(
        None,
        help="A store of the same recipe, whose pictures need not be computed again, or of another of the built-in "
        "ones, whose detections stay, e.g. old.h5.",
    ),
    hide: str = typer.Option(
        "",
        help="Words that the built-in detector must not give regions for, or classes of COCO, whose words are all "
        "hidden: for objects that a captioner is to learn without being told, e.g. 'zebra,bus'.",
    ),
    pixel_limit: int = typer.Option(
        80_000_000, min=1, help="Leave out pictures of more pixels, e.g. 20000000."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a store that is there already."),
) -> None:
    """Make a store of the regions of many pictures. A run that was stopped goes on when started again."""
    import signal
    import sys

    from coscap.files import check_output, usable_cores
    from coscap.vision.extract import ExtractJob, extract, list_pictures

    check_output(out, inputs=[source])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a polite kill stops the other processes, too
    entries = list_pictures(source, _ids_of(data))[: limit or None]
    job = ExtractJob(
        detector=detector,
        classes=_names(classes),
        device=device,
        pixel_limit=pixel_limit,
        reuse=reuse,
        hidden=_words_of(_names(hide)),
    )
    processes = processes or usable_cores()
    try:
        outcome = extract(entries, out, job, processes=processes, overwrite=overwrite)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on with what {shown(out)}.parts keeps", err=True)
        raise
    typer.echo(f"{shown(out)}: regions of {outcome.pictures:,} pictures")
    if outcome.bad:
        typer.echo(f"{len(outcome.bad):,} pictures could not be read; {out}.bad.txt says why")


@app.command("show")
def show(
    photos: list[Path] = typer.Argument(..., metavar="PHOTO...", help="Photographs, e.g. examples/cat.jpg."),
    html: Path | None = typer.Option(None, "--html", help="Draw them into this page, e.g. out.html."),
    detector: str = typer.Option("builtin", help="builtin, hf:NAME_OR_DIR or torchvision:NAME."),
    classes: str = typer.Option("", help="What an open-vocabulary detector looks for, e.g. 'zebra,kite'."),
) -> None:
    """Show the regions of photographs: a table, or with --html a page with the boxes drawn on them."""
    from coscap.files import check_output, write_text
    from coscap.vision.detectors import load_detector
    from coscap.vision.drawing import page, rows
    from coscap.vision.pictures import open_picture

    if html:
        check_output(html, inputs=photos)
    finder = load_detector(detector, classes=_names(classes))
    pictures = [open_picture(photo, least_side=finder.least_side) for photo in photos]
    found = finder.regions(pictures)
    if html:
        seen = list(zip(map(str, photos), pictures, found, strict=True))
        write_text(html, page(seen, finder.recipe))
        typer.echo(f"{html}: {len(photos)} photographs with their regions")
        return

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for photo, regions in zip(photos, found, strict=True):
        table = Table("class", "score", "x1, y1, x2, y2", title=Text(shown(photo)), title_justify="left")
        for kind, score, box in rows(regions, finder.recipe):
            table.add_row(kind, f"{score:.2f}", ", ".join(f"{side:.2f}" for side in box))
        Console().print(table)


def _ids_of(data: Path | None) -> dict[str, int] | None:
    """The ids of a data set's pictures by their file names."""
    if data is None:
        return None
    from coscap.data import open_prepared

    prepared = open_prepared(data)
    return {prepared.name(image): int(prepared.image_ids[image]) for image in range(len(prepared))}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _words_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """All words of the classes among the names, and the other names as they are."""
    if not names:
        return ()
    from coscap.text.objects import load_classes

    known = {each.name: (*each.words, *each.plurals) for each in load_classes().classes}
    return tuple(dict.fromkeys(word for name in names for word in known.get(name, (name,))))
