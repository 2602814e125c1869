"""The official tokens of a caption: Penn Treebank tokenising as the COCO evaluation does it, without Java."""

import re

from coscap.text.ptb_rules import RULES

# The official list. It is compared with lower-cased tokens, so "-lrb-" and its kin are not in it and survive.
PUNCTUATION = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())

_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_SINGLE = {
    "€": "$",
    "£": "#",
    "¢": "cents",
    "½": "1/2",
    "¼": "1/4",
    "¾": "3/4",
    "…": "...",
    "’": "'",
    "‘": "`",
}
_SINGLE |= {"“": "``", "”": "''", "–": "--", "—": "--"}
_PLAIN = re.compile(r"[A-Za-z]+")


def tokenise(caption: str) -> list[str]:
    """The tokens of a caption, lower case, without punctuation.

    A token may hold a no-break space ("25\u00a01/2"): split text on " ", never with `split()`.
    """
    return [token for token in lex(caption.replace("\n", " ")) if token not in PUNCTUATION]


def lex(text: str) -> list[str]:
    """All tokens, punctuation too."""
    tokens: list[str] = []
    at = 0
    while at < len(text):
        longest, name, found = 0, "", ""
        for kind, rule in RULES.items():
            match = rule.match(text, at)
            if match and match.end() - at > longest:
                longest, name, found = match.end() - at, kind, match.group(1)
        at += len(found)
        if name != "space":
            tokens.append(_normal(found, name, text, at).lower())
    return tokens


def _normal(token: str, kind: str, text: str, end: int) -> str:
    if kind in ("fraction", "phone"):
        token = token.replace(" ", "\u00a0")
    if kind in ("smiley", "phone"):
        return "".join(_BRACKETS.get(c, c) for c in token)
    if kind == "ellipsis":
        return "..."
    if kind == "dashes":
        return "--"
    if token == '"':
        opens = end == 1 or text[end - 2].isspace()
        return "``" if opens else "''"
    return _BRACKETS.get(token) or _SINGLE.get(token) or token.replace("’", "'")
