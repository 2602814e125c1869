"""Regular English plurals with the usual exceptions, for class lists that give only the singular."""

IRREGULAR = {
    "man": "men",
    "woman": "women",
    "person": "people",
    "child": "children",
    "foot": "feet",
    "tooth": "teeth",
    "goose": "geese",
    "mouse": "mice",
    "ox": "oxen",
    "knife": "knives",
    "wife": "wives",
    "life": "lives",
    "leaf": "leaves",
    "loaf": "loaves",
    "shelf": "shelves",
    "half": "halves",
    "calf": "calves",
    "wolf": "wolves",
    "elf": "elves",
    "scarf": "scarves",
    "thief": "thieves",
    "die": "dice",
    "cactus": "cacti",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "mango": "mangoes",
    "hero": "heroes",
    "echo": "echoes",
    "torpedo": "torpedoes",
    "domino": "dominoes",
    "bus": "buses",
    "quiz": "quizzes",
    "passerby": "passersby",
}

# One form for both numbers: animals, tools and clothes in two halves, and things that are not counted.
_UNCHANGED = (
    "sheep deer fish moose bison elk shrimp squid salmon trout swine aircraft spacecraft hovercraft watercraft "
    "scissors pliers tweezers shears pants jeans trousers shorts tights leggings pajamas pyjamas overalls "
    "glasses sunglasses eyeglasses goggles binoculars headphones earphones scales species series "
    "luggage baggage furniture clothing food fruit cutlery silverware jewelry equipment broccoli corn rice "
    "bread butter cheese pasta grass sand snow water ice dirt mud milk juice coffee tea wine beer meat beef "
    "bacon ham pork seafood footwear headgear graffiti lettuce spinach celery cabbage tennis hair wood"
)
UNCHANGED = frozenset(_UNCHANGED.split())

_VOWELS = "aeiou"


def plural(name: str) -> str:
    """The plural of a name; of several words the last one changes, or the one before "of": "cups of tea"."""
    head, of, rest = name.partition(" of ")
    words = head.split(" ")
    words[-1] = _plural_of_word(words[-1])
    return " ".join(words) + of + rest


def _plural_of_word(word: str) -> str:
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word in UNCHANGED:
        return word
    for ending in ("woman", "man", "child"):
        if word.endswith(ending) and word != "human" and not word.endswith(("human", "german", "roman")):
            return word[: -len(ending)] + IRREGULAR[ending]
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and len(word) > 1 and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + "s"
