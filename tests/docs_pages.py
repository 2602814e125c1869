"""Reading the documentation as a program: fenced blocks, the commands in them, inline code, links.

Conventions of the pages:
  ```sh        commands, one a line; a backslash goes on, `# ...` is a remark
  ```python    a program; the blocks of a page share their names
  <!-- not run: REASON -->   right before a block: it is checked (verbs, options, syntax, files) and not run
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = [
    ROOT / "docs" / "guide" / f"{name}.md"
    for name in ("first-captions", "own-data", "training", "evaluation", "novel-objects", "scale")
]
PROGRAMS = ("coscap", "pip", "python", "make", "curl")
_FENCE = re.compile(r"^```(\w*)\s*$")
_REASON = re.compile(r"^<!-- not run: (.+) -->$")
_PRINTED = "<!-- printed by the commands above -->"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    reason: str | None  # why it is not run
    printed: bool = False  # whether the commands before it print it, line by line

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    place: str
    line: str
    words: tuple[str, ...]  # without redirections and settings of the environment
    environment: dict[str, str]
    output: str | None
    shell: bool  # a pipe or a list: only a shell can run it

    @property
    def program(self) -> str:
        return self.words[0]


def pages() -> list[Path]:
    """README, the guide in its order, then everything else."""
    rest = sorted(path for path in (ROOT / "docs").rglob("*.md") if path not in GUIDE)
    return [ROOT / "README.md", *GUIDE, *rest, ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    reason, printed, start, language, inside = None, False, 0, "", []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if start and line.startswith("```"):
            found.append(Block(page, start, language, "\n".join(inside), reason, printed))
            start, reason, printed = 0, None, False
        elif start:
            inside.append(line)
        elif fence:
            start, language, inside = number, fence.group(1), []
        elif told := _REASON.match(line.strip()):
            reason = told.group(1)
        elif line.strip():
            reason, printed = None, line.strip() == _PRINTED  # they belong to the very next block
    assert not start, f"{page}: the block of line {start} has no end"
    return found


def commands(block: Block) -> Iterator[Command]:
    text = re.sub(r"\\\n\s*", " ", block.text)
    for line in text.splitlines():
        command = read_command(block.place, line)
        if command is not None:
            yield command


def read_command(place: str, line: str) -> Command | None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="<>|&;")
    lexer.whitespace_split = True
    tokens, words, environment, output, shell = list(lexer), [], {}, None, False
    while tokens:
        token = tokens.pop(0)
        if token == ">":
            output = tokens.pop(0)
        elif set(token) & set("<>|&;") and not set(token) - set("<>|&;"):
            shell = True
        elif not words and re.fullmatch(r"[A-Z_]+=.*", token):
            name, _, value = token.partition("=")
            environment[name] = value
        else:
            words.append(token)
    return Command(place, line, tuple(words), environment, output, shell) if words else None


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def inline_commands(page: Path) -> Iterator[str]:
    """Inline code that begins with `coscap `."""
    for code in re.findall(r"`(coscap [^`]+)`", prose(page)):
        yield " ".join(code.split())


def links(page: Path) -> Iterator[str]:
    """Links and pictures that lie in the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page)) + re.findall(r'src="([^"]+)"', prose(page))
    yield from (link for link in found if not re.match(r"[a-z]+:", link))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def not_printed(wanted: str, printed: str, tolerance: float = 0.005) -> list[str]:
    """Lines of `wanted` that are not among the printed ones; numbers may differ by rounding, spaces are free.

    A line that ends with ... is the beginning of a printed one.
    """
    lines = [_cells(line) for line in printed.splitlines()]

    def same(one: list[str], other: list[str]) -> bool:
        if one and one[-1] == "...":
            one, other = one[:-1], other[: len(one) - 1]
        return len(one) == len(other) and all(
            _alike(*pair, tolerance) for pair in zip(one, other, strict=True)
        )

    return [line for line in wanted.splitlines() if not any(same(_cells(line), other) for other in lines)]


def _cells(line: str) -> list[str]:
    return re.sub(r"[│┃]", " ", line).split()


def _alike(one: str, other: str, tolerance: float) -> bool:
    if one == other:
        return True
    numbers = [re.fullmatch(r"(\D*?)([\d,]*\.?\d+)(\D*)", text) for text in (one, other)]
    if None in numbers:
        return False
    (a, x, b), (c, y, d) = (number.groups() for number in numbers if number is not None)
    x, y = x.replace(",", ""), y.replace(",", "")
    size = 10 ** -len(x.partition(".")[2]) if "." in x else 0.0
    return (a, b) == (c, d) and abs(float(x) - float(y)) <= max(size, tolerance)
