"""What users ask for in words, in numbers of the vocabulary: beginnings, forbidden words, constraints."""

from collections.abc import Sequence

from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.search.automaton import Automaton, Constraint, Phrase, build
from coscap.search.controls import NEVER, Controls
from coscap.search.settings import MAX_CONSTRAINTS, SearchSettings
from coscap.text import ObjectClass, ObjectClasses, Vocabulary, tokenise
from coscap.text.plurals import plural


def controls_from(settings: SearchSettings, vocabulary: Vocabulary, objects: ObjectClasses) -> Controls:
    """The rules of these settings; a UserError names a word that the model does not know."""
    beginning = _beginning(settings.beginning, vocabulary)
    if len(beginning) > settings.max_length:
        raise UserError(
            f"Search settings: beginning has {len(beginning)} words and max_length is {settings.max_length}; "
            "shorten one or raise the other."
        )
    never, phrases = set(NEVER), set[Phrase]()
    for text in settings.without:
        for form in _alternatives(text, objects):
            never |= _units_with(form, vocabulary)
            phrases |= {phrase for phrase in _phrases(form, vocabulary) if len(phrase) > 1}
    return Controls(
        min_length=settings.min_length,
        max_length=settings.max_length,
        never=tuple(sorted(never)),
        phrases=tuple(sorted(phrases)),
        no_repeat=settings.no_repeat,
        beginning=beginning,
    )


def machines(
    settings: SearchSettings,
    vocabulary: Vocabulary,
    objects: ObjectClasses,
    controls: Controls,
    detected: Sequence[Sequence[str]],
) -> list[Automaton]:
    """The automaton of each picture: what the user asked for, then the classes detected in it, up to four."""
    given = [_constraint(text, vocabulary, objects, controls) for text in settings.must]
    built: dict[tuple[str, ...], Automaton] = {}
    found = []
    for names in map(tuple, detected):
        if names not in built:
            seen = [_known(name, vocabulary, objects, controls) for name in names]
            constraints = [*given, *(phrases for phrases in seen if phrases)][:MAX_CONSTRAINTS]
            built[names] = build(constraints, settings.at_least)
        found.append(built[names])
    return found


def unnamed_classes(
    regions: RegionBatch,
    classes: Sequence[str],
    said: Sequence[Sequence[str]],
    settings: SearchSettings,
    objects: ObjectClasses,
) -> list[list[str]]:
    """For each picture, the classes that were detected surely, but not said; the surest first."""
    owner = {form: each.name for each in objects.classes for form in (*each.words, *each.plurals)}
    rows = zip(regions.labels.tolist(), regions.scores.tolist(), said, strict=True)
    found = []
    for labels, scores, units in rows:
        named = {owner.get(unit, unit) for unit in units}
        order = sorted(range(len(labels)), key=lambda at: -scores[at])
        sure = [
            classes[labels[at]] for at in order if labels[at] >= 0 and scores[at] >= settings.detected_score
        ]
        new = [name for name in dict.fromkeys(sure) if owner.get(name, name) not in named]
        found.append(new[: settings.detected])
    return found


def _constraint(text: str, vocabulary: Vocabulary, objects: ObjectClasses, controls: Controls) -> Constraint:
    phrases = _known(text, vocabulary, objects, controls)
    if not phrases:
        raise UserError(
            f'Search settings: the model has no word for must "{text}", or it is forbidden; use another word.'
        )
    return phrases


def _known(text: str, vocabulary: Vocabulary, objects: ObjectClasses, controls: Controls) -> Constraint:
    """All phrases that stand for the text, without those that may not be written."""
    phrases = {
        phrase
        for form in _alternatives(text, objects)
        for phrase in _phrases(form, vocabulary)[:1]
        if not set(phrase) & set(controls.never) and phrase not in controls.phrases
    }
    return frozenset(phrases)


def _alternatives(text: str, objects: ObjectClasses) -> list[str]:
    """The texts that stand for "zebra|horse": each alternative, with singular, plural and synonyms.

    The name of a class, or its first word, stands for all words of the class; another word of it only
    for itself in both numbers, because "man" does not mean "woman".
    """
    forms: dict[str, None] = {}
    for part in text.split("|"):
        words = " ".join(tokenise(part))
        if not words:
            raise UserError(
                f'Search settings: "{text}" has an alternative without a word; write, e.g., "zebra|horse".'
            )
        forms[words] = None
        for each in objects.classes:
            forms.update(dict.fromkeys(_forms_of(words, each)))
    return list(forms)


def _forms_of(words: str, each: ObjectClass) -> list[str]:
    every = [*each.words, *each.plurals]
    if words in (each.name, each.singular, each.plural):
        return every
    if words not in every:
        return []
    return [form for form in every if plural(words) == form or plural(form) == words]


def _phrases(text: str, vocabulary: Vocabulary) -> list[Phrase]:
    """The ways in which the model can write a text, the usual one first: object names are one unit."""
    ways: list[list[Phrase]] = [[()]]  # those of the first 0, 1, 2, ... words
    words = text.split(" ")
    for end in range(1, len(words) + 1):
        units = [(start, " ".join(words[start:end])) for start in range(end)]
        known = [(start, vocabulary.id(unit)) for start, unit in units if unit in vocabulary]
        ways.append([(*way, number) for start, number in known for way in ways[start]])
    return sorted(ways[-1], key=len)


def _beginning(text: str, vocabulary: Vocabulary) -> Phrase:
    words = " ".join(tokenise(text))
    if not words:
        return ()
    ways = _phrases(words, vocabulary)
    if not ways:
        unknown = [word for word in words.split(" ") if word not in vocabulary]
        raise UserError(
            f'Search settings: the model does not know "{(unknown or [words])[0]}" of beginning; use another word.'
        )
    return ways[0]


def _units_with(text: str, vocabulary: Vocabulary) -> set[int]:
    """The units that contain a text as whole words: without "dog", no "hot dog" either."""
    return {number for number, unit in enumerate(vocabulary.units) if f" {text} " in f" {unit} "}
