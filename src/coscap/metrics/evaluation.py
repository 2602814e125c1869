"""The metrics of captions with intervals (`evaluate`); two systems (`compare`), figures by name (`measure`)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.metrics.chair import ObjectWords
from coscap.metrics.checks import check_captions, check_match, check_words
from coscap.metrics.intervals import (
    RESAMPLES,
    Bootstrap,
    ScoreDifference,
    Statistics,
    interval,
    paired_difference,
)
from coscap.metrics.novel_objects import HELD_OUT, ObjectScores
from coscap.metrics.oracle import Curves, best_average_worst, curves
from coscap.metrics.references import ImageId, as_captions
from coscap.metrics.table import BY_NAME, DEFAULT, GROUPS, METRICS, CaptionScores, Material, Metric
from coscap.metrics.words import token_groups
from coscap.progress import track

SPREAD = ("oracle", "average", "worst")  # of a picture's captions

Captions = Mapping[ImageId, Sequence[str]]
Figure = Statistics | float


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found. Names of metrics are the field's; "CIDEr" is CIDEr-D, as officially."""

    ids: tuple[ImageId, ...]
    captions: int
    samples: int  # captions of the picture that has most
    figures: Mapping[str, Figure]  # "CIDEr" of first captions, "oracle/CIDEr" of all, "Div-2", ...
    curves: Mapping[str, Curves] = field(default_factory=dict)
    """By metric, over n = 1 .. samples; empty with one caption a picture."""
    objects: ObjectScores | None = None
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        return len(self.ids)

    @cached_property
    def values(self) -> dict[str, float]:
        return {name: value_of(figure) for name, figure in self.figures.items()}

    @property
    def accuracy(self) -> dict[str, float]:
        """Of the first caption of each picture."""
        return {name: value for name, value in self.values.items() if _is_of(name, "captions")}

    @property
    def oracle(self) -> dict[str, float]:
        return self._spread("oracle")

    @property
    def average(self) -> dict[str, float]:
        return self._spread("average")

    @property
    def worst(self) -> dict[str, float]:
        return self._spread("worst")

    def of_group(self, group: str) -> dict[str, float]:
        """Metrics of sets."""
        found = self.values.items()
        return {name: value for name, value in found if _is_of(name, "sets") and BY_NAME[name].group == group}

    @property
    def diversity(self) -> dict[str, float]:
        return self.of_group("diversity")

    def intervals(self, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each figure, by a bootstrap over pictures; a figure of all captions has none."""
        found = Bootstrap(self.images, resamples, seed).values(_statistics(self.figures))
        return {name: interval(values) for name, values in found.items()}

    def part(self, chosen: NDArray[np.bool_]) -> "Evaluation":
        """Only some of the pictures (I,), with the whole set's document frequencies."""
        figures = {
            name: Statistics(np.ascontiguousarray(figure.terms[:, chosen]), figure.finish)
            for name, figure in _statistics(self.figures).items()
        }
        ids = tuple(image for image, here in zip(self.ids, chosen, strict=True) if here)
        return replace(self, ids=ids, figures=figures, curves={}, objects=None, notes=())

    def by_domain(self, domains: Mapping[ImageId, str]) -> dict[str, "Evaluation"]:
        """The same for the pictures of each domain (nocaps: in-domain, near-domain, out-domain)."""
        unknown = [image for image in self.ids if image not in domains]
        if unknown:
            raise UserError(
                f"{len(unknown):,} of {self.images:,} images have no domain (first: {unknown[0]!r}); give references "
                'whose "images" have a "domain", as the annotations of nocaps do.'
            )
        own = np.array([domains[image] for image in self.ids])
        return {str(name): self.part(own == name) for name in sorted(set(own.tolist()))}

    def json(self, with_curves: bool = False, resamples: int = 0, seed: int = 0) -> dict[str, Any]:
        """As plain values; a metric that is not defined for these samples is null."""
        result: dict[str, Any] = {"images": self.images, "captions": self.captions, "samples": self.samples}
        result.update(_nulls(self.accuracy))
        if self.oracle:
            result.update({name: _nulls(self._spread(name)) for name in SPREAD})
        for group in GROUPS:
            found = self.of_group(group)
            if found and group != "novel_objects":
                result[group] = _nulls(found)
        if self.objects is not None:
            result["novel_objects"] = _objects_json(self.objects)
        if resamples:
            intervals = self.intervals(resamples, seed)
            result["intervals"] = {
                name: [_or_null(low), _or_null(high)] for name, (low, high) in intervals.items()
            }
        if with_curves and self.curves:
            result["curves"] = {
                name: {
                    "oracle": curve.best.tolist(),
                    "average": curve.average.tolist(),
                    "worst": curve.worst.tolist(),
                }
                for name, curve in self.curves.items()
            }
        if self.notes:
            result["notes"] = list(self.notes)
        return result

    def _spread(self, kind: str) -> dict[str, float]:
        found = self.values.items()
        return {name.partition("/")[2]: value for name, value in found if name.startswith(f"{kind}/")}


def evaluate(
    samples: Captions | Sequence[Mapping[str, Any]],
    references: Captions | Sequence[Mapping[str, Any]] | str,
    *,
    metrics: Collection[str] | str | None = None,
    train: Captions | Sequence[Mapping[str, Any]] | str | None = None,
    objects: Mapping[str, Collection[str]] | None = None,
    instances: Mapping[ImageId, set[str]] | None = None,
    chair_words: ObjectWords | None = None,
    tokenised: bool = False,
    allow_empty: bool = False,
    spice_cache: str | Path | None = None,
    names: tuple[str, str] = ("the samples", "the references"),
) -> Evaluation:
    """Evaluate one or several captions a picture.

    `samples` and `references` map image ids to captions, or are rows with image_id and caption, or the name
    of references such as "coco:val2014". `metrics` is a choice of groups (or "bleu,cider"); what is named
    must work, while by default METEOR and SPICE are left out with a note where their data is not installed.
    `train` (training captions by image) adds novel captions and self-CIDEr with their document frequencies.
    `objects` (names and their words) asks for novel objects; named as a metric without it, they are the eight
    of held-out COCO. `instances` (classes in each picture) count as being there for CHAIR, beside those that references
    name. The accuracy is that of each picture's first caption; oracle, average and worst are over all of them.
    """
    chosen = choose(metrics)
    samples, references = as_captions(samples, names[0]), as_captions(references, names[1])
    check_captions(samples, names[0])
    check_match(samples, references, names)
    check_captions({image: references[image] for image in samples}, names[1])
    ids = list(samples)
    pictures = token_groups([samples[image] for image in ids], tokenised)
    if not allow_empty:
        hint = "remove them, or allow them (--allow-empty) to score them as captions without words"
        check_words(dict(zip(ids, pictures, strict=True)), names[0], hint)
    wanted = token_groups([references[image] for image in ids], tokenised)
    most = max(map(len, pictures))
    if metrics is None and most == 1 and train is None:
        chosen = [metric for metric in chosen if metric.group != "diversity"]
    if objects is not None:
        chosen += [metric for metric in METRICS if metric.group == "novel_objects" and metric not in chosen]
    material = Material(
        pictures,
        wanted,
        training=_training(train, tokenised) if train is not None and _asks(chosen, "diversity") else (),
        words=chair_words,
        instances=None if instances is None else _instances(instances, ids),
        objects=HELD_OUT if objects is None else objects,
        spice_cache=spice_cache,
    )
    figures, spread, notes = _figures(material, chosen, named=metrics is not None)
    found = material.object_scores if _asks(chosen, "novel_objects") else None
    notes += _remarks(samples, ids, material, found, diverse=_asks(chosen, "diversity"))
    return Evaluation(tuple(ids), int(material.starts[-1]), most, figures, spread, found, tuple(notes))


def measure(
    names: Iterable[str],
    pictures: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]] = (),
    training: Sequence[Sequence[str]] = (),
    *,
    tokenised: bool = False,
) -> dict[str, float]:
    """Figures by name: "CIDEr" of each picture's first caption, "oracle/CIDEr", "average/CIDEr", "unique", ...

    >>> measure(["unique"], [["a dog", "a cat"]])
    {'unique': 100.0}
    """
    given = [token_groups(groups, tokenised) for groups in (pictures, references, training)]
    material = Material(given[0], given[1], training=given[2])
    found: dict[str, float] = {}
    for name in names:
        kind, slash, metric = name.rpartition("/")
        scores = choose([metric])[0].function(material)
        if slash and isinstance(scores, CaptionScores) and kind in SPREAD:
            scores = best_average_worst(scores.each, material.starts)[kind]
        elif slash:
            raise ValueError(
                f"{name} is no figure; expected a metric, or {', '.join(SPREAD)} of one of captions"
            )
        elif isinstance(scores, CaptionScores):
            scores = scores.of(material.first)
        found[name] = value_of(scores)
    return found


