"""Bodies that nobody would send on purpose: each must end as a 4xx with a sentence, and none may be read for ever."""

import asyncio
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from coscap.serve.app import create_app
from coscap.serve.intake import Refused, read_form, read_json
from coscap.serve.limits import Limits

FORM = {"Content-Type": "multipart/form-data; boundary=x"}
BODY = (
    b'--x\r\nContent-Disposition: form-data; name="photos"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    b'\xff\xd8\xff\xe0\r\n--x\r\nContent-Disposition: form-data; name="n"\r\n\r\n3\r\n'
    b'--x\r\nContent-Disposition: form-data; name="must"\r\n\r\ncat\r\n--x--\r\n'
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    nobody: Any = SimpleNamespace(
        detector=SimpleNamespace(batch=4, least_side=0)
    )  # no body here gets as far as the model
    with TestClient(create_app(nobody), raise_server_exceptions=False) as client:
        yield client


def mangled(chance: random.Random) -> bytes:
    body = bytearray(BODY)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(body))
        kind = chance.randrange(4)
        if kind == 0:
            body[place] = chance.randrange(256)
        elif kind == 1:
            del body[place : place + chance.randrange(1, 30)]
        elif kind == 2:
            body[place:place] = chance.randbytes(chance.randrange(1, 20))
        else:
            body[place:place] = chance.choice(
                [b"\r\n", b'"', b"--x", b"--x--\r\n", b";", b"=", b"\x00", b"\xff"]
            )
        if not body:
            body += b"-"
    return bytes(body)


def test_mangled_forms_are_4xx(client: TestClient) -> None:
    chance = random.Random(5)
    met = set()
    for _ in range(300):
        body = mangled(chance)
        answer = client.post("/captions", content=body, headers=FORM)
        assert 400 <= answer.status_code < 500, (body, answer.text)
        assert list(answer.json()) == ["error"]
        met.add(answer.status_code)
    assert {400, 422} <= met


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "x" * 5000,
        'multipart/form-data; boundary="',
        "multipart/form-data; boundary=x; charset=utf-16",
        "multipart/form-data; boundary=x; charset=" + "ü" * 9,
        "multipart/mixed; boundary=x",
        "",
    ],
)
def test_mangled_content_types_are_4xx(client: TestClient, kind: str) -> None:
    answer = client.post("/captions", content=BODY, headers={"Content-Type": kind.encode()})
    assert 400 <= answer.status_code < 500, answer.text


def request_of(parts: list[Any], kind: str) -> Request:
    """A request whose body comes in these parts; after the last one nothing comes any more."""

    async def receive() -> Any:
        if parts:
            return parts.pop(0)
        await asyncio.sleep(60)

    headers = [(b"content-type", kind.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def some(body: bytes) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": True}


def test_a_body_that_stops_coming_is_given_up() -> None:
    for reader, kind in ((read_form, FORM["Content-Type"]), (read_json, "application/json")):
        with pytest.raises(Refused) as refused:
            asyncio.run(reader(request_of([some(BODY[:50])], kind), Limits(seconds=0.1)))
        assert refused.value.status == 408


def test_a_body_is_refused_before_all_of_it_is_read() -> None:
    parts = [some(BODY[: BODY.index(b"\xff\xd8") + 4]), *(some(b"y" * 1000) for _ in range(100))]
    with pytest.raises(Refused) as refused:
        asyncio.run(read_form(request_of(parts, FORM["Content-Type"]), Limits(bytes=5000)))
    assert refused.value.status == 413
    assert len(parts) > 90


def test_a_sender_who_leaves() -> None:
    with pytest.raises(Refused) as refused:
        parts = [some(BODY[:150]), {"type": "http.disconnect"}]
        asyncio.run(read_form(request_of(parts, FORM["Content-Type"]), Limits()))
    assert refused.value.status == 400
