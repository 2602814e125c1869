"""`coscap tags`: the words that people would write about photographs."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def tags(
    photos: Annotated[
        list[str],
        typer.Argument(
            metavar="PHOTO...", help="Files, folders, patterns such as 'a/*.jpg', or - for standard input."
        ),
    ],
    n: Annotated[int, typer.Option("-n", min=1, max=200, help="At most so many words a photograph.")] = 20,
    floor: Annotated[
        float, typer.Option("--floor", min=0, max=1, help="Leave out words that are less probable.")
    ] = 0.2,
    eyes: Annotated[
        Path | None,
        typer.Option("--eyes", help="A run of `coscap backbone`, for words of your own pictures."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print a JSON object a line, as they come.")] = False,
    sidecar: Annotated[
        bool,
        typer.Option("--sidecar", help="Write the words of a.jpg to a.txt beside it, divided by commas."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave out photographs that have their file.")
    ] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Add to the text files of --sidecar that are there.")
    ] = False,
    urls: Annotated[bool, typer.Option("--urls", help="Allow http and https addresses as PHOTO.")] = False,
) -> None:
    """Name the words that a photograph shows, with calibrated probabilities and places.

    A probability says how likely it is that one of five people would use the word in a caption. Without --json,
    --jsonl or --sidecar the words are printed.

    Example: coscap tags holiday/ --sidecar --floor 0.3
    """
    from coscap.cli.outputs import Sidecars, policy
    from coscap.cli.photos import list_photos
    from coscap.errors import UserError
    from coscap.photos import PhotoError, open_photos
    from coscap.progress import bar
    from coscap.vision.builtin import BATCH
    from coscap.vision.tags import Tagger

    if as_json and jsonl:
        raise UserError("--json and --jsonl exclude each other; give one of them.")
    sources = dict(list_photos(photos, urls))
    beside = Sidecars(list(sources), [".txt"], policy(overwrite, skip_existing, append)) if sidecar else None
    todo = [name for name in sources if beside is None or not beside.done(name)]
    tagger = Tagger(eyes)
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    with bar("tags", len(todo), "photos") as advance:
        for first in range(0, len(todo), BATCH):
            names = todo[first : first + BATCH]
            opened = open_photos([sources[name] for name in names], names, tagger.least_side)
            good = [each for each in opened if not isinstance(each, PhotoError)]
            found = dict(
                zip((each.name for each in good), tagger([e.picture for e in good], n, floor), strict=True)
            )
            for name, each in zip(names, opened, strict=True):
                row: dict[str, Any] = {"photo": name}
                if isinstance(each, PhotoError):
                    row["error"] = each.error
                    errors.append(each.error)
                else:
                    row["tags"] = [tag.to_json() for tag in found[name]]
                    if beside is not None:
                        beside.write(name, {".txt": ", ".join(tag.word for tag in found[name]) + "\n"})
                _show(row, as_json, jsonl, table=beside is None)
                rows.append(row)
            advance(len(names))
    if as_json:
        sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")
    if errors:
        for error in errors if not (as_json or jsonl) else ():
            print(error, file=sys.stderr)
        raise UserError(f"{len(errors)} of {len(sources)} photographs could not be read.")


def _show(row: dict[str, Any], as_json: bool, jsonl: bool, table: bool) -> None:
    if jsonl:
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    elif table and not as_json and "error" not in row:
        words = ", ".join(f"{tag['word']} {tag['probability']:.2f}" for tag in row["tags"])
        typer.echo(f"{row['photo']}\n  {words or '(nothing above the floor)'}")
