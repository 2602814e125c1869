"""A picture's id from its file name, so that a store of regions and a data set of captions agree on it."""

import hashlib
import re
from pathlib import PurePosixPath

_NUMBERED = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,18})", re.IGNORECASE)


def image_id_of(name: str) -> int:
    """The id of the picture in the file `name`: its number if the name is one, else a hash of the name.

    "000000057870.jpg" and "COCO_train2014_000000057870.jpg" are 57870, as everywhere in COCO. Any other
    name ("kitchen/cat 3.jpg") gives 63 bits of the SHA-256 of the file name without folder and ending,
    so that the id does not depend on where the folder is or how the picture is encoded.
    """
    stem = PurePosixPath(name.replace("\\", "/")).stem
    numbered = _NUMBERED.fullmatch(stem)
    if numbered:
        return int(numbered.group(1))
    digest = hashlib.sha256(stem.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
