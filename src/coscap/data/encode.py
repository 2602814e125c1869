"""Captions to numbers: tokenise, split into context and objects, and give each distinct unit a number.

Runs over chunks, so that several processes can share the work; a chunk numbers its units by itself and
`Encoded.gather` brings the chunks together.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coscap.progress import bar

if TYPE_CHECKING:
    from coscap.text import ObjectClasses

CHUNK = 2000  # captions


@dataclass(frozen=True)
class Encoded:
    """C captions: all their units one after the other, as indices into `table`."""

    table: list[str]  # the distinct units, in order of first use
    words: NDArray[np.int32]  # (W,) indices into table
    slots: NDArray[np.uint8]  # (W,) 0 for a word of the context, 1 for one object, 2 for several
    lengths: NDArray[np.int32]  # (C,) units of each caption
    classes: NDArray[np.int16]  # (number of slots,) class of each object, in the order of the captions

    @staticmethod
    def gather(chunks: Sequence["Encoded"]) -> "Encoded":
        table: dict[str, int] = {}
        words = []
        for chunk in chunks:
            numbers = np.array([table.setdefault(unit, len(table)) for unit in chunk.table], dtype=np.int32)
            words.append(numbers[chunk.words] if len(chunk.words) else chunk.words)
        return Encoded(
            list(table),
            _concatenate(words, np.int32),
            _concatenate([chunk.slots for chunk in chunks], np.uint8),
            _concatenate([chunk.lengths for chunk in chunks], np.int32),
            _concatenate([chunk.classes for chunk in chunks], np.int16),
        )


def encode(captions: Sequence[str], classes: str, workers: int = 1) -> Encoded:
    """Encode all captions; `classes` names the list of object classes as `load_classes` takes it."""
    chunks = [captions[start : start + CHUNK] for start in range(0, len(captions), CHUNK)]
    work = partial(encode_chunk, classes=classes)
    done = []
    with bar("splitting captions", len(captions), "captions") as advance:
        for chunk in _run(work, chunks, workers if len(captions) > 10 * CHUNK else 1):
            done.append(chunk)
            advance(len(chunk.lengths))
    return Encoded.gather(done)


def _run(work: "partial[Encoded]", chunks: list[Sequence[str]], workers: int) -> Iterator[Encoded]:
    if workers <= 1:
        yield from map(work, chunks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(work, chunks, chunksize=4)


def encode_chunk(captions: Sequence[str], classes: str) -> Encoded:
    from coscap.text import split, tokenise
    from coscap.text.vocabulary import SLOT, SLOTS, SPECIAL

    objects = _classes(classes)
    kinds = {SPECIAL[SLOT]: 1, SPECIAL[SLOTS]: 2}
    table: dict[str, int] = {}
    words: list[int] = []
    slots: list[int] = []
    lengths: list[int] = []
    found: list[int] = []
    for caption in captions:
        parts = split(tokenise(caption), objects)
        for unit in parts.units:
            words.append(table.setdefault(unit, len(table)))
        slots.extend([kinds.get(word, 0) for word in parts.context])
        lengths.append(len(parts.units))
        found.extend(parts.classes)
    return Encoded(
        list(table),
        np.array(words, dtype=np.int32),
        np.array(slots, dtype=np.uint8),
        np.array(lengths, dtype=np.int32),
        np.array(found, dtype=np.int16),
    )


@lru_cache(maxsize=1)
def _classes(name: str) -> "ObjectClasses":
    """Read a list once for all chunks of a process."""
    from coscap.text.objects import load_classes

    return load_classes(name)


def _concatenate(parts: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)
