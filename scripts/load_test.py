"""Ask a running `coscap serve` on this machine from many clients at once, and say how it bore it.

    coscap serve --port 8000 &
    python scripts/load_test.py examples/*.jpg --port 8000 --clients 64 --requests 5000

One client alone and all of them together take turns, so that other work on the machine meets both alike. Figures:
answers a second of both and their ratio; the processor time that the server took for an answer in both, whose
ratio does not depend on other work; time to answer; statuses; the server's memory on the way. It ends with an error
if a request failed.
"""

import argparse
import http.client
import json
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

Request = tuple[bytes, dict[str, str]]


@dataclass
class Tally:
    """What the clients of one kind met, over all their turns. They share it, under its lock."""

    clients: int
    left: int = 0
    taken: int = 0
    wall: float = 0.0
    processor: float = 0.0
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> int | None:
        """The number of the request to send, or None when this turn has had its requests."""
        with self.lock:
            self.left -= 1
            self.taken += self.left >= 0
            return self.taken if self.left >= 0 else None

    def told(self) -> dict[str, object]:
        times = sorted(self.seconds)
        answered = self.statuses["200"]
        return {
            "clients": self.clients,
            "requests": len(times),
            "per_second": round(answered / self.wall, 2),
            "processor_seconds_each": round(self.processor / max(1, answered), 3),
            "median_seconds": round(times[len(times) // 2], 3),
            "p95_seconds": round(times[int(len(times) * 0.95)], 3),
            "statuses": dict(self.statuses),
        }


def request_of(photo: Path, n: int) -> Request:
    head = f'--line\r\nContent-Disposition: form-data; name="photos"; filename="{photo.name}"\r\n\r\n'
    tail = f'\r\n--line\r\nContent-Disposition: form-data; name="n"\r\n\r\n{n}\r\n--line--\r\n'
    content = head.encode() + photo.read_bytes() + tail.encode()
    return content, {"Content-Type": "multipart/form-data; boundary=line"}


def client(port: int, requests: list[Request], tally: Tally) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    while (number := tally.next()) is not None:
        began = time.monotonic()
        try:
            connection.request("POST", "/captions", *requests[number % len(requests)])
            answer = connection.getresponse()
            answer.read()
            status = str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            status = type(error).__name__
            connection.close()
        with tally.lock:
            tally.statuses[status] += 1
            tally.seconds.append(time.monotonic() - began)
    connection.close()


def figures(port: int) -> tuple[float, float]:
    """Megabytes that the server holds and processor seconds that it has taken, by its own metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = {
        name: float(value) for name, value in re.findall(r"^(process_\w+) ([\d.e+]+)$", text, re.MULTILINE)
    }
    return found["process_resident_memory_bytes"] / 1e6, found["process_cpu_seconds_total"]


def turn(port: int, requests: list[Request], tally: Tally, count: int) -> float:
    """So many requests by the clients of one kind; the server's memory after them."""
    tally.left = count
    threads = [threading.Thread(target=client, args=(port, requests, tally)) for _ in range(tally.clients)]
    _, before = figures(port)
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.wall += time.monotonic() - began
    memory, after = figures(port)
    tally.processor += after - before
    return round(memory, 1)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("photos", type=Path, nargs="+", help="sent in turn")
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--requests", type=int, default=5000, help="of all clients together, over all turns")
    options.add_argument("--alone", type=int, default=100, help="of the one client, over all turns")
    options.add_argument("--warm", type=int, default=600, help="requests before anything is measured")
    options.add_argument("--turns", type=int, default=10)
    options.add_argument("--minutes", type=float, default=60, help="no further turn begins after these")
    options.add_argument("-n", type=int, default=5, help="captions for each photograph")
    given = options.parse_args()
    requests = [request_of(photo, given.n) for photo in given.photos]
    # The first requests make the server's memory what it will be: full batches, all threads, 512 answers remembered.
    memory = [turn(given.port, requests, Tally(given.clients), given.warm)]
    alone, together = Tally(1), Tally(given.clients)
    until = time.monotonic() + 60 * given.minutes
    for number in range(given.turns):
        if number and time.monotonic() > until:
            break
        turn(given.port, requests, alone, max(1, given.alone // given.turns))
        memory.append(turn(given.port, requests, together, max(1, given.requests // given.turns)))
        print(f"turn {number + 1}: {memory[-1]:.0f} MB", file=sys.stderr)
    one, all_ = alone.told(), together.told()
    told = {
        "alone": one,
        "together": all_,
        "ratio": round(all_["per_second"] / one["per_second"], 2),  # type: ignore[operator]
        "processor_ratio": round(one["processor_seconds_each"] / all_["processor_seconds_each"], 2),  # type: ignore[operator]
        "memory_mb": memory,
    }
    print(json.dumps(told, indent=1))
    return int(set(alone.statuses) | set(together.statuses) != {"200"})


if __name__ == "__main__":
    sys.exit(main())
