"""The figures of `coscap analyse`."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coscap.analysis.drawing import (
    BOTH_COLOUR,
    CONTEXT_COLOUR,
    FAINT,
    OBJECT_COLOUR,
    PICTURE_COLOUR,
    TEXT,
    Cell,
    Sheet,
)
from coscap.analysis.traverse import Activity
from coscap.analysis.variance import PARTS, Shares
from coscap.files import whole_file
from coscap.pages import STYLE, pyplot
from coscap.seam import Caption
from coscap.text import ObjectClasses

_PART_COLOURS = {"context": CONTEXT_COLOUR, "objects": OBJECT_COLOUR, "both": BOTH_COLOUR}
_WORDS = {
    "context": "context words",
    "objects": "objects named",
    "caption": "whole caption (CIDEr)",
    "looks": "regions looked at",
}


@dataclass(frozen=True)
class Photo:
    """A photograph that may be shown."""

    name: str
    picture: Any  # PIL.Image.Image


@dataclass(frozen=True)
class Way:
    """Captions along a way through a latent."""

    title: str
    marks: Sequence[str]  # one for each caption
    captions: Sequence[Caption]


def swap_grid(
    photos: Sequence[Photo],
    sources: Sequence[Caption],
    grid: Sequence[Sequence[Caption]],
    objects: ObjectClasses,
    path: Path,
) -> None:
    """Rows: the caption that z^m comes from; columns: the photograph that it is applied to."""
    plot = pyplot()
    side, left, gap, small, top = 1.45, 2.35, 0.3, 0.55, 0.55
    width, own = side + gap - 0.12, left - 0.76 - 0.25
    with plot.rc_context(STYLE):
        rule = Sheet(plot, 1, 1, objects)
        rows = [
            max(small, rule.high(source.tokens, own), *(rule.high(c.tokens, width) for c in captions)) + 0.24
            for source, captions in zip(sources, grid, strict=True)
        ]
        sheet = Sheet(plot, left + len(photos) * (side + gap), top + side + 0.2 + sum(rows), objects)
        sheet.text(0.12, 0.12, "The context of one caption, on other photographs", fontsize=12.5)
        sheet.text(0.12, top + side - 0.4, "z$^m$ is read from the\ncaption of", color=FAINT)
        for column, photo in enumerate(photos):
            sheet.photograph(photo.picture, left + column * (side + gap), top, side)
        y = top + side + 0.2
        for place, (source, captions, row) in enumerate(zip(sources, grid, rows, strict=True)):
            sheet.rule(y)
            sheet.photograph(photos[place].picture, 0.12, y + 0.12, small)
            sheet.caption(Cell(0.76, y + 0.12, own, source.tokens))
            for column, caption in enumerate(captions):
                x = left + column * (side + gap)
                sheet.caption(Cell(x, y + 0.12, width, caption.tokens, faint=place == column))
            y += row
        _keep(sheet.figure, path)
        plot.close("all")


def ways(photo: Photo, found: Sequence[Way], title: str, objects: ObjectClasses, path: Path) -> None:
    """Captions along several ways, a column each; a caption that repeats the one above it is faint."""
    plot = pyplot()
    mark, left, columns = 0.5, 1.95, 3
    width = 2.45
    blocks = [found[start : start + columns] for start in range(0, len(found), columns)]
    with plot.rc_context(STYLE):
        rule = Sheet(plot, 1, 1, objects, size=9.0)
        heights = [
            [max(rule.high(c.tokens, width) for c in row) + 0.1
             for row in zip(*(way.captions for way in block), strict=True)]
            for block in blocks
        ]  # fmt: skip
        height = max(2.4, 0.6 + sum(0.45 + sum(rows) for rows in heights))
        sheet = Sheet(plot, left + min(columns, len(found)) * (mark + width + 0.2), height, objects, size=9.0)
        sheet.text(0.12, 0.12, title, fontsize=12.5)
        sheet.photograph(photo.picture, 0.12, 0.58, 1.6)
        top = 0.58
        for block, rows in zip(blocks, heights, strict=True):
            for column, way in enumerate(block):
                x, y, before = left + column * (mark + width + 0.2), top + 0.27, None
                sheet.text(x, top, way.title, fontweight="bold")
                for label, caption, row in zip(way.marks, way.captions, rows, strict=True):
                    sheet.text(x + mark - 0.1, y, label, color=FAINT, ha="right")
                    sheet.caption(Cell(x + mark, y, width, caption.tokens, faint=caption.tokens == before))
                    before, y = caption.tokens, y + row
            top += 0.45 + sum(rows)
        _keep(sheet.figure, path)
        plot.close("all")


def variance_bars(found: dict[str, Shares], pictures: int, count: int, path: Path) -> None:
    """Left: what picture and latents decide of all; right: with the picture fixed, which latent."""
    plot = pyplot()
    names = {"context": "z$^m$ alone", "objects": "z$^o$ alone", "both": "only both together"}
    with plot.rc_context({**STYLE, "axes.grid": False}):
        figure, (left, right) = plot.subplots(
            1, 2, figsize=(9.6, 3.1), layout="constrained", sharey=True, width_ratios=(1, 2)
        )
        for place, (kind, shares) in enumerate(found.items()):
            if kind != "looks":  # regions of different pictures have nothing in common
                share = 100 * shares.picture[0]
                left.barh(place, share, color=PICTURE_COLOUR, height=0.62)
                left.barh(place, 100 - share, left=share, color="#f1ece2", height=0.62)
                left.text(share + 2, place, f"{share:.0f} %", ha="left", va="center", fontsize=10)
            start = 0.0
            for part in PARTS:
                value, low, high = (100 * max(0.0, each) for each in shares.within[part])
                right.barh(place, value, left=start, color=_PART_COLOURS[part], height=0.62)
                if value > 7:
                    right.text(start + value / 2, place - 0.02, f"{value:.0f} %", ha="center", va="center",
                               color="white", fontsize=10)  # fmt: skip
                    right.text(start + value / 2, place + 0.42, f"{low:.0f}–{high:.0f}", ha="center",
                               va="center", color=FAINT, fontsize=7.5)  # fmt: skip
                start += value
            left.text(-3, place, _WORDS[kind], ha="right", va="center", color=TEXT)
        left.set_yticks([])
        left.invert_yaxis()
        left.set(xlim=(0, 100), xlabel="% of all variance")
        right.set(xlim=(0, 100), xlabel="% of the variance at a fixed picture")
        left.set_title("the picture's share")
        right.set_title(f"what the latents decide ({pictures} pictures, {count} x {count} draws)")
        handles = [plot.Rectangle((0, 0), 1, 1, color=_PART_COLOURS[part]) for part in PARTS]
        right.legend(handles, names.values(), loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3)
        for axes in (left, right):
            axes.spines["left"].set_visible(False)
            axes.tick_params(left=False)
        _keep(figure, path)
        plot.close(figure)


def activity_bars(found: dict[str, Activity], path: Path) -> None:
    """KL of each dimension, the most active first, and what moving it changes."""
    plot = pyplot()
    with plot.rc_context(STYLE):
        figure, rows = plot.subplots(2, 2, figsize=(9.6, 5.0), layout="constrained", sharey="row")
        for column, (name, colour) in enumerate((("context", CONTEXT_COLOUR), ("objects", OBJECT_COLOUR))):
            latent = found[name]
            order = latent.most_active(len(latent.kl))
            upper, lower = rows[0][column], rows[1][column]
            upper.bar(range(len(order)), latent.kl[order], color=colour)
            upper.set_title(f"z$^{'m' if name == 'context' else 'o'}$: nats a word in each dimension")
            lower.plot(100 * latent.changed_context[order], "o-", ms=3, lw=1.2, color=CONTEXT_COLOUR,
                       label="context words replaced")  # fmt: skip
            lower.plot(100 * latent.changed_objects[order], "o-", ms=3, lw=1.2, color=OBJECT_COLOUR,
                       label="object words replaced")  # fmt: skip
            lower.set(xlabel="dimension, the most active first")
            lower.set_title("moved by two deviations up and down")
            upper.set_xticks([])
        rows[0][0].set_ylabel("KL in nats")
        rows[1][0].set_ylabel("% of words")
        rows[1][1].legend()
        _keep(figure, path)
        plot.close(figure)


def _keep(figure: Any, path: Path) -> None:
    """As PNG of 256 colours, which is a third of the size where photographs are shown."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor="white")
    with whole_file(path) as partial, Image.open(buffer) as drawn:
        drawn.convert("RGB").quantize(256).save(partial, format="PNG", optimize=True)
