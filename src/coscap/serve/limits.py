"""What one request, and all that wait together, may ask of the server."""

from dataclasses import dataclass

FORM_FIELDS = 40  # fields of a form besides its photographs
FIELD_BYTES = 10_000  # of one such field
JSON_BYTES = 10_000  # of a body that is JSON
NAME_LENGTH = 200  # characters of a photograph's name that are given back


@dataclass(frozen=True)
class Limits:
    """Most of them are options of `coscap serve`."""

    photos: int = 16
    """Photographs in a request."""
    bytes: int = 32_000_000
    """Bytes of a request's body."""
    pixels: int = 50_000_000
    """Pixels of a photograph."""
    captions: int = 20
    """Captions of a photograph."""
    seconds: float = 60.0
    """Time to read a request, and again to answer it."""
    waiting: int = 128
    """Requests that are read, wait or are in work at once."""
    batch: int = 16
    """Photographs that are captioned together."""
    voices: int = 2
    """Such batches at once; the processors share them better than one batch's multiplications."""
    kept: int = 512
    """Photographs whose captions can still be varied."""
    kept_seconds: float = 3600.0
    """How long they can be."""
