"""One self-contained HTML page: photographs with their captions, and the region behind each word."""

import base64
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST_SIDE = 900  # pixels; a page of many photographs stays small enough to mail
DOUBT = 0.3  # a word with less support is drawn as doubtful
INDEX_FROM = 4  # photographs from which a page begins with a list of them


def render(
    figures: Sequence[tuple[str, str]], errors: Sequence[tuple[str, str]] = (), title: str = "Captions"
) -> str:
    """The page of photographs: their names with what `figure` made of them, and what could not be read."""
    template = (resources("coscap") / "templates" / "captions.html").read_text(encoding="utf-8")
    parts = {
        "title": html.escape(title),
        "index": _index([name for name, _ in figures]) if len(figures) >= INDEX_FROM else "",
        "figures": "\n".join(
            f'<div id="photo-{number}">{made}</div>' for number, (_, made) in enumerate(figures, 1)
        ),
        "errors": _errors(errors) if errors else "",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def figure(result: Mapping[str, Any], picture: "Image") -> str:
    """One photograph; result: its captions as `PhotoCaptions.to_json` gives them."""
    captions = result["captions"]
    first = captions[0]["alt"] if captions else ""
    rows = "\n".join(_row(caption) for caption in captions)
    return (
        f'<figure><div class="photo"><img src="{_data_uri(picture)}" alt="{_quoted(first)}">'
        f'<div class="box" hidden></div></div>'
        f"<figcaption><h2>{html.escape(result['photo'])}</h2><ol>{rows}</ol></figcaption></figure>"
    )


def _row(caption: Mapping[str, Any]) -> str:
    text, alt = caption["text"], caption["alt"]
    words = _words(caption.get("words") or [{"word": text}])
    score = f"{caption['log_probability']:.1f}".replace("-", "\N{MINUS SIGN}")
    title = "log-probability of the caption"
    if caption.get("support") is not None:
        score, title = (
            f"{caption['support']:.0%}",
            f"how likely it is that this is true; log-probability {score}",
        )
    return (
        f'<li><p class="caption">{words}</p>'
        f'<p class="score" title="{title}">{score}</p>'
        f'<button type="button" data-copy="{_quoted(text)}">Copy</button>'
        f'<button type="button" data-copy="{_quoted(alt)}" title="{_quoted(alt)}">Copy alt text</button></li>'
    )


def _words(words: Sequence[Mapping[str, Any]]) -> str:
    spans = []
    for word in words:
        text = html.escape(word["word"])
        if "box" not in word:
            spans.append(text)
            continue
        box = html.escape(json.dumps([round(side, 4) for side in word["box"]]))
        seen = word.get("support")
        doubt = ' class="doubt"' if seen is not None and seen < DOUBT else ""
        known = "" if seen is None else f' data-support="{seen:.2f}"'
        spans.append(
            f'<span tabindex="0" data-box="{box}" data-weight="{word["weight"]:.2f}"{known}{doubt}>{text}</span>'
        )
    return " ".join(spans)


def _index(names: Sequence[str]) -> str:
    links = "".join(
        f'<li><a href="#photo-{number}">{html.escape(name)}</a></li>' for number, name in enumerate(names, 1)
    )
    return (
        f"<nav><details open><summary>{len(names):,} photographs</summary>"
        f'<ol class="index">{links}</ol></details></nav>'
    )


def _errors(errors: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<li>{html.escape(error)}</li>" for _, error in errors)
    return f'<section class="errors"><h2>Photographs that could not be read</h2><ul>{rows}</ul></section>'


def _quoted(text: str) -> str:
    return html.escape(text, quote=True)


def _data_uri(picture: "Image") -> str:
    small = picture.convert("RGB")
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
