"""The whole analysis of one model: numbers on a data set, figures on photographs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coscap.analysis import figures
from coscap.analysis.figures import Photo, Way
from coscap.analysis.steer import Writer, part_of
from coscap.analysis.swap import Swapped, measure_swaps, take
from coscap.analysis.traverse import LATENTS, Activity, activity, move, turn
from coscap.analysis.variance import Shares, embeddings, shares, write_grid
from coscap.data import Prepared, open_prepared
from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.metrics.words import token_groups
from coscap.models.latents import Latents
from coscap.shipped import detector_name, model_folder
from coscap.vision.detectors import load_detector
from coscap.vision.pictures import open_picture
from coscap.vision.stores import Stores

PLACES = (-2.0, -1.0, 0.0, 1.0, 2.0)
DIMENSIONS = 3  # the most active ones of each latent that are shown
STEPS = 7
AT_ONCE = 25  # pictures whose crosses are written together
KL_CAPTIONS = 1000
MOVED = 40  # pictures on which every dimension is moved
SWAPPED = 500  # pictures between which latents are swapped


@dataclass(frozen=True)
class AnalysisRequest:
    model: str
    data: Path
    regions: tuple[Path, ...]
    split: str = "validation"
    pictures: int = 100
    count: int = 8
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Analysis:
    """Everything measured, and the photographs that figures were made of."""

    weights: str
    split: str
    pictures: int
    count: int
    shares: dict[str, Shares]
    swaps: dict[str, Swapped]
    activity: dict[str, Activity]
    photos: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        return {
            "weights": self.weights,
            "split": self.split,
            "pictures": self.pictures,
            "draws": self.count,
            "shares": {name: asdict(each) for name, each in self.shares.items()},
            "swaps": {name: asdict(each) for name, each in self.swaps.items()},
            "activity": {
                name: {key: value.tolist() for key, value in asdict(each).items()}
                for name, each in self.activity.items()
            },
        }


def analyse(
    request: AnalysisRequest, photos: Sequence[Path], ways_of: Sequence[str], images: Path
) -> Analysis:
    """Measure, and write the figures into `images`; `ways_of` names the photographs that latents are moved on."""
    writer = Writer.open(str(model_folder(request.model)), request.device)
    prepared, stores = open_prepared(request.data), Stores(request.regions)
    writer.loaded.check_vocabulary(prepared.vocabulary)
    writer.loaded.check_recipe(stores.recipe)
    everyone = _choose(prepared, stores, request)
    ids = everyone[: request.pictures]
    regions = writer.batch([stores.get(image) for image in everyone[: max(request.pictures, SWAPPED)]])
    indices = [prepared.index(image) for image in everyone[: len(regions.keys)]]
    named = [
        {int(c) for caption in prepared.captions_of(i) for c in prepared.object_classes(caption)}
        for i in indices
    ]
    captions = np.array([c for i in indices for c in prepared.captions_of(i)], np.int64)[:KL_CAPTIONS]
    found = Analysis(
        weights=writer.loaded.weights,
        split=request.split,
        pictures=len(ids),
        count=request.count,
        shares=_shares(writer, part_of(regions, 0, len(ids)), prepared, request),
        swaps=measure_swaps(writer, regions, named, request.seed),
        activity=activity(writer, prepared, stores, captions, part_of(regions, 0, MOVED)),
        photos=tuple(ways_of) if photos else (),
    )
    figures.variance_bars(found.shares, len(ids), request.count, images / "analysis-variance.png")
    figures.activity_bars(found.activity, images / "analysis-activity.png")
    if photos:
        _photographs(writer, photos, ways_of, found.activity, request.seed, images)
    return found


def _choose(prepared: Prepared, stores: Stores, request: AnalysisRequest) -> list[int]:
    """Pictures of the split that have regions and captions, drawn at random."""
    there = [image for image in prepared.references(request.split) if image in stores]
    if len(there) < 2:
        raise UserError(
            f"{stores} has regions of {len(there)} pictures of {request.split!r}, and at least 2 are needed; "
            "choose another --split or add --regions."
        )
    chosen = np.random.default_rng(request.seed).permutation(len(there))
    return [there[place] for place in chosen.tolist()]


def _shares(
    writer: Writer, regions: RegionBatch, prepared: Prepared, request: AnalysisRequest
) -> dict[str, Shares]:
    from coscap.progress import track

    grids = []
    starts = range(0, len(regions.keys), AT_ONCE)
    for start in track(starts, "crosses of draws", unit="batch"):
        grids += write_grid(writer, part_of(regions, start, start + AT_ONCE), request.count, request.seed)
    documents = token_groups(list(prepared.references(request.split).values()))
    tables = embeddings(grids, request.count, writer.objects, documents)
    return {name: shares(each, request.seed) for name, each in tables.items()}


def _photographs(
    writer: Writer,
    paths: Sequence[Path],
    ways_of: Sequence[str],
    active: dict[str, Activity],
    seed: int,
    images: Path,
) -> None:
    recipe = writer.loaded.recipe
    detector = load_detector(detector_name(recipe, writer.loaded.source), recipe=recipe)
    writer.loaded.check_recipe(detector.recipe)
    pictures = [open_picture(path) for path in paths]
    photos = [Photo(path.stem, picture) for path, picture in zip(paths, pictures, strict=True)]
    regions = writer.batch(detector.regions(pictures))
    figures.swap_grid(photos, *_grid(writer, regions, seed), writer.objects, images / "analysis-swap.png")
    for number, photo in enumerate(photos):
        if photo.name not in ways_of:
            continue
        one = part_of(regions, number, number + 1)
        figures.ways(
            photo, _dimension_ways(writer, one, active), "One dimension moved, all other noise at 0",
            writer.objects, images / f"analysis-dimensions-{photo.name}.png",
        )  # fmt: skip
        figures.ways(
            photo, _turn_ways(writer, one, seed), "From one draw to another", writer.objects,
            images / f"analysis-turn-{photo.name}.png",
        )  # fmt: skip


def _grid(writer: Writer, regions: RegionBatch, seed: int) -> tuple[list[Any], list[list[Any]]]:
    """A caption of each photograph, and every photograph's caption under its z^m."""
    sources = writer.drawn(regions, seed)
    latents = writer.read(regions, sources, seed)
    grid = []
    for place in range(len(sources)):
        given = take(latents, [place] * len(sources))
        only = Latents(lengths=given.lengths, context=given.context)
        row = writer.held(regions, only, seed)
        row[place] = sources[place]
        grid.append(row)
    return sources, grid


def _dimension_ways(writer: Writer, regions: RegionBatch, active: dict[str, Activity]) -> list[Way]:
    found = []
    marks = [f"{place:+.0f}" if place else "0" for place in PLACES]
    for name in LATENTS:
        symbol = "z$^m$" if name == "context" else "z$^o$"
        for dimension in active[name].most_active(DIMENSIONS):
            captions = move(writer, regions, name, dimension, PLACES)[0]
            title = f"{symbol}, dimension {dimension} ({active[name].kl[dimension]:.2f} nats)"
            found.append(Way(title, marks, captions))
    return found


def _turn_ways(writer: Writer, regions: RegionBatch, seed: int) -> list[Way]:
    marks = [f"{100 * step / (STEPS - 1):.0f} %" for step in range(STEPS)]
    titles = {("context",): "z$^m$ turns, z$^o$ stays", ("objects",): "z$^o$ turns, z$^m$ stays",
              LATENTS: "both turn"}  # fmt: skip
    with torch.inference_mode():
        return [
            Way(title, marks, turn(writer, regions, names, STEPS, seed)[0]) for names, title in titles.items()
        ]
