"""Starting the server, and ending it."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import typer
import uvicorn
from fastapi import FastAPI

from coscap.errors import UserError
from coscap.serve.app import CLOSING, create_app
from coscap.serve.connections import ConnectionPool
from coscap.serve.guard import LOOPBACK
from coscap.serve.limits import Limits
from coscap.serve.telemetry import LogFormat, log_to_stderr

FORCED = 1  # the exit code where the process had to be ended from inside
MORE = CLOSING + 5.0  # seconds for all that comes after the drain


@dataclass(frozen=True)
class Address:
    """Where a server listens, who may ask it, and how it ends."""

    host: str
    port: int
    tokens: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    """Further names that it answers to."""
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses whose X-Forwarded-For is believed."""
    drain: float = 30.0
    """Seconds to finish what was taken after a signal."""
    log: LogFormat = "text"

    @property
    def hosts(self) -> list[str]:
        """The names in a Host header that are answered to; none for all.

        A server for this machine answers to this machine's names only, whatever a browser was led to believe.
        """
        if self.host in LOOPBACK:
            return [*LOOPBACK, *self.allowed]
        return [*LOOPBACK, self.host, *self.allowed] if self.allowed else []

    def check(self) -> None:
        for token in self.tokens:
            if not token or token.split() != [token] or not token.isprintable():
                raise UserError(
                    "A token is empty or has spaces in it; give --token (or COSCAP_TOKEN) one word, or leave it out."
                )


class Server(uvicorn.Server):
    """Ends at the latest some seconds after the drain, whatever a thread is stuck in."""

    def __init__(self, config: uvicorn.Config, drain: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._ending = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._ending:
            self._ending = True
            forced = threading.Timer(self._drain + MORE, os._exit, (FORCED,))
            forced.daemon = True
            forced.start()
        super().handle_exit(sig, frame)


def run(model: str, limits: Limits, address: Address, **options: Any) -> None:
    """Caption until a signal comes; then take nothing more and finish what was taken. `options` are those of
    Captioner.from_pretrained."""
    from coscap.captioner import Captioner

    def make(hosts: list[str]) -> FastAPI:
        captioner = Captioner.from_pretrained(model, **options)
        torch = sys.modules.get("torch")  # a model with graphs needs none
        if torch is not None:
            # The workers share the cores: threads that wait for each other at every multiplication are slow as soon
            # as one of them has to wait for its core.
            torch.set_num_threads(max(1, torch.get_num_threads() // limits.workers))
        return create_app(captioner, limits, tokens=address.tokens, hosts=hosts)

    _serve(make, address, limits, "coscap answers at {0} (API: {0}docs)")


def run_study(
    samples: Sequence[Path],
    images: Path | None,
    database: Path,
    captions: int,
    pictures: int,
    address: Address,
    limits: Limits,
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
        return create_study_app(study, answers, limits, tokens=address.tokens, hosts=hosts)

    _serve(make, address, limits, "Annotators rate at {0} and the results are at {0}results")


def _serve(make: Callable[[list[str]], FastAPI], address: Address, limits: Limits, message: str) -> None:
    address.check()
    # Before anything is loaded, so that a port in use is reported at once.
    listening = _listen(address.host, address.port)
    try:
        app = make(address.hosts)
        config = uvicorn.Config(
            app,
            http=ConnectionPool(limits).protocol(),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            forwarded_allow_ips=list(address.proxies),
            timeout_graceful_shutdown=max(1, round(address.drain)),
        )
        log_to_stderr(address.log)
        shown = f"[{address.host}]" if ":" in address.host else address.host
        typer.echo(
            message.format(f"http://{shown}:{listening.getsockname()[1]}/") + " until Ctrl-C.", err=True
        )
        Server(config, address.drain).run(sockets=[listening])
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
