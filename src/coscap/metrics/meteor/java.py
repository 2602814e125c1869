"""The official METEOR 1.5 jar of pycocoevalcap, for those who ask for it and to record what ours must equal."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coscap.errors import UserError
from coscap.metrics.meteor.tables import package_folder

_BARS = "|||"


def find_java() -> str | None:
    """Java's path: $JAVA_HOME/bin/java, or the one that the shell would start."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def official_statistics(
    pairs: Sequence[tuple[str, Sequence[str]]], timeout: float | None = None
) -> "np.ndarray[Any, Any]":
    """The statistics that the jar gives for (caption, references), (N, 23)."""
    lines = [
        " ||| ".join(("SCORE", *(_clean(text) for text in references), _clean(hypothesis)))
        for hypothesis, references in pairs
    ]
    rows = [[float(value) for value in line.split()] for line in run_jar(lines, timeout)]
    if len(rows) != len(pairs) or any(len(row) != 23 for row in rows):
        raise UserError(
            f"METEOR's jar answered {len(rows)} lines for {len(pairs)} captions; check that none is empty."
        )
    return np.array(rows, np.float64).astype(np.int64).reshape(-1, 23)


def official_scores(statistics: "np.ndarray[Any, Any]") -> tuple[float, list[float]]:
    """The score of the corpus and of each row, as the jar computes them."""
    rows = (" ".join(str(float(value)) for value in row) for row in statistics)
    *sentences, corpus = run_jar([" ||| ".join(("EVAL", *rows))])
    return float(corpus), [float(value) for value in sentences]


def run_jar(lines: Sequence[str], timeout: float | None = None) -> list[str]:
    """Feed lines to the jar as pycocoevalcap does and return its answers."""
    java, folder = find_java(), package_folder()
    if java is None:
        raise UserError(
            "METEOR's jar needs Java, which is not installed; install a Java runtime or leave java=True out."
        )
    if folder is None:
        raise UserError("METEOR's jar comes with pycocoevalcap; install it with: pip install 'coscap[coco]'.")
    command = [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", "meteor-1.5.jar"]
    command += ["-", "-", "-stdio", "-l", "en", "-norm"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            input="".join(f"{line}\n" for line in lines).encode(),
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"METEOR's jar did not finish within {timeout:.0f} seconds; give it fewer captions."
        ) from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise UserError(f"METEOR's jar stopped with code {done.returncode} ({reason}).")
    return done.stdout.decode().split("\n")[:-1]


def _clean(text: str) -> str:
    return " ".join(text.replace(_BARS, " ").split())
