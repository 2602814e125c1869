"""A folder of pictures, each with its captions in a text file of the same name, one a line."""

import hashlib
from pathlib import Path

from coscap.data.records import Collector, Source, Troubles
from coscap.errors import UserError
from coscap.files import read_text
from coscap.vision.ids import image_id_of

PICTURES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif", ".avif"}
)


def read_folder(path: str | Path, troubles: Troubles) -> Source:
    """`cat.jpg` with `cat.txt` beside it; a picture without a text file has no captions, which is fine."""
    root = Path(path)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that holds the pictures.")
    files = sorted(file for file in root.rglob("*") if file.is_file() and not file.name.startswith("."))
    collector = Collector(root.name, troubles)
    digest = hashlib.sha256()
    stems = {}
    for file in files:
        if file.suffix.lower() in PICTURES:
            name = file.relative_to(root).as_posix()
            digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
            if collector.picture(name, image_id_of(name), name):
                stems[file.with_suffix("")] = image_id_of(name)
    if not stems:
        raise UserError(f"{root} holds no pictures; files such as .jpg or .png were expected.")
    for file in files:
        if file.suffix.lower() == ".txt":
            _read_captions(
                collector, file, file.relative_to(root).as_posix(), stems.get(file.with_suffix("")), digest
            )
    return Source(root.name, collector.pictures(), {root.name: digest.hexdigest()})


def _read_captions(
    collector: Collector, file: Path, name: str, image_id: int | None, digest: "hashlib._Hash"
) -> None:
    if image_id is None:
        collector.troubles.report(
            "unknown image",
            f"{collector.file}: {name} has captions, but no picture beside it has the same name",
        )
        return
    text = read_text(file)
    digest.update(text.encode("utf-8"))
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():  # an empty line is how people end a text file, not an empty caption
            collector.caption(f"{name}, line {number}", image_id, line)
