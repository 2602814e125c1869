"""Folders with graphs: what they need at import, what is wrong with them, and the choice of a runtime."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coscap import Captioner
from coscap.errors import UserError
from coscap.extras import EXTRAS, missing, needed
from coscap.runtime import has_graphs, load_runtime
from coscap.shipped import model_folder

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "coscap"
NOT_NEEDED = ("torch", "h5py", "numba", "nltk", "huggingface_hub", "yaml", "safetensors", "scipy", "onnx")
# What only one system has; `import` of these in the core would end Windows or macOS.
ONE_SYSTEM = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt", "spwd", "posix",
              "msvcrt", "winreg", "_winapi", "winsound", "nt"}  # fmt: skip
ONE_SYSTEM_NAMES = {"fork", "forkpty", "mkfifo", "getuid", "geteuid", "setsid", "killpg", "sched_setaffinity",
                    "sched_getaffinity", "memfd_create", "sysconf", "uname", "SIGHUP", "SIGUSR1", "SIGKILL",
                    "SIGALRM", "alarm", "setitimer", "set_start_method"}  # fmt: skip


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder("shipped"), tmp_path / "model"))


def test_import_is_cheap() -> None:
    code = "import time, sys; before = set(sys.modules); t = time.process_time(); import coscap; "
    code += "print(time.process_time() - t); print(len(set(sys.modules) - before))"
    seconds, modules = python(code).split()
    assert float(seconds) < 0.1 and int(modules) < 60


def test_caption_needs_the_core_alone(tmp_path: Path) -> None:
    """The whole command, with every file it can write, in a process where nothing else can be imported."""
    code = f"""
import sys
banned = {NOT_NEEDED!r}
for name in banned:
    sys.modules[name] = None
sys.argv = ["coscap", "caption", "examples/cat.jpg", "examples/coffee.jpg", "-n", "3", "--html",
            {str(tmp_path / "page.html")!r}, "--out", {str(tmp_path / "all.json")!r}]
from coscap.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
assert not [name for name in banned if sys.modules.get(name) is not None]
"""
    python(code)
    assert len(json.loads((tmp_path / "all.json").read_text())[0]["captions"]) == 3


def test_core_is_of_no_one_system(tmp_path: Path) -> None:
    """Every file of the package that captioning imports."""
    code = f"""
import sys
sys.argv = ["coscap", "caption", "examples/cat.jpg", "--search", "constrained", "--must", "cat", "--json", "--out",
            {str(tmp_path / "all.json")!r}]
