"""The paper's tables in Markdown: our rows in bold, the published ones (paper.json) below them.

± is half of the 95 % interval over pictures. A figure is grey and has "≈" where its difference from the first row's is
inside the interval of that difference (a paired bootstrap over pictures).
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files as resources
from typing import Any

from coscap.metrics.table import METRICS
from coscap.pages import table
from coscap.report.build import Measured

PAPER = ("BLEU-4", "BLEU-3", "BLEU-2", "BLEU-1", "CIDEr", "ROUGE-L", "METEOR", "SPICE")
_OTHERS = (metric.name for metric in METRICS if metric.of == "captions" and metric.name != "CIDEr-plain")
ACCURACY = (*PAPER, *(name for name in _OTHERS if name not in PAPER))
OBJECTS = ("bottle", "bus", "couch", "microwave", "pizza", "racket", "suitcase", "zebra", "average")

DASH = "–"


@lru_cache(maxsize=1)
def published() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources("coscap.report") / "paper.json").read_text("utf-8"))
    return content


def published_where(table: str) -> str:
    return str(published()[table]["where"])


def published_rows(table: str, **fields: Any) -> list[dict[str, Any]]:
    """The rows of a published table whose fields have these values."""
    found: list[dict[str, Any]] = published()[table]["rows"]
    return [row for row in found if all(row.get(name) == value for name, value in fields.items())]


def published_value(table: str, metric: str, **fields: Any) -> float | None:
    """One published number, or None where the paper has none."""
    found = [row[metric] for row in published_rows(table, **fields) if metric in row]
    return float(found[0]) if found else None


def figure(measured: Measured, name: str, digits: int = 3, base: Measured | None = None) -> str:
    """A mean and half of its interval, grey where it does not differ clearly from the base's; or a dash."""
    if name not in measured.mean or measured.mean[name] != measured.mean[name]:
        return DASH
    text = f"{measured.mean[name]:,.{digits}f}"
    if name in measured.intervals:
        low, high = measured.intervals[name]
        text += f" ± {(high - low) / 2:,.{digits}f}" if low == low else ""
    change = None if base is None or base is measured else measured.minus(base, name)
    return text if change is None or change.clear else f'<span style="color:gray">{text} ≈</span>'


def oracle(found: Sequence[Measured], n: int) -> str:
    ours = [[f"**{each.method.name}**", *_accuracy(each, f"oracle/{n}", found[0])] for each in found]
    return table(["", *ACCURACY], [*ours, *_published("oracle", ACCURACY, 3, samples=n)])


