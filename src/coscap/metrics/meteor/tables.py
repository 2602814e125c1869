"""METEOR's word tables: read once from the installed pycocoevalcap, kept as arrays that are mapped into memory.

The package brings METEOR's own data: function words, WordNet synonyms with irregular forms, the paraphrase table
and the abbreviations that its normaliser knows. As arrays they take about 70 MB and open in milliseconds.
"""

import gzip
import importlib.util
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coscap.errors import UserError
from coscap.files import read_json, whole_folder, write_json
from coscap.metrics.meteor import rows
from coscap.progress import bar

Array = np.ndarray[Any, Any]

_VERSION = 1
_CHUNK = 1 << 24
_ARRAYS = (
    "words",
    "synset_start",
    "synsets",
    "base_start",
    "bases",
    "first_child",
    "node_word",
    "row_start",
    "row_target",
    "is_target",
)


@dataclass(frozen=True)
class Tables:
    """Words are sorted, so a word's number is its place; phrases are nodes of a tree of words."""

    words: Array  # (W,) bytes, sorted
    synset_start: Array  # (W + 1,) where a word's synonym sets begin in `synsets`
    synsets: Array
    base_start: Array  # (W + 1,) where the base forms of an irregular word begin in `bases`
    bases: Array  # numbers of words
    first_child: Array  # (N + 1,) first child of a node
    node_word: Array  # (N,) the word that leads to a node
    row_start: Array  # (N + 1,) where the paraphrases of a node's phrase begin in `row_target`
    row_target: Array  # nodes
    is_target: Array  # (N,) whether the node is a paraphrase of another
    function_words: frozenset[str]
    abbreviations: frozenset[str]  # keep their full stop
    before_numbers: frozenset[str]  # keep it before a number

    def find(self, words: list[str]) -> Array:
        """The numbers of words, -1 for a word that the tables do not know."""
        if not words:
            return np.zeros(0, np.int64)
        width = self.words.dtype.itemsize
        coded = [word.encode() for word in words]
        keys = np.array([word if len(word) <= width else b"" for word in coded], self.words.dtype)
        place = np.minimum(np.searchsorted(self.words, keys), len(self.words) - 1)
        return np.where(self.words[place] == keys, place, -1)


def package_folder() -> Path | None:
    """The folder of METEOR's files in pycocoevalcap, where that is installed."""
    found = importlib.util.find_spec("pycocoevalcap")
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / "meteor" / "meteor-1.5.jar").is_file():
            return Path(place) / "meteor"
    return None


