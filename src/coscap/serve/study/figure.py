"""The paper's figure of its human evaluation, as SVG: accuracy to the right, diversity up, a colour for each method.

Left: each picture, averaged over annotators, and each method's mean with its 95 % interval. Right: every rating by
itself, moved a little at random so that equal ones can be distinguished.
"""

import random
from collections.abc import Iterable, Sequence
from html import escape

from coscap.serve.study.answers import HIGHEST, LOWEST, Rating
from coscap.serve.study.results import Mean, Results, by_picture

COLOURS = ("#0b5394", "#c2410c", "#3f7d20", "#7a3e9d", "#8a6d00", "#a61b5b")  # 4.5 : 1 or more on white
SIDE, GAP, LEFT, TOP = 320, 70, 56, 64
INK, SOFT, LINE = "#1b1b1f", "#5c5a63", "#dedad4"


def draw(ratings: Sequence[Rating], found: Results, methods: Sequence[str]) -> str:
    accuracy, diversity = (by_picture(ratings, methods, measure) for measure in ("accuracy", "diversity"))
    averaged = [
        (place, accuracy[method][picture], diversity[method][picture])
        for place, method in enumerate(methods)
        for picture in accuracy[method]
    ]
    chance = random.Random(0)
    single = [
        (methods.index(one.method), one.accuracy + _jitter(chance), one.diversity + _jitter(chance))
        for one in ratings
        if one.method in methods
    ]
    chance.shuffle(single)  # no method covers the others
    chance.shuffle(averaged)
    means = [
        (place, found.methods[method]) for place, method in enumerate(methods) if method in found.methods
    ]
    parts = [
        *_panel(LEFT, "Pictures, averaged over annotators", averaged, 0.55),
        *_crosses(LEFT, [(place, mean["accuracy"], mean["diversity"]) for place, mean in means]),
        *_panel(LEFT + SIDE + GAP, "Every rating, with a small jitter", single, 0.4),
        *_legend(methods),
    ]
    width, height = LEFT + 2 * SIDE + GAP + 24, TOP + SIDE + 60
    described = "; ".join(
        f"{methods[place]}: accuracy {mean['accuracy'].mean:.2f}, diversity {mean['diversity'].mean:.2f}"
        for place, mean in means
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13"><title>Accuracy and diversity</title>'
        f"<desc>{escape(described or 'No ratings yet')}</desc>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _jitter(chance: random.Random) -> float:
    return chance.uniform(-0.3, 0.3)


def _x(left: float, value: float) -> float:
    return left + (value - LOWEST + 0.5) / (HIGHEST - LOWEST + 1) * SIDE


def _y(value: float) -> float:
    return TOP + SIDE - (value - LOWEST + 0.5) / (HIGHEST - LOWEST + 1) * SIDE


def _panel(
    left: float, title: str, points: Iterable[tuple[int, float, float]], opacity: float
) -> Iterable[str]:
    yield _text(left + SIDE / 2, TOP - 12, title, INK, anchor="middle", weight=600)
    yield f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{SOFT}"/>'
    for value in range(LOWEST, HIGHEST + 1):
        x, y = _x(left, value), _y(value)
        yield f'<path d="M{x:.1f} {TOP}V{TOP + SIDE}M{left} {y:.1f}H{left + SIDE}" stroke="{LINE}" stroke-width=".6"/>'
        yield _text(x, TOP + SIDE + 18, str(value), SOFT, anchor="middle")
        yield _text(left - 8, y + 4, str(value), SOFT, anchor="end")
    yield _text(left + SIDE / 2, TOP + SIDE + 42, "accuracy", INK, anchor="middle")
    x, y = left - 34, TOP + SIDE / 2
    yield (
        f'<text x="{x}" y="{y}" fill="{INK}" text-anchor="middle" transform="rotate(-90 {x} {y})">diversity</text>'
    )
    for place, accuracy, diversity in points:
        yield _mark(place, _x(left, accuracy), _y(diversity), 4.2, f'fill-opacity="{opacity}"')


def _crosses(left: float, means: Sequence[tuple[int, Mean, Mean]]) -> Iterable[str]:
    """Means, with lines as long as their intervals. All white edges come first: no mean hides another."""
    for edge in (True, False):
        for place, accuracy, diversity in means:
            x, y = _x(left, accuracy.mean), _y(diversity.mean)
            path = ""
            if accuracy.low is not None and accuracy.high is not None:
                path += f"M{_x(left, accuracy.low):.1f} {y:.1f}H{_x(left, accuracy.high):.1f}"
            if diversity.low is not None and diversity.high is not None:
                path += f"M{x:.1f} {_y(diversity.low):.1f}V{_y(diversity.high):.1f}"
            stroke, width = ("#fff", 6.5) if edge else (COLOURS[place % len(COLOURS)], 2.6)
            yield f'<path d="{path}" stroke="{stroke}" stroke-width="{width}" stroke-linecap="round" fill="none"/>'
            yield _mark(place, x, y, 6.2, 'stroke="#fff" stroke-width="3"' if edge else "")


def _legend(methods: Sequence[str]) -> Iterable[str]:
    """One line above the panels; a shape besides the colour, for those who see colours otherwise."""
    x = float(LEFT)
    for place, method in enumerate(methods):
        yield _mark(place, x + 6, 20, 5.5, "")
        shown = method if len(method) <= 28 else method[:27] + "…"
        yield _text(x + 18, 24.5, shown, INK)
        x += 18 + 7.6 * len(shown) + 20


def _mark(place: int, x: float, y: float, size: float, more: str) -> str:
    colour = COLOURS[place % len(COLOURS)]
    a, b = size * 1.25, size * 0.9
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"',
        f'<path d="M{x:.1f} {y - a:.1f}l{a:.1f} {a * 1.8:.1f}h{-2 * a:.1f}z"',
        f'<path d="M{x - b:.1f} {y - b:.1f}h{2 * b:.1f}v{2 * b:.1f}h{-2 * b:.1f}z"',
        f'<path d="M{x:.1f} {y - a:.1f}l{a:.1f} {a:.1f}l{-a:.1f} {a:.1f}l{-a:.1f} {-a:.1f}z"',
    )
    return f'{shapes[place % len(shapes)]} fill="{colour}" {more}/>'


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )
