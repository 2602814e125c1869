"""Captions as alternative texts of pictures."""

from collections.abc import Sequence

MAX_CHARS = 125  # beyond it, some screen readers stop
_LEAST = 20

_JOINED = {"'s", "'", "n't", "'re", "'ve", "'ll", "'d", "'m", ",", ".", "!", "?", ";", ":", ")", "%"}
_OPENING = {"(", "$", "#"}
_LEADS = [
    (article, *close, kind, "of")
    for article in ("a", "an", "the", "this")
    for close in ((), ("close", "up"), ("black", "and", "white"))
    for kind in ("picture", "photo", "photograph", "image", "view", "shot")
    if kind != "view" or close
]
# Words that a text that was cut short must not end with.
_DANGLING = frozenset(
    "a an the of on in at to by with and or for from into onto over under near next is are was has "
    "that which while as its his her their this two three some front top behind between "
    "it , ; : (".split()
)


def alt_text(text: str, max_chars: int = MAX_CHARS, prefix: str = "", suffix: str = "") -> str:
    """One sentence: a capital, a full stop, "'s" joined, no "a picture of", never cut inside of a word.

    `prefix` and `suffix` are put before and after the sentence and count in `max_chars`. What does not fit is left
    out from the end, together with words that would dangle ("... with a").
    """
    from coscap.errors import UserError

    room = max_chars - len(prefix) - len(suffix)
    if room < _LEAST:
        raise UserError(
            f"max_chars is {max_chars}, and with prefix and suffix {max(0, room)} are left for the sentence; "
            f"leave at least {_LEAST}."
        )
    words = _without_lead(text.split())
    sentence = _sentence(words)
    while len(sentence) > room and len(words) > 1:
        words = words[:-1]
        while len(words) > 1 and words[-1] in _DANGLING:
            words = words[:-1]
        sentence = _sentence(words)
    return f"{prefix}{sentence}{suffix}"


def _without_lead(words: list[str]) -> list[str]:
    for lead in _LEADS:
        if tuple(words[: len(lead)]) == lead and len(words) > len(lead):
            return words[len(lead) :]
    return words


def _sentence(words: Sequence[str]) -> str:
    text = ""
    for word in words:
        glue = "" if not text or word in _JOINED or text[-1] in _OPENING else " "
        text += glue + word
    text = text.rstrip(" .,;:")
    return f"{text[:1].upper()}{text[1:]}." if text else ""
