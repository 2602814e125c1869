"""`coscap rerank`: the best captions of each picture first, by consensus with similar pictures or by likelihood."""

import math
import os
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coscap.cli.evaluate import captions_of
from coscap.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from coscap.metrics.references import Row
    from coscap.vision.stores import Stores


class RankBy(StrEnum):
    cider = "cider"
    bleu = "bleu"
    likelihood = "likelihood"


class MissingRegions(StrEnum):
    error = "error"
    drop = "drop"
    keep = "keep"


def rerank(
    samples: Annotated[
        Path,
        typer.Argument(
            help="Captions to re-rank: rows with image_id and caption, several an image, e.g. samples.json"
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write, best captions first, e.g. --out best.json")
    ],
    by: Annotated[
        RankBy,
        typer.Option(
            help="Agreement with captions of similar training pictures, by CIDEr or by BLEU's n-grams; or the "
            "model's own log_probability, e.g. --by likelihood"
        ),
    ] = RankBy.cider,
    regions: Annotated[
        list[Path] | None,
        typer.Option(
            help="Regions of the captioned and of the training pictures (made by `coscap features`); may be "
            "repeated, e.g. --regions train.h5 --regions test.h5"
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            help="Training captions: a prepared folder, coco:train2014, coco:2014 or a captions file, "
            "e.g. --train data/coco"
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Keep only so many captions of each picture, e.g. --keep 5")
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Keep a caption that was drawn several times only once.")
    ] = False,
    neighbours: Annotated[
        int,
        typer.Option(
            min=1, help="How many similar training pictures are compared with, e.g. --neighbours 60"
        ),
    ] = 60,
    bank: Annotated[
        str | None,
        typer.Option(
            help="Similar are pictures about which people would write alike, by this bank (`coscap bank`; shipped: "
            "that of the package), instead of those with alike mean features, e.g. --bank shipped"
        ),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sum so many of a caption's highest similarities; 125 by CIDEr, 175 by BLEU if not given",
        ),
    ] = None,
    frequencies: Annotated[
        str | None,
        typer.Option(
            help="Captions for CIDEr's document frequencies instead of the training captions; the published "
            "re-ranking takes --frequencies coco:val2014"
        ),
    ] = None,
    missing: Annotated[
        MissingRegions,
        typer.Option(
            help="Captioned pictures that have no regions: stop (error), leave them out (drop) or keep their "
            "captions in the given order (keep), e.g. --missing drop"
        ),
    ] = MissingRegions.error,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads, one for each core if not given; the result does not depend on them"
        ),
    ] = None,
) -> None:
    """Put the best captions of each picture first.

    The consensus is that of m-RNN: the nearest training pictures by their regions' mean feature, or by what people
    would write about them (--bank), and a caption's similarity to the captions of those. Every
    row gets its score as `consensus`.

    Example: coscap rerank samples.json --regions regions.h5 --train data/coco --keep 5 --out best.json
    """
    from coscap.files import check_output, write_json
    from coscap.metrics.references import read_samples

    inputs = [samples, *(regions or []), *(Path(name) for name in (train, frequencies) if name is not None)]
    check_output(out, inputs=inputs)
    rows = read_samples(samples)
    pictures: dict[Any, list[Row]] = {}
    for row in rows:
        pictures.setdefault(row.image_id, []).append(row)
    if by is RankBy.likelihood:
        scores: dict[Any, Sequence[float]] = _likelihoods(samples, pictures)
        field = None
    else:
        if not regions or train is None:
            raise UserError(
                f"--by {by} needs --regions and --train; without them only --by likelihood works."
            )
        scores = _consensus(
            samples, pictures, regions, train, frequencies, by, neighbours, bank, best, missing, threads
        )
        field = "consensus"
    write_json(out, list(_ranked(pictures, scores, keep, distinct, missing, field)))
    kept = sum(1 for image in pictures if image in scores or missing is MissingRegions.keep)
    typer.echo(f"{out}: captions of {kept:,} images, best first by {by}")


