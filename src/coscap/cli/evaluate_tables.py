"""What `coscap evaluate` prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from coscap.metrics.evaluation import Evaluation
    from coscap.metrics.human import Agreement
    from coscap.metrics.intervals import ScoreDifference

_NUMBERS = (1, 5, 10, 20, 50, 100)  # the n of which the table of novel objects has a row
_TITLES = {
    "allspice": "Merged scene graphs",
    "diversity": "Diversity",
    "chair": "Hallucinated objects in %",
    "content": "Contexts and objects",
}  # of groups of METRICS; another group is called by its name
_NOTE = "± is half of the 95 % interval over pictures"


def agreement_table(columns: "Mapping[str, Mapping[str, Agreement]]") -> "Table":
    heads = [f"{kind} {word}".strip() for kind in columns for word in ("tau-c", "pairs right %")]
    names = list(next(iter(columns.values())))
    rows = []
    for name in names:
        found = [column[name] for column in columns.values()]
        rows.append(
            [
                name,
                *(
                    text
                    for each in found
                    for text in (_number(each.tau_c, 3), _number(100 * each.accuracy, 1))
                ),
            ]
        )
    return _table("", heads, rows)


def compare_table(
    base: str, first: "Evaluation", name: str, other: "Evaluation", changes: "Mapping[str, ScoreDifference]"
) -> "Table":
    """What is inside its interval is grey."""
    stems = [Path(base).stem, Path(name).stem]
    labels = stems if stems[0] != stems[1] else [base, name]
    rows, styles = [], []
    for figure, each in changes.items():
        if each.difference != each.difference:
            continue
        numbers = [first.values[figure], other.values[figure]]
        ends = f"{each.low:+.3f} to {each.high:+.3f}"
        share = f"{100 * each.share:.1f}"
        rows.append(
            [figure, *(_number(value, 3) for value in numbers), f"{each.difference:+.3f}", ends, share]
        )
        styles.append("" if each.clear else "bright_black")
    table = _table("", [*labels, "change", "95 % interval", "%"], rows, styles)
    table.caption = "grey: the interval holds 0; %: of the resamples, those in which the second is higher"
    table.caption_justify = "left"
    return table


def show(
    found: "Evaluation",
    samples: str,
    references: str,
    images: int,
    intervals: Mapping[str, tuple[float, float]],
    parts: "Mapping[str, Evaluation]",
) -> None:
    show_head(found, samples, references, images)
    show_tables([*_tables(found, intervals), *([_domain_table(found, parts)] if parts else [])])


def show_head(found: "Evaluation", samples: str, references: str, images: int) -> None:
    typer.echo(
        f"{samples}: {found.captions:,} captions of {found.images:,} images; "
        f"references: {references} ({images:,} images)"
    )


def show_tables(tables: "Sequence[Table]") -> None:
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(table)


def _tables(found: "Evaluation", intervals: Mapping[str, tuple[float, float]]) -> list["Table"]:
    """One row a metric, so that all of them fit into a narrow terminal."""
    from coscap.metrics.table import GROUPS

    tables = []
    if found.accuracy:
        columns = {"": ""}
        if found.oracle:
            columns = {
                "first caption": "",
                f"oracle of {found.samples}": "oracle/",
                "average": "average/",
                "worst": "worst/",
            }
        rows = [
            [name, *(_with_interval(prefix + name, found, intervals, 4) for prefix in columns.values())]
            for name in found.accuracy
        ]
        tables.append(_table("Accuracy", list(columns), rows))
        notes = [_NOTE] if intervals else []
        if found.oracle and {"BLEU-1", "METEOR"} & set(found.accuracy):
            notes.append("BLEU, METEOR: of all first captions together; elsewhere means of single captions")
        tables[-1].caption, tables[-1].caption_justify = "\n".join(notes), "left"
    for group in GROUPS:
        names = found.of_group(group)
        if names and group != "novel_objects":
            rows = [[name, _with_interval(name, found, intervals, _digits(name))] for name in names]
            tables.append(_table(_TITLES.get(group, group), [""], rows))
    if found.objects is not None:
        scores = found.objects
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


def _domain_table(found: "Evaluation", parts: "Mapping[str, Evaluation]") -> "Table":
    columns = {**{f"{name} ({part.images:,})": part for name, part in parts.items()}, "all": found}
    names = next(iter(parts.values())).values
    rows = [
        [name, *(_number(each.values[name], _digits(name)) for each in columns.values())] for name in names
    ]
    return _table("Domains, with the document frequencies of all images", list(columns), rows)


def _table(title: str, columns: list[str], rows: list[list[str]], styles: Sequence[str] = ()) -> "Table":
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", show_header=any(columns))
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        table.add_row(*row, style=style)
    return table


def _with_interval(
    name: str, found: "Evaluation", intervals: Mapping[str, tuple[float, float]], digits: int
) -> str:
    value = found.values[name]
    text = _number(value, digits)
    if name not in intervals or value != value:
        return text
    low, high = intervals[name]
    half = f"{(high - low) / 2:.{min(digits, 3)}f}"
    return f"{text} ±{half[1:] if half.startswith('0.') else half}"


def _number(value: float, digits: int) -> str:
    return "-" if value != value else f"{value:,.{digits}f}"


def _digits(name: str) -> int:
    if name in ("novel", "vocabulary"):
        return 0
    percent = ("unique", "novel-percent", "CHAIR", "contexts", "named", "found", "F1")
    return 1 if name.startswith(percent) else 4 if "/" in name or name.startswith(("BLEU", "CIDEr")) else 3
