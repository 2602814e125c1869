"""The study as annotators and researchers meet it over HTTP."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from coscap.serve.study.answers import Answers
from coscap.serve.study.app import create_study_app
from coscap.serve.study.material import Study, read_study
from test_study_parts import METHODS, write_samples


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return read_study(write_samples(tmp_path / "material"))


@pytest.fixture
def client(study: Study, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_study_app(study, Answers(tmp_path / "study.sqlite", study))) as client:
        yield client


def rate(client: TestClient, name: str, place: int, accuracy: int, diversity: int) -> dict[str, int]:
    given = {"annotator": name, "place": place, "accuracy": accuracy, "diversity": diversity}
    answer = client.post("/ratings", json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_annotator_rates_leaves_and_comes_back(client: TestClient, study: Study) -> None:
    begun = client.post("/annotators", json={"annotator": "  Ann  Lee "}).json()
    assert begun == {"annotator": "Ann Lee", "captions": 5, "items": 8, "rated": 0, "next": 0}
    for place in range(3):
        assert rate(client, "Ann Lee", place, 7, 3)["next"] == place + 1
    assert rate(client, "Ann Lee", 1, 10, 1) == {"items": 8, "rated": 3, "next": 3}  # changed
    item = client.get("/items/1", params={"annotator": "Ann Lee"}).json()
    assert (item["accuracy"], item["diversity"]) == (10, 1)
    assert client.post("/annotators", json={"annotator": "ann lee"}).json()["next"] == 3
    for place in range(3, 8):
        last = rate(client, "Ann Lee", place, 5, 5)
    assert last["next"] is None


def test_nothing_that_an_annotator_gets_names_a_method(client: TestClient) -> None:
    client.post("/annotators", json={"annotator": "Ann"})
    told = [client.get("/").text, client.post("/annotators", json={"annotator": "Ann"}).text]
    told += [client.get(f"/items/{place}?annotator=Ann").text for place in range(8)]
    told.append(str(rate(client, "Ann", 0, 4, 4)))
    assert not any(method in text for method in METHODS for text in told)
    assert METHODS[0] in client.get("/results.csv").text or METHODS[1] in client.get("/results.csv").text


def test_pictures_come_without_metadata(client: TestClient, study: Study) -> None:
    picture = Image.new("RGB", (50, 40))
    exif = Image.Exif()
    exif[0x010E] = "a secret"
    picture.save(study.files[0], exif=exif)
    answer = client.get("/pictures/0")
    assert answer.headers["content-type"] == "image/jpeg" and b"a secret" not in answer.content
    assert Image.open(io.BytesIO(answer.content)).size == (50, 40)
    assert client.get("/pictures/4").status_code == 404
    assert client.get("/pictures/-1").status_code == 404


def test_results_figure_and_table(client: TestClient, study: Study) -> None:
    assert client.get("/results.json").json()["ratings"] == 0
    for name in ("Ann", "=Ben"):
        client.post("/annotators", json={"annotator": name})
        for place, item in enumerate(study.order(name)):
            rate(client, name, place, 8 if item.method == "ours" else 4, 2 + item.picture)
    found = client.get("/results.json").json()
    assert found["methods"]["ours"]["accuracy"]["mean"] == 8
    assert found["differences"][0]["accuracy"]["mean"] == 4
    assert found["agreement"] == {"accuracy": 1.0, "diversity": 1.0}
    assert [one["rated"] for one in found["annotators"]] == [8, 8]
    rows = list(csv.DictReader(io.StringIO(client.get("/results.csv").text)))
    assert len(rows) == 16 and {row["annotator"] for row in rows} == {"Ann", "'=Ben"}
    figure = client.get("/results.svg")
    assert figure.headers["content-type"] == "image/svg+xml" and "ours" in figure.text
    assert "ours" not in client.get("/results").text  # a shell; what it shows it must ask for


@pytest.mark.parametrize(
    ("address", "body", "status", "expected"),
    [
        ("/annotators", {}, 422, "annotator is missing"),
        ("/annotators", {"annotator": "   "}, 422, "at least 1 character"),
        ("/annotators", {"annotator": "x" * 61}, 422, "at most 60"),
        ("/annotators", {"annotator": "a\nb"}, 422, "annotator"),
        ("/annotators", {"annotator": 7}, 422, "valid string"),
        ("/ratings", [], 422, "JSON object"),
        ("/ratings", {"annotator": "Ann", "place": 0, "accuracy": 0, "diversity": 5}, 422, "accuracy is 0"),
        (
            "/ratings",
            {"annotator": "Ann", "place": 0, "accuracy": 5, "diversity": 11},
            422,
            "diversity is 11",
        ),
        (
            "/ratings",
            {"annotator": "Ann", "place": 0, "accuracy": 5.5, "diversity": 1},
            422,
            "accuracy is 5.5",
        ),
        ("/ratings", {"annotator": "Ann", "place": 0, "accuracy": True, "diversity": 1}, 422, "accuracy"),
        ("/ratings", {"annotator": "Ann", "place": 99, "accuracy": 5, "diversity": 1}, 404, "8 items"),
        ("/ratings", {"annotator": "Eve", "place": 0, "accuracy": 5, "diversity": 1}, 404, "No annotator"),
        (
            "/ratings",
            {"annotator": "Ann", "place": 0, "accuracy": 5, "diversity": 1, "x": 1},
            422,
            "no field",
        ),
    ],
)
def test_bad_requests_are_a_sentence(
    client: TestClient, address: str, body: object, status: int, expected: str
) -> None:
    client.post("/annotators", json={"annotator": "Ann"})
    answer = client.post(address, json=body)
    assert answer.status_code == status, answer.text
    assert expected in answer.json()["error"]


def test_bad_addresses_are_a_sentence(client: TestClient) -> None:
    for address in ("/items/x?annotator=Ann", "/pictures/..%2f..%2fours.json", "/captions", "/docs"):
        answer = client.get(address)
        assert answer.status_code == 404 and list(answer.json()) == ["error"]


def test_the_token_guards_all_but_the_shells(study: Study, tmp_path: Path) -> None:
    made = create_study_app(study, Answers(tmp_path / "study.sqlite", study), tokens=["secret"])
    with TestClient(made) as client:
        for address in ("/", "/results", "/health"):
            assert client.get(address).status_code == 200
        for address in (
            "/items/0?annotator=A",
            "/pictures/0",
            "/results.json",
            "/results.csv",
            "/results.svg",
        ):
            assert client.get(address).status_code == 401
        assert client.post("/annotators", json={"annotator": "A"}).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert client.post("/annotators", json={"annotator": "A"}, headers=headers).status_code == 200
        assert client.get("/results.csv", headers=headers).status_code == 200
        crossed = {**headers, "Sec-Fetch-Site": "cross-site"}
        assert client.post("/annotators", json={"annotator": "A"}, headers=crossed).status_code == 403
