"""Install the package without extras into a new environment and measure it; needs a network.

    python scripts/core_size.py

Prints the megabytes of each package, their sum against the bar, and the seconds of the first command. Ends with 1 where
the bar is missed, or where something of the training is installed.
"""

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
BAR = 250  # MB in site-packages
NOT_THERE = ("torch", "h5py", "numba", "nltk", "huggingface_hub", "yaml", "transformers", "scipy")


def megabytes(path: Path) -> float:
    """On the disk, as `du` counts: whole blocks, each file once."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_blocks * 512 for each in files) / 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        before = set(_packages(folder).iterdir())
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", ROOT], check=True
        )
        sizes = {path.name: megabytes(path) for path in set(_packages(folder).iterdir()) - before}
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:12]:
            print(f"{size:8.1f} MB  {name}")
        total, began = sum(sizes.values()), time.perf_counter()
        subprocess.run([Path(folder, "bin", "coscap"), "caption", ROOT / "examples" / "cat.jpg"], check=True)
        print(f"first command: {time.perf_counter() - began:.1f} s")
        wrong = [name for name in NOT_THERE if name in sizes]
        print(
            f"core: {total:.1f} MB, bar {BAR}"
            + (f"; should not be there: {', '.join(wrong)}" if wrong else "")
        )
        return int(total > BAR or bool(wrong))


def _packages(folder: str) -> Path:
    (found,) = Path(folder, "lib").glob("python*/site-packages")
    return found


if __name__ == "__main__":
    sys.exit(main())
