"""Every command and every Python block of the documentation: run, or at least checked option by option.

The pages run in one folder, the guide first and in its order, with the example photographs as the data. A
block that is marked `<!-- not run: why -->` is parsed by the command's own parser, and the files and extras
that it names must exist. docs_pages.py has the conventions.
"""

import contextlib
import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from coscap.cli.main import app
from coscap.errors import UserError
from docs_pages import (
    GUIDE,
    PROGRAMS,
    ROOT,
    Block,
    Command,
    anchors,
    blocks,
    commands,
    inline_commands,
    links,
    not_printed,
    pages,
    read_command,
)

PAGES = pages()
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# What pages of reference call their data is the guide's little data set here.
ALIASES = {
    "coco": "data/mine",
    "data/coco": "data/mine",
    "regions.h5": "data/mine.h5",
    "data/regions.h5": "data/mine.h5",
    "train.h5": "data/mine.h5",
    "test.h5": "data/mine.h5",
    "runs/small": "runs/try",
}
SHELL = {"tail", "head", "cat", "ls", "mkdir", "cp", "cd"}


class Workspace:
    """A folder as a reader has it, and what ran in it so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: Any = None
        self.answer: Any = None
        self.done: dict[Path, str | None] = {}  # what went wrong on each page
        self.names: dict[Path, dict[str, Any]] = {}  # what the Python blocks of each page defined

    def prepare(self) -> None:
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        photos = self.folder / "photos"
        photos.mkdir()
        for name, caption in (("cat", "a cat looks to the side"), ("coffee", "a cup of coffee")):
            shutil.copy(ROOT / "examples" / f"{name}.jpg", photos)
            (photos / f"{name}.txt").write_text(f"{caption}\n")
        shutil.copy(ROOT / "examples" / "cat.jpg", self.folder / "photo.jpg")
        for name in ("configs", "scripts", "benchmarks", "src", "constraints.txt", "Makefile"):
            (self.folder / name).symlink_to(ROOT / name)

    def run_page(self, page: Path) -> None:
        """Run a page once, and what it builds upon before it; an error is told again each time."""
        before = GUIDE[: GUIDE.index(page)] if page in GUIDE else GUIDE
        for one in [*before, page] if page != PAGES[0] else [page]:
            if one not in self.done:
                self.done[one] = self._run(one)
                self._alias()
        if self.done[page]:
            pytest.fail(self.done[page] or "", pytrace=False)

    def _alias(self) -> None:
        for alias, real in ALIASES.items():
            link, target = self.folder / alias, self.folder / real
            if target.exists() and not link.is_symlink():
                if link.is_dir():
                    shutil.rmtree(link)
                link.unlink(missing_ok=True)
                link.symlink_to(target)

    def _run(self, page: Path) -> str | None:
        names = self.names[page] = {"__name__": "docs"}
        before = ""
        for block in blocks(page):
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    if block.language == "sh":
                        for command in commands(block):
                            said.write(f"$ {command.line}\n")
                            check(command) if block.reason else self.run(command)
                    elif block.language == "python":
                        code = compile(block.text, block.place, "exec")
                        if not block.reason:
                            exec(code, names)
                if block.printed and (missing := not_printed(block.text, before)):
                    return f"{block.place} is not what the commands before it print:\n{before}\nnot printed: {missing}"
                before = said.getvalue()
            except (Exception, SystemExit) as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                return f"{block.place}\n{said.getvalue()[-3000:]}\n{kind}{error}"
        return None

    def run(self, command: Command) -> None:
        check(command)
        if command.program == "coscap" and not command.shell:
            self._run_coscap(command)
        elif command.program == "curl":
            self._ask(command)
        else:
            assert command.program in SHELL | {"coscap"}, (
                f"{command.program} is not run by this test; mark it"
            )
            environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            subprocess.run(["bash", "-ec", command.line], check=True, env=environment, timeout=600)

    def _run_coscap(self, command: Command) -> None:
        args = [name for word in command.words[1:] for name in self._files(word)]
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in command.environment.items():
                patch.setenv(name, value)
            with contextlib.redirect_stdout(output if command.output else sys.stdout):
                call(args)
        if command.output:
            (self.folder / command.output).write_text(output.getvalue())

    def _files(self, word: str) -> list[str]:
        """What a shell makes of a pattern."""
        if "*" not in word:
            return [word]
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word)) or [word]

    def _ask(self, command: Command) -> None:
        """What curl would ask, of the real application."""
        words, files, fields, body, address = list(command.words[1:]), [], {}, None, ""
        while words:
            word = words.pop(0)
            if word == "-F":
                name, _, value = words.pop(0).partition("=")
                if value.startswith("@"):
                    files.append((name, (Path(value[1:]).name, Path(value[1:]).read_bytes(), "image/jpeg")))
                else:
                    fields[name] = value
            elif word == "-d":
                body = words.pop(0)
            elif word == "-H":
                words.pop(0)
            else:
                address = re.sub(r"^https?://[^/]+", "", word)
        client = self._client()
        if body is not None:
            known = self.answer[0]["captions"][0]["id"]
            text = re.sub(r'"id": "[^"]*"', f'"id": "{known}"', body)
            told = client.post(address, content=text, headers={"Content-Type": "application/json"})
        elif files or fields:
            told = client.post(address, files=files, data=fields)
        else:
            told = client.get(address)
        assert told.status_code == 200, f"{command.line}: {told.status_code} {told.text}"
        if files:
            self.answer = told.json()

    def _client(self) -> Any:
        if self.server is None:
            from starlette.testclient import TestClient

            from coscap import Captioner
            from coscap.serve.app import create_app
            from coscap.serve.limits import Limits

            self.server = TestClient(create_app(Captioner.from_pretrained(), Limits()))
            self.server.__enter__()
        return self.server


def call(args: list[str], callbacks: bool = True) -> None:
    """`coscap ARGS` in this process; with callbacks=False its parsers alone."""
    command = typer.main.get_command(app)
    if not callbacks:
        _silence(command)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        command.main(args=args, prog_name="coscap", standalone_mode=True)
    except SystemExit as end:
        if end.code not in (0, None):
            raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def _silence(command: Any) -> None:
    if hasattr(command, "commands"):
        for one in command.commands.values():
            _silence(one)
    else:
        command.callback = lambda **_: None


def check(command: Command) -> None:
    """All that can be known of a command without running it."""
    words = list(command.words)
    if command.program == "coscap" and not command.shell:
        call(words[1:], callbacks=False)
        check_files(words)
    elif command.program == "make":
        goals = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert words[1] in goals, f"{command.line}: the Makefile has no goal {words[1]}"
    elif command.program == "pip":
        check_extras(command.line)
        if "-c" in words:
            assert (ROOT / words[words.index("-c") + 1]).is_file(), command.line
    elif command.program == "python" and "-m" in words:
        module = words[words.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None, f"{command.line}: there is no module {module}"
        rest = words[words.index("-m") + 2 :]
        if rest[-1:] and "-m" in rest and rest[rest.index("-m") + 1] == "coscap":
            call(rest[rest.index("-m") + 2 :], callbacks=False)
            check_files(rest)
    elif command.program == "python":
        assert (ROOT / words[1]).is_file(), f"{command.line}: there is no {words[1]}"


def check_files(words: list[str]) -> None:
    """Configurations must be there and valid with what --set changes in them."""
    from coscap.training.config import read_config

    changes = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    for word in words:
        if re.fullmatch(r"configs/.+\.yaml", word):
            read_config(ROOT / word, changes)


def check_extras(line: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for group in re.findall(r"(?:coscap|\.)\[([\w,]+)\]", line):
        for extra in group.split(","):
            assert extra in known, f"{line}: pyproject.toml has no extra {extra}"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    space = Workspace(tmp_path_factory.mktemp("reader"))
    space.prepare()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(space.folder)
        patch.setenv("COLUMNS", "100")
        torch.set_num_threads(1)
        patch.setattr(os, "sched_getaffinity", lambda _: {0})  # `features` starts no processes then
        try:
            yield space
        finally:
            if space.server is not None:
                space.server.__exit__(None, None, None)
            torch.set_num_threads(threads)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_page_runs(page: Path, workspace: Workspace) -> None:
    workspace.run_page(page)


def test_what_the_page_on_extending_adds_works_in_commands(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its toy detector, model, search and metric, beyond what the page itself runs."""
    from coscap.metrics import evaluation
    from coscap.search.config import SearchSettings
    from coscap.search.generate import generate
    from coscap.vision import RegionStore

    page = ROOT / "docs" / "extending.md"
    workspace.run_page(page)
    names = workspace.names[page]

    assert RegionStore.open("standing-out.h5").recipe.name == "stands-out/1"
    sizes = (
        "attention_lstm: 16, language_lstm: 16, region_projection: 16, context_latent: 4, attention_width: 8"
    )
    Path("toy.yaml").write_text(
        "data: data/mine\nregions: standing-out.h5\nsteps: 2\nbatch_size: 10\nvalidation: null\n"
        f"model: {{preset: small, kind: one_latent, {sizes}}}\n"
    )
    call(["train", "toy.yaml", "--out", "runs/toy", "--device", "cpu"])
    sample = "sample runs/toy --data data/mine --regions standing-out.h5 --split test -n 2 --max-length 5"
    call([*sample.split(), "--out", "toy.json"])

    metrics = (*evaluation.METRICS, names["recall"])
    monkeypatch.setattr(evaluation, "METRICS", metrics)
    monkeypatch.setattr(evaluation, "BY_NAME", {metric.name: metric for metric in metrics})
    monkeypatch.setattr(evaluation, "GROUPS", (*evaluation.GROUPS, "recall"))
    capsys.readouterr()
    call(["evaluate", "samples.json", "--references", "data/mine:test", "--metrics", "recall"])
    assert "object-recall" in capsys.readouterr().out

    captioner, regions = names["captioner"], names["regions"]
    model, words = captioner.model, captioner.vocabulary
    plain = generate(model, regions, words, 2, SearchSettings(search="beam", num_beams=4))[0]
    silent = names["noisy_search"](model, regions, words, 2, seed=1, strength=0.0)[0]
    assert [caption.text for caption in silent] == [caption.text for caption in plain]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_are_marked_as_such(page: Path) -> None:
    """A block of commands without `sh` would escape the test above."""
    for block in blocks(page):
        if block.language in ("", "bash", "shell", "console"):
            first = [line.split()[0] for line in block.text.splitlines() if line.strip()]
            assert not set(first) & set(PROGRAMS), f"{block.place}: write ```sh before commands"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_inline_commands_have_verbs_and_options_that_exist(page: Path) -> None:
    for code in inline_commands(page):
        verbs = typer.main.get_command(app)
        words = code.split()[1:]
        options: set[str] = set()
        if words[0].isupper() or words[0].startswith("-"):
            continue
        for word in words:
            if word in getattr(verbs, "commands", {}):
                verbs = verbs.commands[word]
        assert verbs.name != "coscap", f"{page.name}: there is no `{code}`"
        below = [verbs, *getattr(verbs, "commands", {}).values()]
        for one in below:
            options |= {
                name for parameter in one.params for name in (*parameter.opts, *parameter.secondary_opts)
            }
        wanted = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)} - {"--help", "-h"}
        assert wanted <= options, f"{page.name}: `{code}` has options that do not exist: {wanted - options}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link} has no such heading"


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_commands_in_configurations_parse(config: Path) -> None:
    head = [line[1:] for line in config.read_text().splitlines() if line.startswith("#")]
    lines = [line for line in (re.sub(r"^ *(data|command) +", "", one).strip() for one in head) if line]
    found = [re.split(r" {4,}", line)[0] for line in lines if line.split()[0] in PROGRAMS]
    assert any(f"coscap train configs/{config.name}" in line for line in found), "it says no command"
    for line in found:
        command = read_command(config.name, line)
        assert command is not None
        check(command)


