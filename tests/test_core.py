"""What holds for every verb: a quick, light help, one sentence for bad input, files that are whole or absent."""

import json
import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coscap import files
from coscap.errors import UserError, shown

HEAVY = {"torch", "numpy", "h5py", "onnxruntime", "numba", "matplotlib"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coscap", *arguments], capture_output=True, text=True, timeout=600
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['coscap', '--help']\n"
        "from coscap.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("HEAVY []")
    assert "coscap" in done.stdout


def test_import_of_the_package_is_light() -> None:
    code = f"import sys, coscap; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_and_unknown_verb() -> None:
    assert run("--version").stdout.startswith("coscap ")
    wrong = run("no-such-verb")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_every_verb_has_help_with_an_example() -> None:
    from typer.main import get_command

    from coscap.cli.main import app

    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        text = (command.help or "") + (command.epilog or "")
        assert f"coscap {name}" in text, f"the help of `coscap {name}` shows no example"


def test_whole_file_appears_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.json"
    with pytest.raises(RuntimeError), files.whole_file(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert not target.exists()
    assert list(target.parent.iterdir()) == []
    files.write_json(target, {"a": 1})
    assert files.read_json(target) == {"a": 1}


def test_whole_folder_keeps_the_old_one_until_the_new_one_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with files.whole_folder(target) as partial:
        (partial / "a").write_text("old")
    with pytest.raises(RuntimeError), files.whole_folder(target) as partial:
        (partial / "a").write_text("half")
        raise RuntimeError
    assert (target / "a").read_text() == "old"
    with files.whole_folder(target) as partial:
        (partial / "b").write_text("new")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b'{"a": ', "line 1"), (b"[" * 100_000, "nested"), (b"\xff\xfe", "UTF-8"), (None, "does not exist")],
)
def test_unreadable_json_is_one_sentence(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        files.read_json(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    files.check_output(link)
    files.write_json(link, 1)
    assert link.is_symlink() and target.read_text() == "1\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600  # private files stay private
    (tmp_path / "dangling").symlink_to(tmp_path / "real" / "new")
    files.write_text(tmp_path / "dangling", "x")
    assert (tmp_path / "real" / "new").read_text() == "x" and (tmp_path / "dangling").is_symlink()
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    with files.whole_folder(tmp_path / "folder") as partial:
        (partial / "b").write_text("new")
    assert (tmp_path / "folder").is_symlink() and [each.name for each in (tmp_path / "real").iterdir()] == [
        "b"
    ]
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(UserError, match="cannot be written"):
        files.check_output(circle)


def test_pipes_and_devices_are_written_through(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    files.check_output(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    files.write_json(pipe, [1, 2])
    reader.join(120)
    assert read == ["[1, 2]\n"] and stat.S_ISFIFO(pipe.stat().st_mode)
    before = Path("/dev/null").stat().st_rdev
    files.check_output("/dev/null")
    files.write_text("/dev/null", "x")
    assert Path("/dev/null").stat().st_rdev == before and stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_device_is_one_sentence_and_stays_a_device() -> None:
    with pytest.raises(UserError, match=r"/dev/full cannot be written \(No space left on device\)"):
        files.write_text("/dev/full", "x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_outputs_that_cannot_be_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a folder, and a file is to be written"):
        files.check_output(tmp_path)
    with pytest.raises(UserError, match="is a file, and a folder is to be written"):
        files.check_output(tmp_path / "file", folder=True)
    with pytest.raises(UserError, match=f"because {tmp_path / 'file'} is a file"):
        files.check_output(tmp_path / "file" / "out.json")
    with pytest.raises(UserError, match=r"/proc/new/out\.json cannot be written"):
        files.check_output("/proc/new/out.json")
    with pytest.raises(UserError, match="cannot be written"):
        files.check_output(tmp_path / ("n" * 300))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(UserError, match="it is what is read"):
        files.check_output(tmp_path / "link", inputs=["other", tmp_path / "file"])
    files.check_output(tmp_path / "new" / "folder" / "out.json", inputs=[tmp_path / "file"])
    files.check_output(tmp_path / "folder", folder=True)
    files.check_output(tmp_path, folder=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]  # asking leaves nothing


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_what_is_read_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    (tmp_path / "a").chmod(0o444)
    (tmp_path / "closed").mkdir(mode=0o555)
    for path in (tmp_path / "a", tmp_path / "closed" / "out"):
        with pytest.raises(UserError, match="cannot be written"):
            files.check_output(path)
        with pytest.raises(UserError, match="cannot be written"):
            files.write_text(path, "x")


def test_a_disk_that_fills_up_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    target, folder = tmp_path / "a.json", tmp_path / "folder"
    files.write_json(target, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1000, before[1])
    )  # what a quota does; Python ignores its signal
    try:
        with pytest.raises(UserError, match=rf"{target} cannot be written \(File too large\)"):
            files.write_json(target, "x" * 5000)
        with (
            pytest.raises(UserError, match=rf"{folder}/b cannot be written"),
            files.whole_folder(folder) as partial,
        ):
            files.write_text(partial / "b", "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files.read_json(target) == "old" and list(tmp_path.iterdir()) == [target]


def test_standard_output_that_is_full_closed_or_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coscap", "--version"]
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:  # noqa: PTH123
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert done.stderr == "coscap: the output cannot be written (No space left on device).\n"
    code = (
        "import os, sys\nfrom coscap.cli import main\nfrom coscap import files\n"
        "main.app.command('talk')(lambda: [print('word ' * 50) for _ in range(2000)] and None)\n"
        "sys.argv = ['coscap', 'talk']\nmain.main()"
    )
    talk = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert talk.stdout is not None and talk.stderr is not None
    assert talk.stdout.readline().startswith("word")
    talk.stdout.close()
    assert talk.wait(120) in (0, 1) and talk.stderr.read() == ""
    code = "from coscap import files; print('before'); files.write_json('/dev/stdout', 1); print('after')"
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\n1\nafter\n"


def test_any_os_error_of_a_command_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom coscap.cli import main\n"
        f"main.app.command('fail')(lambda: open({str(tmp_path)!r}).close())\n"
        "sys.argv = ['coscap', 'fail']\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"coscap: {tmp_path} cannot be used (Is a directory).\n"


def test_names_that_a_terminal_must_not_get() -> None:
    assert shown("plain é 猫.jpg") == "plain é 猫.jpg"
    assert shown("a\x1b]0;x\x07\n\x9b31m\u202e") == "a\\x1b]0;x\\x07\\n\\x9b31m\\u202e"
    assert shown(os.fsdecode(b"\xff.jpg")) == "\\xff.jpg" and shown("\ud800") == "\\ud800"
    done = run("data", "show", "no\x1b[31m\nsuch")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "\x1b" not in done.stderr


def test_names_that_are_not_utf8_survive_json(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.jpg")
    files.write_json(tmp_path / "a.json", {"photo": name})
    assert (tmp_path / "a.json").read_bytes().isascii() and files.read_json(tmp_path / "a.json")[
        "photo"
    ] == name


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: [", "line 1"),
        ("[" * 5000, "nested too deeply"),
        ("a: 2026-13-45", "not valid YAML"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]", "line 1"),
        ("? [a]\n: b", "line 1"),
    ],
)
def test_unreadable_yaml_is_one_sentence(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(UserError, match=expected) as caught:
        files.read_yaml(tmp_path / "x.yaml")
    assert "x.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_of_thousands_of_digits_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"a": 0})[:-2] + "9" * 5000 + "}")
    with pytest.raises(UserError, match=r"x\.json is not valid JSON"):
        files.read_json(tmp_path / "x.json")


def test_a_mistyped_path_is_not_looked_up_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coscap.fetch import hub_name

    assert hub_name("owner/name") == ("owner/name", None)
    assert hub_name("owner/name@0123abc") == ("owner/name", "0123abc")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"runs/nosuch does not exist, and there is no folder runs here"):
        hub_name("runs/nosuch")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "file").write_text("")
    with pytest.raises(UserError, match=r"runs/nosuch does not exist: .*it has mine"):
        hub_name("runs/nosuch")
    for name in ("nosuch", "./runs/nosuch", "/runs/nosuch", "a/b/c", "~/x", "runs/file"):
        with pytest.raises(UserError, match=r"no name of one on the hub|is a file"):
            hub_name(name)
