"""The house as docs/architecture.md draws it: imports point one way, one name has one meaning, words of the field."""

import ast
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType

import pytest

import coscap

PACKAGE = Path(coscap.__file__).parent
ROOT = Path(__file__).parents[1]

# Small modules that rooms share, and what each of them may import itself.
SHARED: dict[str, set[str]] = {
    "errors": set(),
    "__version__": set(),
    "files": {"errors"},
    "fetch": {"errors"},
    "progress": {"errors"},
    "alt": {"errors"},
    "extras": {"errors"},
    "noise": {"seam"},
    "pages": {"errors", "files"},
    "seam": {"vision"},  # the type of regions
    "shipped": {"errors", "extras", "vision", "runtime", "models"},  # finds a model and loads what runs it
}
SMALL = {"errors", "extras", "files", "progress", "__version__"}
BELOW_DATA = {"text", "vision"}
BELOW_MODELS = {"data", *BELOW_DATA}
BELOW_CAPTIONER = {"models", "contexts", "search", "runtime", "metrics", *BELOW_MODELS}

# What each room may import, besides itself and SMALL.
ROOMS: dict[str, set[str]] = {
    "text": set(),
    "vision": {"fetch"},
    "metrics": {"text"},
    "data": BELOW_DATA,
    "models": {"seam", "noise", "fetch", *BELOW_MODELS},
    "search": {"seam", "noise", "text"},
    "runtime": {"seam", "noise", "text", "vision"},
    "contexts": {"models", "shipped", *BELOW_MODELS},
    "training": {"seam", *BELOW_CAPTIONER},
    "export": {"models", "runtime", "seam", *BELOW_MODELS},
    "photos": {"alt", "contexts", "seam", "search", "text", "vision"},
    "pool": {"contexts", "seam", "search", "text", "vision"},
    "captioner": {"photos", "pool", "seam", "shipped", *BELOW_CAPTIONER},
    "analysis": {"pages", "seam", "shipped", *BELOW_CAPTIONER},
    "report": {"pages", "captioner", "shipped", *BELOW_CAPTIONER},
    "bulk": {"captioner", "photos", "search", "vision"},
    "serve": {"captioner", "photos", "search", "vision", "metrics"},
    "cli": {
        "analysis", "bulk", "captioner", "photos", "export", "report", "serve", "training", *SHARED, *BELOW_CAPTIONER,
    },
}  # fmt: skip
NO_TORCH = ("text", "search", "metrics", "runtime", "seam", "alt", "files", "pages")
PRIVATE = {"__init__", "__main__"}  # lazy public names; `python -m coscap`


