"""The units that a model knows, each with its number."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from coscap.errors import UserError
from coscap.files import read_json, write_json
from coscap.text.objects import ObjectClasses

PAD, START, END, UNK, SLOT, SLOTS = range(6)
SPECIAL = ("<pad>", "<start>", "<end>", "<unk>", "<s>", "<s+>")


class Vocabulary:
    """Units by number: the special ones first, then the others by falling frequency."""

    PAD, START, END, UNK, SLOT, SLOTS = range(6)

    def __init__(self, units: Iterable[str]) -> None:
        """`units`: all of them in their order, the special ones included."""
        self.units: tuple[str, ...] = tuple(units)
        self._ids = {unit: number for number, unit in enumerate(self.units)}
        if self.units[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"a vocabulary begins with {' '.join(SPECIAL)}")
        if len(self._ids) != len(self.units):
            raise ValueError("a vocabulary holds each unit once")

    @classmethod
    def build(
        cls, captions: Iterable[Sequence[str]], minimum: int = 4, objects: ObjectClasses | None = None
    ) -> "Vocabulary":
        """Count the units of the training captions and keep those seen at least `minimum` times.

        The words that fill a slot of any class are kept in any case: a novel object has no training caption.
        """
        counts = Counter(unit for caption in captions for unit in caption)
        kept = {unit for unit, count in counts.items() if count >= minimum}
        for each in objects.classes if objects else ():
            kept.update((each.singular, each.plural))
        kept.difference_update(SPECIAL)
        return cls((*SPECIAL, *sorted(kept, key=lambda unit: (-counts[unit], unit))))

    def __len__(self) -> int:
        return len(self.units)

    def __contains__(self, unit: str) -> bool:
        return unit in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.units == other.units

    def __hash__(self) -> int:
        return hash(self.units)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} units, {self.digest[:12]})"

    def id(self, unit: str) -> int:
        return self._ids.get(unit, UNK)

    def encode(self, units: Iterable[str]) -> list[int]:
        """The number of each unit, UNK for one that is not known; no START or END is added."""
        return [self._ids.get(unit, UNK) for unit in units]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to END, without PAD and START."""
        words: list[str] = []
        for number in ids:
            if number == END:
                break
            if number not in (PAD, START):
                words.append(self.units[number])
        return " ".join(words)

    @property
    def digest(self) -> str:
        """SHA-256 of the content, for telling whether two files mean the same numbers."""
        return hashlib.sha256(json.dumps(self.units, ensure_ascii=False).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        write_json(path, {"format": "coscap vocabulary 1", "units": self.units})

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        content = read_json(path)
        units = content.get("units") if isinstance(content, dict) else None
        if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
            raise UserError(f"{path} must hold a list `units` of strings; make it anew with `coscap data`.")
        try:
            "".join(units).encode()  # half a character, which JSON can hold, is no text
            return cls(units)
        except ValueError as error:
            raise UserError(
                f"{path} is not a vocabulary: {error}; make it anew with `coscap data`."
            ) from None
