"""An application on a free port of the loopback, in a thread, with the server's own rules for connections."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from coscap.serve.connections import ConnectionPool
from coscap.serve.limits import Limits

PATIENCE = 120  # seconds until a test gives up on what comes sooner on any machine


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for what other threads or processes bring about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)


@contextmanager
def serving(app: Any, limits: Limits | None = None) -> Iterator[tuple[int, ConnectionPool]]:
    pool = ConnectionPool(limits or Limits())
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        server = uvicorn.Server(uvicorn.Config(app, http=pool.protocol(), ws="none", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield listening.getsockname()[1], pool
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def get(port: int, path: str, seconds: float = PATIENCE) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
