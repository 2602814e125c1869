"""`coscap bulk` on a Ray of its own: captions, bad pictures, a kill and its repair, a cluster by address."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import ray
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from coscap import Captioner
from coscap.bulk.run import _connect, _import_ray
from coscap.cli.main import app
from tiny_captioner import save_tiny_model

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.jpg"))
N = "2"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One local Ray for all tests here; starting it takes longer than they do."""
    _connect(_import_ray(), "local", num_cpus=2, include_dashboard=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen small photographs and two files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    for index, path in enumerate(EXAMPLES):
        small = Image.open(path).resize((96, 72))
        small.save(folder / f"{index}.jpg")
        small.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / f"{index} turned.png")
    (folder / "broken.jpg").write_bytes(EXAMPLES[0].read_bytes()[:500])
    (folder / "empty.png").write_bytes(b"")
    return folder


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["bulk", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def table(out: Path) -> dict[str, dict]:
    rows = parquet.read_table(out).to_pylist()
    assert len({row["photo"] for row in rows}) == len(rows)
    return {row["photo"]: row for row in rows}


def good(photos: Path) -> list[str]:
    return sorted(str(path) for path in photos.iterdir() if path.stem not in ("broken", "empty"))


def test_a_kill_costs_only_what_is_not_written(
    address: str, model: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "captions.parquet"
    options = [
        photos,
        "--out",
        out,
        "-n",
        N,
        "--model",
        model,
        "--part",
        "2",
        "--batch",
        "2",
        "--processes",
        "1",
    ]
    command = [sys.executable, "-m", "coscap", "bulk", *map(str, options), "--address", address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 900
        while not list(out.glob("part-*.parquet")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = {path: path.read_bytes() for path in out.glob("part-*.parquet")}
    assert before
    known = len(table(out))

    told = run(*options)  # the two bad pictures are named in this run, or were before the kill
    assert "could not be read" in told or known == 14 or f"{known + 2} were known before" in told
    assert {path: path.read_bytes() for path in before} == before
    found = table(out)
    assert sorted(found) == good(photos)
    captioner = Captioner.from_pretrained(model)
    for result in captioner(good(photos), n=int(N)):
        row = found[result.photo]
        assert (row["width"], row["height"]) == (96, 72)
        assert [each["text"] for each in row["captions"]] == [each.text for each in result.captions]
        assert [each["log_probability"] for each in row["captions"]] == pytest.approx(
            [each.log_probability for each in result.captions], abs=1e-4
        )

    bad = tmp_path / "captions.bad.parquet"
    reasons = {Path(row["photo"]).name: row["reason"] for row in parquet.read_table(bad).to_pylist()}
    assert set(reasons) == {"broken.jpg", "empty.png"}
    assert "damaged" in reasons["broken.jpg"] and "empty" in reasons["empty.png"]
    assert "16 were known before" in run(*options)
    assert run(*options).startswith(f"{out}: captions of 0 pictures")


def test_parquet_addresses_and_pictures_that_became_good(
    address: str, model: Path, photos: Path, tmp_path: Path
) -> None:
    out, held = tmp_path / "captions.parquet", tmp_path / "held.parquet"
    first, later = (photos / "0.jpg").read_bytes(), tmp_path / "later.jpg"
    later.write_bytes(first[:100])
    parquet.write_table(pa.table({"id": ["one", "none"], "data": [first, None]}), held, row_group_size=1)
    options = ["--out", out, "-n", N, "--model", model, "--processes", "1", "--names", "id"]
    told = run(held, later, f"file://{photos}/1.jpg", *options)
    assert "captions of 2 pictures" in told and "2 pictures could not be read" in told
    assert set(table(out)) == {"one", f"file://{photos}/1.jpg"}
    later.write_bytes(first)
    assert "captions of 1 pictures" in run(later, *options, "--retry-bad")
    found = table(out)
    assert found[str(later)]["captions"] == found["one"]["captions"]
    left = parquet.read_table(tmp_path / "captions.bad.parquet")["photo"].to_pylist()
    assert left == ["none"]
