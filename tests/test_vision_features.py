"""`coscap features`: many pictures to one store, in any number of processes, through kills and bad files."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from coscap.cli.features import app
from coscap.errors import UserError
from coscap.vision import extract as extraction
from coscap.vision.builtin import BuiltinDetector
from coscap.vision.detectors import load_detector
from coscap.vision.extract import Entry, ExtractJob, assemble, extract, list_pictures
from coscap.vision.ids import image_id_of
from coscap.vision.pictures import open_picture
from coscap.vision.store import RegionStore
from coscap.vision.tags import Tagger

EXAMPLES = Path(__file__).parent.parent / "examples"

# Parts of two pictures, so that a handful of pictures has several. With a fourth argument it kills itself before it
# writes so many parts and one.
SCRIPT = """
import os, signal, sys
from coscap.vision import extract as extraction
if __name__ == "__main__":
    extraction.PART = 2
    source, out, processes, *parts = sys.argv[1:]
    write, written = extraction._write_part, []
    def write_or_die(*given):
        if parts and len(written) == int(parts[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        written.append(write(*given))
    extraction._write_part = write_or_die
    extraction.extract(extraction.list_pictures(source), out, extraction.ExtractJob(), processes=int(processes))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Seven good pictures, one of them in a folder below, and three files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "more").mkdir()
    for index, path in enumerate(sorted(EXAMPLES.glob("*.jpg"))):
        small = Image.open(path).resize((120, 90))
        small.save(folder / f"{index:012d}.png" if index else folder / "more" / "first one.webp")
    (folder / "900.jpg").write_bytes((EXAMPLES / "cat.jpg").read_bytes()[:3000])
    (folder / "901.jpg").write_bytes(b"")
    (folder / "notes.txt").write_text("not a picture, and not taken for one")
    return folder


@pytest.fixture(scope="module")
def undisturbed(photos, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("stores") / "regions.h5"
    script = out.with_name("script.py")
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, script, photos, out, "1"], check=True)
    return out


def test_store_and_list_of_bad_pictures(photos, undisturbed) -> None:
    store = RegionStore.open(undisturbed)
    assert sorted(store.names) == [f"{index:012d}.png" for index in range(1, 7)] + ["more/first one.webp"]
    assert 3 in store and "more/first one.webp" in store and image_id_of("more/first one.webp") in store
    bad = undisturbed.with_name("regions.h5.bad.txt").read_text().splitlines()
    assert [Path(line.split(" is ")[0]).name for line in bad] == ["900.jpg", "901.jpg"]
    assert not undisturbed.with_name("regions.h5.parts").exists()


def test_same_bytes_after_kills_in_two_processes(photos, undisturbed, tmp_path) -> None:
    """Killed twice with signal 9 in the middle, then finished with two processes."""
    out, parts = tmp_path / "regions.h5", tmp_path / "regions.h5.parts"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for wanted in (1, 2):
        run = subprocess.run([sys.executable, script, photos, out, "1", "1"])
        assert run.returncode == -signal.SIGKILL
        assert not out.exists() and len(list(parts.glob("*.npz"))) == wanted
    (parts / ".00000003.npz.x.part").write_bytes(b"what a kill in the middle of writing leaves")
    subprocess.run([sys.executable, script, photos, out, "2"], check=True)
    assert out.read_bytes() == undisturbed.read_bytes()
    assert not parts.exists()


