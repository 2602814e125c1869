"""The command itself, on a free port of the loopback, until a signal ends it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import PATIENCE, get, until
from tiny_captioner import save_tiny_model

PHOTO = Path(__file__).parents[1] / "examples" / "cat.jpg"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    folder = save_tiny_model(tmp_path / "tiny")
    command = [
        sys.executable,
        "-m",
        "coscap",
        "serve",
        "--port",
        "0",
        "--model",
        str(folder),
        "--max-n",
        "20",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert running.stderr is not None
        line = running.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line
        yield running, int(found[1])
    finally:
        running.kill()
        running.wait()


def multipart(n: int) -> tuple[bytes, dict[str, str]]:
    body = b'--line\r\nContent-Disposition: form-data; name="photos"; filename="cat.jpg"\r\n\r\n'
    body += PHOTO.read_bytes() + b'\r\n--line\r\nContent-Disposition: form-data; name="n"\r\n\r\n'
    body += str(n).encode() + b"\r\n--line--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=line"}


def test_it_serves_and_a_signal_lets_it_finish_what_it_took(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    running, port = server
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/")
    page = connection.getresponse()
    assert page.status == 200 and b"<!doctype html>" in page.read()
    assert page.getheader("X-Content-Type-Options") == "nosniff"
    assert (page.getheader("Content-Security-Policy") or "").startswith("default-src 'self'")
    assert page.getheader("Server") is None
    connection.request("GET", "/examples/cat.jpg")
    assert connection.getresponse().read() == PHOTO.read_bytes()
    for path in ("/examples/../serve.py", "/examples/..%2f..%2fpyproject.toml", "/examples/README.md"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 404 and "error" in json.loads(answer.read())
    connection.close()

    statuses: list[int] = []

    def ask() -> None:
        one = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        one.request("POST", "/captions", *multipart(20))
        answer = one.getresponse()
        statuses.append(answer.status if json.loads(answer.read())[0]["photo"] == "cat.jpg" else 0)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    until(lambda: get(port, "/health")[1]["waiting"] + len(statuses) == len(askers))
    running.send_signal(signal.SIGTERM)
    for asker in askers:
        asker.join(PATIENCE)
    running.wait(PATIENCE)
    assert statuses == [200] * len(askers)
    assert running.stderr is not None
    assert "Traceback" not in running.stderr.read()
