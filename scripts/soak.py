"""Send a server many requests, good and hostile, and see that its memory, files and threads stay as they are.

    python scripts/soak.py --requests 20000

It starts `coscap serve` on a free port of the loopback, so that nothing else is asked, and mixes by a seed: captions,
variations and tags (a quarter), requests of the corpus of what once hurt, damaged photographs, mangled forms, half-sent
headers and bodies, clients that leave while their captions are written, and the pages. It ends with an error if a good
request failed, if the server answered 500, or if memory, file descriptors or threads grew over the last three
quarters of the run.
"""

import argparse
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parents[1]
CORPUS = HERE / "tests" / "data" / "serve_fuzz.json"
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
GROWTH = 1.10  # of memory, from the second quarter to the last
PARTS = 200  # of a run, after each of which the server is measured
MORE_FILES = 16  # descriptors that may be open more than in the second quarter


def form(photo: bytes, **fields: str) -> bytes:
    parts = [b'--x\r\nContent-Disposition: form-data; name="photos"; filename="a.jpg"\r\n\r\n' + photo]
    for name, value in fields.items():
        parts.append(f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode())
    return b"\r\n".join(parts) + b"\r\n--x--\r\n"


@dataclass
class Soak:
    port: int
    photos: list[bytes]
    corpus: list[dict[str, object]]
    left: int
    seed: int
    statuses: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> int | None:
        with self.lock:
            self.left -= 1
            return self.left if self.left >= 0 else None

    def client(self) -> None:
        while (number := self.take()) is not None:
            chance = random.Random(f"{self.seed} {number}")
            kinds = (
                self.good,
                self.known,
                self.damaged,
                self.mangled,
                self.half_sent,
                self.leaves,
                self.pages,
            )
            kind = chance.choices(kinds, (25, 20, 15, 15, 10, 5, 10))[0]
            try:
                status = kind(chance)
            except (OSError, http.client.HTTPException) as error:
                status = type(error).__name__
            with self.lock:
                self.statuses[f"{kind.__name__} {status}"] += 1
                if status == "500" or (kind == self.good and status not in ("200", "429", "503")):
                    self.bad.append(f"{kind.__name__} of request {number}: {status}")

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return str(answer.status), answer.read()
        finally:
            connection.close()

    def good(self, chance: random.Random) -> str:
        if chance.random() < 0.2:
            return self.ask("POST", "/tags", form(chance.choice(self.photos), n="10"), FORM)[0]
        fields = {"n": str(chance.randint(1, 3)), "seed": str(chance.randrange(100))}
        status, body = self.ask("POST", "/captions", form(chance.choice(self.photos), **fields), FORM)
        if status != "200" or chance.random() < 0.5:
            return status
        id = json.loads(body)[0]["captions"][0]["id"]
        wanted = json.dumps({"id": id, "keep": chance.choice(["context", "objects"]), "n": 2}).encode()
        return self.ask("POST", "/variations", wanted, {"Content-Type": "application/json"})[0]

    def known(self, chance: random.Random) -> str:
        one = chance.choice(self.corpus)
        text = str(one["body"]) * int(str(one.get("repeat", 1)))
        if one.get("photo"):
            return self.ask(
                "POST", str(one["path"]), form(self.photos[0], **{str(one["field"]): text}), FORM
            )[0]
        headers = {"Content-Type": str(one["type"])}
        return self.ask("POST", str(one["path"]), text.encode("latin-1"), headers)[0]

    def damaged(self, chance: random.Random) -> str:
        photo = bytearray(chance.choice(self.photos))
        for _ in range(chance.randint(1, 40)):
            photo[chance.randrange(len(photo))] = chance.randrange(256)
        return self.ask("POST", "/captions", form(bytes(photo[: chance.randrange(len(photo))]), n="1"), FORM)[
            0
        ]

    def mangled(self, chance: random.Random) -> str:
        body = bytearray(form(b"\xff\xd8\xff\xe0", n="3", must="cat"))
        for _ in range(chance.randint(1, 5)):
            place = chance.randrange(len(body))
            body[place : place + chance.randrange(20)] = chance.randbytes(chance.randrange(20))
        return self.ask("POST", "/captions", bytes(body), FORM)[0]

    def half_sent(self, chance: random.Random) -> str:
        start = (
            b"POST /captions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        )
        whole = start + b"Content-Length: 90000\r\n\r\n" + form(self.photos[0])[:2000]
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as one:
            one.sendall(whole[: chance.randrange(len(whole))])
            time.sleep(0.05)
        return "left"

    def leaves(self, chance: random.Random) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/captions", form(chance.choice(self.photos), n="3"), FORM)
        time.sleep(chance.random() / 10)
        connection.close()
        return "left"

    def pages(self, chance: random.Random) -> str:
        path = chance.choice(
            ["/", "/docs", "/openapi.json", "/health", "/ready", "/metrics", "/examples/cat.jpg", "/no"]
        )
        return self.ask("GET", path)[0]


def measure(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    memory = float(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1000
    threads = int(re.findall(r"Threads:\s+(\d+)", status)[0])
    return {"mb": round(memory, 1), "files": len(list(Path(f"/proc/{pid}/fd").iterdir())), "threads": threads}


def _minutes(began: float) -> float:
    return (time.monotonic() - began) / 60


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--clients", type=int, default=8)
    options.add_argument("--model", default="shipped")
    options.add_argument(
        "--minutes", type=float, default=120, help="no further requests are sent after these"
    )
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    command = [
        sys.executable,
        "-m",
        "coscap",
        "serve",
        "--port",
        "0",
        "--model",
        given.model,
        "--log-format",
        "none",
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        first = server.stderr.readline()
        found = re.search(r":(\d+)/", first)
        if not found:
            print(first, file=sys.stderr)
            return 1
        photos = [path.read_bytes() for path in sorted((HERE / "examples").glob("*.jpg"))]
        soak = Soak(int(found[1]), photos, json.loads(CORPUS.read_text()), given.requests, given.seed)
        threads = [threading.Thread(target=soak.client, daemon=True) for _ in range(given.clients)]
        began, figures = time.monotonic(), []
        for thread in threads:
            thread.start()
        for part in range(1, PARTS + 1):
            while soak.left > given.requests * (1 - part / PARTS) and _minutes(began) < given.minutes:
                time.sleep(0.1)
            figures.append(measure(server.pid))
            if _minutes(began) >= given.minutes:
                break
        with soak.lock:
            soak.left = min(soak.left, 0)
        for thread in threads:
            thread.join(130)
        seconds = time.monotonic() - began
    finally:
        server.terminate()
        server.wait(60)
    quarter = len(figures) // 4  # of what was sent, where the time was over before
    if not quarter:
        soak.bad.append("too few requests were sent to say anything")
        quarter = 1
    second, last = figures[quarter : 2 * quarter] or figures, figures[-quarter:]
    mean = {
        name: [sum(one[name] for one in part) / len(part) for part in (second, last)] for name in second[0]
    }
    if mean["mb"][1] > GROWTH * mean["mb"][0]:
        soak.bad.append("the memory grew")
    if mean["files"][1] > mean["files"][0] + MORE_FILES or mean["threads"][1] > mean["threads"][0] + 4:
        soak.bad.append("open files or threads grew")
    report = {
        "requests": sum(soak.statuses.values()),
        "seconds": round(seconds, 1),
        "second_and_last_quarter": {name: [round(value, 1) for value in pair] for name, pair in mean.items()},
        "highest": {name: max(one[name] for one in figures) for name in second[0]},
        "statuses": dict(sorted(soak.statuses.items())),
        "bad": soak.bad[:20],
    }
    print(json.dumps(report, indent=1))
    return int(bool(soak.bad))


if __name__ == "__main__":
    sys.exit(main())
