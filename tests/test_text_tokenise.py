"""The tokeniser against recorded official output, and its properties."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coscap.text import tokenise, tokenise_all
from coscap.text.ptb import PUNCTUATION, lex

RECORDED = Path(__file__).parent / "data" / "text_tokens.jsonl.gz"


def _recorded() -> list[tuple[str, list[str]]]:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        return [(line, tokens) for line, tokens in map(json.loads, file)]


def test_equals_the_official_tokens() -> None:
    rows = _recorded()
    wrong = [(line, tokenise(line), official) for line, official in rows if tokenise(line) != official]
    assert len(rows) == 5_000
    assert not wrong, wrong[:5]


def test_the_short_way_equals_the_rules() -> None:
    """Words that are looked up must give what the rules give for the whole line."""
    for line, official in _recorded():
        assert [token for token in lex(line) if token not in PUNCTUATION] == official


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("A man's dog can't sit.", "a man 's dog ca n't sit"),
        ("I cannot see, it's gonna rain", "i can not see it 's gon na rain"),
        ("a/b word.word 9:00pm", "a/b word.word 9:00 pm"),
        ("25 1/2 feet", "25\u00a01/2 feet"),
        ("bikes., cars.; (two)", "bikes. cars. -lrb- two -rrb-"),
        ("What?? No!", "what ?? no"),
        ("hors d'oeuvres and M&Ms at no. 5, not no.", "hors d'oeuvres and m&m s at no. 5 not no"),
        ("C++ at :30 on Elm Ct.", "c++ at :30 on elm ct."),
        ("“It’s ½ – or £5…” 😀", "it 's 1/2 or # 5"),
        ("see http://a.org/x?y=1, or me@foo.com", "see http://a.org/x?y=1 or me@foo.com"),
        ("J. Smith saw x. The end", "j. smith saw x the end"),
        ("हिन्दी में कुत्ता", "हिन्दी में कुत्ता"),
        ("a\nb\r\nc\u2028d\te", "a b c d e"),
        ("", ""),
        (" \n ", ""),
        ("...", ""),
    ],
)
def test_examples(caption: str, tokens: str) -> None:
    assert tokenise(caption) == (tokens.split(" ") if tokens else [])


def test_captions_together_see_the_next_one() -> None:
    captions = ["Ave S.", "A train", "Ave S.", "two dogs", "Ave S."]
    assert tokenise_all(captions) == [
        ["ave", "s"],
        ["a", "train"],
        ["ave", "s."],
        ["two", "dogs"],
        ["ave", "s."],
    ]
    assert tokenise_all([]) == []


@given(st.text())
def test_tokens_are_words(text: str) -> None:
    for token in tokenise(text):
        assert token and " " not in token and "\n" not in token and token not in PUNCTUATION


@given(st.lists(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=0x2FF)), max_size=5))
def test_many_are_the_same_as_each(captions: list[str]) -> None:
    found = tokenise_all(captions)
    assert len(found) == len(captions)
    for caption, tokens in zip(captions, found, strict=True):
        alone = tokenise(caption)
        assert tokens == alone or tokens == [*alone[:-1], alone[-1][:-1]]


def test_import_is_cheap() -> None:
    code = "import sys, coscap.text; print(sorted({'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
