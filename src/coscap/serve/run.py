"""Starting the server, and ending it."""

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
import uvicorn
from fastapi import FastAPI

from coscap.errors import UserError
from coscap.serve.app import create_app
from coscap.serve.guard import LOOPBACK
from coscap.serve.limits import Limits


@dataclass(frozen=True)
class Address:
    """Where a server listens, and who may ask it."""

    host: str
    port: int
    token: str | None = None
    allowed: tuple[str, ...] = ()
    """Further names that it answers to."""


def run(model: str, device: str, limits: Limits, address: Address) -> None:
    """Caption until a signal comes; then take nothing more and finish what was taken."""
    import torch

    from coscap.captioner import Captioner

    # The voices share the cores: threads that wait for each other at every multiplication are slow as soon as one
    # of them has to wait for its core.
    torch.set_num_threads(max(1, torch.get_num_threads() // limits.voices))
    # Otherwise every broken body is a line in the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)

    def make(hosts: list[str]) -> FastAPI:
        captioner = Captioner.from_pretrained(model, device=device)
        return create_app(captioner, limits, token=address.token, hosts=hosts)

    _serve(make, address, int(limits.seconds) + 5, "coscap answers at {}")


def run_study(
    samples: Sequence[Path],
    images: Path | None,
    database: Path,
    captions: int,
    pictures: int,
    address: Address,
) -> None:
    """Let people rate captions until a signal comes."""
    from coscap.serve.study.answers import Answers
    from coscap.serve.study.app import create_study_app
    from coscap.serve.study.material import read_study

    def make(hosts: list[str]) -> FastAPI:
        study = read_study(samples, images, captions, pictures)
        answers = Answers(database, study)
        typer.echo(
            f"{len(study.pictures):,} pictures with {captions} captions of each of {len(study.methods)} methods "
            f"({', '.join(study.methods)}); ratings go to {database}.",
            err=True,
        )
        return create_study_app(study, answers, token=address.token, hosts=hosts)

    _serve(make, address, 10, "Annotators rate at {0} and the results are at {0}results")


def _serve(make: Callable[[list[str]], FastAPI], address: Address, patience: int, told: str) -> None:
    listening = _listen(
        address.host, address.port
    )  # before anything is loaded: a port in use is said at once
    try:
        # A server for this machine answers to this machine's names only, whatever a browser was told.
        hosts = [*LOOPBACK, *address.allowed] if address.host in LOOPBACK else []
        config = uvicorn.Config(
            make(hosts),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=patience,
        )
        shown = f"[{address.host}]" if ":" in address.host else address.host
        typer.echo(told.format(f"http://{shown}:{listening.getsockname()[1]}/") + " until Ctrl-C.", err=True)
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"Cannot listen on {host} port {port} ({reason}); choose others with --host and --port."
        ) from None
    return listening
