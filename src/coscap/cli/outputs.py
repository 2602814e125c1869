"""Where the captions of `coscap caption` go besides the screen: a file of all photographs, and files beside each.

Nothing that is there is replaced unless the user says so, and everything that can be refused is refused before the
first photograph is captioned.
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from coscap.cli.xmp import BadPacket, described, embed_in_file
from coscap.errors import UserError
from coscap.files import check_output, lock_file, read_json, read_text, write_text

Policy = Literal["refuse", "overwrite", "skip", "append"]
Row = dict[str, Any]  # a photograph as --json prints it
COLUMNS = ("photo", "caption", "alt", "log_probability", "support", "satisfied", "error")


def policy(overwrite: bool, skip_existing: bool, append: bool) -> Policy:
    chosen: list[Policy] = []
    for given, name in ((overwrite, "overwrite"), (skip_existing, "skip"), (append, "append")):
        if given:
            chosen.append(name)  # type: ignore[arg-type]
    if len(chosen) > 1:
        raise UserError("--overwrite, --skip-existing and --append exclude each other; give one of them.")
    return chosen[0] if chosen else "refuse"


class CaptionFile:
    """`--out FILE`: JSON, JSONL or CSV that appears whole when all photographs are done.

    Until then every row is kept in FILE.partial, so that the same command goes on after a kill.
    """

    def __init__(self, path: Path, what: Policy, made: Mapping[str, Any]) -> None:
        self.path, self.made = path, dict(made)
        self.kind = path.suffix.lower()
        if self.kind not in (".json", ".jsonl", ".csv"):
            raise UserError(f"--out {path}: the name should end in .json, .jsonl or .csv.")
        if path.is_dir():
            raise UserError(f"--out {path} is a folder, and a file was expected.")
        if what == "append":
            raise UserError(
                "--append is for --sidecar; with --out, --skip-existing keeps the rows that are there and adds to them."
            )
        if path.exists() and what == "refuse":
            raise UserError(
                f"{path} exists; pass --skip-existing to add the photographs that it lacks, or --overwrite."
            )
        self.partial = path.with_name(path.name + ".partial")
        self.rows: dict[str, Row] = {}
        if what == "skip" and path.exists():
            self.rows = {row["photo"]: row for row in self._read() if "error" not in row}
        self._file = self._open(fresh=what == "overwrite")

    def done(self, photo: str) -> bool:
        return photo in self.rows

    def add(self, rows: Iterable[Row]) -> None:
        """Keep the rows of a batch, on the disk when this returns."""
        for row in rows:
            if "error" not in row:
                self.rows[row["photo"]] = row
                self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, photos: Sequence[str], errors: Mapping[str, str]) -> None:
        """Write the file: what it had, then the photographs of this run in their order."""
        order = dict.fromkeys([*(name for name in self.rows if name not in photos), *photos])
        rows = [
            self.rows[name] if name in self.rows else {"photo": name, "error": errors.get(name, "")}
            for name in order
        ]
        write_text(self.path, _as_text(rows, self.kind))
        self.close()
        self.partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the partial file; what it has stays for the next run, unless it has nothing."""
        if not self._file.closed:
            self._file.close()
            if not self.rows:
                self.partial.unlink(missing_ok=True)

    def _open(self, fresh: bool) -> Any:
        """The partial file, after its rows were read; a torn last line is cut off."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.partial.open("ab+")
        except OSError as error:
            raise UserError(f"{self.partial} cannot be written ({error.strerror}).") from None
        if not lock_file(file):
            file.close()
            raise UserError(f"{self.path} is being written by another run; wait for it.")
        if fresh:
            file.truncate(0)
        file.seek(0)
        lines = file.read().split(b"\n")
        if len(lines) == 1:
            file.truncate(0)
            file.write(json.dumps({"coscap": self.made}, ensure_ascii=False).encode() + b"\n")
            return file
        try:
            made = json.loads(lines[0])["coscap"]
            rows = [json.loads(line) for line in lines[1:-1]]
            self.rows |= {row["photo"]: row for row in rows}
        except (ValueError, KeyError, TypeError):
            file.close()
            raise UserError(
                f"{self.partial} is not what an earlier run left; move it away, or pass --overwrite."
            ) from None
        if made != json.loads(json.dumps(self.made)):
            file.close()
            raise UserError(
                f"{self.partial} is left of a run with other settings; repeat that command to end it, or pass "
                "--overwrite to begin anew."
            )
        file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        return file

    def _read(self) -> list[Row]:
        try:
            if self.kind == ".csv":
                return _from_csv(read_text(self.path))
            if self.kind == ".jsonl":
                rows = [json.loads(line) for line in read_text(self.path).splitlines() if line]
            else:
                rows = read_json(self.path)
            if all(isinstance(row["photo"], str) for row in rows):
                return list(rows)
        except (ValueError, KeyError, TypeError):
            pass
        raise UserError(
            f"{self.path} is no file of captions that this command wrote; choose another --out, or pass --overwrite."
        )


def _as_text(rows: Sequence[Row], kind: str) -> str:
    if kind == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if kind == ".json":
        return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        for caption in row.get("captions", [{}]) or [{}]:
            writer.writerow(
                {"satisfied": "" if not caption else caption.get("satisfied", True), **row, **caption}
                | {"caption": caption.get("text", "")}
            )
    return buffer.getvalue()


def _from_csv(text: str) -> list[Row]:
    rows: dict[str, Row] = {}
    for line in csv.DictReader(io.StringIO(text)):
        if line.get("error"):
            rows[line["photo"]] = {"photo": line["photo"], "error": line["error"]}
            continue
        row = rows.setdefault(line["photo"], {"photo": line["photo"], "captions": []})
        if line["caption"]:
            caption: Row = {
                "text": line["caption"],
                "alt": line["alt"],
                "log_probability": float(line["log_probability"]),
            }
            if line.get("support"):  # a file of an earlier version has no such column
                caption["support"] = float(line["support"])
            row["captions"].append(
                caption if line["satisfied"] != "False" else {**caption, "satisfied": False}
            )
    return list(rows.values())


class Sidecars:
    """`--sidecar` and `--xmp`: a.txt and a.xmp beside a.jpg."""

    def __init__(self, photos: Sequence[str], suffixes: Sequence[str], what: Policy) -> None:
        self.suffixes, self.what = tuple(suffixes), what
        if what == "append" and ".xmp" in suffixes:
            raise UserError("--append is for --sidecar; an .xmp file is written anew with --overwrite.")
        self.paths = {photo: [_beside(photo, suffix) for suffix in suffixes] for photo in photos}
        owners: dict[Path, str] = {}
        for photo, paths in self.paths.items():
            for path in paths:
                if owners.setdefault(path, photo) != photo:
                    raise UserError(
                        f"{owners[path]} and {photo} would both have {path}; rename one of them, or use --out FILE."
                    )
        there = [path for path in owners if path.exists()]
        if there and what == "refuse":
            more = f" and {len(there) - 1:,} more are there" if len(there) > 1 else " is there"
            ways = "--skip-existing or" if ".xmp" in suffixes else "--skip-existing, --append or"
            raise UserError(f"{there[0]}{more}; pass {ways} --overwrite to say what to do with them.")

    def done(self, photo: str) -> bool:
        return self.what == "skip" and all(path.exists() for path in self.paths[photo])

    def write(self, photo: str, contents: Mapping[str, str]) -> None:
        """contents: by suffix."""
        for path in self.paths[photo]:
            if self.what == "skip" and path.exists():
                continue
            text = contents[path.suffix]
            if self.what == "append" and path.exists():
                before = read_text(path)
                text = before + ("" if before.endswith("\n") or not before else "\n") + text
            write_text(path, text)


class Embedded:
    """`--embed-xmp`: alternative texts inside of the photographs."""

    def __init__(self, photos: Sequence[str], what: Policy) -> None:
        from PIL import Image

        if what == "append":
            raise UserError(
                "--append is for --sidecar; a text inside of a photograph is replaced with --overwrite."
            )
        self.what = what
        self.described: list[str] = []
        for photo in photos:
            _beside(photo, ".xmp")  # refuses what is no file
            if not Path(photo).is_file():  # a pipe, at which one would wait for ever
                continue
            try:
                with Image.open(photo) as opened:
                    kind = opened.format
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
                continue  # the captioner says what is wrong with it
            if kind not in ("JPEG", "MPO", "PNG"):
                raise UserError(
                    f"{photo} is {kind}, and --embed-xmp writes into JPEG and PNG only; leave it out, or use --xmp."
                )
            check_output(photo)
            if self._is_described(photo):
                self.described.append(photo)
        if self.described and what == "refuse":
            count = len(self.described)
            more = f" and {count - 1:,} more have" if count > 1 else " has"
            raise UserError(
                f"{self.described[0]}{more} a description inside; pass --skip-existing or --overwrite to say what to "
                "do with them."
            )

    def done(self, photo: str) -> bool:
        return self.what == "skip" and photo in self.described

    def write(self, photo: str, alts: Sequence[str]) -> dict[str, str]:
        """Write the first text into the photograph, all of them as its extended description; why not, if it fails."""
        if self.done(photo) or not alts:
            return {}
        try:
            embed_in_file(photo, alts[0], alts)
        except UserError as error:
            return {photo: str(error)}
        return {}

    def _is_described(self, photo: str) -> bool:
        try:
            with Path(photo).open("rb") as file:
                return described(file)
        except BadPacket as error:
            raise UserError(
                f"{photo} cannot be written into, because {error}; leave it out, or use --xmp."
            ) from None


def _beside(photo: str, suffix: str) -> Path:
    if photo == "-" or "://" in photo:
        what = "standard input" if photo == "-" else photo
        raise UserError(
            f"{what} has no folder with it; leave out --sidecar, --xmp and --embed-xmp, or use --out FILE."
        )
    return Path(photo).with_suffix(suffix)
