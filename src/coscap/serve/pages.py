"""The page for people, the page about the API, and the example photographs."""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

EXAMPLES = ("cat", "coffee", "astronaut", "raccoon", "rocket", "photographer", "admiral")


@dataclass(frozen=True)
class Page:
    """One self-contained HTML page, and the style and script inside it."""

    html: str
    style: str
    script: str

    @property
    def policy(self) -> str:
        return _policy(self.style, self.script)


def main_page() -> Page:
    """The page for people: a photograph and its captions."""
    return _page("page.html", ("page.css",), ("ask.js", "page.js"))


def study_pages() -> tuple[str, str, str]:
    """The page that rates, the page that shows the results, and a policy for both."""
    styles = ("page.css", "study.css")
    rating = _page("study.html", styles, ("ask.js", "study.js"))
    results = _page("results.html", styles, ("ask.js", "results.js"))
    return rating.html, results.html, _policy(rating.style, rating.script, results.script)


def _page(body: str, styles: Sequence[str], scripts: Sequence[str]) -> Page:
    style, script = ("\n".join(_text(name) for name in names) for names in (styles, scripts))
    whole = _text(body).replace("{{style}}", style).replace("{{script}}", script)
    return Page(whole, style, script)


def _policy(style: str, *scripts: str) -> str:
    """A content security policy: what a page brings with it runs, by its hash, and nothing else does."""
    hashes = " ".join(_hash(script) for script in scripts)
    return (
        "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'self'; "
        f"frame-ancestors 'none'; style-src 'self' {_hash(style)}; script-src 'self' {hashes}"
    )


def api_page(schema: dict[str, Any]) -> str:
    """The OpenAPI description as a plain page."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<section><h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(operation.get('description') or operation.get('summary') or '')}</p>"
                f"{_body(operation, schema)}{_answers(operation)}</section>"
            )
    title = html.escape(schema["info"]["title"])
    page = _text("docs.html").replace("{{style}}", _text("page.css")).replace("{{title}}", title)
    return page.replace("{{parts}}", "\n".join(parts))


def example_photos() -> dict[str, bytes]:
    """The example photographs by file name: inside the package, or beside it in a checkout; none elsewhere."""
    package = Path(str(resources("coscap")))
    for folder in (package / "serve" / "examples", package.parents[1] / "examples"):
        found = {f"{name}.jpg": folder / f"{name}.jpg" for name in EXAMPLES}
        if all(path.is_file() for path in found.values()):
            return {name: path.read_bytes() for name, path in found.items()}
    return {}


def _body(operation: dict[str, Any], schema: dict[str, Any]) -> str:
    rows = []
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        fields = _resolved(content["schema"], schema)
        for name, field in fields.get("properties", {}).items():
            need = "Required." if name in fields.get("required", []) else _default(field.get("default"))
            need = f"{_bounds(field)} {need}".strip()
            rows.append(
                f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(field.get('description', ''))}"
                f" <span class='soft'>{html.escape(need)}</span></td></tr>"
            )
        return f"<h3>Body: {html.escape(kind)}</h3><table>{''.join(rows)}</table>"
    return ""


def _answers(operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(status)}</code></td><td>{html.escape(answer.get('description', ''))}</td></tr>"
        for status, answer in operation.get("responses", {}).items()
    )
    return f"<h3>Answers</h3><table>{rows}</table>"


def _resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = part.get("$ref", "")
    if not reference:
        return part
    resolved: dict[str, Any] = schema["components"]["schemas"][reference.rpartition("/")[2]]
    return resolved


def _bounds(field: dict[str, Any]) -> str:
    """What a value may be, from its JSON schema."""
    if "enum" in field:
        return f"One of {', '.join(map(str, field['enum']))}."
    for most, unit in (("maximum", ""), ("maxLength", " characters"), ("maxItems", " times")):
        if most in field:
            least = field.get("minimum", field.get("exclusiveMinimum"))
            start = "At most" if least is None else f"{_number(least)} to"
            return f"{start} {_number(field[most])}{unit}."
    return ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _default(value: object) -> str:
    return "" if value in (None, [], ()) else f"Default: {json.dumps(value)}."


def _text(name: str) -> str:
    return (resources("coscap") / "serve" / "static" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
