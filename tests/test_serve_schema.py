"""The API as its own description says it is, for requests made from the description and for those that once hurt."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings

from coscap import Captioner, serve
from coscap.search.config import SearchSettings
from coscap.search.manner import ACCURATE, DIVERSE, USUAL
from coscap.serve.app import create_app
from coscap.serve.limits import Limits
from coscap.serve.wire import OWN, caption_model, caption_options, form_schema
from tiny_captioner import save_tiny_model

schemathesis = pytest.importorskip("schemathesis")

HERE = Path(__file__).parent
CAT = HERE.parent / "examples" / "cat.jpg"
CORPUS = json.loads((HERE / "data" / "serve_fuzz.json").read_text())
CASES = settings(
    max_examples=50, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


LIMITS = Limits(captions=3, seconds=120)


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    return Captioner.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def client(captioner: Captioner) -> Iterator[TestClient]:
    with TestClient(create_app(captioner, LIMITS), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_address_answers_as_the_description_says(captioner: Captioner, mode: Any) -> None:
    """Requests that keep to the description, and others that break it in one place."""
    # An application of its own: with each test schemathesis ends the lifespan of its application, and so the workers.
    app = create_app(captioner, LIMITS)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.status_code_conformance,
        schemathesis.specs.openapi.checks.content_type_conformance,
        schemathesis.specs.openapi.checks.response_schema_conformance,
    ]
    tried: Counter[str] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is schemathesis.GenerationMode.NEGATIVE and not operation.body:
            continue  # nothing that could be broken

        @settings(CASES)
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            if mode is schemathesis.GenerationMode.POSITIVE and case.path in ("/captions", "/tags"):
                case.body = {**case.body, "photos": [CAT.read_bytes()]}  # otherwise no photograph is one
            answer = case.call()
            tried[f"{case.method} {case.path} {answer.status_code}"] += 1
            assert answer.status_code < 500
            case.validate_response(answer, checks=checks)

        ask()
    if mode is schemathesis.GenerationMode.POSITIVE:
        assert tried["POST /captions 200"] >= 5 and tried["POST /variations 404"] >= 20
        assert tried["POST /tags 200"] >= 20
    else:
        assert tried["POST /captions 422"] >= 20 and tried["POST /variations 422"] >= 20
        assert tried["POST /tags 422"] >= 20
    photos = {"photos": ("cat.jpg", CAT.read_bytes())}
    answer = TestClient(app).post("/captions", files=photos)
    assert answer.status_code == 200, "requests that are good on the wire are captioned, in both modes"


@pytest.mark.parametrize("one", CORPUS, ids=[one["name"] for one in CORPUS])
def test_requests_that_once_hurt(client: TestClient, one: dict[str, Any]) -> None:
    body = (one["body"] * one.get("repeat", 1)).encode("latin-1")
    if one.get("photo"):
        name, text = one["field"], body.decode()
        answer = client.post(
            one["path"], files=[("photos", ("cat.jpg", CAT.read_bytes()))], data={name: text}
        )
    else:
        answer = client.post(one["path"], content=body, headers={"Content-Type": one["type"]})
    assert answer.status_code == one["status"], answer.text
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"].isprintable()


def test_the_form_has_every_search_setting_with_an_upper_bound(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    form = description["paths"]["/captions"]["post"]["requestBody"]["content"]["multipart/form-data"][
        "schema"
    ]
    assert set(form["properties"]) == {"photos", "n", "variety"} | set(SearchSettings.model_fields) - OWN
    assert form["properties"]["n"]["maximum"] == 3
    for name, own in SearchSettings.model_json_schema()[
        "properties"
    ].items():  # never above the setting's own
        if "maximum" in own:
            assert form["properties"][name]["maximum"] <= own["maximum"], name
    for name, schema in form["properties"].items():
        if schema["type"] in ("integer", "number"):
            assert "maximum" in schema, name
            assert "minimum" in schema or "exclusiveMinimum" in schema, name
        if schema["type"] == "string" and "enum" not in schema:
            assert "maxLength" in schema, name
        if schema["type"] == "array":
            assert "maxItems" in schema, name
        assert schema["description"], name


def test_fields_that_are_not_given_have_the_defaults_of_the_command() -> None:
    kind = caption_model(20)
    assert caption_options(kind, []).settings == SearchSettings()
    assert caption_options(kind, [("search", "beam")]).settings == SearchSettings(search="beam")
    assert caption_options(kind, [("must", "cat")]).settings.search == "constrained"
    given = caption_options(kind, [("without", "dog"), ("without", "man"), ("distinct", "true")]).settings
    assert given.without == ("dog", "man") and given.distinct
    assert form_schema(kind)["search"]["enum"] == list(
        get_args(SearchSettings.model_fields["search"].annotation)
    )


def test_404s_are_described(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert "404" in paths["/examples/{name}"]["get"]["responses"]
    assert "404" in paths["/variations"]["post"]["responses"]
    assert {"429", "503", "504"} <= set(paths["/captions"]["post"]["responses"])
    assert (
        paths["/variations"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"][
            "n"
        ]["maximum"]
        == 3
    )


def test_the_slider_of_the_page_goes_from_accurate_over_the_defaults_to_diverse() -> None:
    source = (Path(serve.__file__).parent / "static" / "page.js").read_text()
    found = re.search(
        r'"latent_temperature", \(([\d.]+) \+ ([\d.]+) \* slide \+ ([\d.]+) \* Math\.max\(0, slide - 0\.5\)\)',
        source,
    )
    assert found
    low, slope, more = (float(each) for each in found.groups())
    for slide, (temperature, _) in ((0.0, ACCURATE), (0.5, USUAL), (1.0, DIVERSE)):
        assert low + slope * slide + more * max(0.0, slide - 0.5) == pytest.approx(temperature)
