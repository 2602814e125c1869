"""An application on a free port of the loopback, in a thread, with the server's own rules for connections."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from coscap import Captioner
from coscap.serve.connections import ConnectionPool
from coscap.serve.limits import Limits

CAT = Path(__file__).parents[1] / "examples" / "cat.jpg"
SHORT = {"n": "2", "max_length": "6"}
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


def photo(content: bytes = b"", name: str = "cat.jpg") -> tuple[str, tuple[str, bytes]]:
    return "photos", (name, content or CAT.read_bytes())


class Slow:
    """A captioner that is in no hurry: it writes when it is let, and asks `check` meanwhile, as every search does."""

    def __init__(self, captioner: Captioner, checks: bool = True) -> None:
        self.detector, self.see = captioner.detector, captioner.see
        self._captioner = captioner
        self._checks = checks
        self.let = threading.Event()
        self.began = threading.Event()
        self.ended = threading.Event()

    def describe(self, names: Any, regions: Any, n: int, *, check: Any, **options: Any) -> Any:
        self.began.set()
        try:
            while not self.let.wait(0.01):
                if self._checks:
                    check()
            return self._captioner.describe(names, regions, n, **options)
        finally:
            self.ended.set()
