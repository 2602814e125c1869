"""The numbers that the paper published, with the table or section of each (paper.json)."""

import json
from functools import lru_cache
from importlib.resources import files as resources
from typing import Any


@lru_cache(maxsize=1)
def paper() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources("coscap.report") / "paper.json").read_text("utf-8"))
    return content


def where(table: str) -> str:
    return str(paper()[table]["where"])


def rows(table: str, **fields: Any) -> list[dict[str, Any]]:
    """The rows of a published table whose fields have these values."""
    found: list[dict[str, Any]] = paper()[table]["rows"]
    return [row for row in found if all(row.get(name) == value for name, value in fields.items())]


def value(table: str, metric: str, **fields: Any) -> float | None:
    """One published number, or None where the paper has none."""
    found = [row[metric] for row in rows(table, **fields) if metric in row]
    return float(found[0]) if found else None
