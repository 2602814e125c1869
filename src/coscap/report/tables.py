"""The paper's tables in Markdown: our rows in bold, the published ones below them."""

from collections.abc import Iterable, Mapping, Sequence

from coscap.report import paper
from coscap.report.methods import PUBLISHED_AS, Measured
from coscap.report.order import Check

ACCURACY = ("BLEU-4", "BLEU-3", "BLEU-2", "BLEU-1", "CIDEr", "ROUGE-L", "METEOR", "SPICE")
OBJECTS = ("bottle", "bus", "couch", "microwave", "pizza", "racket", "suitcase", "zebra", "average")

_DASH = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns hold text and whose others hold numbers."""
    line = ["---" if column < left else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, line, *rows])


def figure(measured: Measured, name: str, digits: int = 3) -> str:
    """A mean with its deviation over seeds; a dash where it was not measured."""
    if name not in measured.mean or measured.mean[name] != measured.mean[name]:
        return _DASH
    text = f"{measured.mean[name]:,.{digits}f}"
    spread = measured.deviation.get(name)
    return text if spread is None else f"{text} ± {spread:,.{digits}f}"


def oracle(found: Sequence[Measured], n: int) -> str:
    ours = [[f"**{each.method.name}**", *_accuracy(each, f"oracle/{n}")] for each in found]
    return table(["", *ACCURACY], [*ours, *_published("oracle", ACCURACY, 3, samples=n)])


def consensus(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    ours = [
        [f"**{each.method.name}**", str(n), *_accuracy(each, f"consensus/{n}")]
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
            row = [f"**{each.method.name}**", str(n), figure(each, f"unique/{n}", 1)]
            row += [figure(each, f"best5/{n}/{name}", digits) for name, digits in names]
            rows.append(row + [figure(each, f"best5/{n}/Div-{k}") for k in (1, 2)])
    for theirs in paper.rows("diversity"):
        numbers = [f"{theirs['unique']:.1f}", f"{theirs['novel']:,.0f}", f"{theirs['novel'] / 50:.1f}"]
        numbers += [f"{theirs['mBLEU']:.2f} (which?)", "", f"{theirs['Div-1']:.2f}", f"{theirs['Div-2']:.2f}"]
        rows.append([f"{theirs['method']}, paper", "", *numbers])
    return table(head, rows)


def said(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    head = [
        "",
        "of",
        "contexts that differ %",
        "objects in a caption",
        "in all",
        "named by people %",
        "found %",
    ]
    names = (("contexts", 1), ("objects-each", 2), ("objects", 2), ("named", 1), ("found", 1))
    rows = [
        [
            f"**{each.method.name}**",
            str(n),
            *(figure(each, f"said/{n}/{name}", digits) for name, digits in names),
        ]
        for n in budgets
        for each in found
    ]
    return table(head, rows)


def self_cider(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    head = ["", *(f"best 5 of {n}" for n in budgets), *(f"all {n}" for n in budgets)]
    rows = []
    for each in found:
        names = [f"best5/{n}/self-CIDEr" for n in budgets] + [f"self-CIDEr/{n}" for n in budgets]
        rows.append([f"**{each.method.name}**", *(figure(each, name) for name in names)])
    blank = [""] * (len(head) - 2)
    rows += [
        [f"{row['method']}, paper (of which captions is not said)", f"{row['self-CIDEr']:.2f}", *blank]
        for row in paper.rows("self_cider")
    ]
    return table(head, rows)


def spread(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    head = ["", *(f"{kind} of {n}" for n in budgets for kind in ("average", "worst"))]
    rows = [
        [
            f"**{each.method.name}**",
            *(figure(each, f"{kind}/{n}/CIDEr") for n in budgets for kind in ("average", "worst")),
        ]
        for each in found
    ]
    blank = [""] * (len(head) - 3)
    rows += [
        [f"{row['method']}, paper, of 20", f"{row['average']:.3f}", f"{row['worst']:.3f}", *blank]
        for row in paper.rows("spread")
    ]
    return table(head, rows)


def novel_objects(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    rows = [
        [
            f"**{each.method.name}**, any of {n}",
            *(figure(each, f"f1/{n}/{name}", 1) for name in OBJECTS),
        ]
        for each in found
        for n in (1, *budgets)
    ]
    return table(["", *OBJECTS], [*rows, *_published("novel_objects", OBJECTS, 1)])


def order(found: Sequence[Check], samples: int) -> str:
    """The order check: ours with its verdict, and the paper's numbers."""
    rows = []
    for check in found:
        sign = ">" if check.higher else "<"
        ours = f" {sign} ".join(f"{PUBLISHED_AS[role]} {mean:.3f}" for role, mean in check.values)
        verdict = "yes" if check.holds else "**no**"
        if check.holds and not check.surely:
            verdict = "yes, within the noise of seeds"
        rows.append([check.title, f"{ours}?", verdict, _paper_order(check, samples)])
    return table(["", "ours", "holds", "paper"], rows, left=4)


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


def _paper_order(check: Check, samples: int) -> str:
    values = []
    for role, _ in check.values:
        method = PUBLISHED_AS[role]
        if check.name.startswith("oracle"):
            values.append(paper.value("oracle", "CIDEr", method=method, samples=samples))
        else:
            name = "mBLEU" if "mBLEU" in check.name else "Div-2"
            values.append(paper.value("diversity", name, method=method))
    return ", ".join(_DASH if value is None else f"{value:g}" for value in values)


def _accuracy(measured: Measured, prefix: str) -> list[str]:
    return [figure(measured, f"{prefix}/{metric}") for metric in ACCURACY]


def _published(name: str, metrics: Sequence[str], digits: int, **fields: int) -> list[list[str]]:
    return [
        [
            f"{row['method']}, paper",
            *(f"{row[metric]:.{digits}f}" if metric in row else _DASH for metric in metrics),
        ]
        for row in paper.rows(name, **fields)
    ]
