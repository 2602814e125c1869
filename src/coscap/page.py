"""One self-contained HTML page: photographs with their captions, and the region behind each word."""

import base64
import html
import io
import json
from collections.abc import Sequence
from importlib.resources import files as resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

    from coscap.captioner import PhotoCaptions, Word

LARGEST_SIDE = 900  # pixels; a page of many photographs stays small enough to mail


def render(results: Sequence["PhotoCaptions"], pictures: Sequence["Image"], title: str = "Captions") -> str:
    figures = [_figure(result, picture) for result, picture in zip(results, pictures, strict=True)]
    template = (resources("coscap") / "templates" / "captions.html").read_text(encoding="utf-8")
    return template.replace("{{title}}", html.escape(title)).replace("{{figures}}", "\n".join(figures))


def _figure(result: "PhotoCaptions", picture: "Image") -> str:
    first = result.captions[0].text if result.captions else ""
    rows = "\n".join(
        f'<li><p class="caption">{_words(caption.words)}</p>'
        f'<p class="score" title="log-probability of the caption">{_number(caption.log_probability)}</p></li>'
        for caption in result.captions
    )
    return (
        f'<figure><div class="photo"><img src="{_data_uri(picture)}" alt="{html.escape(first, quote=True)}">'
        f'<div class="box" hidden></div></div>'
        f"<figcaption><h2>{html.escape(result.photo)}</h2><ol>{rows}</ol></figcaption></figure>"
    )


def _number(value: float) -> str:
    return f"{value:.1f}".replace("-", "\N{MINUS SIGN}")


def _words(words: Sequence["Word"]) -> str:
    spans = []
    for word in words:
        box = html.escape(json.dumps([round(side, 4) for side in word.box]))
        weight = f"{word.weight:.2f}"
        text = html.escape(word.word)
        spans.append(f'<span tabindex="0" data-box="{box}" data-weight="{weight}">{text}</span>')
    return " ".join(spans)


def _data_uri(picture: "Image") -> str:
    small = picture.convert("RGB")
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
