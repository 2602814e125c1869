"""How much `pip install coscap` puts on the disk. scripts/core_size.py measures it in a new environment."""

import compileall
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BAR, OWN = 250.0, 52.0  # MB of all, and of the package itself
MEASURED_WITH = {
    "numpy": "2.4.6",
    "onnxruntime": "1.31.1",
    "pillow": "13.0.0",
    "pydantic-core": "2.50.4",
    "pygments": "2.21.0",
}


def core_packages() -> set[str]:
    """What the package needs without any extra, and what that needs in turn."""
    found: set[str] = set()
    left = ["coscap"]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for needed in distribution(name).requires or ():
            if "extra ==" in needed:
                continue
            other = re.split(r"[\s<>=!~;\[(]", needed, maxsplit=1)[0].lower()
            try:
                distribution(other)
            except PackageNotFoundError:  # for another Python or system
                continue
            left.append(other)
    return found - {"coscap"}


def on_disk(paths: list[Path]) -> float:
    """MB in whole blocks of 4 KB, as `du` counts."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in paths) / 1e6


def installed(name: str) -> list[Path]:
    files = distribution(name).files or []
    return [path for each in files if (path := Path(str(each.locate()))).is_file()]


def own(folder: Path) -> list[Path]:
    """The package as an installation has it: its files and what Python compiles."""
    skipped = shutil.ignore_patterns("__pycache__", "*.nbc", "*.nbi")
    shutil.copytree(ROOT / "src" / "coscap", folder / "coscap", ignore=skipped)
    compileall.compile_dir(folder / "coscap", quiet=2)
    return [path for path in (folder / "coscap").rglob("*") if path.is_file()]


def test_the_core_has_nothing_of_the_training() -> None:
    needed = core_packages()
    assert {"numpy", "onnxruntime", "pillow"} <= needed
    assert not needed & {"torch", "h5py", "numba", "nltk", "scipy", "transformers", "huggingface-hub"}


def test_the_core_is_small(tmp_path: Path) -> None:
    """The package everywhere; the whole where the wheels are those that the bar was met with."""
    mine = on_disk(own(tmp_path))
    assert mine <= OWN
    here = sys.version_info[:2] == (3, 11) and (sys.platform, platform.machine()) == ("linux", "x86_64")
    if not here or any(distribution(name).version != each for name, each in MEASURED_WITH.items()):
        pytest.skip("wheels of other versions and systems have other sizes")
    sizes = {name: on_disk(installed(name)) for name in core_packages()} | {"coscap": mine}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:6]
    assert sum(sizes.values()) <= BAR, f"{sum(sizes.values()):.1f} MB: {largest}"
