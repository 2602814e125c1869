"""Captions as the metrics want them: the official tokens, joined by single spaces."""

from collections.abc import Iterable, Sequence

from coscap.text import tokenise


def tokens(captions: Iterable[str]) -> list[str]:
    """Tokenise; a caption that occurs again is not tokenised again."""
    known: dict[str, str] = {}
    result = []
    for caption in captions:
        text = known.get(caption)
        if text is None:
            text = known[caption] = " ".join(tokenise(caption))
        result.append(text)
    return result


def token_groups(groups: Iterable[Sequence[str]], tokenised: bool = False) -> list[list[str]]:
    """Tokenise the captions of each group, unless they are `tokenised` already."""
    groups = list(groups)
    if any(isinstance(group, str) for group in groups):
        raise TypeError("expected lists of captions, one list for each picture")
    if tokenised:
        return [[caption.strip(" ") for caption in group] for group in groups]
    words = iter(tokens(caption for group in groups for caption in group))
    return [[next(words) for _ in group] for group in groups]
