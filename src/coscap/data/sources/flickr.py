"""Flickr8k and Flickr30k: a text file with one caption a line, and lists of file names for the splits.

Three layouts are about: the original `NAME.jpg#0<TAB>caption` (Flickr8k.token.txt,
results_20130124.token), the comma-separated `image,caption` with a header (captions.txt) and the
bar-separated `image_name| comment_number| comment` (results.csv).
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from coscap.data.records import (
    TEST,
    TRAIN,
    VALIDATION,
    Collector,
    Source,
    Troubles,
    content_hash,
)
from coscap.errors import UserError, reason
from coscap.files import read_bytes
from coscap.vision.ids import image_id_of

CAPTION_FILES = ("Flickr8k.token.txt", "captions.txt", "results_20130124.token", "results.csv")
SPLIT_FILES = {
    TRAIN: "Flickr_8k.trainImages.txt",
    VALIDATION: "Flickr_8k.devImages.txt",
    TEST: "Flickr_8k.testImages.txt",
}


def read_flickr(path: str | Path, troubles: Troubles) -> Source:
    """Captions from a file or from the folder that holds it; the official split lists beside it are used."""
    file = _caption_file(Path(path))
    content = read_bytes(file)
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    collector = Collector(file.name, troubles)
    names: dict[int, str] = {}
    for item, name, caption in _rows(file.name, lines, troubles):
        image_id = image_id_of(name)
        if image_id not in collector:
            collector.picture(item, image_id, name)
            names[image_id] = name
        elif names[image_id] != name:
            collector.picture(item, image_id, name)  # reports the clash of two names with one id
            continue
        collector.caption(item, image_id, caption)
    hashes = {file.name: content_hash(content)}
    splits = _official_splits(file.parent, hashes)
    pictures = tuple(replace(one, split=splits.get(one.name)) for one in collector.pictures())
    if not pictures:
        raise UserError(f"{file} has no captions; lines such as 'name.jpg#0<TAB>a caption' were expected.")
    return Source(file.name, pictures, hashes)


def _caption_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in CAPTION_FILES:
        if (path / name).is_file():
            return path / name
    raise UserError(f"{path} has none of {', '.join(CAPTION_FILES)}; name the captions file itself.")


def _rows(label: str, lines: list[str], troubles: Troubles) -> Iterator[tuple[str, str, str]]:
    """(item for messages, file name, caption) for each line, whichever layout it is."""
    header = lines[0].replace(" ", "").lower() if lines else ""
    if header.startswith("image,caption"):
        try:
            for row in csv.reader(lines[1:]):
                if len(row) >= 2:
                    yield f"the row of {row[0]}", row[0].strip(), ",".join(row[1:])
                elif row:
                    troubles.report("missing field", f"{label}: the row {row[0][:60]!r} has no caption")
        except csv.Error as error:  # a quote that is never closed
            raise UserError(f"{label} is not a whole table ({reason(error)}); check its quotes.") from None
        return
    bars = header.startswith("image_name|")
    for number, line in enumerate(lines[1:] if bars else lines, start=2 if bars else 1):
        if not line.strip():
            continue
        fields = line.split("|", 2) if bars else line.split("\t", 1)
        if len(fields) < (3 if bars else 2):
            troubles.report("missing field", f"{label}, line {number} has no caption after the file name")
            continue
        yield f"line {number}", fields[0].split("#")[0].strip(), fields[-1]


def _official_splits(folder: Path, hashes: dict[str, str]) -> dict[str, str]:
    splits = {}
    for split, file_name in SPLIT_FILES.items():
        file = folder / file_name
        if file.is_file():
            content = read_bytes(file)
            hashes[file_name] = content_hash(content)
            splits.update(dict.fromkeys(content.decode("utf-8", "replace").split(), split))
    return splits
