"""Ask a running `coscap serve` on this machine from many clients at once, and say how it bore it.

    coscap serve --port 8000 &
    python scripts/load_test.py examples/cat.jpg --port 8000 --clients 64 --requests 500

One client asks alone first; then all of them together. Both parts end after their requests or their seconds,
whichever comes first. Figures: requests a second, their ratio, time to answer, statuses, the server's memory.
"""

import argparse
import http.client
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """What the clients of one part met. They share it, under its lock."""

    left: int
    until: float
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0 and time.monotonic() < self.until


def body(photo: Path, n: int) -> tuple[bytes, dict[str, str]]:
    head = f'--line\r\nContent-Disposition: form-data; name="photos"; filename="{photo.name}"\r\n\r\n'
    tail = f'\r\n--line\r\nContent-Disposition: form-data; name="n"\r\n\r\n{n}\r\n--line--\r\n'
    content = head.encode() + photo.read_bytes() + tail.encode()
    return content, {"Content-Type": "multipart/form-data; boundary=line"}


def client(port: int, content: bytes, headers: dict[str, str], tally: Tally) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    while tally.next():
        began = time.monotonic()
        try:
            connection.request("POST", "/captions", content, headers)
            answer = connection.getresponse()
            answer.read()
            status = str(answer.status)
        except OSError as error:
            status = type(error).__name__
            connection.close()
        with tally.lock:
            tally.statuses[status] += 1
            tally.seconds.append(time.monotonic() - began)
    connection.close()


def memory(port: int) -> float:
    """Megabytes that the server holds, by its own metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"^process_resident_memory_bytes (\S+)", text, re.M)
    return float(found[1]) / 1e6 if found else float("nan")


def part(
    port: int, content: bytes, headers: dict[str, str], clients: int, requests: int, limit: float
) -> dict:
    tally = Tally(requests, time.monotonic() + limit)
    threads = [threading.Thread(target=client, args=(port, content, headers, tally)) for _ in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    step = max(1, requests // 10)  # ten looks at the memory on the way
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        if len(tally.seconds) >= step * (len(tally.memory) + 1):
            tally.memory.append(round(memory(port), 1))
    took = time.monotonic() - began
    times = sorted(tally.seconds)
    return {
        "clients": clients,
        "requests": len(times),
        "per_second": round(tally.statuses["200"] / took, 2),  # of those that were answered
        "median_seconds": round(times[len(times) // 2], 3),
        "p95_seconds": round(times[int(len(times) * 0.95)], 3),
        "statuses": dict(tally.statuses),
        "memory_mb": tally.memory,
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("photo", type=Path)
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--requests", type=int, default=500, help="of all clients together")
    options.add_argument("--alone", type=int, default=30, help="requests of the one client before them")
    options.add_argument("--seconds", type=float, default=120, help="the most for each part")
    options.add_argument("-n", type=int, default=5)
    given = options.parse_args()
    content, headers = body(given.photo, given.n)
    part(given.port, content, headers, 1, 3, given.seconds)  # the first requests warm the server up
    alone = part(given.port, content, headers, 1, given.alone, given.seconds)
    together = part(given.port, content, headers, given.clients, given.requests, given.seconds)
    ratio = round(together["per_second"] / alone["per_second"], 2)
    print(json.dumps({"alone": alone, "together": together, "ratio": ratio}, indent=1))


if __name__ == "__main__":
    main()
