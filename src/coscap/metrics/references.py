"""Readers of captions for the metrics: results, samples and references, with every bad row named.

Accepted: COCO results and samples `[{"image_id", "caption", ...}]` (several rows an image are several
samples; `"captions": [...]` in a row is accepted too), the same as JSONL, COCO captions files
`{"images", "annotations"}`, a plain `{image id: [captions]}`, Flickr's token files (`name.jpg#0<tab>caption`), and
`coco:val2014`, `coco:train2014`, `coco:2014` (both). Samples may also be what `coscap caption --out` wrote.
"""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coscap.errors import UserError
from coscap.files import read_json, read_text

ImageId = int | str
Captions = dict[ImageId, list[str]]

_COCO = {"coco:val2014": ("val",), "coco:train2014": ("train",), "coco:2014": ("train", "val")}


@dataclass(frozen=True)
class Row:
    """One caption of a file, with the other fields of its row."""

    image_id: ImageId
    caption: str
    fields: Mapping[str, Any]


def read_samples(path: str | Path, id_of: Callable[[str], ImageId] | None = None) -> list[Row]:
    """Captions that a system wrote, in the order of the file. With `id_of`, the image id of a photograph's name, the
    file may also be one of `coscap caption --out`."""
    content = _content(path)
    if id_of is not None and isinstance(content, list):
        content = [_of_photo(item, id_of) for item in content]
    rows = _rows(path, content)
    if not rows:
        raise UserError(f"{path} holds no captions; expected rows with image_id and caption.")
    return rows


def read_references(name: str | Path) -> Captions:
    """References for each image: `coco:val2014` and its like, or a file; an image may have none."""
    if str(name).startswith("coco:"):
        return coco_captions(str(name))
    if Path(name).suffix.lower() in (".txt", ".token"):
        return _flickr_captions(name)
    captions = _by_image(_content(name), str(name))
    if not any(captions.values()):
        raise UserError(
            f"{name} holds no captions; expected a COCO captions file or rows with image_id and caption."
        )
    return captions


def read_domains(name: str | Path) -> dict[ImageId, str]:
    """The domain of each image of a COCO captions file whose images have one, as those of nocaps do."""
    content = None if str(name).startswith("coco:") or not Path(name).is_file() else _content(name)
    images = content.get("images") if isinstance(content, dict) else None
    found: dict[ImageId, str] = {}
    for image in images if isinstance(images, list) else []:
        if isinstance(image, dict) and isinstance(image.get("domain"), str) and "id" in image:
            found[image["id"]] = image["domain"]
    if not found:
        raise UserError(
            f'{name} has no domains; expected a COCO captions file whose "images" have "id" and "domain", such as '
            "nocaps_val_4500_captions.json."
        )
    return found


def as_captions(value: Any, name: str) -> Captions:
    """Captions by image, from what a program has at hand.

    That is a mapping from image ids to lists of captions, rows with image_id and caption, the content of a COCO
    captions file, or a name such as "coco:val2014".
    """
    if isinstance(value, str):
        return read_references(value)
    if isinstance(value, Mapping) and "annotations" not in value:
        return dict(value)
    return _by_image(value, name)


def _by_image(content: Any, name: str) -> Captions:
    captions: Captions = {}
    images = content.get("images") if isinstance(content, dict) else None
    for image in images if isinstance(images, list) else []:
        if isinstance(image, dict) and isinstance(image.get("id"), int | str):
            captions[image["id"]] = []
    for row in _rows(name, content):
        captions.setdefault(row.image_id, []).append(row.caption)
    return captions


def _flickr_captions(path: str | Path) -> Captions:
    """Flickr8k.token.txt and its like; image ids are the names of the pictures' files."""
    captions: Captions = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        name, tab, caption = line.partition("\t")
        image, sharp, _ = name.rpartition("#")
        if line.strip() and not (tab and sharp and image):
            raise UserError(
                f"{path} line {number} is no line of Flickr's captions; expected name.jpg#0, a tab, the caption."
            )
        if line.strip():
            captions.setdefault(image, []).append(caption.strip())
    if not captions:
        raise UserError(f"{path} holds no captions; expected lines like name.jpg#0, a tab, the caption.")
    return captions


