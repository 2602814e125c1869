"""The server's API, asked as a client asks it, with a small model of random weights behind it."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from coscap import Captioner
from coscap.serve.app import create_app
from coscap.serve.limits import Limits
from serving import PATIENCE, until
from tiny_captioner import save_tiny_model

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.jpg"))
SHORT = {"n": "2", "max_length": "6"}


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    return Captioner.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def client(captioner: Captioner) -> Iterator[TestClient]:
    limits = Limits(photos=3, bytes=400_000, pixels=1_000_000, captions=6)
    with TestClient(create_app(captioner, limits)) as client:
        yield client


def photo(path: Path = EXAMPLES[0], field: str = "photos") -> tuple[str, tuple[str, bytes, str]]:
    return field, (path.name, path.read_bytes(), "image/jpeg")


def made(width: int, height: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 40)).save(buffer, kind)
    return buffer.getvalue()


def test_captions_are_those_of_the_captioner(client: TestClient, captioner: Captioner) -> None:
    fields = {"n": "3", "seed": "4", "variety": "0.3", "latent_temperature": "0.8", "max_length": "6"}
    answer = client.post("/captions", files=[photo(EXAMPLES[0]), photo(EXAMPLES[1])], data=fields)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert [result["photo"] for result in told] == [path.name for path in EXAMPLES[:2]]
    from coscap.search.config import SearchSettings

    settings = SearchSettings(seed=4, latent_temperature=0.8, max_length=6)
    expected = [result.to_json() for result in captioner(EXAMPLES[:2], n=3, variety=0.3, settings=settings)]
    ids = [caption.pop("id") for result in told for caption in result["captions"]]
    assert len(set(ids)) == len(ids)
    for result, wanted in zip(told, expected, strict=True):
        assert result["captions"] == wanted["captions"]


def test_tags_are_those_of_the_captioner(client: TestClient, captioner: Captioner) -> None:
    fields = {"n": "4", "floor": "0.3"}
    answer = client.post("/tags", files=[photo(EXAMPLES[0]), photo(EXAMPLES[1])], data=fields)
    assert answer.status_code == 200, answer.text
    for path, told in zip(EXAMPLES[:2], answer.json(), strict=True):
        wanted = captioner.tags(path, n=4, floor=0.3)
        assert told["photo"] == path.name and 0 < len(told["tags"]) <= 4
        assert [tag["word"] for tag in told["tags"]] == [tag.word for tag in wanted]
        for tag, own in zip(told["tags"], wanted, strict=True):  # alone or in a batch: rounding apart
            assert tag["probability"] == pytest.approx(own.probability, abs=1e-3)
            assert tag["box"] == pytest.approx(list(own.box), abs=1e-3)
    assert "coscap_tagged_photos_total 2.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n": "0"}, "The field n is '0'"),
        ({"n": "201"}, "The field n is '201'"),
        ({"floor": "nan"}, "The field floor is 'nan'"),
        ({"floor": "1.5"}, "The field floor is '1.5'"),
        ({"must": "cat"}, "There is no field 'must'; the fields are n, floor"),
        ({"n": ["3", "4"]}, "given twice"),
    ],
)
def test_bad_fields_of_tags_are_a_sentence(client: TestClient, fields: dict[str, Any], expected: str) -> None:
    answer = client.post("/tags", files=[photo()], data=fields)
    assert answer.status_code == 422 and expected in answer.json()["error"], answer.text


def test_a_bad_photograph_has_no_tags(client: TestClient) -> None:
    answer = client.post("/tags", files=[photo(), ("photos", ("b.jpg", b"no picture", "image/jpeg"))])
    assert answer.status_code == 422 and "b.jpg" in answer.json()["error"]
    answer = client.post("/tags", files=[("photos", ("b.png", made(2000, 1000), "image/png"))])
    assert answer.status_code == 422 and "pixels" in answer.json()["error"]
    assert client.post("/tags", data={"n": "2"}).status_code in (415, 422)
    assert client.get("/tags").status_code == 405


def test_variations_of_a_caption(client: TestClient, captioner: Captioner) -> None:
    first = client.post("/captions", files=[photo()], data=SHORT).json()[0]["captions"][0]
    for keep in ("context", "objects"):
        answer = client.post("/variations", json={"id": first["id"], "keep": keep, "n": 3})
        assert answer.status_code == 200, answer.text
        found = answer.json()["captions"]
        assert len(found) <= 3
        assert all(other["text"] != first["text"] for other in found)
        assert all(set(other) == {"id", "text", "alt", "log_probability", "words"} for other in found)
        again = client.post("/variations", json={"id": found[0]["id"], "keep": keep, "n": 2, "seed": 9})
        assert again.status_code == 200 and again.json()["captions"]
        assert all(other["text"] != found[0]["text"] for other in again.json()["captions"])


def test_search_settings_reach_the_search(client: TestClient) -> None:
    data = {**SHORT, "must": ["cat"], "without": ["person"]}
    answer = client.post("/captions", files=[photo()], data=data)
    assert answer.status_code == 200, answer.text
    words = [word["word"] for caption in answer.json()[0]["captions"] for word in caption["words"]]
    assert "cat" in words
    assert not set(words) & {"man", "woman", "person"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n": "0"}, "The field n is '0'"),
        ({"n": "many"}, "valid integer"),
        ({"n": "7"}, "less than or equal to 6"),
        ({"n": "9" * 5000}, "The field n"),
        ({"n": ["1", "2"]}, "given twice"),
        ({"variety": "2"}, "variety"),
        ({"variety": "nan"}, "variety"),
        ({"latent_temperature": "-1"}, "latent_temperature"),
        ({"seed": str(2**80)}, "seed"),
        ({"search": "magic"}, "search"),
        ({"max_length": "1000"}, "max_length"),
        ({"min_length": "9", "max_length": "3"}, "above max_length"),
        ({"colour": "red"}, "There is no field 'colour'"),
        ({"must": "qwxzy"}, "qwxzy"),
        ({"photos": "a word"}, "must be a file"),
    ],
)
def test_bad_fields_are_a_sentence(client: TestClient, fields: dict[str, Any], expected: str) -> None:
    answer = client.post("/captions", files=[photo()], data=fields)
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert expected in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
        (EXAMPLES[0].read_bytes()[:900], "damaged"),
        (made(1100, 1000), "1100 x 1000"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not a picture"),
    ],
)
def test_bad_photographs_are_a_sentence(client: TestClient, content: bytes, expected: str) -> None:
    answer = client.post("/captions", files=[("photos", ("../../etc/x.jpg", content, "image/jpeg"))])
    assert answer.status_code == 422
    assert expected in answer.json()["error"]
    assert answer.json()["error"].startswith("x.jpg ")


def test_bad_bodies_are_a_sentence(client: TestClient) -> None:
    def status(**request: Any) -> int:
        answer = client.post("/captions", **request)
        assert list(answer.json()) == ["error"]
        return answer.status_code

    form = {"Content-Type": "multipart/form-data; boundary=x"}
    assert status() == 415
    assert status(json={"photos": 1}) == 415
    assert status(content=b"no form", headers=form) == 400
    assert status(content=b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n", headers=form) == 400
    assert status(content=b"", headers={"Content-Type": "multipart/form-data"}) == 400
    odd = {"Content-Type": "multipart/form-data; boundary=x; charset=no-such"}
    assert status(content=b"--x--\r\n", headers=odd) == 415
    assert status(files=[photo() for _ in range(4)]) == 413
    assert status(files=[photo(field="picture")]) == 422
    assert status(files=[("photos", ("big.jpg", b"x" * 500_000))]) == 413
    assert status(files=[photo()], data={"beginning": "a " * 20_000}) == 413
    assert status(content=b"--x", headers={**form, "Content-Length": "99999999999999999999"}) == 413


def test_a_body_without_a_claimed_length_is_cut_off(client: TestClient) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="photos"; filename="a.jpg"\r\n\r\n'
        while sent < 50_000_000:
            sent += 50_000
            yield b"x" * 50_000

    answer = client.post(
        "/captions", content=endless(), headers={"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({"id": "../../etc/passwd", "keep": "context"}, 404, "No caption has that id"),
        ({"id": "x.0", "keep": "context"}, 404, "No caption"),
        ({"id": "x.0", "keep": "both"}, 422, "keep"),
        ({"id": 3, "keep": "context"}, 422, "The field id"),
        ({"keep": "context"}, 422, "The field id is missing"),
        ({"id": "x.0", "keep": "context", "n": 1000}, 422, "less than or equal to 6"),
        ([], 422, "JSON object"),
        ({"id": "x" * 20_000, "keep": "context"}, 413, "larger"),
    ],
)
def test_bad_variations(client: TestClient, body: Any, status: int, expected: str) -> None:
    answer = client.post("/variations", json=body)
    assert answer.status_code == status
    assert expected in answer.json()["error"]


def test_json_that_is_none(client: TestClient) -> None:
    kind = {"Content-Type": "application/json"}
    for body in (b"{", b"[" * 9000, b"\xff\xfe", b""):
        assert client.post("/variations", content=body, headers=kind).status_code == 400
    assert client.post("/variations", content=b"{}").status_code == 415


def test_other_addresses(client: TestClient) -> None:
    assert client.get("/nothing").json() == {"error": "There is no such address; GET /docs lists them."}
    assert client.get("/captions").status_code == 405
    health = client.get("/health").json()
    assert health["status"] == "ok" and health["waiting"] == 0
    schema = client.get("/openapi.json").json()
    form = schema["paths"]["/captions"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert {"photos", "n", "variety", "seed", "latent_temperature"} <= set(form["properties"])
    docs = client.get("/docs")
    assert "POST /variations" in docs.text and "{{" not in docs.text
    assert "1 to 6. Default: 5." in docs.text and "One of latent, beam, diverse, constrained." in docs.text
    assert "At most 100 characters." in docs.text


def test_metrics_count_what_happened(client: TestClient) -> None:
    client.post("/captions", files=[photo()], data=SHORT)
    text = client.get("/metrics").text
    assert 'coscap_requests_total{path="/captions",status="200"}' in text
    assert 'coscap_batch_photos_count{stage="captions"}' in text
    assert "coscap_photos_total" in text
    client.get("/a-name-that-nobody-knows")
    assert "a-name-that-nobody-knows" not in client.get("/metrics").text


def test_a_token_guards_the_captions(captioner: Captioner) -> None:
    with TestClient(create_app(captioner, tokens=["gehéim"])) as client:
        assert client.get("/").status_code == client.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "gehéim".encode()}):
            answer = client.post("/captions", files=[photo()], headers=headers)
            assert answer.status_code == 401
            assert "Bearer" in answer.json()["error"]
            assert client.post("/tags", files=[photo()], headers=headers).status_code == 401
        assert client.get("/metrics").status_code == 401
        right = {"Authorization": "Bearer gehéim".encode()}
        assert client.post("/captions", files=[photo()], data=SHORT, headers=right).status_code == 200


def test_only_known_names_and_no_other_sites(captioner: Captioner) -> None:
    app = create_app(captioner, hosts=["localhost", "127.0.0.1"])
    with TestClient(app, base_url="http://localhost:8000") as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 421
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert client.post("/captions", files=[photo()], data=SHORT, headers=foreign).status_code == 403


class Slow:
    """A captioner whose words come only when they are let."""

    def __init__(self, captioner: Captioner) -> None:
        self.detector = captioner.detector
        self._captioner = captioner
        self.let = threading.Event()
        self.began = threading.Event()
        self.seen = 0
        self.sizes: list[int] = []

    def see(self, pictures: Any) -> Any:
        found = self._captioner.see(pictures)
        self.seen += len(pictures)
        return found

    def describe(self, names: list[str], regions: Any, n: int, **options: Any) -> Any:
        self.sizes.append(len(names))
        self.began.set()
        assert self.let.wait(PATIENCE)
        return self._captioner.describe(names, regions, n, **options)


def send_in_background(client: TestClient, count: int, answers: list[Any]) -> list[threading.Thread]:
    def send() -> None:
        answers.append(client.post("/captions", files=[photo()], data=SHORT))

    threads = [threading.Thread(target=send) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def wait_until(client: TestClient, waiting: int) -> None:
    until(lambda: client.get("/health").json()["waiting"] == waiting)


def test_what_waits_is_captioned_together_and_a_full_house_refuses(captioner: Captioner) -> None:
    slow = Slow(captioner)
    answers: list[Any] = []
    with TestClient(create_app(slow, Limits(waiting=5, seconds=600))) as client:  # type: ignore[arg-type]
        threads = send_in_background(client, 1, answers)
        assert slow.began.wait(PATIENCE)
        threads += send_in_background(client, 4, answers)
        wait_until(client, 5)
        refused = client.post("/captions", files=[photo()], data=SHORT)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        until(lambda: slow.seen == 5)
        slow.let.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert slow.sizes[0] == 1 and sum(slow.sizes) == 5
    assert len(slow.sizes) < 5
    texts = {tuple(c["text"] for c in answer.json()[0]["captions"]) for answer in answers}
    assert len(texts) == 1


def test_out_of_time_is_504_and_the_server_goes_on(captioner: Captioner) -> None:
    slow = Slow(captioner)
    with TestClient(create_app(slow, Limits(seconds=4.0))) as client:  # type: ignore[arg-type]
        answer = client.post("/captions", files=[photo()], data=SHORT)
        assert answer.status_code == 504
        assert "within 4 seconds" in answer.json()["error"]
        slow.let.set()
    with TestClient(create_app(slow, Limits())) as client:  # type: ignore[arg-type]
        assert client.post("/captions", files=[photo()], data=SHORT).status_code == 200


def test_a_fault_of_our_own_tells_nothing_of_the_inside(captioner: Captioner) -> None:
    class Broken(Slow):
        def describe(self, names: list[str], regions: Any, n: int, **options: Any) -> Any:
            raise RuntimeError("/secret/path")

    with TestClient(create_app(Broken(captioner)), raise_server_exceptions=False) as client:  # type: ignore[arg-type]
        answer = client.post("/captions", files=[photo()], data=SHORT)
        assert answer.status_code == 500
        assert "secret" not in answer.text and "Traceback" not in answer.text
