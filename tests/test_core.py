"""What holds for every verb: a quick, light help, one sentence for bad input, files that are whole or absent."""

import subprocess
import sys
from pathlib import Path

import pytest

from coscap import files
from coscap.errors import UserError

HEAVY = {"torch", "numpy", "h5py", "onnxruntime", "numba", "matplotlib"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coscap", *arguments], capture_output=True, text=True, timeout=120
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['coscap', '--help']\n"
        "from coscap.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
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
