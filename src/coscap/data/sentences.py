"""Sentences without pictures, in the tokens of a prepared data set: what a language model reads."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coscap.data.encode import encode
from coscap.data.prepared import OBJECTS, Prepared, ranges
from coscap.errors import UserError
from coscap.files import read_json, read_text
from coscap.text.vocabulary import END, PAD


@dataclass(frozen=True)
class Sentences:
    """S sentences, all their tokens one after the other, without START and END."""

    words: NDArray[np.int32]  # (W,)
    offsets: NDArray[np.int64]  # (S+1,) sentence s is words[offsets[s] : offsets[s + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def padded(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Words (B, T) with END and then PAD, and lengths (B,) with END."""
        starts = self.offsets[numbers]
        lengths = self.offsets[numbers + 1] - starts
        columns = np.arange(int(lengths.max(initial=0)) + 1)  # (T,)
        inside = columns < lengths[:, None]
        words = np.where(inside, self.words[np.where(inside, starts[:, None] + columns, 0)], PAD).astype(
            np.int64
        )
        words[np.arange(len(numbers)), lengths] = END
        return words, lengths + 1


def read_sentences(path: str | Path, prepared: Prepared, workers: int = 1) -> Sentences:
    """A text file with a sentence a line, or captions as COCO has them (JSON); empty and long ones are left out."""
    path = Path(path)
    if path.suffix.lower() == ".json":
        lines = _captions(path)
    else:
        lines = [line for line in read_text(path).splitlines() if line.strip()]
    encoded = encode(lines, str(prepared.path / OBJECTS), workers)
    tokens = np.array(prepared.vocabulary.encode(encoded.table), np.int32)
    ends = np.cumsum(encoded.lengths, dtype=np.int64)
    kept = np.flatnonzero((encoded.lengths > 0) & (encoded.lengths <= prepared.max_length))
    if not len(kept):
        raise UserError(
            f"{path} holds no sentence of 1 to {prepared.max_length} words; give one sentence a line."
        )
    starts, stops = (ends - encoded.lengths)[kept], ends[kept]
    words = tokens[encoded.words[ranges(starts, stops)]]
    return Sentences(words, np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64))


def training_sentences(prepared: Prepared) -> Sentences:
    """The training captions, without their pictures."""
    captions, offsets = prepared.trainable("train"), prepared.arrays["word_offsets"]
    starts = offsets[captions]
    stops = starts + np.minimum(offsets[captions + 1] - starts, prepared.max_length)
    words = np.asarray(prepared.arrays["words"][ranges(starts, stops)], np.int32)
    return Sentences(words, np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64))


def _captions(path: Path) -> list[str]:
    content = read_json(path)
    rows = content.get("annotations") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "caption" in row for row in rows):
        raise UserError(f"{path} has no list `annotations` of captions; give COCO's captions or a text file.")
    return [" ".join(str(row["caption"]).split()) for row in rows]
