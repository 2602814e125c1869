"""A page that shows what the model sees: the photograph with its regions drawn on it."""

import base64
import html
import io

from PIL import Image

from coscap.vision.regions import GRID_LABEL, Recipe, Regions

SHOWN_SIDE = 1200  # a larger photograph is scaled down for the page, which holds it inside itself

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222 }
section { display: flex; flex-wrap: wrap; gap: 1.5rem; margin-bottom: 2.5rem; align-items: flex-start }
h2 { width: 100%; margin: 0; font-size: 1.1rem }
figure { position: relative; margin: 0; flex: 1 1 26rem; max-width: 46rem }
figure img { display: block; width: 100% }
.box { position: absolute; border: 2px solid; box-sizing: border-box }
.box span { position: absolute; left: 0; top: 0; padding: 0 .3em; font-size: 12px; white-space: nowrap;
  color: #fff; background: var(--colour) }
.cell { position: absolute; border: 1px dashed #fff9; box-sizing: border-box }
.weak { border-style: dotted; opacity: .6 }
.weak span { display: none }
.weak:hover { opacity: 1 }
.weak:hover span { display: inline }
.word { position: absolute; display: flex; align-items: center; justify-content: center; border-radius: 50%;
  color: #111; font-size: 13px; pointer-events: none }
.word span { padding: 0 .35em; border-radius: .7em; background: #fffc; white-space: nowrap; pointer-events: auto }
.word:hover { outline: 2px dashed #fff; opacity: 1 !important }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .1rem .6rem; text-align: left; border-bottom: 1px solid #ddd }
"""


def page(seen: list[tuple[str, Image.Image, Regions]], recipe: Recipe) -> str:
    """One HTML file, complete in itself, for the photographs (name, picture, regions)."""
    sections = "\n".join(_section(name, picture, regions, recipe) for name, picture, regions in seen)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Regions</title>"
        f"<style>{STYLE}</style></head><body>\n<h1>What the model sees</h1>\n"
        f"<p>Recipe {html.escape(recipe.name)}: at most {recipe.detections} detections, drawn with class and "
        f"score (dotted below 0.3: point at one to read it), and a grid of {recipe.grid} x {recipe.grid} cells."
        + (
            f" At most {recipe.most_words} words, each in the middle of its evidence (point at one to see how far it "
            "goes).</p>\n"
            if recipe.words
            else "</p>\n"
        )
        + f"{sections}\n</body></html>\n"
    )


def rows(regions: Regions, recipe: Recipe) -> list[tuple[str, float, list[float]]]:
    """Class or word, score and box of the detections and of the words, best first."""
    return [
        (recipe.label_name(label), float(score), [float(side) for side in box])
        for label, score, box in zip(regions.labels, regions.scores, regions.boxes, strict=True)
        if label != GRID_LABEL
    ]


def _section(name: str, picture: Image.Image, regions: Regions, recipe: Recipe) -> str:
    found = rows(regions, recipe)
    detections = int(((regions.labels >= 0) & (regions.labels < len(recipe.classes))).sum())
    cells = [box for box, label in zip(regions.boxes, regions.labels, strict=True) if label == GRID_LABEL]
    drawn = [f"<div class='cell' style='{_place([float(side) for side in box])}'></div>" for box in cells]
    # The best come last and so lie on top.
    drawn += [_box(kind, score, box, recipe) for kind, score, box in reversed(found[:detections])]
    drawn += [_word(word, score, box) for word, score, box in reversed(found[detections:])]
    table = "".join(
        f"<tr><td>{html.escape(kind)}</td><td>{score:.2f}</td>"
        f"<td>{', '.join(f'{side:.2f}' for side in box)}</td></tr>"
        for kind, score, box in found
    )
    return (
        f"<section><h2>{html.escape(name)}</h2>"
        f"<figure><img alt='' src='{_inline(picture)}'>{''.join(drawn)}</figure>"
        f"<table><tr><th>class or word</th><th>score</th><th>x1, y1, x2, y2</th></tr>{table}</table></section>"
    )


def _box(kind: str, score: float, box: list[float], recipe: Recipe) -> str:
    colour = f"hsl({recipe.classes.index(kind) * 137 % 360} 70% 40%)"  # neighbours in the list differ most
    weak = " weak" if score < 0.3 else ""
    label = f"<span>{html.escape(kind)} {score:.2f}</span>"
    return (
        f"<div class='box{weak}' style='--colour:{colour};border-color:{colour};{_place(box)}'>{label}</div>"
    )


def _word(word: str, probability: float, box: list[float]) -> str:
    strength = f"opacity:{0.35 + 0.65 * probability:.2f}"
    label = f"<span>{html.escape(word)} {probability:.2f}</span>"
    return f"<div class='word' style='{_place(box)};{strength}'>{label}</div>"


def _place(box: list[float]) -> str:
    x1, y1, x2, y2 = (100 * side for side in box)
    return f"left:{x1:.2f}%;top:{y1:.2f}%;width:{x2 - x1:.2f}%;height:{y2 - y1:.2f}%"


def _inline(picture: Image.Image) -> str:
    shown = picture.copy()
    shown.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
