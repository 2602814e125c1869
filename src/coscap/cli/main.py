"""The `coscap` command: one file for each verb, heavy libraries imported only inside the verb that runs."""

import sys

import typer

from coscap import __version__
from coscap.cli import caption, contexts, data, evaluate, features, rerank, sample, serve, train
from coscap.errors import UserError

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
) -> None:
    pass


# One line a verb, in the order in which a user meets them.
app.command("caption")(caption.caption)
app.add_typer(features.app, name="features")
app.add_typer(data.app, name="data")
app.command("contexts")(contexts.contexts)
app.command("train")(train.train)
app.command("sample")(sample.sample)
app.command("rerank")(rerank.rerank)
app.command("evaluate")(evaluate.evaluate)
app.command("serve")(serve.serve)


def main() -> None:
    try:
        app()
    except UserError as error:
        sys.exit(_complain(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _complain(sentence: str) -> int:
    print(f"coscap: {sentence}", file=sys.stderr)
    return 2