def test_a_broken_command_is_found(tmp_path: Path) -> None:
    """The test can fail: an unknown option, a missing file, an unknown verb, an error of the command."""
    space = Workspace(tmp_path)
    for line in (
        "coscap caption --no-such-option photo.jpg",
        "coscap nothing",
        "coscap train configs/nothing.yaml --out x",
        "coscap train configs/small.yaml --out x --set stepps=3",
        "pip install 'coscap[nothing]'",
        "make nothing",
        "python benchmarks/nothing.py",
    ):
        command = read_command("here", line)
        assert command is not None
        with (
            pytest.raises((SystemExit, UserError, AssertionError)),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            check(command)
    block = Block(ROOT / "README.md", 1, "sh", "coscap caption nowhere.jpg", None)
    with pytest.raises(UserError, match=r"nowhere\.jpg does not exist"):
        space.run(next(commands(block)))


def test_what_a_page_prints_is_compared_with_a_tolerance() -> None:
    printed = "samples.json: 10 captions\n│ CIDEr  │  0.4623 ±.410 │\n│ unique │ 90.0 │\n"
    assert not not_printed("samples.json: 10 captions\n│ CIDEr │ 0.4627 ±.411 │", printed)
    assert not_printed("│ CIDEr │ 0.4823 ±.410 │\n│ unique │ 90.0 │", printed) == ["│ CIDEr │ 0.4823 ±.410 │"]
    assert not not_printed("samples.json: ...", printed) and not_printed("other.json: ...", printed)
    assert not_printed("│ Div-1 │ 90.0 │", printed) and not_printed("samples.json: 11 captions", printed)
