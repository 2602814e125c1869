"""The `coscap` command: one file for each verb, heavy libraries imported only inside the verb that runs."""

import os
import sys
from typing import Any

import typer

from coscap import __version__
from coscap.cli import (
    analyse,
    backbone,
    bank,
    bulk,
    caption,
    contexts,
    data,
    evaluate,
    export,
    features,
    report,
    rerank,
    sample,
    serve,
    tags,
    train,
)
from coscap.errors import UserError, reason, shown
from coscap.extras import missing

app = typer.Typer(
    name="coscap",
    help="Several captions for a photograph, all true and truly different.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"coscap {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    quiet: bool = typer.Option(
        False, "--quiet", help="Show results and errors alone: no progress, no remarks."
    ),
    verbose: bool = typer.Option(
        False, "--verbose", help="Show what the package logs, too; COSCAP_LOG=debug shows more."
    ),
) -> None:
    from coscap.progress import speak

    speak(quiet, verbose)


# One line a verb, in the order in which a user meets them.
app.command("caption")(caption.caption)
app.command("tags")(tags.tags)
app.add_typer(features.app, name="features")
app.add_typer(data.app, name="data")
app.command("backbone")(backbone.backbone)
app.command("contexts")(contexts.contexts)
app.command("bank")(bank.bank)
app.command("train")(train.train)
app.command("sample")(sample.sample)
app.command("rerank")(rerank.rerank)
app.command("evaluate")(evaluate.evaluate)
app.command("report")(report.report)
app.command("analyse")(analyse.analyse)
app.command("serve")(serve.serve)
app.command("bulk")(bulk.bulk)
app.command("export")(export.export)


# The error of a command line that is not as it must be: click's, or that of the click inside typer.
_WRONG: type[Exception] = typer.BadParameter.mro()[2]


def main() -> None:
    try:
        code = app(_in_front(sys.argv[1:]), standalone_mode=False)
        sys.stdout.flush()  # a full disk behind it is reported here, not by the interpreter as it ends
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        sys.exit(_complain(str(error)))
    except ModuleNotFoundError as error:
        sys.exit(_complain(str(missing(error, "this command"))))
    except _WRONG as error:
        sys.exit(_complain_of_line(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        _forget_output()
        sys.exit(0)
    except OSError as error:
        _forget_output()
        name = (
            "the output cannot be written" if error.filename is None else f"{error.filename} cannot be used"
        )
        sys.exit(_complain(f"{name} ({reason(error)})."))


def _forget_output() -> None:
    """What still waits for standard output goes nowhere: the interpreter would fail on it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)


def _in_front(arguments: list[str]) -> list[str]:
    """--quiet and --verbose may be given anywhere before a `--`, though they belong to all verbs."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    found = [each for each in arguments[:end] if each in ("--quiet", "--verbose")]
    return [*found, *(each for each in arguments[:end] if each not in found), *arguments[end:]]


def _complain_of_line(error: Any) -> int:
    """One sentence for a wrong option or argument. A command without any shows its help instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "coscap"
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    return _complain(f"{message}; see {command} --help.")


def _complain(sentence: str) -> int:
    print(f"coscap: {shown(sentence)}", file=sys.stderr)
    return 2
