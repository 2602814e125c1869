"""Figures of captions: photographs, and words in the colour of what they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coscap.text import ObjectClasses, split
from coscap.text.slots import SLOT, SLOTS

CONTEXT_COLOUR, OBJECT_COLOUR, BOTH_COLOUR, PICTURE_COLOUR = "#1f6fb4", "#c8501e", "#8a7fb0", "#c9ccd1"
TEXT, FAINT = "#2b2b2b", "#9a9a9a"


@dataclass(frozen=True)
class Cell:
    """A caption at a place: its words flow into a column of this width (all in inches from the upper left)."""

    x: float
    y: float
    width: float
    units: Sequence[str]
    faint: bool = False  # nothing new: the same caption as before


class Sheet:
    """A blank figure that is written on in inches from its upper left corner."""

    def __init__(
        self, plot: Any, width: float, height: float, objects: ObjectClasses, size: float = 9.5
    ) -> None:
        self.width, self.height, self.objects, self.size = width, height, objects, size
        self.figure = plot.figure(figsize=(width, height))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")
        self.line = size * 1.38 / 72
        self._renderer = self.figure.canvas.get_renderer()
        self._known: dict[tuple[str, float], float] = {}

    def text(self, x: float, y: float, words: str, **look: Any) -> None:
        style = {"fontsize": self.size, "color": TEXT, "va": "top", **look}
        self.axes.text(x, y, words, **style)

    def rule(self, y: float, x0: float = 0.0, x1: float | None = None) -> None:
        self.axes.plot([x0, self.width if x1 is None else x1], [y, y], color="#dddddd", lw=0.8)

    def photograph(self, picture: Any, x: float, y: float, side: float) -> None:
        """The middle square of a photograph."""
        edge = min(picture.size)
        left, upper = (picture.width - edge) // 2, (picture.height - edge) // 2
        square = picture.crop((left, upper, left + edge, upper + edge)).resize((360, 360))
        axes = self.figure.add_axes(
            (x / self.width, 1 - (y + side) / self.height, side / self.width, side / self.height)
        )
        axes.imshow(square)
        axes.axis("off")

    def caption(self, cell: Cell) -> float:
        """Write a caption, objects in their colour; gives the y below its last line."""
        context = split(" ".join(cell.units).split(" "), self.objects)
        slots = [word in (SLOT, SLOTS) for word in context.context]
        places = self._flow(context.units, cell.width)
        for unit, is_object, (x, line) in zip(context.units, slots, places, strict=True):
            colour = FAINT if cell.faint else OBJECT_COLOUR if is_object else CONTEXT_COLOUR
            self.text(cell.x + x, cell.y + line * self.line, unit, color=colour)
        return cell.y + (places[-1][1] + 1 if places else 0) * self.line

    def high(self, units: Sequence[str], width: float) -> float:
        """How high a caption is in a column of this width."""
        places = self._flow(split(" ".join(units).split(" "), self.objects).units, width)
        return (places[-1][1] + 1 if places else 0) * self.line

    def _flow(self, units: Sequence[str], width: float) -> list[tuple[float, int]]:
        """x and line of each unit."""
        space = self._measure("n n") - self._measure("nn")
        x, line, places = 0.0, 0, []
        for unit in units:
            wide = self._measure(unit)
            if x > 0 and x + wide > width:
                x, line = 0.0, line + 1
            places.append((x, line))
            x += wide + space
        return places

    def _measure(self, words: str) -> float:
        """The width of words in inches."""
        key = (words, self.size)
        if key not in self._known:
            drawn = self.axes.text(0, 0, words, fontsize=self.size)
            self._known[key] = drawn.get_window_extent(self._renderer).width / self.figure.dpi
            drawn.remove()
        return self._known[key]
