"""What is true by what people wrote: words, classes, numbers."""

from coscap.metrics.reference_words import ReferenceWords
from coscap.text.objects import ObjectClass, ObjectClasses


def test_a_content_word_that_no_reference_bears_out_is_unsaid() -> None:
    """It, its stem or another word of its class; function words cost nothing. What is true follows from it."""
    objects = ObjectClasses(
        "made",
        (ObjectClass("dog", ("dog", "puppy"), ("dogs",)), ObjectClass("zebra", ("zebra",), ("zebras",))),
    )
    said = ReferenceWords([["two", "dogs", "run", "on", "green grass"]], objects)
    assert said.unsaid("a puppy running over the grass".split()) == []
    assert said.unsaid(["green grass", "with", "a", "red", "zebra"]) == ["red", "zebra"]
    assert said.is_true("a couple of dogs".split()) and not said.is_true("three dogs".split())
    assert not said.is_true("a group of dogs".split())
    plural, four = (ReferenceWords([text.split()], objects) for text in ("dogs run", "four dogs and a zebra"))
    assert plural.is_true("a group of dogs".split()) and not plural.is_true("two dogs".split())
    assert (
        four.is_true("several dogs".split())
        and four.is_true("four dogs".split())
        and not four.is_true(["two", "dogs"])
    )
    assert not ReferenceWords([["a", "dog"]], objects).is_true("a bunch of dogs".split())
    assert said.is_true("a red dog".split()) and not said.is_true("a red big dog".split())
    assert not said.is_true("a zebra".split())
