"""Addresses of the web, against a server of this test that answers in every wrong way."""

import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from coscap import fetch as fetching
from coscap.errors import UserError
from coscap.fetch import fetch

ANSWERS = {
    "/good": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood",
    "/empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "/none": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    "/claims": b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\nx",
    "/large": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000,
    "/status": b"nonsense\r\n\r\n",
    "/nothing": b"",
    "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n",
    "/headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500 + b"\r\nx",
    "/long": b"HTTP/1.1 200 " + b"x" * 100_000,
    "/moved": b"HTTP/1.1 302 Found\r\nLocation: /good\r\nContent-Length: 0\r\n\r\n",
    "/circle": b"HTTP/1.1 302 Found\r\nLocation: /circle\r\nContent-Length: 0\r\n\r\n",
    "/file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "/host": b"HTTP/1.1 302 Found\r\nLocation: http://[::bad/\r\nContent-Length: 0\r\n\r\n",
}


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        path = self.rfile.readline().split()[1].decode()
        while self.rfile.readline().strip():
            pass
        if path == "/drip":
            try:
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
            except OSError:
                return
        self.wfile.write(ANSWERS.get(path, b""))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_good_answers(server: str) -> None:
    assert fetch(f"{server}/good", 1000) == fetch(f"{server}/moved", 1000) == b"good"
    assert fetch(f"{server}/empty", 1000) == b""


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/none", "404 Not Found"),
        ("/short", "ended after 4 of 10 bytes"),
        ("/claims", "larger than"),
        ("/large", "larger than"),
        ("/status", "could not be fetched"),
        ("/nothing", "could not be fetched"),
        ("/chunks", "could not be fetched"),
        ("/headers", "could not be fetched"),
        ("/long", "could not be fetched"),
        ("/circle", "could not be fetched"),
        ("/file", "not allowed"),
        ("/host", "could not be fetched"),
    ],
)
def test_every_fault_is_one_sentence(server: str, path: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        fetch(server + path, 1000)
    assert server + path in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:1/", "http://", "http://a b/", "http://nosuch.invalid/x", "file:///etc/passwd"],
)
def test_addresses_that_lead_nowhere(address: str) -> None:
    with pytest.raises(UserError, match=r"could not be fetched|is not an http"):
        fetch(address, 1000)


def test_a_server_that_drips_does_not_hold_us(server: str) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match=r"took more than 0\.5 s"):
        fetch(f"{server}/drip", 1000, seconds=0.5)
    assert time.monotonic() - began < 25  # the server would take fifty


def test_redirects_into_a_private_network(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's server is on loopback, so its redirects are allowed only because its own address was given."""
    with pytest.raises(UserError, match="private network"):
        fetch(f"{server}/moved", 1000, private=False)
    assert fetch(f"{server}/moved", 1000, private=True) == b"good"
    for host, expected in {
        "127.0.0.1": True, "10.1.2.3": True, "169.254.169.254": True, "::1": True, "192.168.0.1": True,
        "localhost": True, "8.8.8.8": False, "2606:4700:4700::1111": False, "::ffff:127.0.0.1": True,
    }.items():  # fmt: skip
        assert fetching._is_private(host) is expected, host