def consensus(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    ours = [
        [f"**{each.method.name}**", str(n), *_accuracy(each, f"consensus/{n}", found[0])]
        for n in budgets
        for each in found
    ]
    theirs = [[row[0], "", *row[1:]] for row in _published("consensus", ACCURACY, 3)]
    return table(["", "of", *ACCURACY], [*ours, *theirs])


def diversity(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    head = [
        "",
        "of",
        "unique %",
        "novel",
        "novel %",
        "mBLEU-4 (corpus)",
        "mBLEU-4 (picture)",
        "Div-1",
        "Div-2",
    ]
    names = (("novel", 0), ("novel-percent", 1), ("mBLEU-4-corpus", 3), ("mBLEU-4-picture", 3))
    rows = []
    for n in budgets:
        for each in found:
            row = [f"**{each.method.name}**", str(n), figure(each, f"all/{n}/unique", 1, found[0])]
            row += [figure(each, f"best5/{n}/{name}", digits, found[0]) for name, digits in names]
            rows.append(row + [figure(each, f"best5/{n}/Div-{k}", 3, found[0]) for k in (1, 2)])
    for theirs in published_rows("diversity"):
        numbers = [f"{theirs['unique']:.1f}", f"{theirs['novel']:,.0f}", f"{theirs['novel'] / 50:.1f}"]
        numbers += [f"{theirs['mBLEU']:.2f} (which?)", "", f"{theirs['Div-1']:.2f}", f"{theirs['Div-2']:.2f}"]
        rows.append([f"{theirs['method']}, paper", "", *numbers])
    return table(head, rows)


def content(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    head = [
        "",
        "of",
        "contexts that differ %",
        "objects in a caption",
        "in all",
        "named by people %",
        "found %",
    ]
    names = (("contexts", 1), ("objects-each", 2), ("objects-all", 2), ("named", 1), ("found", 1))
    rows = [
        [
            f"**{each.method.name}**",
            str(n),
            *(figure(each, f"all/{n}/{name}", digits, found[0]) for name, digits in names),
        ]
        for n in budgets
        for each in found
    ]
    return table(head, rows)


def hallucination(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    names = ("CHAIR-i", "CHAIR-s", "CHAIR-free")
    sets = [(of, n) for n in budgets for of in ("all", "best5")]
    rows = []
    for of, n in sets:
        for each in found:
            cells = [figure(each, f"{of}/{n}/{name}", 1, found[0]) for name in names]
            if any(cell != DASH for cell in cells):
                rows.append([f"**{each.method.name}**", str(n) if of == "all" else f"best 5 of {n}", *cells])
    return table(["", "of", *(f"{name} %" for name in names)], rows)


def self_cider(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    head = ["", *(f"best 5 of {n}" for n in budgets), *(f"all {n}" for n in budgets)]
    rows = []
    for each in found:
        names = [f"{of}/{n}/self-CIDEr-references" for of in ("best5", "all") for n in budgets]
        rows.append([f"**{each.method.name}**", *(figure(each, name, 3, found[0]) for name in names)])
    blank = [""] * (len(head) - 2)
    rows += [
        [f"{row['method']}, paper (does not say of which captions)", f"{row['self-CIDEr']:.2f}", *blank]
        for row in published_rows("self_cider")
    ]
    return table(head, rows)


def spread(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    head = ["", *(f"{kind} of {n}" for n in budgets for kind in ("average", "worst"))]
    rows = [
        [
            f"**{each.method.name}**",
            *(
                figure(each, f"{kind}/{n}/CIDEr", 3, found[0])
                for n in budgets
                for kind in ("average", "worst")
            ),
        ]
        for each in found
    ]
    blank = [""] * (len(head) - 3)
    rows += [
        [f"{row['method']}, paper, of 20", f"{row['average']:.3f}", f"{row['worst']:.3f}", *blank]
        for row in published_rows("spread")
    ]
    return table(head, rows)


SINGLE = ("METEOR", "CIDEr", "SPICE")  # of the first caption, beside F1


def novel_objects(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    rows = []
    for each in found:
        for n in (1, *budgets):
            cells = [figure(each, f"f1/{n}/{name}", 1, found[0]) for name in OBJECTS]
            cells += [figure(each, f"oracle/1/{name}", 3, found[0]) if n == 1 else "" for name in SINGLE]
            rows.append([f"**{each.method.name}**, any of {n}", *cells])
        for n in (n for n in budgets if f"consensus-f1/{n}/average" in each.mean):
            cells = [figure(each, f"consensus-f1/{n}/{name}", 1, found[0]) for name in OBJECTS]
            cells += [figure(each, f"consensus/{n}/{name}", 3, found[0]) for name in SINGLE]
            rows.append([f"**{each.method.name}**, the first of {n} by consensus", *cells])
    blank = [""] * len(SINGLE)
    published = [[*row, *blank] for row in _published("novel_objects", OBJECTS, 1)]
    return table(["", *OBJECTS, *SINGLE], [*rows, *published])


def goals(found: Sequence[Measured], wanted: Mapping[str, float]) -> str:
    """Figures that were aimed for, and which methods reach them."""
    rows = []
    for name, goal in wanted.items():
        cells = []
        for each in found:
            reached = each.mean.get(name, float("-inf")) >= goal
            cells.append(figure(each, name) + (" ✓" if reached else ""))
        rows.append([f"`{name}`", f"{goal:g}", *cells])
    return table(["", "goal", *(f"**{each.method.name}**" for each in found)], rows)


def _accuracy(measured: Measured, prefix: str, base: Measured) -> list[str]:
    return [figure(measured, f"{prefix}/{metric}", base=base) for metric in ACCURACY]


def _published(name: str, metrics: Sequence[str], digits: int, **fields: int) -> list[list[str]]:
    return [
        [
            f"{row['method']}, paper",
            *(f"{row[metric]:.{digits}f}" if metric in row else DASH for metric in metrics),
        ]
        for row in published_rows(name, **fields)
    ]
