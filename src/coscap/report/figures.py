"""The report's figures, as PNG and SVG."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coscap.pages import STYLE, pyplot, save
from coscap.report.build import Measured
from coscap.report.measure import NUMBERS, RANKS
from coscap.report.methods import PUBLISHED_AS
from coscap.report.tables import published_rows

COLOURS = {
    "pseudo": "#c8501e",
    "paired": "#1f6fb4",
    "seq_cvae": "#2a9d74",
    "beam": "#6b6b6b",
    "diverse": "#b0578d",
}
_FURTHER = (
    "#7a6fb0", "#b8860b", "#3b8ea5", "#8c564b", "#d98880", "#52796f", "#9c6644", "#4d4dff", "#a3b18a", "#e07be0",
)  # other roles, in the order of their rows  # fmt: skip
CROWDED = 8  # rows of a legend that fit beside the lines
_LINES = ("-", "--", ":", "-.")  # for several runs of one role


def draw(path: Path, paint: Callable[[Any], None], size: tuple[float, float] = (7.2, 4.4)) -> Path:
    """Paint one pair of axes and save it as path.png and path.svg."""
    plot = pyplot()
    with plot.rc_context(STYLE):
        picture, axes = plot.subplots(figsize=size, layout="constrained")
        paint(axes)
        save(picture, path)
        plot.close(picture)
    return path.with_suffix(".png")


def best_ten(found: Sequence[Measured], n: int, path: Path) -> Path:
    """CIDEr of the best, second best, ... caption after re-ranking n samples (the paper's figure 3)."""

    def paint(axes: Any) -> None:
        for each, look in zip(found, _looks(found), strict=True):
            ranks = [rank for rank in range(1, RANKS + 1) if f"rank/{n}/{rank}" in each.mean]
            _line(axes, each, ranks, [f"rank/{n}/{rank}" for rank in ranks], look)
        axes.set_xticks(range(1, RANKS + 1))
        axes.set(xlabel="rank after consensus re-ranking", ylabel="CIDEr")
        axes.set_title(f"Best ten of {n} captions, re-ranked")
        _legend(axes)

    return draw(path, paint)


def by_samples(found: Sequence[Measured], budgets: Sequence[int], path: Path) -> Path:
    """The best CIDEr among the first n captions; hollow marks are the paper's."""

    def paint(axes: Any) -> None:
        for each, look in zip(found, _looks(found), strict=True):
            numbers = sorted(
                int(match[1])
                for name in each.mean
                if (match := re.fullmatch(r"oracle/(\d+)/CIDEr", name))
                and int(match[1]) in {*NUMBERS, *budgets}
            )
            _line(axes, each, numbers, [f"oracle/{number}/CIDEr" for number in numbers], look)
        drawn = set()
        for role in dict.fromkeys(each.method.role for each in found):
            for row in published_rows("oracle", method=PUBLISHED_AS.get(role)):
                axes.plot(
                    row["samples"],
                    row["CIDEr"],
                    "o",
                    mfc="white",
                    mec=_colours(found)[role],
                    mew=1.6,
                    ms=7,
                    zorder=4,
                )
                drawn.add(role)
        if drawn:
            axes.plot(
                [], [], "o", mfc="white", mec="#444444", mew=1.6, ms=7, label="the paper's, same colour"
            )
        _samples_axis(axes)
        axes.set(ylabel="best CIDEr of n captions (oracle)")
        axes.set_title("Accuracy of the best caption against the number of captions")
        _legend(axes)

    return draw(path, paint)


def f1_by_samples(found: Sequence[Measured], path: Path) -> Path:
    """F1 of naming novel objects in any of n captions (the paper's figure 4b)."""

    def paint(axes: Any) -> None:
        for each, look in zip(found, _looks(found), strict=True):
            numbers = [n for n in NUMBERS if f"f1/{n}/average" in each.mean]
            _line(axes, each, numbers, [f"f1/{n}/average" for n in numbers], look)
        points = [(row["samples"], row["average"]) for row in published_rows("f1_by_samples")]
        axes.plot(*zip(*points, strict=True), "o", mfc="white", mec=COLOURS["pseudo"], mew=1.6, ms=7,
                  label="COS-CVAE, paper")  # fmt: skip
        _samples_axis(axes)
        axes.set(ylabel="F1 in %, mean over objects")
        axes.set_title("Novel objects named in any of n captions")
        _legend(axes)

    return draw(path, paint)


def _legend(axes: Any) -> None:
    """Inside of the axes; beside them where there are so many rows that they would hide the lines."""
    if len(axes.get_legend_handles_labels()[1]) > CROWDED:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    else:
        axes.legend()


def _samples_axis(axes: Any) -> None:
    marks = (1, 2, 5, 10, 20, 50, 100)
    axes.set_xscale("log")
    axes.set_xticks(marks, [str(mark) for mark in marks])
    axes.minorticks_off()
    axes.set_xlabel("number of captions n")


def _looks(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """Colour by role; a second run of a role is dashed, a third dotted."""
    colours = _colours(found)
    seen: dict[str, int] = {}
    looks = []
    for each in found:
        role = each.method.role
        looks.append({"color": colours[role], "linestyle": _LINES[seen.get(role, 0) % len(_LINES)]})
        seen[role] = seen.get(role, 0) + 1
    return looks


def _colours(found: Sequence[Measured]) -> dict[str, str]:
    others = dict.fromkeys(each.method.role for each in found if each.method.role not in COLOURS)
    return COLOURS | {role: _FURTHER[place % len(_FURTHER)] for place, role in enumerate(others)}


def _line(axes: Any, each: Measured, x: Sequence[int], names: Sequence[str], look: dict[str, Any]) -> None:
    if not names:  # a row of too few captions
        return
    y = [each.mean[name] for name in names]
    axes.plot(x, y, marker="o", ms=4, lw=1.8, label=each.method.name, **look)
    if all(name in each.intervals for name in names):
        low, high = zip(*(each.intervals[name] for name in names), strict=True)
        axes.fill_between(x, low, high, color=look["color"], alpha=0.12, lw=0)
