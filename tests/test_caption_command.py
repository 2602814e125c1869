"""`coscap caption`: what it prints and writes, what it refuses, and how it goes on after a kill."""

import csv
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.cli.outputs import Embedded
from coscap.errors import UserError
from tiny_captioner import save_tiny_model

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.jpg"))
EXAMPLE = str(EXAMPLES[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two small photographs, one of them in a folder of its own, and one that is broken."""
    place = tmp_path / "photos"
    (place / "deep").mkdir(parents=True)
    for name, path in zip(("a.jpg", "deep/b.png"), EXAMPLES, strict=False):
        Image.open(path).resize((96, 72)).save(place / name)
    return place


def run(*arguments: str | Path) -> tuple[int, str]:
    """The exit code, and what is on standard output or, if it is not 0, what is on standard error."""
    done = CliRunner().invoke(app, ["caption", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, UserError), done.exception
        return 2, f"{done.stderr}{done.exception}"
    return done.exit_code, done.stdout


def test_command_writes_json_and_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out = run(*map(str, EXAMPLES[:2]), "-n", "2", "--model", str(folder), "--json", "--html", str(page))
    assert code == 0
    results = json.loads(out[: out.rindex("]") + 1])
    assert [result["photo"] for result in results] == [str(path) for path in EXAMPLES[:2]]
    for result in results:
        for caption in result["captions"]:
            assert set(caption) == {"text", "alt", "log_probability", "support", "words"}
            assert all(set(word) - {"support"} == {"word", "box", "weight"} for word in caption["words"])
    text = page.read_text()
    assert text.count("<figure>") == 2
    assert "{{" not in text
    assert 'src="http' not in text


def test_command_goes_on_after_a_bad_photograph(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(EXAMPLES[0].read_bytes()[:300])
    page = tmp_path / "page.html"
    code, message = run(str(broken), str(EXAMPLES[0]), "--model", str(folder), "-n", "1", "--html", str(page))
    assert code == 2
    assert "1 of 2" in message and "broken.jpg" in message
    text = page.read_text()
    assert text.count("<figure>") == 1 and "broken.jpg is damaged" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing-here.jpg"], "nothing-here.jpg does not exist"),
        (["http://127.0.0.1:9/x.jpg"], "--urls"),
        (["x.jpg", "--accurate", "--diverse"], "exclude each other"),
        (["x.jpg", "--json", "--jsonl"], "exclude each other"),
        ([EXAMPLE, "--device", "cuda"], "--device cuda"),
        ([EXAMPLE, "--device", "tpu"], "cpu or cuda"),
        ([EXAMPLE, "--temperature", "0.4"], "--latent-temperature"),
        ([EXAMPLE, "--out", "captions.txt"], ".json, .jsonl or .csv"),
        ([EXAMPLE, "--out", "captions.json", "--append"], "--skip-existing"),
        ([EXAMPLE, "--sidecar", "--append", "--overwrite"], "exclude each other"),
        (["-", "--sidecar"], "standard input has no folder"),
        (["http://127.0.0.1:9/x.jpg", "--urls", "--sidecar"], "has no folder"),
        ([EXAMPLE, "--alt", "--max-chars", "30", "--prefix", "A photograph: "], "leave at least 20"),
        ([EXAMPLE, "--html", "/tmp"], "is a folder"),
    ],
)
def test_bad_arguments_are_one_sentence(
    arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a model is loaded."""
    monkeypatch.setattr("coscap.captioner.Captioner.from_pretrained", None)
    code, message = run(*arguments)
    assert code == 2
    assert expected in message


def test_must_and_without(folder: Path) -> None:
    code, out = run(str(EXAMPLES[0]), "--model", str(folder), "--must", "zebra", "-n", "2", "--json")
    assert code == 0
    texts = [caption["text"] for caption in json.loads(out)[0]["captions"]]
    assert texts and all("zebra" in text for text in texts)
    code, out = run(str(EXAMPLES[0]), "--model", str(folder), "--without", "person", "-n", "4", "--json")
    words = {w["word"] for c in json.loads(out)[0]["captions"] for w in c["words"]}
    assert not words & {"man", "woman", "person", "people"}


def test_nothing_heavy_is_loaded_for_an_early_answer() -> None:
    """A missing file, choices that exclude each other and a missing GPU are answered without torch."""
    for arguments in (
        ["nosuch.jpg"],
        [EXAMPLE, "--accurate", "--diverse"],
        [EXAMPLE, "--search", "beam", "--device", "cuda"],
    ):
        program = (
            "import sys; sys.modules['torch'] = None; sys.modules['onnxruntime'] = None\n"
            f"sys.argv[1:] = ['caption', *{arguments!r}]\n"
            "from coscap.cli.main import main; main()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
        if "cuda" in arguments and any(Path(p).exists() for p in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")):
            continue
        assert done.returncode == 2
        assert done.stderr.startswith("coscap: ") and len(done.stderr.splitlines()) == 1, done.stderr


def test_every_bad_photograph_is_listed(folder: Path, tmp_path: Path) -> None:
    broken = [tmp_path / f"{number}.jpg" for number in range(6)]
    for path in broken:
        path.write_bytes(b"not a picture")
    options = ["--model", folder, "-n", "1", "--max-length", "4"]
    code, message = run(*broken, EXAMPLE, *options)
    assert code == 2 and "6 of 7" in message
    assert all(f"{number}.jpg" in message for number in range(6))
    done = CliRunner().invoke(app, ["caption", *map(str, [*broken, EXAMPLE, *options, "--jsonl"])])
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [("error" in row, row["photo"]) for row in rows] == [
        *((True, str(path)) for path in broken),
        (False, EXAMPLE),
    ]


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv"])
def test_out_holds_all_and_is_added_to(
    folder: Path, photos: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"captions.{kind}"
    options = ["--model", folder, "-n", "2", "--max-length", "5", "--out", out]
    code, _ = run(photos / "a.jpg", *options)
    assert code == 0 and not (tmp_path / f"{out.name}.partial").exists()
    first = rows_of(out)
    assert [row["photo"] for row in first] == [str(photos / "a.jpg")] and len(first[0]["captions"]) == 2
    code, message = run(photos, *options)
    assert code == 2 and "--skip-existing" in message
    (photos / "broken.jpg").write_bytes(b"nothing")
    code, message = run(photos, *options, "--skip-existing")
    assert code == 2 and "1 of 3" in message
    rows = rows_of(out)
    assert {row["photo"]: "error" in row for row in rows} == {
        str(photos / "a.jpg"): False,
        str(photos / "broken.jpg"): True,
        str(photos / "deep" / "b.png"): False,
    }
    assert rows[0] == first[0]
    with monkeypatch.context() as patch:  # nothing is left to do, so no model is loaded
        (photos / "broken.jpg").unlink()
        patch.setattr("coscap.captioner.Captioner.from_pretrained", None)
        assert run(photos, *options, "--skip-existing")[0] == 0
    assert rows_of(out) == [row for row in rows if "error" not in row]
    code, _ = run(photos / "deep", *options, "--overwrite")
    assert code == 0 and [row["photo"] for row in rows_of(out)] == [str(photos / "deep" / "b.png")]


def rows_of(path: Path) -> list[dict[str, object]]:
    text = path.read_text()
    if path.suffix == ".json":
        return list(json.loads(text))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    rows: dict[str, dict[str, object]] = {}
    for line in csv.DictReader(text.splitlines()):
        row = rows.setdefault(line["photo"], {"photo": line["photo"], "captions": []})
        if line["error"]:
            row["error"] = line["error"]
        else:
            assert 0 <= float(line["support"]) <= 1
            row["captions"].append((line["caption"], line["alt"], line["log_probability"], line["support"]))  # type: ignore[attr-defined]
    return list(rows.values())


MORTAL = """
import os, signal, sys
from coscap.captioner import Captioner
write, batches = Captioner.caption, []
def dies_at_the_fifth(*given, **options):
    batches.append(given)
    if len(batches) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*given, **options)
Captioner.caption = dies_at_the_fifth
from coscap.cli.main import main
main()
"""


def test_a_killed_run_goes_on(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "many"
    place.mkdir()
    for number in range(60):
        Image.open(EXAMPLES[number % 3]).resize((64 + number, 64)).save(place / f"{number:02d}.jpg")
    out, partial = tmp_path / "captions.jsonl", tmp_path / "captions.jsonl.partial"
    options = [place, "--model", folder, "-n", "1", "--max-length", "5", "--out", out]
    command = [sys.executable, "-c", MORTAL, "caption", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()
    kept = partial.read_bytes().count(b"\n") - 1
    partial.write_bytes(partial.read_bytes() + b'{"photo": "torn')
    code, message = run(*options, "--seed", "3")
    assert code == 2 and "other settings" in message
    before = partial.read_bytes()
    code, _ = run(*options)
    assert code == 0 and 0 < kept < 60 and not partial.exists()
    rows = rows_of(out)
    assert [row["photo"] for row in rows] == [str(place / f"{number:02d}.jpg") for number in range(60)]
    assert all(row["captions"] for row in rows)
    assert before.count(b"\n") == kept + 1
    whole = tmp_path / "whole.jsonl"
    run(*options[:-1], whole)
    assert whole.read_text() == out.read_text()


def test_sidecars_never_replace_what_is_there(folder: Path, photos: Path) -> None:
    options = ["--model", folder, "-n", "2", "--max-length", "5", "--sidecar"]
    mine = photos / "a.txt"
    mine.write_text("my own words")
    code, message = run(photos, *options)
    assert code == 2 and "a.txt is there" in message and mine.read_text() == "my own words"
    assert not (photos / "deep" / "b.txt").exists()
    assert run(photos, *options, "--skip-existing")[0] == 0
    assert mine.read_text() == "my own words"
    assert len((photos / "deep" / "b.txt").read_text().splitlines()) == 2
    assert run(photos / "a.jpg", *options, "--append")[0] == 0
    lines = mine.read_text().splitlines()
    assert lines[0] == "my own words" and len(lines) == 3
    assert run(photos / "a.jpg", *options, "--overwrite")[0] == 0
    assert mine.read_text().splitlines() == lines[1:]


def test_two_photographs_cannot_share_a_sidecar(
    folder: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(photos / "deep" / "b.png", photos / "a.png")
    monkeypatch.setattr("coscap.captioner.Captioner.from_pretrained", None)
    for options in (["--sidecar"], ["--sidecar", "--overwrite"], ["--xmp"]):
        code, message = run(photos, "--model", folder, *options)
        assert code == 2 and "would both have" in message


def test_alternative_texts_and_xmp(folder: Path, photos: Path) -> None:
    options = ["--model", folder, "--max-length", "6", "--beginning", "a dog"]
    code, out = run(photos / "a.jpg", *options, "--alt", "--prefix", "Ex. & <co>: ", "--sidecar", "--xmp")
    alt = (photos / "a.txt").read_text().rstrip("\n")
    assert code == 0 and alt.startswith("Ex. & <co>: A dog") and alt.endswith(".")
    assert alt in " ".join(out.split()) and len((photos / "a.txt").read_text().splitlines()) == 1
    packet = (photos / "a.xmp").read_text()
    assert "Ex. &amp; &lt;co&gt;: A dog" in packet and "AltTextAccessibility" in packet
    exiftool = shutil.which("exiftool")
    if exiftool is None:
        from xml.etree import ElementTree

        ElementTree.fromstring(packet)
        return
    done = subprocess.run(
        [exiftool, "-j", "-XMP:all", str(photos / "a.xmp")], capture_output=True, text=True, check=True
    )
    (found,) = json.loads(done.stdout)
    assert found["AltTextAccessibility"] == found["Description"] == alt


def test_alternative_texts_inside_of_photographs(folder: Path, photos: Path) -> None:
    options = ["--model", folder, "--max-length", "6", "--beginning", "a dog", "-n", "1", "--embed-xmp"]
    before = {path: path.read_bytes() for path in (photos / "a.jpg", photos / "deep" / "b.png")}
    assert run(photos, *options, "--alt", "--max-chars", "60")[0] == 0
    assert not list(photos.rglob("*.xmp")) and not list(photos.rglob(".*"))
    for path, content in before.items():
        with Image.open(path) as now, Image.open(io.BytesIO(content)) as then:
            assert now.tobytes() == then.tobytes()
        assert b"A dog" in path.read_bytes() and len(path.read_bytes()) > len(content)
    written = {path: path.read_bytes() for path in before}
    code, message = run(photos, *options)
    assert code == 2 and "a.jpg and 1 more have a description inside" in message
    assert run(photos, *options, "--skip-existing")[0] == 0
    assert {path: path.read_bytes() for path in before} == written
    assert run(photos, *options, "--overwrite", "--prefix", "Ex.: ")[0] == 0
    assert all(b"Ex.: A dog" in path.read_bytes() for path in before)


def test_what_cannot_hold_a_text_is_refused_before_the_work(
    folder: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coscap.captioner.Captioner.from_pretrained", None)
    options = ["--model", folder, "--embed-xmp"]
    assert "for --sidecar" in run(photos / "a.jpg", *options, "--append")[1]
    assert "standard input has no folder" in run("-", *options)[1]
    os.mkfifo(photos / "pipe.jpg")
    assert not Embedded([str(photos / "pipe.jpg")], "refuse").described  # and it was not waited for
    (photos / "pipe.jpg").unlink()
    shutil.copy(photos / "a.jpg", photos / "odd.jpg")
    content = (photos / "odd.jpg").read_bytes()
    damaged = b"\xff\xe1" + struct.pack(">H", 2 + 29 + 5) + b"http://ns.adobe.com/xap/1.0/\0<x:a>"
    (photos / "odd.jpg").write_bytes(content[:2] + damaged + content[2:])
    code, message = run(photos, *options, "--overwrite")
    assert code == 2 and "odd.jpg cannot be written into, because its XMP is not valid XML" in message
    Image.open(photos / "a.jpg").save(photos / "odd.jpg", "GIF")
    code, message = run(photos, *options)
    assert code == 2 and "odd.jpg is GIF" in message
    assert b"ns.adobe" not in (photos / "a.jpg").read_bytes()


def test_quiet_pages_and_colours(folder: Path, photos: Path, tmp_path: Path) -> None:
    """Nothing but the result with --quiet, wherever it is given; no escape codes in a pipe."""
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "coscap", "caption", str(photos), "--model", str(folder), "-n", "1"]
    command += ["--max-length", "5", "--html", str(page)]
    loud = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert loud.returncode == 0 and "The page is" in loud.stderr
    assert "\x1b" not in loud.stdout + loud.stderr
    quiet = subprocess.run([*command, "--quiet"], capture_output=True, text=True, timeout=600)
    assert quiet.stderr == "" and quiet.stdout == loud.stdout
    both = subprocess.run([*command, "--quiet", "--verbose"], capture_output=True, text=True, timeout=600)
    assert both.returncode == 2 and "exclude each other" in both.stderr
    odd = {**os.environ, "COSCAP_LOG": "loud"}
    wrong = subprocess.run(command, capture_output=True, text=True, timeout=600, env=odd)
    assert wrong.returncode == 2 and "COSCAP_LOG" in wrong.stderr


def test_the_page_has_copy_buttons_and_an_index(folder: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "captions.json"
    options = ["--model", folder, "-n", "2", "--max-length", "5", "--out", out, "--html", page]
    assert run(*EXAMPLES[:2], *options)[0] == 0
    text = page.read_text()
    assert text.count("data-copy=") == 8 and "<nav>" not in text
    assert run(*EXAMPLES[:5], *options, "--skip-existing")[0] == 0
    text = page.read_text()  # with those that an earlier run captioned
    assert text.count("<figure>") == 5
    for number, path in enumerate(EXAMPLES[:5], 1):
        assert f'<a href="#photo-{number}">{path}</a>' in text and f'id="photo-{number}"' in text
