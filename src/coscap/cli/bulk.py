"""`coscap bulk`: the captions of a whole collection, as Parquet."""

from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coscap.cli.choices import Accurate, BankChoice, Detector, Diverse, Model, Variety
from coscap.errors import UserError
from coscap.search.config import SearchSettings, search_options

if TYPE_CHECKING:
    from coscap.bulk.entries import BulkEntry

EXAMPLE = "\n\nExample: coscap bulk photos/ s3://bucket/more --out captions.parquet -n 5"


@search_options()
def bulk(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Folders, files, patterns such as 'a/*.jpg', addresses such as s3://bucket/photos, or Parquet "
            "with the bytes or the paths of pictures, such as photos.parquet.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", help="The folder of Parquet parts to write or to go on with, e.g. captions.parquet."
        ),
    ],
    n: Annotated[int, typer.Option("-n", min=1, max=100, help="Captions for each picture, e.g. 3.")] = 5,
    model: Model = "shipped",
    detector: Detector = None,
    bank: BankChoice = "shipped",
    variety: Variety = None,
    accurate: Accurate = False,
    diverse: Diverse = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="A Ray cluster to work on, e.g. auto or ray://head:10001. Unset: this machine."
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Workers, each with a captioner of its own, e.g. 4; 0 for one a core.")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, max=1024, help="Pictures captioned at once, e.g. 16.")] = 16,
    part: Annotated[
        int,
        typer.Option(
            min=1, help="Pictures in a part: what a kill can cost at most, besides those in work, e.g. 500."
        ),
    ] = 500,
    retry_bad: Annotated[
        bool, typer.Option("--retry-bad", help="Try pictures again that an earlier run could not read.")
    ] = False,
    column: Annotated[
        str,
        typer.Option(
            "--column", help="The column of a Parquet file with the pictures or their paths, e.g. image."
        ),
    ] = "",
    names: Annotated[
        str,
        typer.Option(
            "--names",
            help="The column of a Parquet file with pictures that names them, e.g. id. Unset: FILE#ROW.",
        ),
    ] = "",
    urls: Annotated[
        bool, typer.Option("--urls", help="Read addresses (s3://...) that the rows of a Parquet file name.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda (one GPU for each worker).")] = "cpu",
    *,
    settings: SearchSettings,
) -> None:
    """Caption a whole collection on Ray. A run that was stopped, however hard, goes on when started again.

    OUT gets a row a picture: photo, width, height, captions (text and log_probability). Pictures that cannot be
    read are listed with the reason in a table beside it, captions.bad.parquet, and are not tried again.
    """
    from coscap.search.manner import manner
    from coscap.shipped import check_device

    settings, variety = manner(settings, variety, accurate, diverse)
    check_device(device)
    _need_extra()
    if "://" in out:
        raise UserError(f"{out} is an address; --out is a folder of this machine, e.g. captions.parquet.")
    from coscap.bulk.run import caption_collection
    from coscap.bulk.worker import BulkJob

    job = BulkJob(
        model=model,
        bank=bank,
        n=n,
        variety=variety,
        settings=settings,
        detector=detector,
        device=device,
        batch=batch,
    )
    outcome = caption_collection(
        _entries(images, column, names, urls),
        Path(out),
        job,
        address=address,
        processes=processes,
        part=part,
        retry_bad=retry_bad,
    )
    before = f"; {outcome.known:,} were known before" if outcome.known else ""
    typer.echo(f"{out}: captions of {outcome.captioned:,} pictures{before}")
    if outcome.bad:
        typer.echo(f"{outcome.bad:,} pictures could not be read; {outcome.bad_file} says why")


bulk.__doc__ = cleandoc(bulk.__doc__ or "") + EXAMPLE


def _need_extra() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None or find_spec("pyarrow") is None:
        raise UserError(
            "coscap bulk works on Ray Data, which is not installed; run: pip install 'coscap[bulk]'."
        )


def _entries(images: list[str], column: str, names: str, urls: bool = False) -> "list[BulkEntry]":
    """The pictures of all arguments, in their order."""
    from coscap.bulk.entries import is_address, is_parquet, list_address, list_parquet, local_entry
    from coscap.cli.photos import list_photos

    found: list[BulkEntry] = []
    for argument in images:
        if argument == "-" or argument.startswith(("http://", "https://")):
            raise UserError(
                f"{argument} is no place for a collection; give folders, files, s3://... or Parquet."
            )
        if is_parquet(argument):
            found += list_parquet(argument, column, names, urls)
        elif is_address(argument):
            found += list_address(argument)
        else:
            found += [local_entry(name) for name, _ in list_photos([argument])]
    return found
