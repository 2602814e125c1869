"""`coscap data`: captions of any kind into one prepared data set, and a look at one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coscap.errors import UserError, shown

if TYPE_CHECKING:
    from coscap.data.prepared import Prepared
    from coscap.data.records import Source, Troubles

HELP = "Prepare captions for training, or look at prepared ones.\n\nExample: coscap data coco --split mrnn --out coco"

app = typer.Typer(no_args_is_help=True, help=HELP)

Out = Annotated[
    Path, typer.Option("--out", "-o", help="The folder to write, e.g. --out coco; an older one is replaced.")
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="mrnn, karpathy, heldout, random, source (what the source says), or train, validation, test "
        "for all pictures in that one; e.g. --split mrnn",
    ),
]
Validation = Annotated[
    int | None, typer.Option(min=0, help="How many pictures for validation, e.g. --validation 500")
]
Test = Annotated[int | None, typer.Option(min=0, help="How many pictures to test on, e.g. --test 500")]
Seed = Annotated[int, typer.Option(help="The seed of the pictures that are drawn, e.g. --seed 7")]
TestIds = Annotated[
    Path | None,
    typer.Option(help="Image ids of the test split, a JSON list or one a line, e.g. --test-ids test.json"),
]
ValidationIds = Annotated[
    Path | None, typer.Option(help="The same for validation, e.g. --validation-ids val.txt")
]
ExcludeIds = Annotated[
    list[Path] | None,
    typer.Option(
        help="Image ids to leave out of everything; may be repeated, e.g. --exclude-ids reserved.json"
    ),
]
SplitFile = Annotated[
    Path | None,
    typer.Option(
        help="A held-out split of your own instead of the one that coscap carries, e.g. --split-file s.json"
    ),
]
Objects = Annotated[
    str, typer.Option(help="The list of object classes: coco or a file, e.g. --objects mine.yaml")
]
MinCount = Annotated[
    int,
    typer.Option(
        "--min-count", min=1, help="A word needs this many training captions' uses, e.g. --min-count 5"
    ),
]
MaxLength = Annotated[
    int,
    typer.Option(min=1, help="Captions with more words than this are not trained on, e.g. --max-length 30"),
]
Long = Annotated[
    str, typer.Option(help="What training does with longer captions: drop them, or cut them, e.g. --long cut")
]
Vocabulary = Annotated[
    Path | None,
    typer.Option(
        help="Use this vocabulary instead of building one, e.g. --vocabulary coco/vocabulary.json; shipped is "
        "that of the package's model, for training that begins with it"
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave bad items out and count them, instead of stopping.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes that split captions; one for each core if not given.")
]


@app.command()
def coco(
    out: Out,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="COCO-format files, coco:train2014, coco:val2014; COCO 2014 whole if not given."),
    ] = None,
    split: Split = None,
    karpathy: Annotated[
        Path | None,
        typer.Option(help="Karpathy's file, for --split karpathy, e.g. --karpathy dataset_coco.json"),
    ] = None,
    split_file: SplitFile = None,
    validation: Validation = None,
    test: Test = None,
    seed: Seed = 0,
    test_ids: TestIds = None,
    validation_ids: ValidationIds = None,
    exclude_ids: ExcludeIds = None,
    objects: Objects = "coco",
    min_count: MinCount = 4,
    max_length: MaxLength = 20,
    long: Long = "drop",
    vocabulary: Vocabulary = None,
    skip_bad: SkipBad = False,
    workers: Workers = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="Take only pictures that are in this folder, e.g. --pictures train2014"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take only so many pictures, drawn by --seed, e.g. --limit 1000")
    ] = None,
) -> None:
    """COCO captions, or any file in their format (nocaps too). Example: coscap data coco --split mrnn --out coco"""
    from coscap.data.records import join
    from coscap.data.sources.coco import BUILT_IN, read_coco, read_karpathy

    if split == "karpathy" and karpathy is None:
        raise UserError("--split karpathy needs Karpathy's file; pass --karpathy dataset_coco.json.")
    if karpathy is not None and split not in (None, "karpathy", "source"):
        raise UserError(f"--karpathy brings its own split and --split {split} is another; leave one out.")

    def read(troubles: "Troubles") -> "Source":
        if karpathy is not None:
            return read_karpathy(karpathy, troubles)
        return join([read_coco(name, troubles) for name in files or BUILT_IN], troubles)

    chosen = split or ("karpathy" if karpathy else None if files else "mrnn")
    _make(read, out, skip_bad, workers, _given(locals(), chosen))


def _register(name: str, reader: str, argument: str, help: str) -> None:
    """A command for a source that is one path; `reader` is "module:function" in coscap.data.sources."""

    @app.command(name, help=help)
    def run(
        path: Annotated[Path, typer.Argument(help=argument)],
        out: Out,
        split: Split = None,
        validation: Validation = None,
        test: Test = None,
        seed: Seed = 0,
        test_ids: TestIds = None,
        validation_ids: ValidationIds = None,
        exclude_ids: ExcludeIds = None,
        objects: Objects = "coco",
        min_count: MinCount = 4,
        max_length: MaxLength = 20,
        long: Long = "drop",
        vocabulary: Vocabulary = None,
        skip_bad: SkipBad = False,
        workers: Workers = None,
    ) -> None:
        from importlib import import_module

        module, function = reader.split(":")
        read = getattr(import_module(f"coscap.data.sources.{module}"), function)
        _make(lambda troubles: read(path, troubles), out, skip_bad, workers, _given(locals(), split))


_register(
    "flickr8k",
    "flickr:read_flickr",
    "Flickr8k.token.txt, captions.txt, or the folder that holds it.",
    "Flickr8k or Flickr30k. Example: coscap data flickr8k Flickr8k_text --out flickr8k",
)
_register(
    "csv",
    "flickr:read_flickr",
    "A table with the header image,caption; pictures with several captions have several lines.",
    "A comma-separated table, image,caption. Example: coscap data csv captions.csv --out mine",
)
_register(
    "folder",
    "folder:read_folder",
    "The folder of pictures; cat.txt holds the captions of cat.jpg.",
    "Pictures with same-named .txt files, one caption a line. Example: coscap data folder photos --out mine",
)
_register(
    "jsonl",
    "jsonl:read_jsonl",
    'Lines such as {"image": "cat.jpg", "captions": ["a cat"]}.',
    "One JSON object a line. Example: coscap data jsonl captions.jsonl --out mine",
)


@app.command()
def regions(
    path: Annotated[Path, typer.Argument(help="A bottom-up TSV or HDF5 file, or a folder of .npz files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The store to write, e.g. --out regions.h5")],
    skip_bad: SkipBad = False,
) -> None:
    """Published regions into a fast store. Example: coscap data regions trainval_36.tsv --out regions.h5"""
    from coscap.data.records import Troubles
    from coscap.data.regions import convert
    from coscap.files import check_output
    from coscap.vision.published import open_regions

    check_output(out, inputs=[path])
    source, troubles = open_regions(path), Troubles(skip=skip_bad)
    count = convert(source, out, troubles)
    typer.echo(
        f"{out}: regions of {count:,} pictures, {source.recipe.width} numbers each, {source.recipe.name}"
    )
    for kind, number in troubles.counts.items():
        typer.echo(f"skipped: {kind}, {number:,} items, the first: {troubles.examples[kind]}")


@app.command()
def show(path: Annotated[Path, typer.Argument(help="A folder that `coscap data ... --out` wrote.")]) -> None:
    """Sizes, an example of the split, and a histogram of lengths. Example: coscap data show coco"""
    from rich.console import Console

    from coscap.data.prepared import open_prepared
    from coscap.data.show import describe

    describe(open_prepared(path), Console())


def _given(options: dict[str, Any], split: str | None) -> dict[str, Any]:
    """What the commands have in common, out of a command's own arguments."""
    from coscap.data.splits import check_method

    if split is not None:
        check_method(split)
    names = "validation test seed test_ids validation_ids exclude_ids objects min_count max_length long vocabulary"
    return {name: options[name] for name in names.split()} | {
        "split": split,
        "split_file": options.get("split_file"),
        "pictures": options.get("pictures"),
        "limit": options.get("limit"),
    }


