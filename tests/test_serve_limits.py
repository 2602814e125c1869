"""What the server allows: memory and pixels, who may ask, which bodies, and what its operator sees."""

import io
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from coscap import Captioner
from coscap.cli.main import main
from coscap.serve.app import create_app
from coscap.serve.limits import Limits
from coscap.serve.run import Address
from coscap.serve.telemetry import log_to_stderr
from coscap.serve.worker import Upload, find_regions
from serving import CAT, PATIENCE, SHORT, Slow, photo
from tiny_captioner import save_tiny_model


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    return Captioner.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def client(captioner: Captioner) -> Iterator[TestClient]:
    with TestClient(create_app(captioner), raise_server_exceptions=False) as client:
        yield client


def flat(width: int, height: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, height), 90).save(buffer, kind)
    return buffer.getvalue()


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_pixels_of_a_request_are_counted_before_anything_is_decoded(captioner: Captioner) -> None:
    picture = flat(7000, 7000)  # 49 megapixels in 50 kB
    limits = Limits(photos=16)
    with TestClient(create_app(captioner, limits)) as client:
        answer = client.post("/captions", files=[photo(picture, "a.png")] * 16, data=SHORT)
        assert answer.status_code == 413
        assert "784,000,000 pixels together" in answer.json()["error"]


def test_pixels_of_all_requests_are_shared(captioner: Captioner) -> None:
    slow = Slow(captioner)
    limits = Limits(total_pixels=1_500_000)
    picture = flat(1000, 1000)
    with TestClient(create_app(slow, limits)) as client:  # type: ignore[arg-type]
        first = threading.Thread(
            target=lambda: client.post("/captions", files=[photo(picture, "a.png")], data=SHORT)
        )
        first.start()
        assert slow.began.wait(PATIENCE)
        answer = client.post("/captions", files=[photo(picture, "a.png")], data=SHORT)
        assert answer.status_code == 503 and answer.headers["Retry-After"]
        slow.let.set()
        first.join(PATIENCE)
        assert client.post("/captions", files=[photo(picture, "a.png")], data=SHORT).status_code == 200


def test_bytes_of_all_requests_are_shared(captioner: Captioner) -> None:
    limits = Limits(total_bytes=CAT.stat().st_size + 2000)
    with TestClient(create_app(captioner, limits)) as client:
        assert client.post("/captions", files=[photo()], data=SHORT).status_code == 200
        assert client.post("/captions", files=[photo(), photo()], data=SHORT).status_code == 503
        assert client.post("/captions", files=[photo()], data=SHORT).status_code == 200  # given back


def test_photographs_are_decoded_one_at_a_time(captioner: Captioner) -> None:
    held: list[int] = []

    class Detector:
        batch, least_side = 4, 0

        def regions(self, pictures: Any) -> list[int]:
            held.append(sum(picture.width * picture.height for picture in pictures))
            return [0] * len(pictures)

    class Holder:
        detector = Detector()

        def see(self, pictures: list[Any]) -> tuple[list[Any], None]:
            return self.detector.regions(pictures), None

    def uploads(width: int, height: int) -> list[Upload]:
        return [Upload("a.png", io.BytesIO(flat(width, height))) for _ in range(5)]

    assert len(find_regions(Holder(), uploads(5000, 5000), 50_000_000, lambda: None)[0]) == 5  # type: ignore[arg-type]
    assert held == [25_000_000] * 5
    held.clear()
    assert len(find_regions(Holder(), uploads(100, 100), 50_000_000, lambda: None)[0]) == 5  # type: ignore[arg-type]
    assert held == [40_000, 10_000]


def test_a_large_photograph_gets_the_captions_that_the_command_gives(
    client: TestClient, captioner: Captioner, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (50, 75, 3), np.uint8)
    path = tmp_path / "large.jpg"
    Image.fromarray(noise).resize((2400, 1600), Image.Resampling.BICUBIC).save(path, quality=90)
    from coscap.search.config import SearchSettings

    expected = captioner(path, n=3, settings=SearchSettings(max_length=6))
    answer = client.post("/captions", files=[photo(path.read_bytes())], data={"n": "3", "max_length": "6"})
    found = [caption["log_probability"] for caption in answer.json()[0]["captions"]]
    assert found == [caption.log_probability for caption in expected.captions]


# ---- who may ask -----------------------------------------------------------------------------------------------------


def test_an_allowed_host_holds_on_every_address() -> None:
    assert set(Address("127.0.0.1", 0).hosts) == {"127.0.0.1", "localhost", "::1"}
    assert Address("0.0.0.0", 0).hosts == []
    for host in ("127.0.0.1", "0.0.0.0"):
        assert "a.example" in Address(host, 0, allowed=("a.example",)).hosts
        assert "b.example" not in Address(host, 0, allowed=("a.example",)).hosts


