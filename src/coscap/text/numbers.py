"""Words that say how many things there are, and what they count."""

from collections.abc import Mapping, Sequence

REACH = 4  # words after a number among which the thing is that it counts: "two large brown dogs"

# At least and at most how many. A pair is left out: a pair of skis or scissors is one thing.
NUMBERS: dict[str, tuple[int, float]] = {
    **dict.fromkeys(("two", "couple"), (2, 2)),
    **{word: (n, n) for n, word in enumerate("three four five six seven eight nine ten".split(), 3)},
    **{word: (3, float("inf")) for word in ("several", "many", "group", "bunch")},
}


def with_counted(tokens: Sequence[str], class_of: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Each token and, of a number, the class of objects that it counts; None where it counts something else."""

    def counted(at: int) -> str | None:
        after = tokens[at + 1 : at + 1 + REACH]
        return next((class_of[word] for word in after if word in class_of), None)

    return [(token, counted(at) if token in NUMBERS else None) for at, token in enumerate(tokens)]


def agree(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Whether there can be as many as both say."""
    return one[0] <= other[1] and other[0] <= one[1]
