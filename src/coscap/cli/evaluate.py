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
            "with {'bus': ['bus', 'buses']}; without it novel_objects takes the eight of held-out COCO"
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
    chosen = metrics.replace(" ", "").split(",") if metrics is not None else None
    wanted = captions_of(references, "test")
    report = measure(
        given,
        wanted,
        metrics=chosen,
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
        raise UserError(f"{path} does not list objects; expected a form like {{'bus': ['bus', 'buses']}}.")
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
    )
    for table in _tables(report):
        console.print(table)


def _tables(report: "Report") -> list["Table"]:
    from rich.table import Table

    tables = []
    if report.accuracy:
        table = Table(
            title="Accuracy" if not report.curves else f"Accuracy, up to {report.samples} samples an image"
        )
        table.add_column("", no_wrap=True)
        rows = {"all": report.accuracy}
        if report.curves:
            rows = {
                "first caption": report.accuracy,
                "oracle (best)": report.oracle,
                "average": report.average,
                "worst": report.worst,
            }
        for name in report.accuracy:
            table.add_column(name, justify="right")
        for row, values in rows.items():
            table.add_row(row, *(f"{values[name]:.4f}" for name in report.accuracy))
        tables.append(table)
    if report.diversity:
        table = Table(title="Diversity")
        for name in report.diversity:
            table.add_column(name, justify="right")
        table.add_row(*(_figure(name, value) for name, value in report.diversity.items()))
        tables.append(table)
    if report.objects is not None:
        table = Table(
            title="Novel objects: F1 in %, an object counts if any of the first n captions names it"
        )
        table.add_column("n", justify="right")
        for name in (*report.objects.objects, "average"):
            table.add_column(name, justify="right")
        most = report.objects.f1.shape[1]
        for n in sorted({*(n for n in _NUMBERS if n < most), most}):
            scores = (*report.objects.f1[:, n - 1], report.objects.average[n - 1])
            table.add_row(str(n), *("-" if score != score else f"{score:.1f}" for score in scores))
        tables.append(table)
    return tables


def _figure(name: str, value: float) -> str:
    if value != value:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if name in ("unique", "novel-percent") else f"{value:.3f}"
