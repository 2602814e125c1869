"""What is true of a picture by what people wrote of it.

A word is borne out where a person's caption has it, its stem, or another word of its class. A number is borne out where
a caption gives one that agrees ("a group" with "four"); "several" and the like also where captions give no number and
speak of the thing in the plural. A caption counts as true where it names no object that nobody names and no number
that is not borne out, and all its other content words but one are borne out.
"""

from collections.abc import Iterable, Sequence
from functools import cache

from nltk.stem.snowball import SnowballStemmer

from coscap.text.content import is_content
from coscap.text.numbers import NUMBERS, agree, with_counted
from coscap.text.objects import ObjectClasses

stem = cache(SnowballStemmer("english").stem)


class ReferenceWords:
    """What people's captions of a picture say."""

    def __init__(self, captions: Iterable[Sequence[str]], objects: ObjectClasses) -> None:
        """captions: as words or units"""
        units = {unit for caption in captions for unit in caption}
        self.words = units | {word for unit in units for word in unit.split()}
        self.stems = {stem(word) for word in self.words}
        self.class_of = objects.class_of
        self.classes = {self.class_of[word] for word in self.words if word in self.class_of}
        self.several = {each.name for each in objects.classes if not self.words.isdisjoint(each.plurals)}
        self.numbers = [NUMBERS[word] for word in self.words if word in NUMBERS]

    def bears_out(self, token: str, counted: str | None = None) -> bool:
        """A token of several words is also borne out by all of them. counted: the class that a number counts"""
        if token in NUMBERS:
            mine = NUMBERS[token]
            plural = mine[1] > mine[0] and not self.numbers and counted in self.several
            return plural or any(agree(mine, other) for other in self.numbers)
        return (
            self.words.issuperset(token.split())
            or stem(token) in self.stems
            or self.class_of.get(token, "") in self.classes
        )

    def marks(self, tokens: Sequence[str]) -> list[bool]:
        """Whether each token is borne out."""
        return [self.bears_out(*each) for each in with_counted(tokens, self.class_of)]

    def unsaid(self, tokens: Sequence[str]) -> list[str]:
        """The content words and numbers that are not borne out."""
        marked = zip(tokens, self.marks(tokens), strict=True)
        return [token for token, ok in marked if not ok and (is_content(token) or token in NUMBERS)]

    def is_true(self, tokens: Sequence[str]) -> bool:
        unsaid = self.unsaid(tokens)
        return len(unsaid) <= 1 and not any(token in self.class_of or token in NUMBERS for token in unsaid)
