"""The page for people, the page about the API, and the example photographs."""

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

EXAMPLES = ("cat", "coffee", "astronaut", "raccoon", "rocket", "photographer", "admiral")


@dataclass(frozen=True)
class Page:
    """One self-contained HTML page and the content security policy that lets exactly its own parts run."""

    html: str
    policy: str


def main_page() -> Page:
    """page.html with page.css and page.js inside. Their hashes stand in the policy, so nothing else runs."""
    style, script = _text("page.css"), _text("page.js")
    whole = _text("page.html").replace("{{style}}", style).replace("{{script}}", script)
    policy = (
        "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'self'; "
        f"frame-ancestors 'none'; style-src 'self' {_hash(style)}; script-src 'self' {_hash(script)}"
    )
    return Page(whole, policy)


def api_page(schema: dict[str, Any]) -> str:
    """The OpenAPI description as a plain page."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            parts.append(
                f"<section><h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(told.get('description') or told.get('summary') or '')}</p>"
                f"{_body(told, schema)}{_answers(told)}</section>"
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


def _body(told: dict[str, Any], schema: dict[str, Any]) -> str:
    rows = []
    for kind, content in told.get("requestBody", {}).get("content", {}).items():
        fields = _resolved(content["schema"], schema)
        for name, field in fields.get("properties", {}).items():
            need = "Required." if name in fields.get("required", []) else _default(field.get("default"))
            rows.append(
                f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(field.get('description', ''))}"
                f" <span class='soft'>{html.escape(need)}</span></td></tr>"
            )
        return f"<h3>Body: {html.escape(kind)}</h3><table>{''.join(rows)}</table>"
    return ""


def _answers(told: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(status)}</code></td><td>{html.escape(answer.get('description', ''))}</td></tr>"
        for status, answer in told.get("responses", {}).items()
    )
    return f"<h3>Answers</h3><table>{rows}</table>"


def _resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = part.get("$ref", "")
    if not reference:
        return part
    resolved: dict[str, Any] = schema["components"]["schemas"][reference.rpartition("/")[2]]
    return resolved


def _default(value: object) -> str:
    return "" if value in (None, [], ()) else f"Default: {json.dumps(value)}."


def _text(name: str) -> str:
    return (resources("coscap") / "serve" / "static" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
