"""What a person wants to see of a prepared data set: sizes, one caption split, and the lengths."""

from typing import TYPE_CHECKING

import numpy as np

from coscap.data.prepared import Prepared
from coscap.errors import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def summary(data: Prepared, console: "Console") -> None:
    """Sizes by split, the vocabulary, and all that was left out."""
    counts = data.manifest["counts"]
    console.print(_sizes(data))
    words = max(1, counts["words"])
    console.print(
        f"vocabulary {data.manifest['vocabulary']['units']:,} units · "
        f"{100 * counts['unknown words'] / words:.2f} % of {counts['words']:,} words are outside it · "
        f"{counts['objects']:,} objects of the {data.manifest['objects']['name']} classes",
        highlight=False,
    )
    long, most = counts["longer than max_length"], data.max_length
    if long:
        done = "left out of training" if data.long == "drop" else f"cut to {most} words for training"
        console.print(f"{long:,} captions have more than {most} words and are {done}", highlight=False)
        if long > counts["captions"] / 10:
            console.print("that is more than a tenth of them; think of a larger --max-length", style="yellow")
    for kind, skipped in data.manifest["skipped"].items():
        line = shown(f"skipped: {kind}, {skipped['items']:,} items, the first: {skipped['first']}")
        console.print(line, highlight=False, markup=False)


def describe(data: Prepared, console: "Console") -> None:
    """The summary, the source, an example of the context-object split, and a histogram of lengths."""
    manifest = data.manifest
    console.print(
        shown(
            f"{data.path}: {manifest['source']}, split {manifest['split'].get('method')}, "
            f"made by coscap {manifest['coscap']}"
        ),
        highlight=False,
        markup=False,
    )
    summary(data, console)
    if data.captions:
        console.print(_example(data))
        console.print(_histogram(data))


def _sizes(data: Prepared) -> "Table":
    from rich.table import Table

    counts = data.manifest["counts"]
    table = Table(title="pictures and captions", title_justify="left")
    for name, side in (("split", "left"), ("pictures", "right"), ("captions", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for split, pictures in counts["pictures by split"].items():
        if pictures:
            table.add_row(split, f"{pictures:,}", f"{counts['captions by split'][split]:,}")
    for subset in data.manifest["subsets"]:
        table.add_row(
            shown(f"  {subset}"),
            f"{len(data.images(subset)):,}",
            f"{len(data.captions_in(subset)):,}",
            style="dim",
        )
    table.add_section()
    table.add_row("all", f"{counts['pictures']:,}", f"{counts['captions']:,}")
    return table


def _example(data: Prepared) -> "Table":
    """The first caption that names two objects, or the first at all."""
    from rich.table import Table
    from rich.text import Text

    objects = np.diff(data.arrays["object_offsets"])
    caption = int(np.argmax(objects >= 2)) if (objects >= 2).any() else 0
    image = data.image_of(caption)
    names = data.vocabulary.units
    table = Table(title="a caption, split", title_justify="left", show_header=False)
    rows = {
        "picture": f"{data.name(image)} (id {int(data.image_ids[image])}, {data.split_of(image)})",
        "caption": data.text(caption),
        "units": " | ".join(data.units(caption)),
        "context": " | ".join(names[number] for number in data.context(caption).tolist()),
        "objects": " | ".join(
            f"{names[number]} ({data.classes.classes[group].name})"
            for number, group in zip(
                data.objects(caption).tolist(), data.object_classes(caption).tolist(), strict=True
            )
        ),
    }
    for key, value in rows.items():
        table.add_row(key, Text(shown(value)))
    return table


def _histogram(data: Prepared) -> "Table":
    from rich.table import Table

    lengths = np.diff(data.arrays["word_offsets"])
    most = max(data.max_length, 12)
    counts = np.bincount(np.minimum(lengths, most + 1), minlength=most + 2)
    table = Table(title="words in a caption", title_justify="left", show_header=False, box=None)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    shown = np.flatnonzero(counts)
    for length in range(int(shown[0]), int(shown[-1]) + 1):
        name = f"> {most}" if length > most else str(length)
        size = round(40 * counts[length] / counts.max())
        table.add_row(name, f"{counts[length]:,}", "█" * size or ("▏" if counts[length] else ""))
    return table
