"""What the pages of `coscap report` and `coscap analyse` share: tables in Markdown, figures, names of files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coscap.errors import UserError
from coscap.files import whole_file

STYLE = {
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "legend.frameon": False,
    "svg.hashsalt": "coscap",  # the same figure gives the same file
    "figure.dpi": 150,
}


def pyplot() -> Any:
    """matplotlib without a window."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("Figures need matplotlib: pip install 'coscap[plots]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(picture: Any, path: Path) -> None:
    for kind in ("png", "svg"):
        with whole_file(path.with_suffix(f".{kind}")) as partial:
            picture.savefig(partial, format=kind, metadata={"Date": None} if kind == "svg" else None)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns hold text and whose others hold numbers."""
    line = ["---" if column < left else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, line, *rows])


def shown(path: str | Path) -> str:
    """A path as the page shows it: as given where it is relative, otherwise its last name."""
    text = str(path)
    name, equals, place = text.rpartition("=")
    if equals and Path(place).is_absolute() and " " not in place:
        return f"{name}={Path(place).name}"
    return Path(text).name if Path(text).is_absolute() else text
