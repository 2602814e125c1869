"""docs/results: README.md with tables, figures and commands; results.json with every number."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coscap import __version__
from coscap.files import write_json, write_text
from coscap.pages import shown, table
from coscap.report import figures, order, tables
from coscap.report.build import FORMAT, ReportResults
from coscap.report.measure import KEPT
from coscap.report.methods import WORDS

NOT_RUN = "<!-- not run: it needs the runs and takes hours -->"  # for the tests of the documentation


def write_report(
    results: ReportResults,
    out: Path,
    notes: Sequence[str],
    command: Sequence[str],
    goals: Mapping[str, float] | None = None,
) -> None:
    """All files of the report; `notes` are further differences that only the user knows, `goals` what was aimed for."""
    budgets, found = results.options.budgets, results.found
    if results.earlier is not None:
        notes = [*results.earlier.differences, *notes]
    small, large = budgets[0], budgets[-1]
    pictures: dict[str, Path] = {"cider": figures.by_samples(found, budgets, out / "cider-by-samples")}
    if results.options.rerank:
        pictures["best10"] = figures.best_ten(found, small, out / "best-ten")
    if results.novel_objects:
        pictures["f1"] = figures.f1_by_samples(found, out / "f1-by-samples")
    checked = order.checks(found, large)
    write_json(out / "results.json", _json(results, checked, notes, command), indent=1)
    write_text(out / "README.md", _readme(results, checked, pictures, notes, command, goals or {}))


def _readme(
    results: ReportResults,
    checked: Sequence[order.OrderCheck],
    pictures: dict[str, Path],
    notes: Sequence[str],
    command: Sequence[str],
    goals: Mapping[str, float],
) -> str:
    budgets, found = results.options.budgets, results.found
    large = budgets[-1]
    many = results.options.seeds > 1
    parts = [
        "# Results",
        f"{len(results.pictures):,} pictures of `{results.options.split}`, {large} captions each"
        + (f", mean over {results.options.seeds} seeds of sampling" if many else "")
        + f". Latents are drawn at temperature {_temperatures(results)}."
        + _DISTINCT * results.options.distinct
        + f" Rows in **bold** are measured here, the others are the paper's ({tables.published()['source']}).",
        _INTERVALS + (_EARLIER if results.earlier is not None else ""),
        "## What differs from the paper",
        _differences(results, notes),
        "## The runs",
        _runs(results),
    ]
    if checked:
        parts += ["## The paper's order", _order_words(checked, many), order.order_table(checked, large)]
    ranked = order.places(found, budgets)
    if ranked:
        parts += ["## All methods in order", _PLACES, ranked]
    if goals:
        parts += ["## What was aimed for", tables.goals(found, goals)]
    for n in budgets:
        parts += [f"## Best of {n} captions (oracle)", _beside("oracle") + _ORACLE, tables.oracle(found, n)]
    parts += [_picture(pictures["cider"], "Best CIDEr against the number of captions")]
    parts += ["## Average and worst CIDEr", _beside("spread"), tables.spread(found, budgets)]
    if results.options.rerank:
        parts += ["## Consensus re-ranking", _beside("consensus") + _CONSENSUS]
        parts += [tables.consensus(found, budgets)]
        parts += [_picture(pictures["best10"], "CIDEr of the best ten captions after re-ranking") + _BEST_TEN]
        parts += ["## Diversity", _beside("diversity") + _DIVERSITY, tables.diversity(found, budgets)]
        parts += ["### Self-CIDEr", _beside("self_cider"), tables.self_cider(found, budgets)]
    parts += ["## Hallucinated objects", _CHAIR, tables.hallucination(found, budgets)]
    parts += ["## Contexts and objects", _CONTENT, tables.content(found, budgets)]
    if results.novel_objects:
        parts += ["## Novel objects", _beside("novel_objects") + _OBJECTS]
        parts += [tables.novel_objects(found, budgets), _picture(pictures["f1"], "F1 of novel objects")]
    if results.notes:
        parts += ["## Left out", "\n".join(f"- {note}" for note in results.notes)]
    parts += ["## Commands", _commands(results, command)]
    return "\n\n".join(parts) + "\n"


_DISTINCT = " What a picture has already is drawn again (`--distinct`), so its captions all differ."

_INTERVALS = (
    "± is half of the 95 % interval over pictures (bootstrap of 1,000 resamples, document frequencies fixed). ≈, and "
    "grey where a viewer shows colours: the difference from the first row measured here is inside its interval (paired "
    "bootstrap)."
)
_EARLIER = (
    " Rows of an earlier report (`--beside`), whose captions were not drawn again, are compared by the intervals of "
    "both rows, as if the pictures were not the same ones: such an interval is wider than a paired one."
)
_LATER = '"+": steps after those of the model that the run began with.'
_PLACES = (
    "Each method's difference from the next one on the same pictures, with its 95 % interval (paired bootstrap); grey "
    "and ≈ where that holds 0: the order of these two is not known."
)
_ORACLE = (
    " For each picture and metric the best of its captions, then the mean over pictures; BLEU and METEOR "
    "are those of single captions."
)
_CONSENSUS = (
    " The caption of each picture that agrees most with the captions of its 60 nearest training pictures; "
    "BLEU and METEOR of all pictures together. The paper does not say how many samples were re-ranked."
)
_BEST_TEN = "\n\nThe paper draws the same for 20 samples in its figure 3; it prints no numbers for it."
_DIVERSITY = (
    f" The {KEPT} best different captions after re-ranking; unique is of all samples. The paper does not say "
    "which of the two mBLEU-4 it took. Its novel captions are of 1,000 pictures; their % is of 5,000."
)
_CHAIR = (
    "Not in the paper. CHAIR with the published script's words, against what references name: the share of mentioned "
    "objects that none of them names (i), of captions with such a mention (s), and of pictures whose captions are all "
    "free of one (`docs/metrics.md`)."
)
_CONTENT = (
    "Not in the paper. Of the first samples: contexts (captions with a slot in place of each object) that differ; "
    "different classes of objects in a caption and in all captions of a picture; of the classes that a caption names, "
    "those that a reference of its picture names too; and of the classes that references name, those that a "
    "caption found."
)
_OBJECTS = (
    " F1 in % of naming the object in any of n captions where a reference names it (`docs/metrics.md`); "
    "METEOR, CIDEr and SPICE are of the first caption alone."
)


def _temperatures(results: ReportResults) -> str:
    usual = results.options.latent_temperature
    own = [f"{run.temperature:g} ({run.name})" for run in results.runs if run.temperature is not None]
    if len(own) == len(results.runs):
        return ", ".join(own)
    return ", ".join([f"{usual:g}", *own])


def _beside(table: str) -> str:
    return f"Beside the paper's {tables.published_where(table)}."


def _differences(results: ReportResults, notes: Sequence[str]) -> str:
    recipe, have, every = results.stores.recipe, len(results.pictures), results.split_pictures
    differences = []
    if have < every:
        which = "the first ones" if results.options.limit else "those that have regions"
        differences.append(
            f"{have:,} of the {every:,} pictures of the split: {which}. CIDEr takes its document frequencies from "
            "these."
        )
    differences.append(
        f"Regions by `{recipe.name}`: at most {recipe.detections} detections"
        + (f" and a grid of {recipe.grid} x {recipe.grid}" if recipe.grid else "")
        + f", features of width {recipe.width}. The paper: Faster R-CNN with ResNet-101 on Visual Genome, width 2,048."
    )
    seen = [
        run
        for run in results.runs
        if {"steps", "batch"} <= run.training.keys() and "batch of" not in run.training
    ]
    if seen:
        most = max(run.training["steps"] * run.training["batch"] for run in seen)
        later = [run.name for run in seen if run.training.get("began with another model")]
        differences.append(
            f"At most {most:,} captions seen in training"
            + (f", without those of the models that {', '.join(later)} began with" if later else "")
            + ". The paper: 70,000 iterations, 88 epochs."
        )
    if results.pool is not None and results.options.bank is not None:
        differences.append(
            "Re-ranking compares with pictures about which people would write alike, by what is seen and, of training "
            "pictures, what was written (docs/support.md); the paper: with pictures whose features are alike."
        )
    if results.pool is not None and results.pool[0] < results.pool[1]:
        differences.append(
            f"Re-ranking compares with {results.pool[0]:,} of the {results.pool[1]:,} training pictures: those "
            "that have regions."
        )
    return "\n".join(f"- {each}" for each in [*notes, *differences])


def _runs(results: ReportResults) -> str:
    rows = []
    runs = [*(results.earlier.runs if results.earlier is not None else []), *results.runs]
    for run in runs:
        values = [run.training.get(name) for name in ("steps", "epochs", "batch", "pseudo weight")]
        words = ["–" if value is None else f"{value:,}" for value in values]
        if run.training.get("began with another model"):
            words[0] = f"+ {words[0]}"
        rows.append([f"**{run.name}**", f"`{shown(run.given)}`", *words, f"`{run.weights[:12]}`"])
    found = table(["", "folder", "steps", "epochs", "batch", "pseudo weight", "weights"], rows, left=2)
    later = any(run.training.get("began with another model") for run in runs)
    return found + (f"\n\n{_LATER}" if later else "")


def _order_words(checked: Sequence[order.OrderCheck], many: bool) -> str:
    held = sum(check.holds for check in checked)
    noise = (
        " “Within the noise” means: by less than two standard errors over seeds, or than the interval over pictures."
        if many
        else ""
    )
    return (
        f"COS-CVAE before COS-CVAE (paired) before Seq-CVAE (attn): it holds in {held} of {len(checked)} "
        f"figures.{noise} Seeds are of sampling; how much another training run would move a figure is not in it."
    )


def _picture(path: Path, words: str) -> str:
    return f"![{words}]({path.name})"


def _commands(results: ReportResults, command: Sequence[str]) -> str:
    options = results.options
    data, split, large = shown(options.data), options.split, options.budgets[-1]
    regions = " ".join(f"--regions {shown(path)}" for path in options.regions)
    first = shown(options.regions[0])
    lines = [
        "All of this page, going on where it was interrupted:\n",
        NOT_RUN,
        "```sh",
        " ".join(shlex.quote(shown(word)) for word in command),
        "```",
        *_earlier_command(results),
        "\nEvery number by itself: the captions of one run and seed (those of the first 20 are the same with `-n 20`), "
        "their scores, and the best five:\n",
        NOT_RUN,
        "```sh",
    ]
    distinct = " --distinct" if options.distinct else ""
    constraints = options.constraints
    constrained = f"constrained --detected {constraints.detected}"
    if constraints.num_beams != 5:
        constrained += f" --num-beams {constraints.num_beams}"
    if constraints.score != 0.5:
        constrained += f" --detected-score {constraints.score:g}"
    for run in results.runs:
        place = (
            f"coscap sample {shown(run.given)} --data {data} --regions {first} --split {split} --skip-missing"
        )
        if run.has_latents:
            own = run.warmth(options.latent_temperature)
            warmth = f" --latent-temperature {own:g}" if own != 1 else ""
            if "draws" in options.searches:
                lines.append(f"{place} -n {large}{warmth}{distinct} --seed 0 --out samples.json")
            if constraints.detected:
                lines.append(f"{place} -n {large} --search {constrained}{warmth} --seed 0 --out samples.json")
        else:
            searches: list[str] = [each for each in ("beam", "diverse") if each in options.searches]
            searches += [constrained] if constraints.detected else []
            lines += [
                f"{place} -n {n} --search {search} --out samples.json"
                for search in searches
                for n in options.budgets
            ]
            lines += [
                f"{place} -n {large} --do-sample --temperature {warmth:g} --top-p {top_p:g}{distinct} --seed 0 "
                "--out samples.json"
                for warmth, top_p in (WORDS.values() if "words" in options.searches else ())
            ]
    objects = ",novel_objects" if results.novel_objects else ""
    lines += [
        f"coscap evaluate samples.json --references {data}:{split} --metrics bleu,cider,rouge,meteor{objects}",
        f"coscap evaluate samples.json --references {data}:{split} --first 20",
        f"coscap rerank samples.json {regions} --train {data} --distinct --keep 5 --out best.json",
        f"coscap evaluate best.json --references {data}:{split} --train {data}",
        "```",
        f"\ncoscap {__version__}; every figure of every seed is in [results.json](results.json).",
    ]
    return "\n".join(lines)


def _earlier_command(results: ReportResults) -> list[str]:
    if results.earlier is None:
        return []
    words = " ".join(shlex.quote(shown(word)) for word in results.earlier.command)
    return ["\nThe rows of the earlier report:\n", NOT_RUN, "```sh", words, "```"]


def _json(
    results: ReportResults, checked: Sequence[order.OrderCheck], notes: Sequence[str], command: Sequence[str]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "coscap": __version__,
        "command": [shown(word) for word in command],
        "data": results.prepared.digest,
        "split": results.options.split,
        "pictures": len(results.pictures),
        "pictures of the split": results.split_pictures,
        "recipe": results.stores.recipe.name,
        "re-ranked with": results.pool,
        "differences": list(notes),
        "left out": list(results.notes),
        "order": [
            {"figure": check.name, "values": dict(check.values), "holds": check.holds, "surely": check.surely}
            for check in checked
        ],
        "methods": [
            {
                "name": each.method.name,
                "role": each.method.role,
                "run": shown(each.method.run.given),
                "weights": each.method.run.weights,
                "training": each.method.run.training,
                "mean": _defined(each.mean),
                "deviation": _defined(each.deviation),
                "intervals": {name: ends for name, ends in each.intervals.items() if ends[0] == ends[0]},
                "seeds": [_defined(figures) for figures in each.by_seed],
            }
            for each in results.found
        ],
        "paper": tables.published(),
    }


def _defined(figures: Mapping[str, float]) -> dict[str, float]:
    """Without NaN, which JSON does not have: a figure that is not defined for these captions is left out."""
    return {name: value for name, value in figures.items() if value == value}