def test_what_is_finished_so_far_can_be_used(photos, undisturbed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(extraction, "PART", 3)
    entries, everything = list_pictures(photos), RegionStore.open(undisturbed)
    parts = extraction._make_parts(entries, tmp_path / "all.h5", ExtractJob(), everything.recipe, processes=1)
    sorted(parts.glob("*.npz"))[-1].unlink()
    outcome = assemble(parts, tmp_path / "some.h5")
    some = RegionStore.open(tmp_path / "some.h5")
    assert 0 < outcome.pictures == len(some) < len(everything)
    assert np.array_equal(some.at(0).features, everything.at(0).features)


def test_reuse_computes_nothing_twice(photos, undisturbed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "coscap.vision.builtin.BuiltinDetector.regions", lambda *_: pytest.fail("computed again")
    )
    extract(list_pictures(photos), tmp_path / "again.h5", ExtractJob(reuse=undisturbed))
    assert (tmp_path / "again.h5").read_bytes() == undisturbed.read_bytes()


def test_detections_of_another_map_are_taken_over(photos, undisturbed, tmp_path, monkeypatch) -> None:
    """From recipe 1 to recipe 2 only the map has to run, and the store has the bytes of one made anew."""
    some = list_pictures(photos)[:3]
    extract(some, tmp_path / "imagenet.h5", ExtractJob(detector="builtin:imagenet"))
    detect, detected = BuiltinDetector.detect, []
    monkeypatch.setattr(
        BuiltinDetector, "detect", lambda self, batch: detected.extend(batch) or detect(self, batch)
    )
    extract(list_pictures(photos), tmp_path / "moved.h5", ExtractJob(reuse=tmp_path / "imagenet.h5"))
    everything = RegionStore.open(undisturbed)
    assert (tmp_path / "moved.h5").read_bytes() == undisturbed.read_bytes()
    assert len(detected) == len(everything) - 3


def test_hidden_words_name_no_region(photos, undisturbed, tmp_path) -> None:
    """The rest of the regions stays as it is, made anew or from a store that has them all."""
    everything = RegionStore.open(undisturbed)
    recipe = everything.recipe
    first = len(
        recipe.classes
    )  # labels from here on are words; what is detected stays, whatever it is called
    labels = np.concatenate([everything.at(position).labels for position in range(len(everything))])
    words = sorted({recipe.label_name(label) for label in labels[labels >= first].tolist()})[:5]
    for out, reuse in (("anew.h5", None), ("reused.h5", undisturbed)):
        extract(list_pictures(photos), tmp_path / out, ExtractJob(reuse=reuse, hidden=tuple(words)))
    assert (tmp_path / "anew.h5").read_bytes() == (tmp_path / "reused.h5").read_bytes()
    hidden, gone = RegionStore.open(tmp_path / "anew.h5"), 0
    for position in range(len(everything)):
        before, after = everything.at(position), hidden.at(position)
        kept = [label < first or recipe.label_name(label) not in words for label in before.labels.tolist()]
        assert np.array_equal(after.features, before.features[kept])
        assert np.array_equal(after.labels, before.labels[kept]) and np.array_equal(
            after.scores, before.scores[kept]
        )
        gone += kept.count(False)
    assert gone >= len(words)
    with pytest.raises(UserError, match="other pictures or another recipe"):
        extract(list_pictures(photos), tmp_path / "anew.h5", ExtractJob())
    assert load_detector("builtin", recipe=hidden.recipe).recipe == hidden.recipe != everything.recipe


@pytest.mark.parametrize(
    ("detector", "sentence"), [("builtin:imagenet", "none of the words"), ("builtin", "none of the words")]
)
def test_hiding_what_is_not_named_is_refused(photos, tmp_path, detector: str, sentence: str) -> None:
    arguments = [str(photos), "--out", str(tmp_path / "r.h5"), "--detector", detector, "--hide", "xylophone"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UserError) and sentence in str(result.exception)


def test_a_class_is_hidden_by_all_its_words(tmp_path) -> None:
    (tmp_path / "list.txt").write_text(f"{EXAMPLES / 'cat.jpg'}\n")
    arguments = [
        str(tmp_path / "list.txt"),
        "--out",
        str(tmp_path / "r.h5"),
        "--processes",
        "1",
        "--hide",
        "cat, couch",
    ]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    words = RegionStore.open(tmp_path / "r.h5").recipe.words
    assert not {"cat", "cats", "kitten", "couch", "sofa"} & set(words) and {"dog", "", "chair"} <= set(words)


def test_a_finished_store_is_left_alone(photos, undisturbed, tmp_path) -> None:
    out = tmp_path / "regions.h5"
    for name in ("regions.h5", "regions.h5.bad.txt"):
        shutil.copy(undisturbed.with_name(name), tmp_path / name)
    before = out.stat().st_mtime_ns
    outcome = extract(list_pictures(photos), out, ExtractJob())
    assert len(outcome.bad) == 2 and out.stat().st_mtime_ns == before
    with pytest.raises(UserError, match="there already"):
        extract(list_pictures(photos)[:2], out, ExtractJob())


def test_parts_of_another_run_are_not_mixed_in(photos, tmp_path) -> None:
    entries = list_pictures(photos)
    extraction._open_parts(tmp_path / "a.h5", entries, extraction._recipe_of(ExtractJob()))
    with pytest.raises(UserError, match="beginning of another run"):
        extract(entries[1:], tmp_path / "a.h5", ExtractJob())


def test_lists(tmp_path) -> None:
    (tmp_path / "list.txt").write_text("b/2.jpg\n\n  /data/1.jpg \n")
    assert list_pictures(tmp_path / "list.txt") == [
        Entry("b/2.jpg", str(tmp_path / "b/2.jpg")),
        Entry("/data/1.jpg", "/data/1.jpg"),
    ]
    (tmp_path / "list.txt").write_text("a/1.jpg\nb/000001.png\n")
    with pytest.raises(UserError, match=r"a/1\.jpg and b/000001\.png would have the same id 1"):
        list_pictures(tmp_path / "list.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no pictures"):
        list_pictures(tmp_path / "empty")
    with pytest.raises(UserError, match="does not exist"):
        list_pictures(tmp_path / "none.txt")


def test_command(tmp_path) -> None:
    (tmp_path / "list.txt").write_text(
        f"{EXAMPLES / 'cat.jpg'}\n{EXAMPLES / 'none.jpg'}\n{EXAMPLES / 'coffee.jpg'}\n"
    )
    arguments = [
        str(tmp_path / "list.txt"),
        "--out",
        str(tmp_path / "r.h5"),
        "--processes",
        "1",
        "--limit",
        "2",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "regions of 1 pictures" in result.output and "1 pictures could not be read" in result.output
    assert RegionStore.open(tmp_path / "r.h5").names == [str(EXAMPLES / "cat.jpg")]


def test_show(tmp_path) -> None:
    photo = tmp_path / "<i>cat.jpg"
    shutil.copy(EXAMPLES / "cat.jpg", photo)
    result = CliRunner().invoke(app, ["show", str(photo)])
    assert result.exit_code == 0 and "cat" in result.output and "0.97" in result.output
    result = CliRunner().invoke(app, ["show", str(photo), "--html", str(tmp_path / "out.html")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out.html").read_text()
    assert "&lt;i&gt;cat.jpg" in page and "<i>cat" not in page  # a name is no markup
    assert "cat 0.97</span>" in page and page.count("class='cell'") == 1 and "http" not in page


def test_show_draws_the_words_where_they_are(tmp_path) -> None:
    out = tmp_path / "words.html"
    photo = str(EXAMPLES / "coffee.jpg")
    options = ["show", photo, "--detector", "builtin"]
    done = CliRunner().invoke(app, [*options, "--html", str(out)])
    assert done.exit_code == 0, done.output
    drawn = re.findall(
        r"<div class='word' style='left:([\d.]+)%;top:([\d.]+)%;width:([\d.]+)%;height:([\d.]+)%"
        r";opacity:[\d.]+'><span>([^<]+) ([\d.]+)</span>",
        out.read_text(),
    )
    (tags,) = Tagger()([open_picture(photo, least_side=load_detector("builtin").least_side)], n=16, floor=0)
    told = {word: (float(probability), *map(float, place)) for *place, word, probability in drawn}
    assert len(drawn) == out.read_text().count("class='word'") >= 10 and {"cup", "table"} <= set(told) <= {
        tag.word for tag in tags
    }
    for tag in tags[:5]:
        x1, y1, x2, y2 = (100 * side for side in tag.box)
        assert told[tag.word] == pytest.approx((tag.probability, x1, y1, x2 - x1, y2 - y1), abs=0.6)
    plain = CliRunner().invoke(app, ["show", photo, "--html", str(out), "--detector", "builtin:imagenet"])
    assert plain.exit_code == 0 and "class='word'" not in out.read_text()


def test_ctrl_c_ends_soon_and_leaves_no_process(tmp_path) -> None:
    """As a terminal does it: the interrupt goes to the command and to all of its processes."""
    (tmp_path / "photos").mkdir()
    photo = Image.open(EXAMPLES / "cat.jpg")
    for index in range(300):
        photo.save(tmp_path / "photos" / f"{index}.png") if index == 0 else os.link(
            tmp_path / "photos" / "0.png", tmp_path / "photos" / f"{index}.png"
        )
    out = tmp_path / "r.h5"
    command = [
        sys.executable,
        "-m",
        "coscap",
        "features",
        tmp_path / "photos",
        "--out",
        out,
        "--processes",
        "2",
    ]
    heard = partial(
        signal.signal, signal.SIGINT, signal.default_int_handler
    )  # a background shell hands on deafness
    run = subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    )
    parts = tmp_path / "r.h5.parts"
    limit = time.monotonic() + 600
    while not list(parts.glob("*.npz")) and run.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)  # until the processes are at their work
    assert run.poll() is None
    run.send_signal(signal.SIGSTOP)  # it hands out no further part
    made = set(parts.glob("*.npz"))
    os.killpg(run.pid, signal.SIGINT)
    run.send_signal(signal.SIGCONT)
    _, told = run.communicate(timeout=600)
    assert len(set(parts.glob("*.npz")) - made) <= 1, "what had begun was not finished first"
    assert run.returncode == 130
    assert told.strip() == f"stopped; the same command goes on with what {out}.parts keeps"
    limit = time.monotonic() + 120
    while living(run.pid) and time.monotonic() < limit:
        time.sleep(0.05)
    assert living(run.pid) == []


def living(group: int) -> list[str]:
    """The processes of a group that have not ended, nor wait for somebody to take note of it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state != "Z":
            found.append(name)
    return found


def test_a_folder_or_an_input_as_output_is_refused_before_the_work(photos, undisturbed, tmp_path) -> None:
    def complaint(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "coscap", "features", *map(str, arguments)], capture_output=True, text=True
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        return done.stderr

    assert f"{tmp_path} is a folder, and a file is to be written" in complaint(photos, "--out", tmp_path)
    listed = tmp_path / "list.txt"
    listed.write_text(f"{EXAMPLES / 'cat.jpg'}\n")
    assert "it is what is read" in complaint(listed, "--out", listed)
    assert listed.read_text() == f"{EXAMPLES / 'cat.jpg'}\n"
    assert "is a folder" in complaint("show", EXAMPLES / "cat.jpg", "--html", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["list.txt"]


def test_file_names_of_any_bytes(tmp_path) -> None:
    folder = os.fsencode(tmp_path / "photos")
    os.mkdir(folder)  # noqa: PTH102
    names = [b"latin \xe9.jpg", b"red\x1b[31m.jpg", b"two\nlines.jpg"]
    for name in names:
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(b"no picture")  # noqa: PTH118
    shutil.copy(EXAMPLES / "cat.jpg", os.fsdecode(os.path.join(folder, b"good \xff.jpg")))  # noqa: PTH118
    os.mkfifo(tmp_path / "photos" / "pipe.jpg")
    outcome = extract(list_pictures(tmp_path / "photos"), tmp_path / "r.h5", ExtractJob())
    assert outcome.pictures == 1 and len(outcome.bad) == 3
    assert [os.fsencode(name) for name in RegionStore.open(tmp_path / "r.h5").names] == [b"good \xff.jpg"]
    listed = (tmp_path / "r.h5.bad.txt").read_text()
    assert listed.count("\n") == 3 and "\x1b" not in listed
    assert "latin \\xe9.jpg" in listed and "red\\x1b[31m.jpg" in listed and "two\\nlines.jpg" in listed
    assert (
        len(extract(list_pictures(tmp_path / "photos"), tmp_path / "r.h5", ExtractJob()).bad) == 3
    )  # seen as finished
