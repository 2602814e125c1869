"""JSON Lines: one object a line, with a picture and its caption or captions.

    {"image": "kitchen/cat.jpg", "captions": ["a cat on a table", "a sleeping cat"], "split": "train"}
    {"file_name": "dog.png", "text": "a dog runs", "image_id": 7}

The picture is "image", "file_name" or "image_id"; the text "captions" (a list), "caption" or "text".
Lines of the same picture add up; a line without text is a picture without captions.
"""

import json
from pathlib import Path
from typing import Any

from coscap.data.records import Collector, Source, Troubles, content_hash, is_id, read_bytes, split_name
from coscap.vision.ids import image_id_of


def read_jsonl(path: str | Path, troubles: Troubles) -> Source:
    path = Path(path)
    content = read_bytes(path)
    collector = Collector(path.name, troubles)
    names: dict[int, str] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            row = _parse(path.name, number, line, troubles)
            if row is not None:
                _add(collector, names, f"line {number}", row)
    return Source(path.name, collector.pictures(), {path.name: content_hash(content)})


def _parse(label: str, number: int, line: bytes, troubles: Troubles) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        troubles.report("broken JSON", f"{label}, line {number} is not valid JSON")
        return None
    if not isinstance(row, dict):
        troubles.report("missing field", f"{label}, line {number} is not an object")
        return None
    return row


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
