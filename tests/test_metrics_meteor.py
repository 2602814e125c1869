"""METEOR against recorded answers of the official program, and its parts on made tables."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coscap.errors import UserError
from coscap.metrics.meteor import Meteor, corpus_score, java, scores, tables
from coscap.metrics.meteor.normalise import normalise
from coscap.metrics.meteor.statistics import BETA, COLUMNS, power_beta

DATA = Path(__file__).parent / "data"


def _read(name: str) -> Any:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="module")
def record() -> Any:
    return _read("meteor.json.gz")


@pytest.fixture(scope="module")
def meteor() -> Meteor:
    """With the real tables: made in the user's cache by the first run, as for a user."""
    return Meteor(threads=1)


@pytest.fixture(scope="module")
def demo() -> tuple[list[str], list[list[str]]]:
    images = _read("metrics_demo.json.gz")["images"]
    return [image["tokens"] for image in images], [[r[1] for r in image["references"]] for image in images]


def test_demo_is_the_official_score_to_the_last_bit(
    meteor: Meteor, demo: tuple[list[str], list[list[str]]], record: Any
) -> None:
    corpus, sentences = meteor.score(*demo)
    assert corpus == record["demo"]["corpus"]
    assert round(corpus, 6) == 0.195255
    assert sentences == record["demo"]["scores"]


def test_hard_lines_have_the_official_statistics_and_scores(meteor: Meteor, record: Any) -> None:
    hard = record["hard"]
    captions, references = zip(*hard["lines"], strict=True)
    statistics = meteor.statistics([[caption] for caption in captions], list(references))
    wrong = np.flatnonzero((statistics != np.array(hard["statistics"])).any(axis=1))
    assert not len(wrong), [captions[i] for i in wrong[:3]]
    assert scores(statistics).tolist() == hard["scores"]
    assert corpus_score(statistics) == hard["corpus"]
    assert len(captions) > 500
    assert max(len(caption.split()) for caption in captions) > 64  # more words than one mask has bits


def test_normaliser_is_the_official_one(meteor: Meteor, record: Any) -> None:
    known = tables.open_tables()
    wrong = [
        (text, ours)
        for text, official in record["normalised"]
        if (ours := " ".join(normalise(text, known))) != official
    ]
    assert not wrong
    assert len(record["normalised"]) > 800


def test_samples_of_a_picture_score_as_alone_whatever_the_threads(
    demo: tuple[list[str], list[list[str]]],
) -> None:
    captions, references = demo
    samples = [[captions[i], captions[i - 1], captions[i]] for i in range(80)]
    one = Meteor(threads=1).score_samples(samples, references[:80])
    assert one == Meteor(threads=3).score_samples(samples, references[:80])
    _, alone = Meteor(threads=1).score(captions[:80], references[:80])
    assert [each[0] for each in one] == alone
    assert all(each[0] == each[2] for each in one)


def test_no_captions_and_no_words(meteor: Meteor) -> None:
    assert meteor.score([], []) == (0.0, [])
    assert meteor.score([""], [["", ""]]) == (0.0, [0.0])
    assert meteor.score_samples([[], ["a dog"]], [["a dog"], ["a dog"]]) == [[], [1.0]]


def test_bad_input_is_one_sentence(meteor: Meteor) -> None:
    with pytest.raises(UserError, match="captions for 1 pictures and references for 0"):
        meteor.score(["a dog"], [])
    with pytest.raises(UserError, match="number 1 has none"):
        meteor.score(["a", "b"], [["a"], []])


def test_power_is_rounded_correctly() -> None:
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 45
        for chunks in range(1, 20):
            for matched in range(2 * chunks, 90):
                x = chunks / (matched / 2)
                assert power_beta(x) == float(Decimal(x) ** Decimal(BETA)), x


@pytest.fixture
def made_source(tmp_path: Path) -> Path:
    """METEOR's files, with a handful of words."""
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    with zipfile.ZipFile(source / "meteor-1.5.jar", "w") as jar:
        jar.writestr("function/english.words", "the\na\nof\n")
        jar.writestr("nonbreaking/english.prefixes", "# titles\nMr\nNo #NUMERIC_ONLY#\n")
        jar.writestr(
            "synonym/english.synsets", "dog\n01 02\nhound\n02\ntwo_words\n03\nmouse\n07\nrodent\n07\n"
        )
        jar.writestr("synonym/english.exceptions", "mouse\nmice\n")
    rows = [("on top of", "atop"), ("on top of", "upon"), ("on", "over"), ("in front", "before")]
    with gzip.open(source / "data" / "paraphrase-en.gz", "wt", encoding="utf-8") as file:
        file.write("".join(f"0.5\n{a}\n{b}\n" for a, b in rows))
    return source


def test_tables_of_made_files(made_source: Path, tmp_path: Path) -> None:
    tables.build_tables(made_source, tmp_path / "cache")
    known = tables._read(tmp_path / "cache")
    assert known.function_words == {"the", "a", "of"}
    assert known.abbreviations == {"Mr"}
    assert known.before_numbers == {"No"}
    assert (known.find(["dog", "atop", "upon"]) >= 0).all()
    assert known.find(["unknown", "two_words", "a word longer than any in these tables"]).tolist() == [
        -1,
        -1,
        -1,
    ]
    assert len(known.row_target) == 4
    meteor = Meteor(tables=known, threads=1)

    def modules(caption: str, reference: str) -> list[int]:
        """Matched caption words by module: exact, stem, synonym, paraphrase."""
        row = meteor.statistics([[caption]], [[reference]])[0]
        assert len(row) == COLUMNS
        return [int(row[4 + 4 * module] + row[6 + 4 * module]) for module in range(4)]

    assert modules("dogs", "hound") == [0, 0, 1, 0]  # a regular plural and a shared set
    assert modules("mice", "rodent") == [0, 0, 1, 0]  # an irregular one
    assert modules("runs", "running") == [0, 1, 0, 0]
    assert modules("cat on top of table", "cat atop table") == [2, 0, 0, 3]
    assert modules("cat atop table", "cat on top of table") == [2, 0, 0, 1]  # the table is read both ways
    assert modules("cat", "horse") == [0, 0, 0, 0]


def test_tables_are_made_again_when_the_package_changes(made_source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    tables.build_tables(made_source, folder)
    assert tables._is_current(folder, made_source)
    assert tables._is_current(folder, None)  # the package may be gone: the cache is enough
    with (made_source / "data" / "paraphrase-en.gz").open("ab") as file:
        file.write(b"x")
    assert not tables._is_current(folder, made_source)
    (folder / "manifest.json").write_text("{", encoding="utf-8")
    assert not tables._is_current(folder, made_source)


def test_without_the_package_a_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "package_folder", lambda: None)
    with pytest.raises(UserError, match=r"pip install 'coscap\[coco\]'"):
        Meteor(cache=tmp_path / "none")


def test_without_java_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_java", lambda: None)
    with pytest.raises(UserError, match="needs Java"):
        Meteor(java=True).score(["a"], [["a"]])