def compare(
    one: Evaluation, other: Evaluation, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, ScoreDifference]:
    """How much higher `one` is than `other`: a paired bootstrap, both on the same resamples of pictures."""
    place = {image: number for number, image in enumerate(other.ids)}
    order = np.array([place[image] for image in one.ids])
    mine, theirs = _statistics(one.figures), _statistics(other.figures)
    shared = [name for name in mine if name in theirs]
    bootstrap = Bootstrap(one.images, resamples, seed)
    resampled = bootstrap.values({name: mine[name] for name in shared})
    others = bootstrap.values(
        {name: Statistics(theirs[name].terms[:, order], theirs[name].finish) for name in shared}
    )
    return {
        name: paired_difference(mine[name].value(), theirs[name].value(), resampled[name], others[name])
        for name in shared
    }


def choose(metrics: Collection[str] | str | None) -> list[Metric]:
    """The entries of METRICS of these groups or names, in the table's order; None: the default."""
    if metrics is None:
        metrics = DEFAULT
    elif isinstance(metrics, str):
        metrics = metrics.replace(" ", "").split(",")
    unknown = [name for name in metrics if name not in GROUPS and name not in BY_NAME]
    if unknown or not metrics:
        named = f"metric {unknown[0]!r} is not known" if unknown else "no metric was named"
        raise UserError(f"{named}; choose from {', '.join(GROUPS)}.")
    return [metric for metric in METRICS if {metric.group, metric.name} & set(metrics)]