def grouped(rows: Sequence[Row]) -> Captions:
    """Captions by image, both in the order of their first row."""
    captions: Captions = {}
    for row in rows:
        captions.setdefault(row.image_id, []).append(row.caption)
    return captions


def coco_captions(name: str) -> Captions:
    """COCO's 2014 captions out of the installed package pycocoevalcap, which carries all of them."""
    import importlib.util

    if name not in _COCO:
        raise UserError(f"{name} is not known; expected one of {', '.join(_COCO)}, or a file.")
    found = importlib.util.find_spec("pycocoevalcap")
    places = list(found.submodule_search_locations or []) if found else []
    jar = Path(places[0], "spice", "spice-1.0.jar") if places else None
    if jar is None or not jar.is_file():
        raise UserError(
            f"{name} needs the captions that come with the extra 'coco': pip install 'coscap[coco]'."
        )
    captions: Captions = {}
    with zipfile.ZipFile(jar) as archive:
        for split in _COCO[name]:
            content = json.loads(archive.read(f"coco/annotations/captions_{split}2014.json"))
            for annotation in content["annotations"]:
                captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    return captions


def _content(path: str | Path) -> Any:
    if Path(path).suffix.lower() not in (".jsonl", ".ndjson"):
        return read_json(path)
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path} line {number} is not valid JSON ({error.msg}); expected one row a line."
                ) from None
    return rows


def _rows(path: str | Path, content: Any) -> list[Row]:
    if isinstance(content, dict):
        content = content["annotations"] if "annotations" in content else _of_mapping(content)
    if not isinstance(content, list):
        raise UserError(
            f'{path} is not a list of captions; expected rows like {{"image_id": 42, "caption": "a dog"}}.'
        )
    rows: list[Row] = []
    bad: list[int] = []
    for number, item in enumerate(content, 1):
        found = _row(item)
        rows.extend(found)
        if not found:
            bad.append(number)
    if bad:
        raise UserError(
            f"{len(bad):,} of {len(content):,} rows of {path} are not captions (first: row {bad[0]}, "
            f"{_short(content[bad[0] - 1])}); expected image_id (number or string) and caption (string)."
        )
    kinds = {type(row.image_id): row for row in reversed(rows)}
    if len(kinds) > 1:
        strings = sum(isinstance(row.image_id, str) for row in rows)
        raise UserError(
            f"{path} mixes types of image_id: {strings:,} of {len(rows):,} are strings "
            f"(first: {kinds[str].image_id!r}), the others numbers (first: {kinds[int].image_id}); "
            "use one type."
        )
    return rows


def _row(item: Any) -> list[Row]:
    """The captions of one row; none if anything about it is wrong."""
    if not isinstance(item, dict):
        return []
    image_id = item.get("image_id")
    captions = item["captions"] if "captions" in item and "caption" not in item else [item.get("caption")]
    if isinstance(image_id, bool) or not isinstance(image_id, int | str) or not isinstance(captions, list):
        return []
    if not all(isinstance(caption, str) for caption in captions):
        return []
    fields = {name: value for name, value in item.items() if name not in ("image_id", "caption", "captions")}
    return [Row(image_id, caption, fields) for caption in captions]


def _of_photo(item: Any, id_of: Callable[[str], ImageId]) -> Any:
    """A row of `coscap caption`, {"photo", "captions": [{"text", ...}]}, as one of samples; any other as it is."""
    if not isinstance(item, dict) or not isinstance(item.get("photo"), str) or "image_id" in item:
        return item
    captions = item.get("captions")
    if not isinstance(captions, list) or not all(isinstance(each, dict) for each in captions):
        return item
    return {"image_id": id_of(item["photo"]), "captions": [each.get("text") for each in captions]}


def _of_mapping(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of {image id: [captions]}; JSON has only string keys, so all-digit keys are taken for numbers."""
    digits = all(key.isdecimal() for key in content)
    return [
        {"image_id": int(key) if digits else key, "captions": [value] if isinstance(value, str) else value}
        for key, value in content.items()
    ]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
