"""Starting the server, and ending it."""

import logging
import socket
from collections.abc import Sequence

import typer
import uvicorn

from coscap.errors import UserError
from coscap.serve.app import create_app
from coscap.serve.guard import LOOPBACK
from coscap.serve.limits import Limits


def run(
    model: str, device: str, host: str, port: int, limits: Limits, token: str | None, allowed: Sequence[str]
) -> None:
    """Serve until a signal comes; then take nothing more and finish what was taken."""
    import torch

    from coscap.captioner import Captioner

    # One core is left to the thread that looks at photographs: threads that wait for each other at every
    # multiplication are slow as soon as one of them has to wait for its core.
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    # Otherwise every broken body is a line in the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    listening = _listen(host, port)  # before the model is loaded: a port in use is said at once
    try:
        captioner = Captioner.from_pretrained(model, device=device)
        # A server for this machine answers to this machine's names only, whatever a browser was told.
        hosts = [*LOOPBACK, *allowed] if host in LOOPBACK else []
        app = create_app(captioner, limits, token=token, hosts=hosts)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(limits.seconds) + 5,
        )
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"coscap answers at http://{shown}:{listening.getsockname()[1]}/ until Ctrl-C.", err=True)
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
