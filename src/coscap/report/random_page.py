"""Pictures drawn at random, not chosen, with captions of every run: for reading.

The page in Markdown has ids and captions only, because photographs of a data set seldom may be passed on. A page with
the photographs is for oneself.
"""

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coscap.errors import UserError
from coscap.files import write_text
from coscap.report.build import ReportResults
from coscap.report.sampling import Sampler
from coscap.vision.pictures import open_picture

_SIDE = 320  # pixels of a photograph on the page


@dataclass(frozen=True)
class RandomPicture:
    image_id: int
    name: str  # of the photograph's file
    human: list[str]
    captions: dict[str, list[str]]  # by run


@dataclass(frozen=True)
class RandomPictures:
    split: str
    seed: int
    out_of: int
    pictures: list[RandomPicture]


def draw_random(results: ReportResults, count: int, split: str, seed: int) -> RandomPictures:
    """Any pictures of the split that have regions and captions, all equally likely."""
    prepared, stores = results.prepared, results.stores
    references = prepared.references(split)
    there = [image for image in references if image in stores]
    if not there:
        raise UserError(
            f"{stores} has regions of none of the pictures of {split!r}; give theirs with a further --regions, "
            "or another --random-split."
        )
    chosen = np.random.default_rng(seed).choice(len(there), min(count, len(there)), replace=False)
    ids = [there[place] for place in chosen.tolist()]
    work, device = results.options.work, results.options.device
    found = {run.name: Sampler(run, stores, work, device).shown(ids) for run in results.runs}
    shown = [
        RandomPicture(
            image,
            prepared.name(prepared.index(image)),
            references[image],
            {name: captions[place] for name, captions in found.items()},
        )
        for place, image in enumerate(ids)
    ]
    return RandomPictures(split, seed, len(there), shown)


def write_random(drawn: RandomPictures, path: Path) -> None:
    lines = [
        f"# {len(drawn.pictures)} pictures drawn at random",
        f"Out of {drawn.out_of:,} of `{drawn.split}`, seed {drawn.seed}; none was left out. Five captions of each run, "
        "as `coscap caption` chooses them. The photographs are not here, because not all of them may be passed on; "
        "the numbers are their ids in the data set.",
    ]
    for shown in drawn.pictures:
        lines.append(f"## {shown.image_id}")
        lines.append("**People**\n" + "\n".join(f"- {caption.strip()}" for caption in shown.human))
        lines += [
            f"**{name}**\n" + "\n".join(f"- {text}" for text in texts)
            for name, texts in shown.captions.items()
        ]
    write_text(path, "\n\n".join(lines) + "\n")


def write_html(drawn: RandomPictures, folder: Path, path: Path) -> None:
    """The same with the photographs of a folder inside the page."""
    figures = []
    for shown in drawn.pictures:
        columns = {"people": shown.human, **shown.captions}
        columns_html = "".join(
            f"<div><h3>{html.escape(name)}</h3><ul>"
            + "".join(f"<li>{html.escape(text.strip())}</li>" for text in texts)
            + "</ul></div>"
            for name, texts in columns.items()
        )
        figures.append(
            f'<section><figure><img src="{_data_uri(_photograph(folder, shown))}" alt="">'
            f"<figcaption>{shown.image_id}</figcaption></figure>{columns_html}</section>"
        )
    title = f"{len(drawn.pictures)} pictures drawn at random from {drawn.split}"
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
    write_text(path, page + "\n".join(figures) + "\n")


_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1280px;padding:0 1rem;color:#222}"
    "section{display:flex;flex-wrap:wrap;gap:1.2rem;border-top:1px solid #ddd;padding:1.2rem 0}"
    "figure{margin:0;width:260px}img{width:100%;border-radius:4px}figcaption{color:#777;font-size:13px}"
    "section>div{flex:1 1 210px}h3{font-size:14px;margin:0 0 .3rem}ul{margin:0;padding-left:1.1rem}"
)


def _photograph(folder: Path, shown: RandomPicture) -> Path:
    names = [Path(shown.name).name, f"{shown.image_id}.jpg", f"{shown.image_id:012d}.jpg"]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} has no photograph of {shown.image_id} (looked for {', '.join(names)}).")


def _data_uri(path: Path) -> str:
    picture = open_picture(path)
    picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
