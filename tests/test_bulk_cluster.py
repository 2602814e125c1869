"""`coscap bulk` at scale, for real: two Ray nodes of which one is killed, and an S3 server over the network."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from coscap import Captioner
from coscap.errors import UserError
from tiny_captioner import save_tiny_model

pytest.importorskip("ray")
parquet = pytest.importorskip("pyarrow.parquet")

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.jpg"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def make_photos(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    small = [Image.open(path).resize((96, 72)) for path in EXAMPLES]
    made = [folder / f"{index:03d}.jpg" for index in range(count)]
    for index, path in enumerate(made):
        small[index % len(small)].rotate(index).save(path)
    return made


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "coscap", "bulk", *map(str, arguments)]


def captions(out: Path) -> dict[str, list[str]]:
    """The captions of every picture; no picture is there twice."""
    rows = parquet.read_table(out).to_pylist()
    assert len({row["photo"] for row in rows}) == len(rows)
    return {row["photo"]: [each["text"] for each in row["captions"]] for row in rows}


def test_only_regular_files_within_a_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may name any path: a worker must not wait for a pipe, nor read a device for ever."""
    from coscap.bulk import worker

    os.mkfifo(tmp_path / "pipe.jpg")
    (photo,) = make_photos(tmp_path, 1)

    def read(path: object) -> bytes | UserError:
        return worker._content({"photo": "x", "root": "", "path": str(path).encode(), "data": None})

    assert read(photo) == photo.read_bytes()
    for path in (tmp_path / "pipe.jpg", "/dev/zero", tmp_path):
        assert "x is a pipe, a device or a folder" in str(read(path))
    assert "x does not exist" in str(read(tmp_path / "none.jpg"))
    monkeypatch.setattr(worker, "LARGEST", 100)
    assert "x is larger than" in str(read(photo))


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A head and another node, each with a processor, as two machines would be."""
    from ray.cluster_utils import Cluster

    noticed = {  # a node that is gone is seen soon, not after half a minute; one that is slow is not given up
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 300,
        "health_check_timeout_ms": 30_000,
        "health_check_failure_threshold": 3,
        "worker_niceness": 0,  # otherwise they come after everything else that this machine does
    }
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": noticed}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def test_a_node_that_dies_in_the_middle_costs_nothing(cluster, model: Path, tmp_path: Path) -> None:
    photos, out = make_photos(tmp_path / "photos", 64), tmp_path / "captions.parquet"
    options = [tmp_path / "photos", "--out", out, "-n", 2, "--model", model, "--part", 4, "--batch", 2]
    run = subprocess.Popen(
        command(*options, "--address", cluster.address, "--processes", 2), stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 900
    while not list(out.glob("part-*.parquet")) and run.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    assert run.poll() is None, run.stderr.read() if run.stderr else ""
    run.send_signal(signal.SIGSTOP)  # it writes nothing more until the node is gone
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    written = {path: path.read_bytes() for path in out.glob("part-*.parquet")}
    run.send_signal(signal.SIGCONT)
    assert sum(parquet.read_metadata(path).num_rows for path in written) < 64
    _, told = run.communicate(timeout=900)
    if run.returncode:  # the run may end with one sentence; then what is written counts
        assert run.returncode == 2 and told.count("\n") == 1 and "run the same command again" in told
        subprocess.run(command(*options, "--address", cluster.address, "--processes", 1), check=True)
    assert {path: path.read_bytes() for path in written} == written
    found = captions(out)
    assert sorted(found) == sorted(map(str, photos))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of an S3 server in a process of its own."""
    for needed in ("moto", "flask", "flask_cors"):
        pytest.importorskip(needed)
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        until = time.monotonic() + 900
        while not (found := re.search(r"http://(127\.0\.0\.1:\d+)", log.read_text())):
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        server.terminate()
        server.wait()


def test_pictures_and_parquet_of_an_s3_server(cluster, s3: str, model: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import fs

    from coscap.bulk.entries import list_address

    photos = make_photos(tmp_path / "photos", 6)
    store = fs.S3FileSystem(
        access_key="me", secret_key="hidden", endpoint_override=s3, scheme="http", region="us-east-1",
        allow_bucket_creation=True,
    )  # fmt: skip
    store.create_dir("bucket")
    for path in photos:
        with store.open_output_stream(f"bucket/photos/new/{path.name}") as file:
            file.write(path.read_bytes())
    with store.open_output_stream("bucket/photos/broken.jpg") as file:
        file.write(photos[0].read_bytes()[:300])
    held = pa.table({"id": ["one", "two"], "picture": [path.read_bytes() for path in photos[:2]]})
    parquet.write_table(held, "bucket/held.parquet", filesystem=store)

    where = f"?endpoint_override={s3}&scheme=http&region=us-east-1"
    out = tmp_path / "far.parquet"
    options = ["-n", 2, "--model", model, "--processes", 1, "--address", cluster.address]
    far = [
        f"s3://me:hidden@bucket/photos{where}",
        f"s3://me:hidden@bucket/held.parquet{where}",
        "--names",
        "id",
    ]
    done = subprocess.run(command(*far, "--out", out, *options), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "captions of 8 pictures" in done.stdout and "1 pictures could not be read" in done.stdout
    captioner = Captioner.from_pretrained(model)
    near = {each.photo: [caption.text for caption in each.captions] for each in captioner(photos, n=2)}
    found = captions(out)
    assert found == {
        **{f"s3://bucket/photos/new/{path.name}": near[str(path)] for path in photos},
        "one": near[str(photos[0])],
        "two": near[str(photos[1])],
    }
    assert "hidden" not in "".join(found)  # no secret of an address gets into the table
    bad = parquet.read_table(tmp_path / "far.bad.parquet").to_pylist()
    assert [row["photo"] for row in bad] == ["s3://bucket/photos/broken.jpg"]
    with pytest.raises(UserError, match=r"does not exist|has no pictures"):
        list_address(f"s3://me:hidden@bucket/none{where}")
