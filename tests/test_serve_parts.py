"""The parts of the server that need no model: the store of ids, the page, the command."""

import base64
import hashlib
import re
import runpy
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.errors import UserError
from coscap.serve.pages import EXAMPLES, example_photos, main_page
from coscap.serve.run import _listen
from coscap.serve.store import Recent


def test_ids_expire_and_the_oldest_leave_first() -> None:
    now = [0.0]
    recent: Recent[str] = Recent(most=2, seconds=10, clock=lambda: now[0])
    (first,) = recent.put(["a"])
    second = recent.put(["b", "c"])
    assert [recent.get(id) for id in (first, *second)] == ["a", "b", "c"]
    now[0] = 5
    (third,) = recent.put(["d"])
    assert recent.get(first) is None and recent.get(third) == "d"
    now[0] = 10
    assert [recent.get(id) for id in second] == [None, None]
    assert len(recent) == 1


@pytest.mark.parametrize("tail", ["", ".", ".1", ".-1", ".٠", ".0.0", ".99999999999", "/../x", ".0 "])
def test_only_whole_ids_are_known(tail: str) -> None:
    recent: Recent[str] = Recent(most=2, seconds=10)
    (id,) = recent.put(["a"])
    assert recent.get(id) == "a"
    assert recent.get(id.removesuffix(".0") + tail) is None


def test_the_page_is_whole_and_its_policy_allows_it_alone() -> None:
    page = main_page()
    assert "{{" not in page.html
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page.html)
    assert not re.search(r"url\(|@import|\son\w+=", page.html)
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.html, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page.policy
    assert page.policy.startswith("default-src 'self'")
    assert "unsafe" not in page.policy


def test_every_control_of_the_page_has_a_name() -> None:
    page = main_page().html
    for id in re.findall(r'<(?:input|select)[^>]*id="(\w+)"', page):
        assert f'for="{id}"' in page
    ids = re.findall(r'\bid="(\w+)"', page)
    assert len(ids) == len(set(ids))
    for id in re.findall(r'\$\("(\w+)"\)', page):
        assert id in ids


def luminance(colour: str) -> float:
    wide = colour if len(colour) == 7 else "#" + "".join(c * 2 for c in colour[1:])
    parts = [int(wide[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_can_be_read() -> None:
    themes = re.findall(r":root \{(.*?)\}", main_page().html, re.S)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#\w+)", theme))
        pairs = [(ink, paper) for ink in ("ink", "soft", "mark", "deep") for paper in ("paper", "card")]
        for one, other in [*pairs, ("on", "deep")]:
            low, high = sorted((luminance(colours[one]), luminance(colours[other])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (one, other)


def test_examples_are_a_fixed_list() -> None:
    photos = example_photos()
    assert set(photos) == {f"{name}.jpg" for name in EXAMPLES}
    assert all(content.startswith(b"\xff\xd8") for content in photos.values())


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="Cannot listen on"):
            _listen("127.0.0.1", taken.getsockname()[1])


def test_the_command_has_help_and_names_a_missing_model() -> None:
    told = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    for option in ("--host", "--port", "--token", "--max-photos", "--max-bytes", "--max-n", "--timeout"):
        assert option in told
    done = CliRunner().invoke(app, ["serve", "--port", "0", "--model", "no/such/folder/anywhere"])
    assert isinstance(done.exception, UserError)


def test_a_soak_does_not_overlook_a_good_request_that_failed() -> None:
    scripts = Path(__file__).parents[1] / "scripts"
    soak_of = runpy.run_path(str(scripts / "soak.py"))["Soak"]

    class Failing(soak_of):  # type: ignore[misc, valid-type]
        """All that is asked is answered with 504; only the good requests should have been answered otherwise."""

        def ask(self, *given: object) -> tuple[str, bytes]:
            return "504", b""

        def half_sent(self, chance: object) -> str:
            return "left"

        leaves = half_sent

    corpus = [{"path": "/captions", "type": "text/plain", "body": ""}]
    soak = Failing(port=0, photos=[b"photo"], corpus=corpus, left=60, seed=1)
    soak.client()
    assert 0 < soak.statuses["good 504"] == len(soak.bad) < 60
