"""`coscap evaluate`: every metric of a file of captions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coscap.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from coscap.metrics.report import Report

_NUMBERS = (1, 5, 10, 20, 50, 100)  # the n of which the table of novel objects has a row


def evaluate(
    samples: Annotated[
        Path,
        typer.Argument(
            help="Captions to evaluate: COCO results JSON or JSONL, rows with image_id and caption; several "
            "rows an image are several samples, e.g. samples.json"
        ),
    ],
    references: Annotated[
        str,
        typer.Option(
            "--references",
            "-r",
            help="coco:val2014, coco:train2014, coco:2014 (both), a COCO captions file, or a prepared folder "
            "and its split, e.g. --references data/coco:test",
        ),
    ],
    train: Annotated[
        str | None,
        typer.Option(
            help="Training captions, for novel captions and self-CIDEr; named like the references, "
            "e.g. --train coco:train2014"
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Only these of bleu, meteor, rouge, cider, spice, diversity, novel_objects, "
            "e.g. --metrics bleu,cider"
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option("--first", "-n", min=1, help="Only the first captions of each image, e.g. --first 5"),
    ] = None,
    objects: Annotated[
        Path | None,
        typer.Option(
            help="F1 of naming these objects, a JSON file of names and their words, e.g. --objects novel.json "
            'with {"bus": ["bus", "buses"]}; without it novel_objects takes the eight of held-out COCO'
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option("--json", help="Write all values to this file, or to standard output: --json -"),
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Put the scores for every number of samples into the JSON.")
    ] = False,
    tokenised: Annotated[
        bool, typer.Option("--tokenised", help="All captions are tokenised already: words and single spaces.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Score captions without words (0) instead of stopping.")
    ] = False,
    spice_cache: Annotated[
        Path | None,
        typer.Option(help="The folder that keeps SPICE's parses, e.g. --spice-cache ~/spice-cache"),
    ] = None,
) -> None:
    """Measure captions: accuracy, and with several captions an image oracle scores and diversity too.

    BLEU, METEOR, ROUGE-L and CIDEr are the official ones, without Java; SPICE needs Java.

    Example: coscap evaluate samples.json --references coco:val2014 --train coco:train2014 --json scores.json
    """
    from coscap.files import write_json
    from coscap.metrics.references import grouped, read_samples
    from coscap.metrics.report import evaluate as measure

    given = grouped(read_samples(samples))
    if first is not None:
        given = {image: captions[:first] for image, captions in given.items()}
    wanted = captions_of(references, "test")
    report = measure(
        given,
        wanted,
        metrics=metrics,
        train=captions_of(train, "train") if train is not None else None,
        objects=_objects(objects) if objects is not None else None,
        tokenised=tokenised,
        allow_empty=allow_empty,
        spice_cache=spice_cache,
        names=(str(samples), references),
    )
    if json == "-":
        _print_json(report.json(curves))
    else:
        _show(report, str(samples), references, len(wanted))
        if json is not None:
            write_json(json, report.json(curves), indent=1)
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)


def captions_of(name: str, split: str) -> dict[Any, list[str]]:
    """Captions by image: coco:SPLIT, a file, a prepared folder (its `split`), or FOLDER:SPLIT."""
    from coscap.metrics.references import read_references

    folder, colon, part = name.rpartition(":")
    if Path(name).is_dir() or (colon and Path(folder).is_dir()):
        from coscap.data import open_prepared

        prepared = open_prepared(name if Path(name).is_dir() else folder)
        return prepared.references(split if Path(name).is_dir() else part)
    return read_references(name)


def _objects(path: Path) -> dict[str, list[str]]:
    from coscap.files import read_json

    content = read_json(path)
    good = isinstance(content, dict) and all(
        isinstance(words, list) and words and all(isinstance(word, str) for word in words)
        for words in content.values()
    )
    if not good or not content:
        raise UserError(f'{path} does not list objects; expected a form like {{"bus": ["bus", "buses"]}}.')
    return {name: [word.lower() for word in words] for name, words in content.items()}


def _print_json(values: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(values, ensure_ascii=False, indent=1))


def _show(report: "Report", samples: str, references: str, images: int) -> None:
    from rich.console import Console

    console = Console()
    console.print(
        f"{samples}: {report.captions:,} captions of {report.images:,} images; "
        f"references: {references} ({images:,} images)",
        highlight=False,
        soft_wrap=True,
    )
    for table in _tables(report):
        console.print(table)


def _tables(report: "Report") -> list["Table"]:
    """One row a metric, so that all of them fit into a narrow terminal."""
    tables = []
    if report.accuracy:
        columns = {"": report.accuracy}
        if report.curves:
            columns = {
                "first caption": report.accuracy,
                f"oracle of {report.samples}": report.oracle,
                "average": report.average,
                "worst": report.worst,
            }
        rows = [[name, *(f"{values[name]:.4f}" for values in columns.values())] for name in report.accuracy]
        tables.append(_table("Accuracy", list(columns), rows))
        if report.curves and {"BLEU-1", "METEOR"} & set(report.accuracy):
            tables[
                -1
            ].caption = "BLEU, METEOR: of all first captions together; elsewhere means of single captions"
            tables[-1].caption_justify = "left"
    if report.diversity:
        figures = [[name, _figure(name, value)] for name, value in report.diversity.items()]
        tables.append(_table("Diversity", [""], figures))
    if report.objects is not None:
        scores = report.objects
        most = scores.f1.shape[1]
        numbers = sorted({*(n for n in _NUMBERS if n < most), most})
        lines = [*zip(scores.objects, scores.f1, strict=True), ("average", scores.average)]
        rows = [
            [name, *("-" if line[n - 1] != line[n - 1] else f"{line[n - 1]:.1f}" for n in numbers)]
            for name, line in lines
        ]
        title = "Novel objects: F1 in %, named by any of the first n captions"
        tables.append(_table(title, [f"n = {n}" for n in numbers], rows))
    return tables


def _table(title: str, columns: list[str], rows: list[list[str]]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=any(columns))
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _figure(name: str, value: float) -> str:
    if value != value:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if name in ("unique", "novel-percent") else f"{value:.3f}"
