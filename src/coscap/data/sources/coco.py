"""COCO captions (also nocaps, which is the same with a `domain`), and Karpathy's dataset JSON.

COCO's own 2014 captions need no download: the `pycocoevalcap` package carries both files inside a jar,
and `coco:train2014` and `coco:val2014` name them.
"""

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

from coscap.data.records import Collector, Source, Troubles, content_hash, is_id, split_name
from coscap.errors import UserError
from coscap.files import parse_json, read_bytes
from coscap.vision.ids import image_id_of

BUILT_IN = ("coco:train2014", "coco:val2014")


def read_coco(name: str | Path, troubles: Troubles) -> Source:
    """The pictures and captions of a COCO-format file, of "coco:train2014" or of "coco:val2014"."""
    label, content = coco_bytes(name)
    document = parse_json(label, content)
    if is_karpathy(document):
        return read_karpathy_document(label, content, document, troubles)
    images, annotations = _lists(label, document, troubles)
    collector = Collector(label, troubles)
    for position, image in enumerate(images):
        _add_image(collector, position, image)
    seen: set[int] = set()
    for position, annotation in enumerate(annotations):
        _add_annotation(collector, position, annotation, seen)
    return Source(label, collector.pictures(), {label: content_hash(content)})


def coco_bytes(name: str | Path) -> tuple[str, bytes]:
    """A label for messages and the content of a captions file, which may be one of BUILT_IN."""
    text = str(name)
    if not text.startswith("coco:"):
        return Path(name).name, read_bytes(Path(name))
    if text not in BUILT_IN:
        raise UserError(
            f"{text} is not a data set that coscap knows; use {' or '.join(BUILT_IN)}, or a file."
        )
    jar = _spice_jar(text)
    with zipfile.ZipFile(jar) as archive:
        return text, archive.read(f"coco/annotations/captions_{text.removeprefix('coco:')}.json")


def _spice_jar(wanted: str) -> Path:
    package = importlib.util.find_spec("pycocoevalcap")
    folders = list(package.submodule_search_locations or ()) if package else []
    for folder in folders:
        jar = Path(folder) / "spice" / "spice-1.0.jar"
        if jar.is_file():
            return jar
    raise UserError(
        f"{wanted} is read from the package pycocoevalcap, which is missing; pip install 'coscap[coco]'."
    )


def _lists(label: str, document: Any, troubles: Troubles) -> tuple[list[Any], list[Any]]:
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise UserError(
            f'{label} has no list "images"; a COCO captions file is an object with "images" and "annotations".'
        )
    annotations = document.get("annotations")
    if not isinstance(annotations, list):
        troubles.report("missing field", f'{label} has no list "annotations", so no picture has a caption')
        annotations = []
    return document["images"], annotations


def _add_image(collector: Collector, position: int, image: Any) -> None:
    item = f"images[{position}]"
    image_id = image.get("id") if isinstance(image, dict) else None
    if not is_id(image_id):
        collector.troubles.report(
            "missing field", f'{collector.file}, {item} has no whole number (of at most 64 bits) "id"'
        )
        return
    domain = image.get("domain")  # nocaps: in-domain, near-domain, out-domain
    collector.picture(
        item,
        image_id,
        str(image.get("file_name") or f"{image_id:012d}.jpg"),
        subsets=(domain,) if isinstance(domain, str) else (),
    )


def _add_annotation(collector: Collector, position: int, annotation: Any, seen: set[int]) -> None:
    item = f"annotations[{position}]"
    troubles = collector.troubles
    if not isinstance(annotation, dict):
        troubles.report("missing field", f"{collector.file}, {item} is not an object")
        return
    image_id, caption = annotation.get("image_id"), annotation.get("caption")
    if not is_id(image_id):
        troubles.report("missing field", f'{collector.file}, {item} has no whole number "image_id"')
        return
    if not isinstance(caption, str):
        troubles.report("missing field", f'{collector.file}, {item} has no text "caption"')
        return
    number = annotation.get("id")
    if isinstance(number, int):
        if number in seen:
            troubles.report(
                "duplicate id", f"{collector.file}, {item}: another annotation has the id {number}"
            )
            return
        seen.add(number)
    collector.caption(f"{item} (id {number})", image_id, caption)


def is_karpathy(document: Any) -> bool:
    """Karpathy's files keep each picture's sentences inside the picture."""
    images = document.get("images") if isinstance(document, dict) else None
    return (
        isinstance(images, list) and bool(images) and isinstance(images[0], dict) and "sentences" in images[0]
    )


def read_karpathy(path: str | Path, troubles: Troubles) -> Source:
    """Karpathy's dataset_coco.json (or his Flickr files), with the splits that it names."""
    path = Path(path)
    content = read_bytes(path)
    document = parse_json(path.name, content)
    if not is_karpathy(document):
        raise UserError(
            f'{path} is not one of Karpathy\'s dataset files: an object with "images", each with "sentences" '
            'and "split", was expected.'
        )
    return read_karpathy_document(path.name, content, document, troubles)


def read_karpathy_document(label: str, content: bytes, document: Any, troubles: Troubles) -> Source:
    collector = Collector(label, troubles)
    for position, image in enumerate(document["images"]):
        item = f"images[{position}]"
        name = image.get("filename") if isinstance(image, dict) else None
        split = split_name(image.get("split")) if isinstance(image, dict) else None
        if not isinstance(name, str) or split is None or not isinstance(image.get("sentences"), list):
            troubles.report(
                "missing field", f'{label}, {item} needs "filename", "sentences" and a known "split"'
            )
            continue
        image_id = image.get("cocoid")
        image_id = image_id if is_id(image_id) else image_id_of(name)
        if not collector.picture(item, image_id, name, split=split):
            continue
        for number, sentence in enumerate(image["sentences"]):
            raw = sentence.get("raw") if isinstance(sentence, dict) else None
            collector.caption(f"{item}.sentences[{number}]", image_id, raw)
    return Source(label, collector.pictures(), {label: content_hash(content)})