@lru_cache(maxsize=1)
def modules() -> dict[Path, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def room_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported anywhere in a file, whole names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from [f"coscap.{alias.name}" for alias in node.names] if module == "coscap" else [module]


@lru_cache(maxsize=1)
def arrows() -> dict[str, dict[str, Path]]:
    """Room -> the rooms that it imports, each with a file that does so."""
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    for path, tree in modules().items():
        for name in imports(tree):
            if name.startswith("coscap.") and (other := name.split(".")[1]) != room_of(path):
                found[room_of(path)][other] = path
    return found


def test_every_room_is_in_the_table():
    there = {room_of(path) for path in modules()} - PRIVATE
    assert there <= {*ROOMS, *SHARED}, "give the new room its line in the table"
    assert {*ROOMS, *SHARED} - there <= {"__version__", "runtime", "noise"}


@pytest.mark.parametrize("room", [*ROOMS, *SHARED])
def test_imports_point_one_way(room):
    may = ROOMS[room] | SMALL if room in ROOMS else SHARED[room]
    wrong = {other: str(path) for other, path in arrows()[room].items() if other not in may}
    assert not wrong, f"{room} must not import {wrong}"


def test_the_table_has_no_circle():
    """Each room can be put below all that import it."""
    left = {room: {other for other in may if other not in SMALL} for room, may in (ROOMS | SHARED).items()}
    while left:
        free = [room for room, may in left.items() if not may & left.keys()]
        assert free, f"these import each other: {sorted(left)}"
        for room in free:
            del left[room]


@pytest.mark.parametrize("module", [name for name in SHARED if (PACKAGE / f"{name}.py").is_file()])
def test_what_is_shared_is_used_by_two_rooms(module):
    users = [room for room, others in arrows().items() if module in others]
    assert len(users) >= 2, f"{module} is used by {users} alone and belongs there"


def test_search_text_and_metrics_need_no_torch():
    """Neither in their own imports nor in what those import."""
    for path, tree in modules().items():
        if room_of(path) in NO_TORCH:
            heavy = {name for name in imports(tree) if name.split(".")[0] in ("torch", "safetensors")}
            assert not heavy, f"{path} imports {heavy}"
    code = (
        "import sys; sys.modules['torch'] = None; "
        "import coscap.search.generate, coscap.search.select, coscap.search.variations, coscap.metrics.evaluation, "
        "coscap.seam, coscap.text, coscap.vision.regions"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_no_class_name_stands_twice():
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert len(places) > 100
    assert not {name: where for name, where in places.items() if len(where) > 1}


# Names of earlier versions that only their docstrings explained.
GONE = {
    "Said", "Turned", "Straight", "Looked", "Parts", "Chain", "Teacher", "Inferred", "Controls", "Wish", "Wishes",
    "wish", "wishes", "machines", "said", "told", "bent", "barred", "spoken", "iter_contexts", "push_pretrained",
    "predict_unknown",
}  # fmt: skip


def names(tree: ast.Module) -> Iterator[str]:
    """Every identifier of a file."""
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def test_names_are_the_fields_own():
    for path, tree in modules().items():
        assert not GONE & set(names(tree)), path


def test_docstrings_are_plain_english():
    odd = re.compile(r"\b(?:is|are|was|were|be|been) (?:told|spoken)\b|\blies\b", re.I)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                assert not odd.search(text), f"{path}: {text!r}"


def test_the_papers_model_is_a_few_files():
    """All of models/ that COS-CVAE is made of, without kernels (plain signatures), files and the table of kinds."""
    left, read = ["cos_cvae"], set()
    while left:
        read.add(name := left.pop())
        tree = modules()[Path("models") / f"{name}.py"]
        near = {each.split(".")[2] for each in imports(tree) if each.startswith("coscap.models.")}
        left += near - read - {"kernels", "hub", "registry"}
    assert {"cos_cvae", "base", "decoder", "latents"} <= read and len(read) <= 9, read


def steps(heading: str) -> list[str]:
    """The files that the page names on one way, in its order."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = text.split(f"## {heading}")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", part, re.M)


@pytest.mark.parametrize(
    "heading, most", [("The way of a photograph", 8), ("The way of a training caption", 6)]
)
def test_the_ways_of_the_page_are_short_and_there(heading, most):
    found = steps(heading)
    assert 4 <= len(found) <= most
    for name in found:
        assert (PACKAGE / name).is_file(), name


def test_the_speed_of_small_stands_in_one_place():
    """In the heads of configs/small*.yaml, where it was measured; it once stood in three places with three values."""
    speed = re.compile(r"captions a\s+second|an epoch over")
    heads = [path for path in (ROOT / "configs").glob("small*.yaml") if speed.search(path.read_text("utf-8"))]
    assert len(heads) == 4
    others = [*PACKAGE.glob("models/presets/*.yaml"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for path in [*others, *(ROOT / "docs" / "guide").glob("*.md")]:
        for paragraph in path.read_text("utf-8").split("\n\n"):
            assert not ("`small`" in paragraph and speed.search(paragraph)), f"{path.name}: {paragraph}"


def test_the_list_of_pages_is_whole():
    listed = (ROOT / "docs" / "README.md").read_text("utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").as_posix()
        own = name == "README.md" or name.startswith("results/")  # results have a list of their own
        assert own or f"]({name})" in listed, f"docs/README.md does not list {name}"


def test_the_readme_names_every_verb():
    from coscap.cli.main import app

    verbs = {command.name for command in app.registered_commands} | {
        group.name for group in app.registered_groups
    }
    table = re.findall(r"`coscap (\w+)`", (ROOT / "README.md").read_text("utf-8"))
    assert len(verbs) > 12 and verbs <= set(table)


@contextmanager
def files_called() -> Iterator[set[str]]:
    """The files of the package whose functions are called meanwhile, in any thread."""
    found: set[str] = set()
    root = f"{PACKAGE}/"

    def seen(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(root):
            found.add(name.removeprefix(root))

    sys.setprofile(seen)
    threading.setprofile(seen)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_photograph_goes_the_way_of_the_page(tmp_path):
    from typer.testing import CliRunner

    from coscap.cli.main import app
    from tiny_captioner import save_tiny_model

    folder, photo = save_tiny_model(tmp_path / "model"), ROOT / "examples" / "cat.jpg"
    with files_called() as called:
        done = CliRunner().invoke(app, ["caption", str(photo), "--model", str(folder), "--max-length", "4"])
    assert done.exit_code == 0, done.output
    assert set(steps("The way of a photograph")) <= called


def test_a_training_caption_goes_the_way_of_the_page(tmp_path):
    from typer.testing import CliRunner

    from coscap.cli.main import app
    from training_world import make_world

    world, change = make_world(tmp_path), ["--set", "steps=1", "--set", "validation=null", "--device", "cpu"]
    with files_called() as called:
        done = CliRunner().invoke(app, ["train", str(world), "--out", str(tmp_path / "run"), *change])
    assert done.exit_code == 0, done.output
    assert set(steps("The way of a training caption")) <= called
