"""`coscap evaluate`: every metric of a file of captions; two systems compared; metrics compared with people."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coscap.cli.evaluate_tables import agreement_table, compare_table, show, show_head, show_tables
from coscap.errors import UserError

if TYPE_CHECKING:
    from coscap.metrics.evaluation import Evaluation
    from coscap.metrics.human import Agreement


def evaluate(
    samples: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Captions to evaluate: COCO results JSON or JSONL, rows with image_id and caption (several rows an "
            "image are several samples), or what `coscap caption --out` wrote, e.g. samples.json. Further files are "
            "compared with the first.",
            show_default=False,
        ),
    ] = None,
    references: Annotated[
        str,
        typer.Option(
            "--references",
            "-r",
            help="coco:val2014, coco:train2014, coco:2014 (both), a COCO captions file, or a prepared folder "
            "and its split, e.g. --references data/coco:test",
        ),
    ] = ...,  # type: ignore[assignment]
    train: Annotated[
        str | None,
        typer.Option(
            help="Training captions, for novel captions and self-CIDEr; named like the references, "
            "e.g. --train coco:train2014"
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Only these of bleu, meteor, rouge, cider, spice, allspice, diversity, chair, content, "
            "novel_objects, e.g. --metrics bleu,cider"
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option("--first", "-n", min=1, help="Only the first captions of each image, e.g. --first 5"),
    ] = None,
    resamples: Annotated[
        int,
        typer.Option(
            min=0, help="Resamples of pictures for the intervals; 0 for none, e.g. --resamples 10000"
        ),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples, e.g. --seed 1")] = 0,
    domains: Annotated[
        bool,
        typer.Option(
            "--domains",
            help="Also the scores of each domain, where the references say them, as those of nocaps do.",
        ),
    ] = False,
    human: Annotated[
        Path | None,
        typer.Option(
            help="How far metrics agree with these ratings: Flickr8k's or Composite's files, rows with a rating, or "
            "the CSV of `coscap serve --study`, e.g. --human ExpertAnnotations.txt"
        ),
    ] = None,
    instances: Annotated[
        list[Path] | None,
        typer.Option(
            help="COCO instance annotations: what they show counts as there for CHAIR; may be repeated, "
            "e.g. --instances instances_val2014.json"
        ),
    ] = None,
    chair_words: Annotated[
        str,
        typer.Option(
            help="Which words name objects for CHAIR: as in the published script (official), all words of coscap's "
            "list (coco), or a list of classes of your own, e.g. --chair-words classes.yaml"
        ),
    ] = "official",
    objects: Annotated[
        Path | None,
        typer.Option(
            help="F1 of naming these objects, a JSON file of names and their words, e.g. --objects novel.json "
            'with {"bus": ["bus", "buses"]}; without it novel_objects takes the eight of held-out COCO'
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option("--json", help="Write all values to this file, or to standard output: --json -"),
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Put the scores for every number of samples into the JSON.")
    ] = False,
    tokenised: Annotated[
        bool, typer.Option("--tokenised", help="All captions are tokenised already: words and single spaces.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Score captions without words (0) instead of stopping.")
    ] = False,
    spice_cache: Annotated[
        Path | None,
        typer.Option(help="The folder that keeps SPICE's parses, e.g. --spice-cache ~/spice-cache"),
    ] = None,
) -> None:
    """Measure captions: accuracy, hallucination, and with several captions an image oracle scores and diversity too.

    BLEU, METEOR, ROUGE-L and CIDEr are the official ones, without Java; SPICE needs Java. With two files, the second is
    compared with the first on the same pictures: differences with their intervals.

    Example: coscap evaluate samples.json --references coco:val2014 --train coco:train2014 --json scores.json
    """
    from coscap.files import check_output
    from coscap.metrics.chair import ObjectWords, read_instances
    from coscap.metrics.evaluation import choose
    from coscap.metrics.evaluation import evaluate as measure
    from coscap.metrics.human import is_study
    from coscap.metrics.references import grouped, read_domains, read_samples
    from coscap.text import load_classes
    from coscap.vision.ids import image_id_of

    files = samples or []
    if json not in (None, "-"):
        check_output(Path(str(json)), inputs=[*files, Path(references), *([human] if human else [])])
    chosen = choose(metrics)
    study = human is not None and is_study(human)
    if not files and (human is None or study):
        raise UserError("No captions were named; give a file of them, e.g. coscap evaluate samples.json.")
    twice = [path for path in files if files.count(path) > 1]
    if twice:
        raise UserError(f"{twice[0]} is given twice; give the captions of two systems to compare them.")
    if domains and len(files) != 1:
        raise UserError("--domains takes one file of captions; evaluate the others by themselves.")
    given = {str(path): grouped(read_samples(path, image_id_of)) for path in files}
    if first is not None:
        given = {
            name: {image: captions[:first] for image, captions in group.items()}
            for name, group in given.items()
        }
    _check_same_pictures(given)
    wanted = captions_of(references, "test")
    if human is not None and not study:
        if files:
            raise UserError(f"{human} has captions of its own; leave out {files[0]}.")
        _human(human, wanted, references, chosen, metrics is not None, spice_cache, json)
        return
    words = ObjectWords.official() if chair_words == "official" else ObjectWords.of(load_classes(chair_words))
    there: dict[Any, set[str]] = {}
    for path in instances or []:
        for image, classes in read_instances(path, words).items():
            there[image] = there.get(image, set()) | classes
    domain_of = read_domains(references) if domains else None
    training = captions_of(train, "train") if train is not None else None
    found = {
        name: measure(
            group,
            wanted,
            metrics=metrics,
            train=training,
            objects=_objects(objects) if objects is not None else None,
            instances=there if instances else None,
            chair_words=words,
            tokenised=tokenised,
            allow_empty=allow_empty,
            spice_cache=spice_cache,
            names=(name, references),
        )
        for name, group in given.items()
    }
    if study and human is not None:
        _study(human, found, json)
    elif len(found) > 1:
        _compared(found, resamples, seed, json, curves, references, len(wanted))
    else:
        ((name, one),) = found.items()
        parts = one.by_domain(domain_of) if domain_of is not None else {}
        values = one.json(curves, resamples, seed) if json is not None else {}
        if parts and json is not None:
            values["domains"] = {
                domain: part.json(resamples=resamples, seed=seed) for domain, part in parts.items()
            }
        if json != "-":
            show(
                one, name, references, len(wanted), one.intervals(resamples, seed) if resamples else {}, parts
            )
        _write(json, values)
    for note in dict.fromkeys(note for one in found.values() for note in one.notes):
        typer.echo(f"note: {note}", err=True)


def captions_of(name: str, split: str) -> dict[Any, list[str]]:
    """Captions by image: coco:SPLIT, a file, a prepared folder (its `split`), or FOLDER:SPLIT."""
    from coscap.metrics.references import read_references

    folder, colon, part = name.rpartition(":")
    if Path(name).is_dir() or (colon and Path(folder).is_dir()):
        from coscap.data import open_prepared

        prepared = open_prepared(name if Path(name).is_dir() else folder)
        return prepared.references(split if Path(name).is_dir() else part)
    return read_references(name)


def _check_same_pictures(given: Mapping[str, Mapping[Any, Any]]) -> None:
    (one, mine), *others = given.items() if given else [("", {})]
    for other, theirs in others:
        for here, there, name, without in ((mine, theirs, one, other), (theirs, mine, other, one)):
            lost = [image for image in here if image not in there]
            if lost:
                raise UserError(
                    f"{one} and {other} do not cover the same pictures: {len(lost):,} of the {len(here):,} of "
                    f"{name} are not in {without} (first: {lost[0]!r}); cut both to the pictures that they share."
                )


def _objects(path: Path) -> dict[str, list[str]]:
    from coscap.files import read_json

    content = read_json(path)
    good = isinstance(content, dict) and all(
        isinstance(words, list) and words and all(isinstance(word, str) for word in words)
        for words in content.values()
    )
    if not good or not content:
        raise UserError(f'{path} does not list objects; expected a form like {{"bus": ["bus", "buses"]}}.')
    return {name: [word.lower() for word in words] for name, words in content.items()}


def _write(json: str | None, values: dict[str, Any]) -> None:
    import json as format_json

    from coscap.files import write_json

    if json == "-":
        typer.echo(format_json.dumps(_without_nan(values), ensure_ascii=False, indent=1))
    elif json is not None:
        write_json(json, _without_nan(values), indent=1)


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: what is not defined for these captions is null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return None if isinstance(value, float) and value != value else value


def _human(
    path: Path,
    references: dict[Any, list[str]],
    name: str,
    chosen: Any,
    named: bool,
    cache: Path | None,
    json: str | None,
) -> None:
    """Metrics of captions against ratings of captions."""
    from coscap.metrics.human import caption_agreement, read_ratings

    rated = read_ratings(path, references, name)
    found: dict[str, Agreement] = {}
    for metric in chosen:
        try:
            found |= caption_agreement(rated, references, [metric], cache)
        except UserError as error:
            if named:
                raise
            typer.echo(f"note: {metric.name} is left out: {error}", err=True)
    count = sum(map(len, rated.captions.values()))
    title = f"{path.name}: {count:,} rated captions of {len(rated.captions):,} images"
    if json != "-":
        typer.echo(title)
        show_tables([agreement_table({"": found})])
    _write(json, {name: vars(each) for name, each in found.items()})


def _study(path: Path, systems: "Mapping[str, Evaluation]", json: str | None) -> None:
    """Figures of each picture's captions against a study's ratings of them."""
    from coscap.metrics.human import read_study_ratings, study_agreement

    stems = [Path(name).stem for name in systems]
    named = {
        stem if stems.count(stem) == 1 else f"{Path(name).resolve().parent.name}/{stem}": found
        for stem, (name, found) in zip(stems, systems.items(), strict=True)
    }
    rows = read_study_ratings(path, next(iter(systems.values())).ids)
    found = study_agreement(rows, named, str(path))
    measures = ("accuracy", "diversity")
    columns = {measure: {name: each[measure] for name, each in found.items()} for measure in measures}
    if json != "-":
        typer.echo(f"{path.name}: {len(rows):,} ratings of {len(systems)} methods")
        show_tables([agreement_table(columns)])
    _write(json, {name: {kind: vars(one) for kind, one in each.items()} for name, each in found.items()})


def _compared(
    found: "Mapping[str, Evaluation]",
    resamples: int,
    seed: int,
    json: str | None,
    curves: bool,
    references: str,
    images: int,
) -> None:
    """The first system against each of the others."""
    from coscap.metrics.evaluation import compare
    from coscap.metrics.intervals import RESAMPLES

    (base, first), *others = found.items()
    changes = {name: compare(one, first, resamples or RESAMPLES, seed) for name, one in others}
    if json != "-":
        show_head(first, ", ".join(found), references, images)
        show_tables([compare_table(base, first, name, one, changes[name]) for name, one in others])
        if len({one.samples for one in found.values()}) > 1:
            typer.echo(
                "note: the files have different numbers of captions an image; an oracle of more is higher by "
                "construction (--first cuts).",
                err=True,
            )
    values = {
        "systems": {name: one.json(curves, resamples, seed) for name, one in found.items()},
        "differences": {
            name: {figure: vars(each) | {"clear": each.clear} for figure, each in one.items()}
            for name, one in changes.items()
        },
    }
    _write(json, values)
