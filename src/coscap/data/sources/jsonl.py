"""JSON Lines: one object a line, with a picture and its caption or captions.

    {"image": "kitchen/cat.jpg", "captions": ["a cat on a table", "a sleeping cat"], "split": "train"}
    {"file_name": "dog.png", "text": "a dog runs", "image_id": 7}

The picture is "image", "file_name" or "image_id"; the text "captions" (a list), "caption" or "text".
Lines of the same picture add up; a line without text is a picture without captions. Other keys are not read: a
note names them, and one that looks like a slip ("splt") is an error.
"""

import difflib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from coscap.data.records import Collector, Source, Troubles, content_hash, is_id, split_name
from coscap.files import read_bytes
from coscap.vision.ids import image_id_of

KEYS = ("image", "file_name", "image_id", "captions", "caption", "text", "split")


def read_jsonl(path: str | Path, troubles: Troubles) -> Source:
    path = Path(path)
    content = read_bytes(path)
    collector = Collector(path.name, troubles)
    names: dict[int, str] = {}
    strange: Counter[str] = Counter()
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            row = _parse(path.name, number, line, troubles)
            if row is not None:
                strange.update(_unread(collector, f"line {number}", row))
                _add(collector, names, f"line {number}", row)
    notes = [f"{path.name}: the key {key!r} of {lines:,} lines is not read" for key, lines in strange.items()]
    return Source(path.name, collector.pictures(), {path.name: content_hash(content)}, tuple(notes))


def _parse(label: str, number: int, line: bytes, troubles: Troubles) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # broken JSON, not UTF-8, a number of thousands of digits
        troubles.report("broken JSON", f"{label}, line {number} is not valid JSON")
        return None
    if not isinstance(row, dict):
        troubles.report("missing field", f"{label}, line {number} is not an object")
        return None
    return row


def _unread(collector: Collector, item: str, row: dict[str, Any]) -> list[str]:
    """The keys that nothing is read from; one that is nearly a known key is bad input."""
    strange = [key for key in row if key not in KEYS]
    for key in strange:
        meant = difflib.get_close_matches(key.lower(), KEYS, n=1, cutoff=0.75)
        if meant and meant[0] not in row:
            collector.troubles.report(
                "unknown key", f'{collector.file}, {item}: there is no key {key!r}, did you mean "{meant[0]}"'
            )
    return strange


def _add(collector: Collector, names: dict[int, str], item: str, row: dict[str, Any]) -> None:
    image_id = row.get("image_id")
    name = row.get("image") or row.get("file_name") or (f"{image_id}.jpg" if is_id(image_id) else None)
    if not isinstance(name, str):
        collector.troubles.report(
            "missing field",
            f'{collector.file}, {item} names no picture; "image", "file_name" or "image_id" is needed',
        )
        return
    image_id = image_id if is_id(image_id) else image_id_of(name)
    split = split_name(row.get("split"))
    if "split" in row and split is None:
        collector.troubles.report(
            "missing field",
            f"{collector.file}, {item}: the split {row['split']!r} is not train, validation, test or unpaired",
        )
    if names.setdefault(image_id, name) != name or image_id not in collector:
        if not collector.picture(item, image_id, name, split=split):
            return
    elif split is not None and split != collector.split_of(image_id):
        collector.troubles.report(
            "two splits",
            f"{collector.file}, {item}: {name!r} is in the split {split!r} here and was in "
            f"{collector.split_of(image_id) or 'none'!r} before",
        )
        return
    for caption in _captions(row):
        collector.caption(item, image_id, caption)


def _captions(row: dict[str, Any]) -> list[Any]:
    for key in ("captions", "caption", "text"):
        value = row.get(key)
        if value is not None:
            return value if isinstance(value, list) else [value]
    return []