def _make(
    read: "Callable[[Troubles], Source]",
    out: Path,
    skip_bad: bool,
    workers: int | None,
    given: dict[str, Any],
) -> None:
    """Read, split, write, and say what was made."""
    import os
    import signal
    import sys
    from dataclasses import replace

    from rich.console import Console

    from coscap.data.prepare import Options, check_out, prepare
    from coscap.data.prepared import open_prepared
    from coscap.data.records import Troubles
    from coscap.data.show import summary
    from coscap.data.splits import Choice, choose

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a polite kill cleans up too
    check_out(out)
    troubles = Troubles(skip=skip_bad)
    source = read(troubles)
    chosen = (
        choose(source.pictures, given["pictures"], given["limit"], given["seed"]) if source.pictures else ()
    )
    source = replace(source, pictures=chosen)
    own = any(one.split for one in source.pictures)
    choice = Choice(
        given["split"] or ("source" if own else "random"),
        given["validation"],
        given["test"],
        given["seed"],
        given["test_ids"],
        given["validation_ids"],
        tuple(given["exclude_ids"] or ()),
        given["split_file"],
    )
    options = Options(
        given["objects"],
        given["min_count"],
        given["max_length"],
        given["long"],
        _vocabulary_file(given["vocabulary"]),
        workers or os.cpu_count() or 1,
    )
    prepare(source, choice, out, options, troubles)
    data = open_prepared(out)
    summary(data, Console())
    for note in source.notes:
        typer.echo(f"note: {shown(note)}.", err=True)
    _note_splits(data)
    _note_ids(source, out)
    for path in (given["test_ids"], given["validation_ids"], *(given["exclude_ids"] or ())):
        _note_unknown(path, {one.id for one in source.pictures})