@pytest.mark.parametrize("line", ["--token=", "--token=' '", "--token='two words'"])
def test_an_empty_token_is_refused(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["coscap", "serve", "--port", "0", line.replace("'", "")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "token is empty" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_token_in_the_environment_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COSCAP_TOKEN", value)
    monkeypatch.setattr(sys, "argv", ["coscap", "serve", "--port", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "COSCAP_TOKEN is set, but empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://LOCALHOST:8000", 200),
        ("https://localhost:8000", 200),  # a proxy speaks TLS
        ("http://localhost:9000", 403),
        ("http://evil.example", 403),
        ("http://localhost:8000.evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_origin_is_compared_with_host(captioner: Captioner, origin: str, status: int) -> None:
    with TestClient(create_app(captioner), base_url="http://localhost:8000") as client:
        headers = {"Origin": origin}
        assert client.post("/captions", files=[photo()], data=SHORT, headers=headers).status_code == status
        assert client.get("/health", headers=headers).status_code == 200


def test_each_client_has_its_own_rate(captioner: Captioner) -> None:
    app = create_app(captioner, Limits(client_rate=6), tokens=["one", "two"])
    with TestClient(app) as client:

        def ask(token: str) -> Any:
            return client.post("/variations", json={}, headers={"Authorization": f"Bearer {token}"})

        assert ask("one").status_code == 422
        refused = ask("one")
        assert refused.status_code == 429 and 1 <= int(refused.headers["Retry-After"]) <= 10
        assert "too often" in refused.json()["error"]
        assert ask("two").status_code == 422
        assert ask("three").status_code == 401
        assert client.get("/health").status_code == 200


# ---- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "charset", ["utf-7", "utf-16", "unicode_escape", "raw_unicode_escape", "idna", "hex", "x" * 99]
)
def test_another_charset_is_refused(client: TestClient, charset: str) -> None:
    parts = b'--x\r\nContent-Disposition: form-data; name="must"\r\n\r\n+2AA- \\ud800\r\n--x--\r\n'
    kind = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    answer = client.post("/captions", content=parts, headers=kind)
    assert answer.status_code == 415 and "UTF-8" in answer.json()["error"]
    fine = {"Content-Type": "multipart/form-data; boundary=x; charset=UTF-8"}
    assert client.post("/captions", content=parts, headers=fine).status_code == 422


def test_lone_surrogates_are_refused(client: TestClient) -> None:
    kind = {"Content-Type": "application/json"}
    for content in (b'{"id": "\\ud800", "keep": "context"}', b'{"\\udfff": 1}', b'{"id": "x", "n": 1e999}'):
        assert client.post("/variations", content=content, headers=kind).status_code in (400, 422)


@pytest.mark.parametrize("field", ["must", "without", "beginning"])
def test_long_texts_are_refused_at_once(client: TestClient, field: str) -> None:
    began = time.process_time()
    for text in ("hot dog " * 25, "word " * 1900):
        answer = client.post("/captions", files=[photo()], data={field: text})
        assert answer.status_code == 422 and f"The field {field}" in answer.json()["error"]
    assert time.process_time() - began < 5


def test_the_longest_text_that_is_taken_is_cheap(client: TestClient) -> None:
    began = time.process_time()
    data = {"beginning": "hot dog " * 12, "max_length": "40", "n": "1"}
    assert client.post("/captions", files=[photo()], data=data).status_code == 200
    data = {"must": "hot dog " * 5, "max_length": "40", "n": "1"}
    assert client.post("/captions", files=[photo()], data=data).status_code == 200
    assert time.process_time() - began < 20


# ---- what an operator sees -------------------------------------------------------------------------------------------


def test_request_ids_are_taken_over_or_made(client: TestClient) -> None:
    assert client.get("/health", headers={"X-Request-ID": "a-b.c:7"}).headers["X-Request-ID"] == "a-b.c:7"
    for bad in ("x" * 65, "a b", "a;b", "ä".encode()):
        made = client.get("/nothing", headers={"X-Request-ID": bad}).headers["X-Request-ID"]
        assert re.fullmatch("[0-9a-f]{16}", made)


@pytest.mark.parametrize("kind", ["text", "json", "none"])
def test_each_request_is_a_line_in_the_log(
    client: TestClient, kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {
        name: logging.getLogger(name).__dict__.copy() for name in ("coscap", "uvicorn", "coscap.access")
    }
    try:
        log_to_stderr(kind)
        sent = client.post("/captions", files=[photo()], data=SHORT, headers={"X-Request-ID": "seven"})
        client.get("/a%0Apath%1b[31m", headers={"X-Request-ID": "eight"})
    finally:
        for name, state in before.items():
            logging.getLogger(name).__dict__.update(state)
        logging.getLogger("coscap").manager._clear_cache()  # type: ignore[attr-defined]
    lines = capsys.readouterr().err.splitlines()
    if kind == "none":
        assert lines == []
        return
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines) and "path" not in lines[1].replace("path=", "").replace(
        '"path"', ""
    )
    if kind == "text":
        assert re.match(
            r"\d{4}-\d\d-\d\dT[\d:.]+Z id=seven client=\S+ method=POST path=/captions status=200", lines[0]
        )
        return
    line = json.loads(lines[0])
    assert {
        "time",
        "level",
        "id",
        "client",
        "method",
        "path",
        "status",
        "bytes_in",
        "bytes_out",
        "ms",
    } == set(line)
    assert (
        line["id"] == "seven"
        and line["bytes_in"] > CAT.stat().st_size
        and line["bytes_out"] == len(sent.content)
    )
    assert json.loads(lines[1])["status"] == 404
