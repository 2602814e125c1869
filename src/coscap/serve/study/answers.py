"""The ratings of a study, in an SQLite file that many annotators write to at once."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coscap.errors import UserError
from coscap.serve.study.material import Study

LOWEST, HIGHEST = 1, 10
NAME_LENGTH = 60  # characters of an annotator's name

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS study (digest TEXT NOT NULL, began TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE IF NOT EXISTS annotator (
    name TEXT PRIMARY KEY COLLATE NOCASE,
    began TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE IF NOT EXISTS rating (
    annotator TEXT NOT NULL COLLATE NOCASE REFERENCES annotator (name),
    picture TEXT NOT NULL,
    method TEXT NOT NULL,
    accuracy INTEGER NOT NULL CHECK (accuracy BETWEEN {LOWEST} AND {HIGHEST}),
    diversity INTEGER NOT NULL CHECK (diversity BETWEEN {LOWEST} AND {HIGHEST}),
    given TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (annotator, picture, method)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Rating:
    annotator: str
    picture: str
    """The image id."""
    method: str
    accuracy: int
    diversity: int
    given: str = ""
    """When, UTC."""


class Answers:
    """Safe to be used from several threads, and by several processes on one file."""

    def __init__(self, path: str | Path, study: Study) -> None:
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, timeout=30)
            self._database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; {_SCHEMA}")
        except sqlite3.Error as error:
            raise UserError(
                f"{path} cannot be used as the study's database ({error}); give another with --database."
            ) from None
        with self._writing() as database:
            database.execute(
                "INSERT INTO study (digest) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM study)", (study.digest,)
            )
            (begun,) = database.execute("SELECT digest FROM study").fetchone()
        if begun != study.digest:
            self.close()
            raise UserError(
                f"{path} holds the ratings of another study (other captions or pictures); "
                "give its files again, or another file with --database."
            )

    def close(self) -> None:
        self._database.close()

    def join(self, name: str) -> str:
        """The name of an annotator as it was first written; a new one is put down."""
        with self._writing() as database:
            database.execute("INSERT INTO annotator (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
            (known,) = database.execute("SELECT name FROM annotator WHERE name = ?", (name,)).fetchone()
        return str(known)

    def known(self, name: str) -> str | None:
        row = self._read("SELECT name FROM annotator WHERE name = ?", (name,))
        return str(row[0][0]) if row else None

    def rate(self, rating: Rating) -> None:
        """Put a rating down; it takes the place of an earlier one by the same annotator."""
        with self._writing() as database:
            database.execute(
                "INSERT INTO rating (annotator, picture, method, accuracy, diversity) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET accuracy = excluded.accuracy, diversity = excluded.diversity, "
                "given = CURRENT_TIMESTAMP",
                (rating.annotator, rating.picture, rating.method, rating.accuracy, rating.diversity),
            )

    def of(self, annotator: str) -> dict[tuple[str, str], Rating]:
        """What an annotator has rated, by picture and method."""
        found = self._ratings("WHERE annotator = ?", (annotator,))
        return {(rating.picture, rating.method): rating for rating in found}

    def ratings(self) -> list[Rating]:
        return self._ratings("", ())

    def annotators(self) -> list[str]:
        return [str(name) for (name,) in self._read("SELECT name FROM annotator ORDER BY began, name", ())]

    def _ratings(self, which: str, values: tuple[str, ...]) -> list[Rating]:
        columns = "annotator, picture, method, accuracy, diversity, given"
        order = "ORDER BY annotator, picture, method"
        return [Rating(*row) for row in self._read(f"SELECT {columns} FROM rating {which} {order}", values)]

    def _read(self, query: str, values: tuple[str, ...]) -> list[Any]:
        with self._lock:
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database:
            yield self._database
