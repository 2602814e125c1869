"""What is true of a picture by what people wrote of it.

A word is borne out where a person's caption has it, its stem, or another word of its class; a number where one of the
captions has that number. A caption counts as true where it names no object that nobody names and no number that nobody
gives, and all its other content words but one are borne out.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from nltk.stem.snowball import SnowballStemmer

from coscap.text.content import NUMBERS, is_content

stem = cache(SnowballStemmer("english").stem)


class ReferenceWords:
    """What people's captions of a picture say."""

    def __init__(self, captions: Iterable[Sequence[str]], class_of: Mapping[str, str]) -> None:
        """captions: as words or units; class_of: the class that a word names, for words that name one."""
        units = {unit for caption in captions for unit in caption}
        self.words = units | {word for unit in units for word in unit.split()}
        self.stems = {stem(word) for word in self.words}
        self.class_of = class_of
        self.classes = {class_of[word] for word in self.words if word in class_of}
        self.numbers = {NUMBERS[word] for word in self.words if word in NUMBERS}

    def bears_out(self, token: str) -> bool:
        """A token of several words is also borne out by all of them."""
        if token in NUMBERS:
            return NUMBERS[token] in self.numbers
        return (
            self.words.issuperset(token.split())
            or stem(token) in self.stems
            or self.class_of.get(token, "") in self.classes
        )

    def unsaid(self, tokens: Iterable[str]) -> list[str]:
        """The content words and numbers that are not borne out."""
        judged = (token for token in tokens if is_content(token) or token in NUMBERS)
        return [token for token in judged if not self.bears_out(token)]

    def is_true(self, tokens: Iterable[str]) -> bool:
        unsaid = self.unsaid(tokens)
        return len(unsaid) <= 1 and not any(token in self.class_of or token in NUMBERS for token in unsaid)