def higher_is_better(figure: str) -> bool | None:
    """The direction of a figure such as "oracle/CIDEr"."""
    return BY_NAME[figure.rpartition("/")[2]].higher


def value_of(figure: Figure | CaptionScores) -> float:
    assert not isinstance(figure, CaptionScores)
    return figure.value() if isinstance(figure, Statistics) else figure


def _figures(
    material: Material, chosen: Sequence[Metric], named: bool
) -> tuple[dict[str, Figure], dict[str, Curves], list[str]]:
    figures: dict[str, Figure] = {}
    spread: dict[str, dict[str, Statistics]] = {}
    found: dict[str, Curves] = {}
    notes: list[str] = []
    for metric in chosen:
        if set(metric.needs) & {"references", "training", "known"} - material.has:
            continue
        try:
            scores = metric.function(material)
        except UserError as error:
            if named:
                raise
            notes.append(f"{metric.name} is left out: {error}")
            continue
        if not isinstance(scores, CaptionScores):
            figures[metric.name] = scores
            continue
        figures[metric.name] = scores.of(material.first)
        if len(scores.each) > len(material.pictures):
            spread[metric.name] = best_average_worst(scores.each, material.starts)
            found[metric.name] = curves(scores.each, material.starts)
    for kind in SPREAD:
        figures |= {f"{kind}/{name}": each[kind] for name, each in spread.items()}
    return figures, found, notes


def _remarks(
    samples: Captions, ids: Sequence[ImageId], material: Material, found: ObjectScores | None, diverse: bool
) -> list[str]:
    """Notes that belong to the figures."""
    notes = []
    blank = [
        image for image, group in zip(ids, material.references, strict=True) for text in group if not text
    ]
    if blank:
        notes.append(
            f"{len(blank):,} reference captions have no words (first: image {blank[0]!r}); they stay references."
        )
    single = [image for image, captions in samples.items() if len(captions) == 1]
    if diverse and 0 < len(single) < len(ids):
        notes.append(
            f"{len(single):,} of {len(ids):,} images have one caption only (first: {single[0]!r}); mBLEU-4 and "
            "self-CIDEr are over the others."
        )
    if found is not None and found.missing:
        notes.append(
            f"no reference names {', '.join(found.missing)}; the average F1 is over the other objects."
        )
    return notes


def _training(train: Any, tokenised: bool) -> list[list[str]]:
    groups = [group for group in as_captions(train, "the training captions").values() if group]
    return token_groups(track(groups, "training captions", unit="image"), tokenised)


def _instances(instances: Mapping[ImageId, set[str]], ids: Sequence[ImageId]) -> list[set[str]]:
    missing = [image for image in ids if image not in instances]
    if missing:
        raise UserError(
            f"{len(missing):,} of {len(ids):,} images are not in the instance annotations (first: {missing[0]!r}); "
            "give those of the same split, or leave them out: CHAIR then takes the references alone."
        )
    return [instances[image] for image in ids]


def _asks(chosen: Sequence[Metric], group: str) -> bool:
    return any(metric.group == group for metric in chosen)


def _is_of(name: str, level: str) -> bool:
    return name in BY_NAME and BY_NAME[name].of == level


def _statistics(figures: Mapping[str, Figure]) -> dict[str, Statistics]:
    return {name: figure for name, figure in figures.items() if isinstance(figure, Statistics)}


def _nulls(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _or_null(value) for name, value in values.items()}


def _or_null(value: float) -> float | None:
    return None if np.isnan(value) else value


def _objects_json(scores: ObjectScores) -> dict[str, Any]:
    def at(n: int) -> dict[str, float | None]:
        values = {name: _or_null(float(row[n])) for name, row in zip(scores.objects, scores.f1, strict=True)}
        return {"average": _or_null(float(scores.average[n])), **values}

    most = scores.f1.shape[1]
    return {
        "first": at(0),
        "any": at(most - 1),
        "any-average-by-n": [_or_null(float(v)) for v in scores.average],
    }
