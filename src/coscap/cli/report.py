"""`coscap report`: the paper's tables and figures for trained runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            show_default=False,
            help="Runs of `coscap train` or saved models; NAME=PATH names one in the tables. "
            "Example: runs/small runs/small-paired UpDown=runs/small-updown.",
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", help="A prepared data set (`coscap data`). Example: coco.")
    ] = ...,  # type: ignore[assignment]
    regions: Annotated[
        list[Path],
        typer.Option(
            "--regions",
            help="Regions of the split's and of the training pictures; may be repeated. "
            "Example: --regions test.h5 --regions train.h5.",
        ),
    ] = ...,  # type: ignore[assignment]
    out: Annotated[
        Path, typer.Option("--out", help="The folder to write: README.md, figures, results.json.")
    ] = Path("docs/results"),
    split: Annotated[str, typer.Option("--split", help="Which pictures. Example: test.")] = "test",
    samples: Annotated[
        int, typer.Option("--samples", min=2, help="Captions of each picture. Example: 100.")
    ] = 100,
    seeds: Annotated[
        int,
        typer.Option("--seeds", min=1, help="How often captions are drawn, for the deviation. Example: 3."),
    ] = 3,
    latent_temperature: Annotated[
        float,
        typer.Option(
            "--latent-temperature",
            min=0,
            help="Of the latents; chosen on validation pictures. A run may have its own: runs/a@0.7. Example: 0.85.",
        ),
    ] = 1.0,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            help="Only these ways of searching: draws (runs with latents), beam, diverse, words (runs without); may be "
            "repeated. Example: --search draws --search beam.",
        ),
    ] = None,
    distinct: Annotated[
        bool,
        typer.Option(
            "--distinct",
            help="Draw again what a picture has already, so that its drawn captions all differ, as those of a beam do.",
        ),
    ] = False,
    constrained: Annotated[
        int,
        typer.Option(
            "--constrained",
            min=0,
            max=4,
            help="Also each run under constrained beam search (CBS), with up to so many detected classes that its "
            "plain caption leaves out. The paper's rows: 2.",
        ),
    ] = 0,
    constrained_beams: Annotated[
        int,
        typer.Option(
            "--constrained-beams",
            min=1,
            help="Beams of that search in each state of the constraints; time grows with them. Example: 2.",
        ),
    ] = 5,
    constrained_score: Annotated[
        float,
        typer.Option(
            "--constrained-score",
            min=0,
            max=1,
            help="The score from which a class is detected. Example: 0.4.",
        ),
    ] = 0.5,
    work: Annotated[
        Path,
        typer.Option(
            "--work",
            help="Where the captions are kept; what is there is not drawn again. Example: runs/report.",
        ),
    ] = Path("runs/report"),
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, help="Only the first pictures, for a try; 0 for all. Example: 50."),
    ] = 0,
    rerank: Annotated[
        bool, typer.Option("--rerank/--no-rerank", help="With or without consensus re-ranking.")
    ] = True,
    bank: Annotated[
        str | None,
        typer.Option(
            "--bank",
            help="Re-rank with pictures about which people would write alike by this bank (`coscap bank`; shipped: "
            "that of the package), instead of those with alike mean features. Example: shipped.",
        ),
    ] = None,
    captions: Annotated[
        list[str] | None,
        typer.Option(
            "--captions",
            help="A file of captions as a row of its own, such as another system's (COCO results) or what `coscap "
            "caption --out` wrote; NAME=FILE names it; may be repeated. Example: --captions chosen=captions.json.",
        ),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside",
            help="results.json of an earlier report of the same pictures and regions: its rows come first, without "
            "drawing their captions again. Example: docs/results/comparison/results.json.",
        ),
    ] = None,
    meteor: Annotated[bool, typer.Option("--meteor/--no-meteor", help="With or without METEOR.")] = True,
    spice: Annotated[
        int,
        typer.Option(
            "--spice",
            min=0,
            help="SPICE (needs Java) of the re-ranked captions and of so many draws of the first seed; about "
            "30 ms a caption. Example: 20.",
        ),
    ] = 0,
    spice_pictures: Annotated[
        int,
        typer.Option(
            min=0,
            help="SPICE of the draws of so many pictures only, evenly spread; 0 for all. Example: 200.",
        ),
    ] = 0,
    spice_cache: Annotated[
        Path | None, typer.Option(help="The folder that keeps SPICE's parses. Example: ~/spice-cache.")
    ] = None,
    note: Annotated[
        list[str] | None,
        typer.Option(
            "--note",
            help="A difference from the paper that only you know; may be repeated. "
            'Example: --note "Pictures of 256 pixels."',
        ),
    ] = None,
    goal: Annotated[
        list[str] | None,
        typer.Option(
            "--goal",
            help="A figure of results.json that should at least reach a value; may be repeated. "
            "Example: --goal oracle/20/CIDEr=1.3.",
        ),
    ] = None,
    random: Annotated[
        int,
        typer.Option(
            "--random",
            min=0,
            help="Also a page of so many pictures drawn at random, with five captions of each run. Example: 20.",
        ),
    ] = 0,
    random_split: Annotated[
        str, typer.Option("--random-split", help="Where those pictures are drawn from.")
    ] = "validation",
    random_seed: Annotated[int, typer.Option("--random-seed", help="Which pictures. Example: 7.")] = 0,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures", help="The folder of the photographs, for --html. Example: train2017.", exists=True
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", help="The page of random pictures with the photographs. Example: random.html."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or auto: a GPU where there is one.")
    ] = "auto",
) -> None:
    """Measure runs as the paper does, and write its tables and figures beside the published numbers.

    Best of 20 and 100 captions, consensus re-ranking, diversity, hallucinated objects, average and worst, and, on
    held-out data, novel objects; intervals over pictures, deviation over seeds. A run without latents (UpDown) is
    searched with beam and diverse beam. Captions are kept in --work, so a second call, or one after an interruption,
    draws only what is missing.

    Example: coscap report runs/small runs/small-paired --data coco --regions regions.h5 --out docs/results
    """
    from coscap.contexts.judge import bank_folder
    from coscap.errors import UserError
    from coscap.files import check_output
    from coscap.report.build import ReportOptions, build
    from coscap.report.page import write_report
    from coscap.report.random_page import draw_random, write_html, write_random
    from coscap.report.sampling import Constraints
    from coscap.training.distributed import choose_device

    if html is not None and (pictures is None or not random):
        raise UserError("--html needs --random and --pictures, the folder of the photographs.")
    check_output(out, folder=True)
    if html is not None:
        check_output(html)
    if spice_pictures and not spice:
        raise UserError(
            "--spice-pictures says of how many pictures SPICE is; say of how many draws, too: --spice 20."
        )
    goals = _goals(goal or [])
    options = ReportOptions(
        runs=tuple(runs or ()),
        captions=tuple(captions or ()),
        data=data,
        regions=tuple(regions),
        split=split,
        samples=samples,
        seeds=seeds,
        latent_temperature=latent_temperature,
        work=work,
        limit=limit,
        rerank=rerank,
        bank=bank_folder(bank),
        meteor=meteor,
        spice=spice,
        spice_pictures=spice_pictures,
        spice_cache=spice_cache,
        device=str(choose_device(device)),
        searches=_searches(search or []),
        distinct=distinct,
        beside=beside,
        constraints=Constraints(constrained, constrained_beams, constrained_score),
    )
    results = build(options, lambda words: typer.echo(words, err=True))
    write_report(results, out, note or [], ["coscap", *sys.argv[1:]], goals)
    if random:
        drawn = draw_random(results, random, random_split, random_seed)
        write_random(drawn, out / "random.md")
        if html is not None and pictures is not None:
            write_html(drawn, pictures, html)
    typer.echo(
        f"{out / 'README.md'}: {len(results.found)} methods, {len(results.pictures):,} pictures.", err=True
    )


def _searches(given: list[str]) -> tuple[str, ...]:
    from coscap.errors import UserError
    from coscap.report.methods import SEARCHES

    wrong = [each for each in given if each not in SEARCHES]
    if wrong:
        raise UserError(
            f"--search {wrong[0]} is none of {', '.join(SEARCHES)}; for CBS give --constrained 2."
        )
    return tuple(given) or SEARCHES


def _goals(given: list[str]) -> dict[str, float]:
    from coscap.errors import UserError

    found = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UserError(f"--goal {each} is not NAME=NUMBER; write it like oracle/20/CIDEr=1.3.") from None
    return found
