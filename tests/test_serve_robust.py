"""The server against clients that mean no good: slow, absent, greedy or foreign. All on the loopback, all bounded."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from coscap import Captioner
from coscap.serve import app, guard, stage
from coscap.serve.app import create_app
from coscap.serve.limits import Limits
from coscap.serve.worker import Worker
from serving import CAT, PATIENCE, SHORT, Slow, get, photo, serving, until
from tiny_captioner import save_tiny_model

HALF_HEADER = b"POST /captions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form"
HALF_BODY = (
    b"POST /captions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: 100000\r\n\r\n--x\r\n"
)


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    return Captioner.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def half_sent(port: int, count: int, start: bytes) -> list[socket.socket]:
    sockets = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        with suppress(ConnectionError):  # its time may be over already
            one.sendall(start)
        sockets.append(one)
    return sockets


def closed(one: socket.socket) -> bool:
    one.settimeout(PATIENCE)
    try:
        return one.recv(4096) == b""
    except ConnectionError:
        return True


# ---- slow clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"", HALF_HEADER, HALF_BODY])
def test_300_half_sent_requests_do_not_stop_health(captioner: Captioner, start: bytes) -> None:
    limits = Limits(header_seconds=600, seconds=600, connections=100)
    with serving(create_app(captioner, limits), limits) as (port, pool):
        sockets = half_sent(port, 300, start)
        until(lambda: len(pool) == 100)  # as many as may be, and none of them gives up
        assert get(port, "/health")[0] == get(port, "/ready")[0] == 200
        assert 90 < len(pool) <= 100
        for one in sockets:
            one.close()


@pytest.mark.parametrize("start", [b"", HALF_HEADER, HALF_BODY])
def test_half_sent_requests_are_closed_when_their_time_is_over(captioner: Captioner, start: bytes) -> None:
    limits = Limits(header_seconds=0.5)
    with serving(create_app(captioner, limits), limits) as (port, pool):
        sockets = half_sent(port, 30, start)
        until(lambda: len(pool) == 0)
        until(lambda: get(port, "/health")[1]["waiting"] == 0)
        for one in sockets:
            one.close()


def test_a_header_must_be_whole_in_time_again_after_each_answer(captioner: Captioner) -> None:
    limits = Limits(header_seconds=2.0)
    with (
        serving(create_app(captioner, limits), limits) as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as one,
    ):
        began = time.monotonic()
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while b"}" not in answer:
            part = one.recv(4096)
            assert part, answer
            answer += part
        assert b"200 OK" in answer
        one.sendall(HALF_HEADER)
        assert closed(one)
        assert time.monotonic() - began >= 2.0  # not before its time


def test_a_body_must_come_at_a_least_rate(captioner: Captioner) -> None:
    limits = Limits(header_seconds=0.4, body_rate=100_000)
    with (
        serving(create_app(captioner, limits), limits) as (port, _),
        socket.create_connection(("127.0.0.1", port)) as one,
    ):
        one.sendall(HALF_BODY)
        end = (
            time.monotonic() + PATIENCE
        )  # all of the body would take less at this rate, and be refused as no form
        one.settimeout(0.05)
        answer = b""
        while b"}" not in answer and time.monotonic() < end:
            if not answer:
                with suppress(ConnectionError):  # it was answered in this moment
                    one.sendall(b"y" * 100)  # some 2,000 bytes a second
            with suppress(TimeoutError):
                answer += one.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408") and b"too slowly" in answer


def test_when_connections_are_full_those_with_requests_stay(captioner: Captioner) -> None:
    slow = Slow(captioner)
    limits = Limits(connections=5)
    with serving(create_app(slow, limits), limits) as (port, _):  # type: ignore[arg-type]
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(post(port)))
        asking.start()
        assert slow.began.wait(PATIENCE)
        sockets = half_sent(port, 40, HALF_HEADER)
        assert get(port, "/health")[1]["waiting"] == 1
        slow.let.set()
        asking.join(PATIENCE)
        assert answers == [200]
        for one in sockets:
            one.close()


def test_a_refusal_is_seen_by_a_client_that_still_writes(
    captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(header_seconds=600)
    with serving(create_app(captioner, limits, tokens=["secret"]), limits) as (port, _):
        monkeypatch.setattr(guard, "PAUSE", PATIENCE)  # however long this client takes
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", "/captions", b"x" * 20_000_000, {"Content-Type": "multipart/form-data"})
        answer = connection.getresponse()
        assert answer.status == 401 and b"token" in answer.read()
        monkeypatch.undo()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as one:
            one.sendall(HALF_BODY)  # and no more: the answer does not wait for long
            assert one.recv(4096).startswith(b"HTTP/1.1 401")


# ---- work that nobody waits for --------------------------------------------------------------------------------------


def body(n: int = 2) -> tuple[bytes, dict[str, str]]:
    content = b'--x\r\nContent-Disposition: form-data; name="photos"; filename="cat.jpg"\r\n\r\n'
    content += CAT.read_bytes() + b'\r\n--x\r\nContent-Disposition: form-data; name="n"\r\n\r\n'
    return content + str(n).encode() + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


def post(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/captions", *body())
    status = connection.getresponse().status
    connection.close()
    return status


def test_work_ends_when_its_client_goes_away(captioner: Captioner) -> None:
    slow = Slow(captioner)
    with serving(create_app(slow)) as (port, _):  # type: ignore[arg-type]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", "/captions", *body())
        assert slow.began.wait(PATIENCE)
        assert not slow.ended.is_set()
        connection.close()
        assert slow.ended.wait(PATIENCE)
        slow.let.set()
        assert post(port) == 200


def test_out_of_time_ends_the_work_too(captioner: Captioner) -> None:
    slow = Slow(captioner)
    with TestClient(create_app(slow, Limits(seconds=4.0))) as client:  # type: ignore[arg-type]
        assert client.post("/captions", files=[photo()], data=SHORT).status_code == 504
        assert slow.ended.wait(PATIENCE)


def test_stuck_workers_are_seen_by_readiness_and_replaced(
    captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "TICK", 1e6)  # time goes on in this test when it says so
    made: list[Worker] = []
    monkeypatch.setattr(app, "Worker", lambda *given: made.append(Worker(*given)) or made[0])
    release = threading.Event()
    entered = threading.Semaphore(0)

    class Stuck:
        detector, see = captioner.detector, staticmethod(captioner.see)
        stuck = True

        def describe(self, *given: Any, **options: Any) -> Any:
            if not self.stuck:
                return captioner.describe(*given, **options)
            entered.release()
            return release.wait()

    stuck = Stuck()
    limits = Limits(seconds=5.0, grace=10.0, workers=2)
    with TestClient(create_app(stuck, limits)) as client:  # type: ignore[arg-type]
        answers: list[int] = []

        def ask(seed: str) -> None:
            data = {**SHORT, "seed": seed}
            answers.append(client.post("/captions", files=[photo()], data=data).status_code)

        asking = [
            threading.Thread(target=ask, args=seed) for seed in "12"
        ]  # two batches, one for each worker
        for one in asking:
            one.start()
        for one in asking:
            one.join(PATIENCE)
        assert answers == [504, 504]
        assert entered.acquire(timeout=PATIENCE) and entered.acquire(timeout=PATIENCE)
        for now, expected in (
            (0, 200),
            (9, 200),
            (11, 503),
            (20, 503),
            (22, 200),
        ):  # seen by readiness, replaced
            made[0]._captions.supervise(now)
            assert client.get("/ready").status_code == expected, now
            assert client.get("/health").status_code == 200
        assert "coscap_lost_workers 2.0" in client.get("/metrics").text
        stuck.stuck = False
        assert client.post("/captions", files=[photo()], data=SHORT).status_code == 200
        release.set()


STUCK = """
import sys, time
from coscap.captioner import Captioner
Captioner.describe = lambda *a, **o: print("stuck", flush=True) or time.sleep(600)
from coscap.cli.main import main
sys.argv = ["coscap", "serve", "--port", "0", "--model", sys.argv[1], "--drain", "1", "--timeout", "600"]
main()
"""


def test_a_signal_ends_the_server_even_when_a_worker_is_stuck(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    running = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert running.stderr is not None and running.stdout is not None
        found = re.search(r":(\d+)/", running.stderr.readline())
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)
        connection.request("POST", "/captions", *body())
        assert running.stdout.readline() == "stuck\n"
        running.send_signal(signal.SIGTERM)  # one second of drain, three to notice; the work would take 600
        assert running.wait(PATIENCE) == -signal.SIGTERM
    finally:
        running.kill()
        running.wait()
