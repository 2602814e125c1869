"""Content words: those that say something about what is seen."""

from collections.abc import Sequence

from coscap.text.vocabulary import SPECIAL

# Words that say nothing about what is seen: articles, pronouns, auxiliaries, conjunctions, pure quantity and vagueness.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any each every all both either neither no not another other others such
    same i you he she it we they me him her us them my your his its our their who whom whose which what there
    here is are was were be been being am 's has have had having do does did doing can could will would may
    might must shall and or but nor so if as than because while when where how why then just only also too very
    really quite of to in on at by for from with without into onto over under above below between through across
    along around about near next behind beside besides against during before after off out up down upon within
    inside outside toward towards one two three four five six seven eight nine ten several many few lots lot
    bunch couple group set pair pieces piece it's let 'll n't ' - & shown showing shows show seen appears appear
    seems looks looking look view picture image photo photograph photos pictures images shot scene something
    someone thing things kind type sort way ready trying used using
    """.split()
)

# Words without which a caption says the same: "there is a dog on the grass", "a dog that is on grass".
EMPTY_WORDS = frozenset("a an the is are was were be being been that which there 's".split())


def is_content(token: str) -> bool:
    """Whether a token says something about what is seen; names of several words do."""
    return token not in SPECIAL and token not in FUNCTION_WORDS and any(letter.isalpha() for letter in token)


def gist(tokens: Sequence[str]) -> tuple[str, ...]:
    """A caption's words without those that say nothing: captions with the same gist say the same."""
    return tuple(token for token in tokens if token not in EMPTY_WORDS) or tuple(tokens)
