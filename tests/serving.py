"""An application on a free port of the loopback, in a thread, with the server's own rules for connections."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from coscap.serve.connections import ConnectionPool
from coscap.serve.limits import Limits


@contextmanager
def serving(app: Any, limits: Limits | None = None) -> Iterator[tuple[int, ConnectionPool]]:
    pool = ConnectionPool(limits or Limits())
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        server = uvicorn.Server(uvicorn.Config(app, http=pool.protocol(), ws="none", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield listening.getsockname()[1], pool
        finally:
            server.should_exit = True
            thread.join(30)


def get(port: int, path: str, seconds: float = 5) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
