"""Do these samples and these references belong together? One sentence for each way in which they may not."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from coscap.errors import UserError
from coscap.metrics.references import ImageId


def check_match(
    samples: Mapping[ImageId, Sequence[str]],
    references: Mapping[ImageId, Sequence[str]],
    names: tuple[str, str] = ("the samples", "the references"),
) -> None:
    """Every image of the samples must be among the references and have at least one there."""
    mine, theirs = names
    if not samples:
        raise UserError(f"{mine} hold no captions; expected at least one.")
    if not references:
        raise UserError(f"{theirs} hold no captions; expected at least one.")
    own, other = type(next(iter(samples))), type(next(iter(references)))
    if own is not other:
        raise UserError(
            f"all {len(samples):,} image ids of {mine} are {_kind(own)} (first: {next(iter(samples))!r}) "
            f"and those of {theirs} are {_kind(other)} (first: {next(iter(references))!r}); "
            "write them with the same type."
        )
    unknown = [image for image in samples if image not in references]
    if len(unknown) == len(samples):
        raise UserError(
            f"none of the {len(samples):,} images of {mine} is in {theirs} (first: {unknown[0]!r}); "
            "these are results for another split, so give that split's references."
        )
    if unknown:
        raise UserError(
            f"{len(unknown):,} of {len(samples):,} images of {mine} are not in {theirs} "
            f"(first: {unknown[0]!r}); give references that hold all of them, or remove those rows."
        )
    bare = [image for image in samples if not references[image]]
    if bare:
        raise UserError(
            f"{len(bare):,} of {len(samples):,} images of {mine} have no reference caption in {theirs} "
            f"(first: {bare[0]!r}); add captions for them, or remove those rows."
        )


def check_captions(samples: Mapping[ImageId, Sequence[str]], name: str = "the samples") -> None:
    """Every image has at least one caption, and every caption is a string."""
    _complain(
        samples, lambda captions: isinstance(captions, str) or not captions, name, "no list of captions"
    )
    _complain(
        samples,
        lambda captions: not all(isinstance(caption, str) for caption in captions),
        name,
        "a caption that is not a string",
    )


def check_words(tokenised: Mapping[ImageId, Sequence[str]], name: str, hint: str) -> None:
    """Every caption has a word after tokenising."""
    empty = [image for image, captions in tokenised.items() for caption in captions if not caption]
    if empty:
        total = sum(map(len, tokenised.values()))
        raise UserError(
            f"{len(empty):,} of {total:,} captions of {name} are empty or have no words "
            f"(first: image {empty[0]!r}); {hint}."
        )


def _complain(
    samples: Mapping[ImageId, Sequence[str]], wrong: Callable[[Sequence[str]], bool], name: str, what: str
) -> None:
    bad = [image for image, captions in samples.items() if wrong(captions)]
    if bad:
        first = ", ".join(repr(image) for image in islice(bad, 1))
        raise UserError(f"{len(bad):,} of {len(samples):,} images of {name} have {what} (first: {first}).")


def _kind(kind: type) -> str:
    return {int: "numbers", str: "strings"}.get(kind, f"of type {kind.__name__}")
