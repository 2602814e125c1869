"""`coscap data` as a person runs it: exit codes, one sentence, whole folders or none."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coscap.cli import main as command
from coscap.data import open_prepared
from data_made import coco_document, write


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["coscap", "data", *map(str, arguments)])
    try:
        command.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_coco_file_to_folder_and_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "c.json", coco_document())
    out = tmp_path / "d"
    assert run("coco", file, "--split", "train", "--min-count", 1, "--out", out, monkeypatch=monkeypatch) == 0
    data = open_prepared(out)
    assert [len(data.images(name)) for name in ("train", "unpaired")] == [2, 1]
    assert str(tmp_path) not in (out / "manifest.json").read_text()
    assert run("show", out, monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    for expected in (
        "train",
        "unpaired",
        "A dog near a fire hydrant.",
        "a | <s> | near | a | <s>",
        "words in a caption",
    ):
        assert expected in shown


def test_karpathy_flickr_folder_and_jsonl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"filename": f"{i}.jpg", "cocoid": i, "split": split, "sentences": [{"raw": "a cat"}]}
        for i, split in enumerate(("train", "val", "test"))
    ]
    karpathy = write(tmp_path / "k.json", {"images": rows})
    out = tmp_path / "k"
    assert run("coco", "--split", "karpathy", "--karpathy", karpathy, "-o", out, monkeypatch=monkeypatch) == 0
    assert [len(open_prepared(out).images(name)) for name in ("train", "val", "test")] == [1, 1, 1]
    token = write(tmp_path / "Flickr8k.token.txt", "".join(f"{i}_x.jpg#0\ta dog\n" for i in range(20)))
    assert run("flickr8k", token, "--test", 3, "-o", tmp_path / "f", monkeypatch=monkeypatch) == 0
    assert len(open_prepared(tmp_path / "f").images("test")) == 3
    lines = write(tmp_path / "x.jsonl", '{"image": "a.jpg", "caption": "a cat"}\n{"image": "b.jpg"}\n')
    assert run("jsonl", lines, "-o", tmp_path / "j", monkeypatch=monkeypatch) == 0
    assert len(open_prepared(tmp_path / "j").images("unpaired")) == 1
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    (tmp_path / "photos" / "a.txt").write_text("a cat\n")
    assert run("folder", tmp_path / "photos", "-o", tmp_path / "p", monkeypatch=monkeypatch) == 0
    assert len(open_prepared(tmp_path / "p")) == 1


BAD: dict[str, tuple[list[str], str]] = {
    "broken": (["coco", "broken.json"], "line 1, column"),
    "absent": (["coco", "absent.json"], "does not exist"),
    "stranger": (["coco", "stranger.json"], "annotations[0] (id 1): its image 99"),
    "split": (["coco", "good.json", "--split", "toast"], "--split toast is not known"),
    "mrnn": (["coco", "good.json", "--split", "mrnn"], "none of m-RNN's 1,000 test pictures"),
    "karpathy": (["coco", "good.json", "--split", "karpathy"], "--karpathy dataset_coco.json"),
    "long": (["coco", "good.json", "--long", "fold"], "--long fold"),
    "objects": (["coco", "good.json", "--objects", "nothing.yaml"], "nothing.yaml"),
    "ids": (["coco", "good.json", "--exclude-ids", "good.json.x"], "good.json.x does not exist"),
    "flickr": (["flickr8k", "."], "name the captions file itself"),
    "folder": (["folder", "good.json"], "is not a folder"),
    "show": (["show", "good.json"], "is not a prepared data set"),
    "regions": (["regions", "good.json"], "no store of regions"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.json", coco_document())
    write(tmp_path / "broken.json", json.dumps(coco_document())[:50])
    stranger = coco_document()
    stranger["annotations"][0]["image_id"] = 99
    write(tmp_path / "stranger.json", stranger)
    arguments, expected = BAD[case]
    out = [] if case == "show" else ["--out", "out"]
    assert run(*arguments, *out, monkeypatch=monkeypatch) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("coscap: ") and complaint.count("\n") == 1 and expected in complaint
    assert not (tmp_path / "out").exists()


def test_skip_bad_goes_on_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = coco_document()
    document["annotations"][0]["image_id"] = 99
    document["annotations"].append({"id": 9, "image_id": 3, "caption": ""})
    file = write(tmp_path / "c.json", document)
    arguments = ["coco", file, "--split", "train", "--out", tmp_path / "d", "--skip-bad"]
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    assert "skipped: unknown image, 1 items" in capsys.readouterr().out
    skipped = open_prepared(tmp_path / "d").manifest["skipped"]
    assert {kind: told["items"] for kind, told in skipped.items()} == {"unknown image": 1, "empty caption": 1}


def test_ids_of_no_picture_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, ids = write(tmp_path / "c.json", coco_document()), write(tmp_path / "ids.json", [3, 77, 78])
    assert run("coco", file, "--test-ids", ids, "--out", tmp_path / "d", monkeypatch=monkeypatch) == 0
    assert "2 of the 3 image ids in" in capsys.readouterr().err


def test_help_needs_no_heavy_library() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from coscap.cli.main import app;"
        "assert CliRunner().invoke(app, ['data', 'coco', '--help']).exit_code == 0;"
        "print(sorted({'torch', 'numpy', 'h5py', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SLOW = """
