"""`coscap bank`: captions of training pictures to agree with."""

from pathlib import Path

import typer


def bank(
    data: Path = typer.Argument(..., metavar="DATA", help="A prepared data set, e.g. data/coco."),
    regions: Path | None = typer.Option(
        None, "--regions", help="A store of its regions, e.g. data/regions.h5."
    ),
    folder: Path | None = typer.Option(
        None, "--pictures", help="Or the folder of its pictures, e.g. train2017."
    ),
    out: Path = typer.Option(..., "--out", help="The folder to make, e.g. data/bank."),
    most: int = typer.Option(30000, "--most", min=1, help="At most so many training pictures, e.g. 60000."),
    dimensions: int = typer.Option(128, min=1, help="Numbers that a picture is kept as, e.g. 64."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a bank that is there already."),
) -> None:
    """Make a bank: what people said of similar pictures, and which phrases go with what is seen, for choosing captions.

    Only pictures of the split train go into it. `coscap caption --bank BANK` then prefers captions that agree with what
    was written about pictures like yours, and with what would be written about yours. Phrases are learnt from all
    training pictures that have regions; with --pictures, from those of the bank, without detections.

    A bank is used with the vision that it was made with: --pictures takes that of the package, which judges captions.

    Example: coscap bank data/coco --pictures train2017 --out data/bank --most 30000
    """
    from coscap.contexts.make_bank import bank_of_pictures, bank_of_regions
    from coscap.data import open_prepared
    from coscap.errors import UserError
    from coscap.files import check_output
    from coscap.vision.store import RegionStore

    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already; give another --out or --overwrite.")
    check_output(out, folder=True)
    prepared = open_prepared(data)
    if (regions is None) == (folder is None):
        raise UserError("give --regions or --pictures, one of the two.")
    if folder is not None:
        made = bank_of_pictures(prepared, folder, out, pictures=most, dimensions=dimensions)
    elif regions is not None:
        made = bank_of_regions(prepared, RegionStore.open(regions), out, pictures=most, dimensions=dimensions)
    size = sum(file.stat().st_size for file in out.iterdir())
    captions = len(made.arrays["caption_starts"]) - 1
    typer.echo(f"{out}: {len(made):,} pictures, {captions:,} captions, {size / 1e6:.1f} MB")
