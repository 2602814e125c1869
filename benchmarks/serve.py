"""How many requests `coscap serve` answers in onnxruntime for each that it answers in torch.

    python benchmarks/serve.py

Two servers on this machine, one of each runtime, with one worker and one thread; 16 clients send photographs one at a
time and ask for five captions, and the servers take turns. The ratio is that of the processor time that an answer
takes, by the servers' own metrics, because other work on the machine changes it little; answers a second are printed,
too. The best of the turns counts.
"""

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

PHOTOS = sorted((Path(__file__).parents[1] / "examples").glob("*.jpg"))
BAR = 3.0
CLIENTS, REQUESTS, TURNS = 16, 16, 2


class Server:
    """A `coscap serve` of its own, on a free port."""

    def __init__(self, runtime: str) -> None:
        options = ["--port", "0", "--runtime", runtime, "--workers", "1", "--log-format", "none"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coscap", "serve", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        told = ""
        for line in self.process.stdout:
            told += line
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            if found:
                self.port = int(found[1])
                return
        raise SystemExit(f"coscap serve --runtime {runtime} did not start: {told}")

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path} answered {answer.status}: {content[:200]!r}")
        return content

    def processor_seconds(self) -> float:
        found = re.search(
            rb"^process_cpu_seconds_total ([\d.e+]+)$", self.ask("GET", "/metrics"), re.MULTILINE
        )
        assert found is not None
        return float(found[1])

    def turn(self, requests: int) -> tuple[float, float]:
        """Processor seconds and seconds for each of so many requests."""
        numbers, failed = iter(range(requests)), []
        lock = threading.Lock()

        def client() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    self.ask("POST", "/captions", *request_of(PHOTOS[number % len(PHOTOS)]))
                except (OSError, http.client.HTTPException, SystemExit) as error:
                    failed.append(str(error))
                    return

        before, began = self.processor_seconds(), time.monotonic()
        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise SystemExit(failed[0])
        wall = time.monotonic() - began
        return (self.processor_seconds() - before) / requests, wall / requests


def request_of(photo: Path) -> tuple[bytes, str]:
    head = f'--line\r\nContent-Disposition: form-data; name="photos"; filename="{photo.name}"\r\n\r\n'
    tail = '\r\n--line\r\nContent-Disposition: form-data; name="n"\r\n\r\n5\r\n--line--\r\n'
    return head.encode() + photo.read_bytes() + tail.encode(), "multipart/form-data; boundary=line"


def main() -> int:
    servers: dict[str, Server] = {}
    try:
        for runtime in ("onnx", "torch"):
            servers[runtime] = Server(runtime)
            servers[runtime].turn(4)  # what is loaded with the first photograph
        best: dict[str, tuple[float, float]] = {}
        for _ in range(TURNS):
            for runtime, server in servers.items():
                best[runtime] = min(server.turn(REQUESTS), best.get(runtime, (float("inf"), 0.0)))
    finally:
        for server in servers.values():
            server.process.terminate()
            server.process.wait(timeout=30)
    for runtime, (processor, wall) in best.items():
        print(f"{runtime}: {1000 * processor:.0f} CPU-ms an answer, {1 / wall:.1f} answers a second")
    ratio = best["torch"][0] / best["onnx"][0]
    print(f"serve: ratio {ratio:.2f}, bar {BAR:g}")
    return int(ratio < BAR)


if __name__ == "__main__":
    sys.exit(main())
