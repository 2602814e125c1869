"""What is wrong in a caption by its words alone, whatever the picture shows, and what can be mended by rule."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from coscap.text.content import is_content
from coscap.text.objects import ObjectClasses
from coscap.text.slots import split

OTHERS = frozenset("another other others each second".split())  # then a class may be named again
ANIMATE = frozenset("person bird cat dog horse sheep cow elephant bear zebra giraffe".split())
# What only somebody alive does. "A bus driving down a street" is no fault, "a surfboard riding a wave" is.
DEEDS = frozenset(
    """
    walking walks riding rides eating eats holding holds wearing wears talking talks playing plays jumping jumps
    swinging swings running runs surfing surfs skiing skis skateboarding skateboards snowboarding drinking
    drinks looking looks watching watches smiling smiles throwing throws catching catches hitting cutting
    cooking preparing reading reads grazing posing poses carrying carries
    """.split()
)
PARTICIPLES = ("ing", "ed")
BETWEEN = frozenset("is are that".split())  # of a subject and its deed
# Written with a vowel, pronounced with a consonant; and the other way round.
_CONSONANT = ("uni", "use", "usu", "uti", "eu", "ewe", "one", "once", "ufo", "ukulele", "urin")
_NOT_CONSONANT = ("unid", "unin", "unim")
ENDINGS = ("'s", "n't", "'re", "'ll", "'ve")  # tokens that belong to the word before them
_BEFORE_ITS = frozenset(
    "on with in of to at over from under near for by behind into around off through has".split()
)
_VOWEL = ("hour", "honest", "honor", "heir", "herb")


def faults(tokens: Sequence[str], objects: ObjectClasses) -> list[str]:
    """Phrases that say what is wrong, none for a caption without fault: an object named twice, a word twice in a row,
    content words that come again one after the other, a thing that does what only the living do.

    `tokens` may hold names of several words ("fire hydrant"). "Another dog" is another one, and so are "a man and a
    woman". Of human captions 3 % have such a fault (docs/support.md).
    """
    words = " ".join(tokens).split()
    parts = split(words, objects)
    named = [
        (unit, objects.classes[index].name) for unit, index in zip(parts.objects, parts.classes, strict=True)
    ]
    found = []
    if not OTHERS & set(words):
        keys = [unit if kind == "person" else kind for unit, kind in named]
        found += [f"{unit} is named twice" for at, (unit, _) in enumerate(named) if keys[at] in keys[:at]]
    # A word that ends what it belongs to names a thing: "plate" in "a plate of food" and in "a plate topped with food",
    # not "white" in "a white plate".
    ends = [
        a
        for a, b in pairwise([*words, ""])
        if is_content(a) and (not is_content(b) or b.endswith(PARTICIPLES))
    ]
    others = {word for unit, _ in named for word in unit.split()}
    if not OTHERS & set(words):
        found += [
            f"{word} is named twice"
            for at, word in enumerate(ends)
            if word in ends[:at] and word not in others
        ]
    found += [f"{word} comes twice in a row" for word, following in pairwise(words) if word == following]
    content = [word for word in words if is_content(word)]
    pairs = list(pairwise(content))
    found += [f"{one} {two} comes twice" for at, (one, two) in enumerate(pairs) if (one, two) in pairs[:at]]
    if named and named[0][1] not in ANIMATE and not any(kind in ANIMATE for _, kind in named):
        subject = named[0][0].split()[-1]
        plain = [word for word in words if word not in BETWEEN]
        found += [
            f"{subject} cannot be {deed}" for one, deed in pairwise(plain) if one == subject and deed in DEEDS
        ]
    return found


def mend_articles(text: str, between: str = " ") -> str:
    """ "a umbrella" becomes "an umbrella", "an dog" becomes "a dog". `between` divides the words."""
    words = text.split(between)
    for at, (word, following) in enumerate(pairwise(words)):
        if word in ("a", "an") and following[:1].isalpha():
            words[at] = "an" if sounds_like_vowel(following) else "a"
    return between.join(words)


@lru_cache(maxsize=10_000)
def mended(text: str, between: str = " ") -> str:
    """A caption's tokens as they are shown: articles, ENDINGS joined, and "on it 's head" as "on its head"."""
    words: list[str] = []
    for word in mend_articles(text, between).split(between):
        if word not in ENDINGS or not words:
            words.append(word)
        elif word == "'s" and words[-1] == "it" and words[-2:-1] and words[-2] in _BEFORE_ITS:
            words[-1] = "its"
        else:
            words[-1] += word
    return between.join(words)


def sounds_like_vowel(word: str) -> bool:
    """Whether a word begins with a vowel as it is pronounced."""
    word = word.lower()
    if word.startswith(_VOWEL):
        return True
    consonant = word.startswith(_CONSONANT) and not word.startswith(_NOT_CONSONANT)
    return word[:1] in "aeiou" and not consonant