import sys, time, numpy
from coscap.cli.main import main
save = numpy.save
def slowly(path, *rest, **options):
    save(path, *rest, **options)
    time.sleep(3600)
numpy.save = slowly
sys.argv = ["coscap", "data", "jsonl", sys.argv[1], "--out", sys.argv[2]]
main()
"""


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_while_it_writes_leaves_no_half_folder(
    tmp_path: Path, kind: signal.Signals
) -> None:
    file = write(tmp_path / "x.jsonl", '{"image": "1.jpg", "caption": "two dogs"}\n')
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(file), str(tmp_path / "d")])
    while not any(tmp_path.glob(".d.*.part/*.npy")):  # until it has begun to write
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(kind)
    assert process.wait(timeout=600) != 0
    left = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".part")}
    assert left == {"x.jsonl"}
    if kind == signal.SIGTERM:  # cleaned up too; nothing can after SIGKILL
        assert not list(tmp_path.glob(".d.*"))


def test_a_karpathy_file_among_the_arguments_keeps_its_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [
        {
            "filename": f"COCO_val2014_{number:012d}.jpg",
            "cocoid": number,
            "split": split,
            "sentences": [{"raw": "a dog"}],
        }
        for number, split in enumerate(("train", "restval", "val", "test"), start=1)
    ]
    file, out = write(tmp_path / "k.json", {"images": images}), tmp_path / "d"
    assert run("coco", file, "--workers", 1, "--out", out, monkeypatch=monkeypatch) == 0
    data = open_prepared(out)
    assert [len(data.images(name)) for name in ("train", "validation", "test")] == [2, 1, 1]


def test_a_source_without_pictures_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "nothing.json", {"images": [], "annotations": []})
    assert run("coco", file, "--out", tmp_path / "d", monkeypatch=monkeypatch) == 2
    assert "nothing.json holds no pictures" in capsys.readouterr().err


def test_bad_regions_stop_or_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    from coscap.vision.store import RegionStore

    folder, out = tmp_path / "npz", tmp_path / "r.h5"
    folder.mkdir()
    for number, width in ((1, 4), (2, 5), (3, 4)):
        np.savez(folder / f"{number}.npz", features=np.ones((2, width), np.float32))
    assert run("regions", folder, "--out", out, monkeypatch=monkeypatch) == 2
    assert "image 2: features are 5 wide" in capsys.readouterr().err and not out.exists()
    assert run("regions", folder, "--out", out, "--skip-bad", monkeypatch=monkeypatch) == 0
    assert "skipped: bad regions, 1 items" in capsys.readouterr().out
    assert sorted(RegionStore.open(out).ids.tolist()) == [1, 3]


def test_pictures_without_any_caption_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    lines = write(tmp_path / "x.jsonl", '{"image": "a.jpg"}\n{"image": "b.jpg", "captions": []}\n')
    for kind, source in (("folder", tmp_path / "photos"), ("jsonl", lines)):
        assert run(kind, source, "--out", tmp_path / "d", monkeypatch=monkeypatch) == 2
        told = capsys.readouterr().err
        assert "pictures has a caption" in told and "cat.txt" in told and told.count("\n") == 1
        assert not (tmp_path / "d").exists()
    # Pictures to be captioned need the words of a model, and no captions.
    words = ["--vocabulary", "shipped", "--split", "test"]
    assert run("folder", tmp_path / "photos", *words, "-o", tmp_path / "d", monkeypatch=monkeypatch) == 0
    assert "captions can be sampled for them, not learnt" in capsys.readouterr().err


def test_keys_that_are_slips_stop_and_others_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slip = write(tmp_path / "slip.jsonl", '{"image": "a.jpg", "caption": "a cat", "splt": "test"}\n')
    assert run("jsonl", slip, "-o", tmp_path / "d", monkeypatch=monkeypatch) == 2
    assert "slip.jsonl, line 1: there is no key 'splt', did you mean \"split\"" in capsys.readouterr().err
    assert run("jsonl", slip, "-o", tmp_path / "d", "--skip-bad", monkeypatch=monkeypatch) == 0
    capsys.readouterr()
    more = write(tmp_path / "more.jsonl", '{"image": "a.jpg", "caption": "a cat", "licence": 3}\n' * 2)
    assert run("jsonl", more, "-o", tmp_path / "d", monkeypatch=monkeypatch) == 0
    assert "note: more.jsonl: the key 'licence' of 2 lines is not read." in capsys.readouterr().err


def test_nothing_held_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = write(
        tmp_path / "x.jsonl", "".join(f'{{"image": "{i}.jpg", "caption": "a cat"}}\n' for i in range(20))
    )
    assert run("jsonl", lines, "--split", "train", "-o", tmp_path / "d", monkeypatch=monkeypatch) == 0
    assert "no picture is held out for validation; leave --split out" in capsys.readouterr().err
    assert run("jsonl", lines, "-o", tmp_path / "d", monkeypatch=monkeypatch) == 0
    assert "held out" not in capsys.readouterr().err
    assert len(open_prepared(tmp_path / "d").images("validation")) == 2


def test_only_pictures_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [{"id": i, "file_name": f"COCO_val2014_{i:012d}.jpg"} for i in range(1, 41)]
    notes = [{"id": i, "image_id": i, "caption": "a cat sits"} for i in range(1, 41)]
    file = write(tmp_path / "c.json", {"images": images, "annotations": notes})
    (tmp_path / "photos").mkdir()
    for number in range(11, 31):  # half of them under the names of 2017
        name = f"{number:012d}.jpg" if number % 2 else f"COCO_val2014_{number:012d}.jpg"
        (tmp_path / "photos" / name).write_bytes(b"")
    there = ["coco", file, "--split", "random", "--out", tmp_path / "d", "--pictures", tmp_path / "photos"]
    assert run(*there, monkeypatch=monkeypatch) == 0
    assert open_prepared(tmp_path / "d").image_ids.tolist() == list(range(11, 31))
    assert run(*there, "--limit", 7, monkeypatch=monkeypatch) == 0
    few = open_prepared(tmp_path / "d").image_ids.tolist()
    assert len(few) == 7 and set(few) < set(range(11, 31))
    assert run(*there, "--limit", 7, monkeypatch=monkeypatch) == 0
    assert open_prepared(tmp_path / "d").image_ids.tolist() == few
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "99.jpg").write_bytes(b"")
    assert run(*there[:-1], tmp_path / "other", monkeypatch=monkeypatch) == 2
    assert "none of the 40 pictures of the data set" in capsys.readouterr().err


def test_training_on_data_without_validation_says_what_to_do(tmp_path: Path) -> None:
    import torch

    from coscap.data.splits import Choice
    from coscap.errors import UserError
    from coscap.training.config import check_config
    from coscap.training.validate import build_validator
    from data_made import made_prepared, made_store

    data = made_prepared(tmp_path / "d", choice=Choice("train"))
    store = made_store(tmp_path / "r.h5", data.image_ids.tolist())
    content = {"data": str(data.path), "regions": str(store.path), "steps": 1, "model": {"kind": "updown"}}
    with pytest.raises(
        UserError, match=r"holds no picture out for validation; prepare it without --split train"
    ):
        build_validator(check_config(content, "x"), data, store, torch.device("cpu"))