def cache_home() -> Path:
    """Where coscap keeps what it can make again: $XDG_CACHE_HOME/coscap or ~/.cache/coscap."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coscap"


def open_tables(folder: str | Path | None = None) -> Tables:
    """The tables of the cache folder; made from the installed package when they are not there or are of another one."""
    folder = Path(folder) if folder is not None else cache_home() / "meteor-1.5"
    source = package_folder()
    if _is_current(folder, source):
        return _read(folder)
    if source is None:
        raise UserError(
            "METEOR needs the word tables of the package pycocoevalcap, which is not installed; "
            "install it with: pip install 'coscap[coco]'."
        )
    build_tables(source, folder)
    return _read(folder)


def build_tables(source: Path, folder: Path) -> None:
    """Convert the files in `source` (a jar and data/paraphrase-en.gz) to arrays in `folder`."""
    texts = _jar_texts(source / "meteor-1.5.jar")
    paraphrases = _Paraphrases(source / "data" / "paraphrase-en.gz")
    synsets = {
        name: [int(number) for number in numbers.split()]
        for name, numbers in _pairs(texts["synonym/english.synsets"])
        if "_" not in name  # several words in one entry: a token never has an underscore
    }
    bases: dict[str, list[str]] = {}
    for base, forms in _pairs(texts["synonym/english.exceptions"]):
        for form in forms.split():
            bases.setdefault(form, []).append(base)
    coded = {word.encode() for word in (*synsets, *bases, *(b for each in bases.values() for b in each))}
    words = np.array(sorted(coded | set(paraphrases.words)))
    place = {word.decode(): number for number, word in enumerate(words.tolist())}
    names = list(place)
    arrays = {"words": words}
    arrays["synset_start"], arrays["synsets"] = _ragged(
        [sorted(set(synsets.get(name, ()))) for name in names]
    )
    arrays["base_start"], arrays["bases"] = _ragged(
        [[place[b] for b in bases.get(name, ())] for name in names]
    )
    arrays |= paraphrases.arrays(np.searchsorted(words, np.array(paraphrases.words)))
    with whole_folder(folder) as partial:
        for key in _ARRAYS:
            np.save(partial / f"{key}.npy", arrays[key], allow_pickle=False)
        plain, numeric = _abbreviations(texts["nonbreaking/english.prefixes"])
        write_json(
            partial / "manifest.json",
            {
                "version": _VERSION,
                "source": _fingerprint(source),
                "function_words": [word for word in texts["function/english.words"].split("\n") if word],
                "abbreviations": plain,
                "before_numbers": numeric,
            },
        )


class _Paraphrases:
    """The paraphrase table as it is read: words and nodes in the order in which they first come."""

    def __init__(self, path: Path) -> None:
        words = np.full(rows.WORD_SLOTS, -1, np.int32)
        pool = np.zeros(rows.WORDS * 32, np.uint8)
        pool_start = np.zeros(rows.WORDS + 2, np.int64)
        keys = np.full(rows.NODE_SLOTS, -1, np.int64)
        values = np.zeros(rows.NODE_SLOTS, np.int32)
        parent = np.zeros(rows.NODES, np.int64)
        word = np.zeros(rows.NODES, np.int64)
        counts = np.array([0, 1], np.int64)  # node 0 is the root
        sources, targets = np.zeros(_CHUNK // 4, np.int32), np.zeros(_CHUNK // 4, np.int32)
        pairs: list[tuple[Array, Array]] = []
        tail = b""
        with (
            bar("METEOR paraphrases (once)", path.stat().st_size, "B") as advance,
            path.open("rb") as packed,
            gzip.open(packed) as text,
        ):
            done = 0
            while chunk := text.read(_CHUNK):
                data = np.frombuffer(tail + chunk, np.uint8)
                count, used = rows.read_rows(
                    data, words, pool, pool_start, keys, values, parent, word, counts, sources, targets
                )
                if count < 0:
                    raise UserError(
                        f"{path} has more words or phrases than METEOR 1.5's table; reinstall pycocoevalcap."
                    )
                pairs.append((sources[:count].copy(), targets[:count].copy()))
                tail = data[used:].tobytes()
                advance(packed.tell() - done)
                done = packed.tell()
        text_of_words = pool.tobytes()
        self.words = [text_of_words[pool_start[i] : pool_start[i + 1]] for i in range(counts[0])]
        self.parent, self.word = parent[: counts[1]].copy(), word[: counts[1]].copy()
        self.sources = np.concatenate([each[0] for each in pairs])
        self.targets = np.concatenate([each[1] for each in pairs])

    def arrays(self, number_of_word: Array) -> dict[str, Array]:
        """The tree with its words renumbered, and for each node its paraphrases in the order of the file."""
        word = number_of_word[self.word]
        word[0] = 0
        number, first_child, node_word = rows.ordered_tree(self.parent, word)
        sources, targets = number[self.sources], number[self.targets]
        order = np.argsort(sources, kind="stable")
        count = len(number)
        is_target = np.zeros(count, bool)
        is_target[targets] = True
        return {
            "first_child": first_child.astype(np.uint32),
            "node_word": node_word.astype(np.uint32),
            "row_start": np.concatenate(([0], np.cumsum(np.bincount(sources, minlength=count)))).astype(
                np.uint32
            ),
            "row_target": targets[order].astype(np.uint32),
            "is_target": is_target,
        }


def _read(folder: Path) -> Tables:
    manifest = read_json(folder / "manifest.json")
    try:
        # A plain view of the mapped file: compiled code takes no subclass of an array.
        arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="r").view(np.ndarray) for key in _ARRAYS}
    except (OSError, ValueError) as error:
        raise UserError(
            f"METEOR's tables in {folder} are damaged ({error}); remove that folder and run again."
        ) from None
    return Tables(
        **arrays,
        function_words=frozenset(manifest["function_words"]),
        abbreviations=frozenset(manifest["abbreviations"]),
        before_numbers=frozenset(manifest["before_numbers"]),
    )


def _is_current(folder: Path, source: Path | None) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    same = source is None or manifest.get("source") == _fingerprint(source)
    return bool(same and manifest.get("version") == _VERSION)


def _fingerprint(source: Path) -> dict[str, int]:
    """Sizes are enough to tell METEOR 1.5's files from others, and cost nothing at every start."""
    return {name: (source / name).stat().st_size for name in ("meteor-1.5.jar", "data/paraphrase-en.gz")}


def _jar_texts(jar: Path) -> dict[str, str]:
    names = (
        "function/english.words",
        "nonbreaking/english.prefixes",
        "synonym/english.exceptions",
        "synonym/english.synsets",
    )
    try:
        with zipfile.ZipFile(jar) as file:
            return {name: file.read(name).decode("utf-8") for name in names}
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{jar} is not METEOR 1.5's jar ({error}); reinstall pycocoevalcap.") from None


def _pairs(text: str) -> list[tuple[str, str]]:
    """Lines that come in twos: a key and what belongs to it."""
    lines = text.split("\n")
    return list(zip(lines[0::2], lines[1::2], strict=False))


def _ragged(lists: list[list[int]]) -> tuple[Array, Array]:
    start = np.concatenate(([0], np.cumsum([len(each) for each in lists]))).astype(np.int32)
    return start, np.array([value for each in lists for value in each], np.int32)


def _abbreviations(text: str) -> tuple[list[str], list[str]]:
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    numeric = [line.split()[0] for line in lines if "#NUMERIC_ONLY#" in line]
    return [line for line in lines if "#NUMERIC_ONLY#" not in line], numeric
