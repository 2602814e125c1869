"""Captions as the metrics want them: the official tokens, joined by single spaces."""

from collections.abc import Iterable, Sequence

from coscap.text import tokenise_all


def tokens(captions: Iterable[str]) -> list[str]:
    """Tokenise captions as the official code does, which reads all of them as one text."""
    return [" ".join(words) for words in tokenise_all(captions)]


def token_groups(groups: Iterable[Sequence[str]], tokenised: bool = False) -> list[list[str]]:
    """Tokenise the captions of each group, unless they are `tokenised` already."""
    groups = list(groups)
    if any(isinstance(group, str) for group in groups):
        raise TypeError("expected lists of captions, one list for each picture")
    if tokenised:
        return [[caption.strip(" ") for caption in group] for group in groups]
    words = iter(tokens(caption for group in groups for caption in group))
    return [[next(words) for _ in group] for group in groups]
