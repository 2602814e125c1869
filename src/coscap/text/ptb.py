"""The official tokens of a caption: Penn Treebank tokenising as the COCO evaluation does it, without Java."""

import re
from collections.abc import Iterable

from coscap.text.ptb_characters import SOFT_HYPHEN
from coscap.text.ptb_rules import NUMBERED_ABBREVIATIONS, TWO_WORDS, rules

# The official list. It is compared with lower-cased tokens, so "-lrb-" and its kin are not in it and survive.
PUNCTUATION = frozenset(["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ","])
PUNCTUATION |= {":", "-", "--", "...", ";"}

_CHANGED = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_CHANGED |= {"€": "$", "¤": "$", "\u0080": "$", "\u20a0": "$", "£": "#", "¢": "cents"}
_CHANGED |= {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "…": "...", SOFT_HYPHEN: "-"}
_CHANGED |= dict.fromkeys("–—―\u0096\u0097", "--") | dict.fromkeys("‘‛‹\u0091", "`")
_CHANGED |= {'"': "''"} | dict.fromkeys("’›\u0092", "'")
_CHANGED |= dict.fromkeys("“«\u0093", "``") | dict.fromkeys("”»\u0094", "''")
_CHANGED |= {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&nbsp;": ""}
_CHANGED |= {"&mdash;": "--", "&ndash;": "--"}
_ROUND = {"(": "-lrb-", ")": "-rrb-"}

# Rules that look past a space begin with a digit, a bracket, a dot behind one letter, or "no." and its like.
_ALONE = re.compile(r"[^\d<(.&]*|[^\d<(.&]*[A-Za-z]{2}\.[,;]?")
_BEFORE_NUMBER = re.compile(rf"(?:.*[^A-Za-z])?(?i:{NUMBERED_ABBREVIATIONS})\.")
# Space, or a word that only the rule for words can match: not one of those that become two, and with nothing
# behind it but space or a comma.
_SIMPLE = re.compile(rf"\s+|(?!(?i:{TWO_WORDS})(?![A-Za-z]))(?P<word>[A-Za-z]{{2,}})(?=,?(?!\S))")


def tokenise(caption: str) -> list[str]:
    """The tokens of a caption, lower case, without punctuation.

    A token may hold a no-break space ("25\u00a01/2"): split joined tokens at " ", never with a bare `split()`.

    >>> tokenise("A man's dog can't sit, etc.")
    ['a', 'man', "'s", 'dog', 'ca', "n't", 'sit', 'etc.']
    """
    try:
        return [token for chunk in caption.split() for token in _chunks[chunk]]
    except KeyError:
        return [token for token in lex(caption) if token not in PUNCTUATION]


def tokenise_all(captions: Iterable[str]) -> list[list[str]]:
    """The tokens of captions that are evaluated together, in their order.

    The official tokeniser reads all captions as one file. One that ends in an initial ("17 Ave S.") loses its
    dot when the next one begins a sentence ("A train ..."): 17 of COCO's 616,767 do. Elsewhere this is the
    same as `tokenise` of each.
    """
    texts = list(captions)
    tokens = [tokenise(text) for text in texts]
    for number, found in enumerate(tokens[:-1]):
        if found and len(found[-1]) == 2 and found[-1][1] == ".":
            text = texts[number]
            again = lex(f"{text}\n{texts[number + 1]}", len(text))
            tokens[number] = [token for token in again if token not in PUNCTUATION]
    return tokens


class _Chunks(dict[str, tuple[str, ...]]):
    """The text between two spaces -> its tokens without punctuation; found once for each chunk.

    Only chunks whose tokens do not depend on their neighbours are here, others are a KeyError.
    """

    LIMIT = 1_000_000

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        if not _ALONE.fullmatch(chunk) or _BEFORE_NUMBER.fullmatch(chunk):
            raise KeyError(chunk)
        if len(self) >= self.LIMIT:
            self.clear()
        tokens = tuple(token for token in lex(chunk) if token not in PUNCTUATION)
        self[chunk] = tokens
        return tokens


_chunks = _Chunks()


def lex(text: str, end: int | None = None) -> list[str]:
    """All tokens that begin before `end`, lower case, punctuation too."""
    tokens: list[str] = []
    at, end = 0, len(text) if end is None else end
    while at < end:
        simple = _SIMPLE.match(text, at)
        if simple:
            at = simple.end()
            if simple["word"]:
                tokens.append(simple["word"].lower())
            continue
        kind, token = _longest(text, at)
        at += len(token) or 1  # a character that the tokeniser does not know vanishes
        normal = _normal(kind, token)
        if normal:
            tokens.append(normal)
    return tokens


def _longest(text: str, at: int) -> tuple[str, str]:
    """The rule with the longest match at a position, and its token; the first of equals."""
    longest, kind, token = 0, "", ""
    for name, rule in rules(text[at]):
        match = rule.match(text, at)
        if match and match.end() - at > longest:
            longest, kind, token = match.end() - at, name, match[match.lastindex or 0]
    return kind, token


def _normal(kind: str, token: str) -> str:
    """A token as it is written out: brackets by name, quotes and dashes in ASCII, no space inside."""
    token = token.lower()
    if kind in ("symbol", "entity"):
        return _CHANGED.get(token, token)
    if kind == "quotes":
        return "".join(_CHANGED.get(character, character) for character in token)
    if kind in ("n't", "auxiliary"):
        return re.sub("’|\u0092|&apos;", "'", token).replace("‘", "`")
    if kind == "dashes":
        return "--" if len(token) < 5 else token
    if kind == "ellipsis":
        return "..."
    if kind in ("fraction", "phone", "tag"):
        token = token.replace(" ", "\u00a0")
    if kind in ("smiley", "face", "phone"):
        return "".join(_ROUND.get(character, character) for character in token)
    if kind.startswith("ampersand"):
        token = token.replace("&amp;", "&")
    return token.replace(SOFT_HYPHEN, "")