def _vocabulary_file(given: Path | None) -> str | None:
    from coscap.shipped import SHIPPED, model_folder

    if given is None:
        return None
    return str(Path(model_folder(SHIPPED)) / "vocabulary.json" if str(given) == SHIPPED else given)


def _note_splits(data: "Prepared") -> None:
    """Say what training will miss: `coscap train` validates, and learns from captions."""
    train, validation = (len(data.captions_in(name)) for name in ("train", "validation"))
    if train and not validation:
        typer.echo(
            "note: no picture is held out for validation; leave --split out or give --validation N, or train with "
            "--set validation=null.",
            err=True,
        )
    if not data.captions:
        typer.echo("note: no picture has a caption; captions can be sampled for them, not learnt.", err=True)


def _note_ids(source: "Source", out: Path) -> None:
    """Say it where ids are not those of file names: regions go by file name unless they are given."""
    from coscap.vision.ids import image_id_of

    other = [one for one in source.pictures if image_id_of(one.name) != one.id]
    if other:
        typer.echo(
            f"note: {len(other):,} of {len(source.pictures):,} pictures have an id that is not that of their file "
            f"name (first: {other[0].id}, {shown(other[0].name)}); make their regions with "
            f"`coscap features PICTURES --data {out} --out regions.h5`.",
            err=True,
        )


def _note_unknown(path: Path | None, known: set[int]) -> None:
    """Say how many of the ids in a file name no picture: a few may be wanted, most are a mistake."""
    from coscap.data.splits import read_ids

    ids = read_ids(path) if path else []
    unknown = [image_id for image_id in ids if image_id not in known]
    if unknown:
        typer.echo(
            f"note: {len(unknown):,} of the {len(ids):,} image ids in {path} are not in the data set (the first is "
            f"{unknown[0]}); they are left out.",
            err=True,
        )