from coscap.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sorted(module.__file__ for name, module in sys.modules.items() if name.startswith("coscap")), sep="\\n")
"""
    files = [Path(line) for line in python(code).splitlines() if line.startswith(str(SOURCE))]
    assert {"outputs.py", "stepper.py", "builtin.py", "captioner.py", "constrained.py"} <= {
        each.name for each in files
    }
    for file in files:
        assert not _of_one_system(file.read_text(encoding="utf-8")), file
    assert _of_one_system("import os\nos.fork()") and _of_one_system("from fcntl import flock")


def _of_one_system(source: str) -> list[str]:
    """What is used of one system alone; inside `try: import` with an ImportError there is another way."""
    tree = ast.parse(source)
    guarded = {
        id(node)
        for each in ast.walk(tree)
        if isinstance(each, ast.Try)
        and any(isinstance(h.type, ast.Name) and h.type.id == "ImportError" for h in each.handlers)
        for part in each.body
        for node in ast.walk(part)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name in ONE_SYSTEM]
        elif isinstance(node, ast.ImportFrom) and node.module in ONE_SYSTEM:
            found.append(str(node.module))
        elif isinstance(node, ast.Attribute) and node.attr in ONE_SYSTEM_NAMES:
            found.append(node.attr)
    return found


def test_runtime_is_chosen(folder: Path) -> None:
    assert has_graphs(folder)
    assert type(Captioner.from_pretrained(folder).model).__name__ == "GraphStepper"
    assert type(Captioner.from_pretrained(folder, runtime="torch").model).__name__ == "TorchStepper"
    for name in ("start.onnx", "step.onnx", "step-int8.onnx", "manifest.json"):
        (folder / name).unlink()
    assert type(Captioner.from_pretrained(folder).model).__name__ == "TorchStepper"
    with pytest.raises(UserError, match=r"has no graphs for onnxruntime; make them: coscap export .* --here"):
        Captioner.from_pretrained(folder, runtime="onnx")
    with pytest.raises(UserError, match="runtime is 'tpu', and onnx or torch was expected"):
        Captioner.from_pretrained(folder, runtime="tpu")  # type: ignore[arg-type]


def test_precision_is_chosen(folder: Path) -> None:
    digests = {name: load_runtime(folder, precision=name).model.digest for name in ("float32", "int8")}
    assert Captioner.from_pretrained(folder).model.digest == digests["int8"] != digests["float32"]
    with pytest.raises(
        UserError, match=r"runs in torch, which computes in float32; leave out int8, or use onnx"
    ):
        Captioner.from_pretrained(folder, runtime="torch", precision="int8")
    with pytest.raises(UserError, match="precision is 'int4', and float32 or int8 was expected"):
        Captioner.from_pretrained(folder, precision="int4")  # type: ignore[arg-type]
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]["step-int8.onnx"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="is not what coscap export writes"):
        load_runtime(folder)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "int8": False}))
    assert load_runtime(folder).model.digest != digests["float32"]  # the folder has another manifest
    with pytest.raises(
        UserError, match="has no graph in int8; make the folder again with coscap export --int8"
    ):
        load_runtime(folder, precision="int8")


def test_folder_of_another_version(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": "coscap onnx 1"}))
    with pytest.raises(
        UserError, match=r"format 'coscap onnx 1', and this version of coscap reads 'coscap graphs 3'"
    ):
        load_runtime(folder)


@pytest.mark.parametrize("name", ["step.onnx", "step-int8.onnx", "model.safetensors", "vocabulary.json"])
def test_changed_file(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} was changed after it was made"):
        load_runtime(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"holds no {name}, which manifest.json names"):
        load_runtime(folder)


def test_provider_that_is_not_there(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"onnxruntime has no MadeUpProvider here, only .*CPUExecutionProvider"
    ):
        Captioner.from_pretrained(folder, providers=["MadeUpProvider"])


def test_missing_extra_is_one_command() -> None:
    with (
        pytest.raises(UserError, match=r"x in torch needs torch; run: pip install 'coscap\[train\]'"),
        needed("x in torch"),
    ):
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    with pytest.raises(ModuleNotFoundError):  # no extra would mend this
        missing(ModuleNotFoundError("no", name="mine"), "x")
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['coscap', 'caption', '--runtime', 'torch', "
    code += "'examples/cat.jpg']; from coscap.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == "coscap: shipped in torch needs torch; run: pip install 'coscap[train]'.\n"


def test_extras_are_those_of_the_package() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {each.split(">")[0].split("=")[0] for each in project["dependencies"]}
    assert core == {"numpy", "pillow", "onnxruntime", "typer", "rich", "pydantic"}
    assert set(EXTRAS) <= set(project["optional-dependencies"])


@pytest.mark.parametrize(
    "field, value",
    [
        ("sha256", None), ("sha256", {"../model.safetensors": "0"}), ("sha256", {}), ("recipe", 5),
        ("recipe", {"name": 5}), ("latents", {"context": -1}), ("states", {"context_z": 10**30}),
        ("temperature_mode", "warm"),
    ],
)  # fmt: skip
def test_a_manifest_that_no_export_writes_is_one_sentence(folder: Path, field: str, value: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, field: value}))
    with pytest.raises(UserError, match=r"manifest\.json"):
        load_runtime(folder)
