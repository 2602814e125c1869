"""Print the oldest versions that pyproject.toml allows, as constraints for pip: `make lowest` tests with them."""

import re
import tomllib
from pathlib import Path


def lowest(pyproject: Path) -> list[str]:
    """A line name==version for each requirement name>=version of the package and its extras, without the tools."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = [needed for name, needed in project["optional-dependencies"].items() if name != "dev"]
    requirements = [*project["dependencies"], *(one for needed in extras for one in needed)]
    found = [re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement) for requirement in requirements]
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})


if __name__ == "__main__":
    print("\n".join(lowest(Path(__file__).parents[1] / "pyproject.toml")))