def _likelihoods(path: Path, pictures: "dict[Any, list[Row]]") -> dict[Any, Sequence[float]]:
    rows = [row for group in pictures.values() for row in group]
    bad = [row for row in rows if not _is_number(row.fields.get("log_probability"))]
    if bad:
        raise UserError(
            f"{len(bad):,} of {len(rows):,} captions of {path} have no finite log_probability (first: image "
            f"{bad[0].image_id!r}); `coscap sample` writes it."
        )
    return {image: [row.fields["log_probability"] for row in group] for image, group in pictures.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _consensus(
    path: Path,
    pictures: "dict[Any, list[Row]]",
    regions: list[Path],
    train: str,
    frequencies: str | None,
    by: RankBy,
    neighbours: int,
    bank: str | None,
    best: int | None,
    missing: MissingRegions,
    threads: int | None,
) -> dict[Any, Sequence[float]]:
    """The consensus score of each caption of the pictures that have regions."""
    from coscap.metrics.consensus import Consensus, nearest
    from coscap.metrics.words import token_groups
    from coscap.vision.stores import Stores

    store = Stores(regions)
    known = [image for image in pictures if image in store]
    absent = [image for image in pictures if image not in store]
    if absent and (missing is MissingRegions.error or not known):
        raise UserError(
            f"{len(absent):,} of {len(pictures):,} images of {path} have no regions in {store} "
            f"(first: {absent[0]!r}); add them with `coscap features`, or say --missing drop or --missing keep."
        )
    if absent:
        typer.echo(
            f"note: {len(absent):,} images have no regions (first: {absent[0]!r}): {missing}", err=True
        )
    captions = captions_of(train, "train")
    # A picture that is to be captioned must not help itself with its own references.
    pool = [image for image in captions if image in store and image not in pictures and captions[image]]
    if not pool:
        raise UserError(f"{store} holds no picture of {train}; give the training pictures' regions too.")
    typer.echo(
        f"note: {len(pool):,} of {len(captions):,} training pictures have regions and are compared", err=True
    )
    if bank is None:
        label = "mean features"
        place = nearest(store.means(known, label), store.means(pool, label), neighbours)
    else:
        place = nearest(*_places(bank, store, known, pool, captions), neighbours)
    used = {number: at for at, number in enumerate(sorted(set(place.ravel().tolist())))}
    documents = None
    if frequencies is not None:
        documents = token_groups(
            _track([group for group in captions_of(frequencies, "train").values() if group])
        )
        training = token_groups([captions[pool[number]] for number in used])
    else:
        training = token_groups(_track([captions[image] for image in pool]))
        used = {number: number for number in used}
    consensus = Consensus.of(training, documents)
    scores = consensus.scores(
        token_groups([row.caption for row in pictures[image]] for image in known),
        [[used[number] for number in row] for row in place.tolist()],
        by="cider" if by is RankBy.cider else "bleu",
        best=best,
        threads=threads or os.cpu_count() or 1,
    )
    return {image: values.tolist() for image, values in zip(known, scores, strict=True)}


def _places(
    bank: str, store: "Stores", known: list[Any], pool: list[Any], captions: "dict[Any, list[str]]"
) -> "tuple[NDArray[np.float32], NDArray[np.float32]]":
    """Where captioned and training pictures stand by the phrases of a bank."""
    from coscap.contexts.bank import Bank
    from coscap.contexts.judge import bank_folder
    from coscap.contexts.make_bank import places_of
    from coscap.metrics.words import token_groups

    opened = Bank.open(bank_folder(bank) or bank)
    written = [
        [text.split() for text in group] for group in token_groups([captions[image] for image in pool])
    ]
    return (
        places_of(opened, map(store.get, known), store.recipe),
        places_of(opened, map(store.get, pool), store.recipe, written),
    )


def _track(groups: list[list[str]]) -> Iterable[list[str]]:
    from coscap.progress import track

    return track(groups, "tokenising", unit="image")


def _ranked(
    pictures: "dict[Any, list[Row]]",
    scores: dict[Any, Sequence[float]],
    keep: int | None,
    distinct: bool,
    missing: MissingRegions,
    field: str | None,
) -> Iterable[dict[str, Any]]:
    for image, rows in pictures.items():
        values = scores.get(image)
        if values is None and missing is not MissingRegions.keep:
            continue
        order = range(len(rows)) if values is None else sorted(range(len(rows)), key=lambda at: -values[at])
        seen: set[str] = set()
        kept = 0
        for at in order:
            if (distinct and rows[at].caption in seen) or (keep is not None and kept == keep):
                continue
            seen.add(rows[at].caption)
            kept += 1
            row = {"image_id": image, "caption": rows[at].caption, **rows[at].fields}
            if field is not None and values is not None:
                row[field] = values[at]
            yield row
