"""What a caption may and must contain: rules in tokens, which every search follows, made from the user's words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coscap.errors import UserError
from coscap.seam import Candidates, Floats, Ints, RegionArrays, S, SearchModel, TokenMask
from coscap.search.config import MAX_WORDS, SearchSettings
from coscap.text import ObjectClass, ObjectClasses, Vocabulary, tokenise
from coscap.text.plurals import plural
from coscap.text.vocabulary import END, PAD, SLOT, SLOTS, START, UNK

NEVER = (PAD, START, UNK, SLOT, SLOTS)  # no caption contains these
MAX_PHRASES = 2000  # ways to write all that `without` forbids
MAX_ALTERNATIVES = 20  # of one `must` or `without`

Phrase = tuple[int, ...]
PhraseSet = frozenset[Phrase]  # alternatives, of which a caption must contain one


@dataclass(frozen=True)
class TokenConstraints:
    """Rules in tokens: length, forbidden tokens and phrases, repeated n-grams, a fixed beginning."""

    min_length: int = 1
    max_length: int = 20
    never: tuple[int, ...] = NEVER
    phrases: tuple[Phrase, ...] = ()  # forbidden ones of two tokens and more
    no_repeat_ngram_size: int = 0
    beginning: Phrase = ()

    def step(
        self,
        model: SearchModel[S],
        last: Ints,
        state: S,
        written: Ints,
        k: int | None,
        named: Ints | None = None,
    ) -> tuple[Candidates, S, Floats]:
        """One step of the model, without the tokens that are not allowed (log-probability -inf).

        last: (N,) the tokens chosen last; written: (N, t) all so far. The candidates of a row are the end, the
        tokens in `named` (N, A), the k best others; with k=None the vocabulary in its order. What is left is not
        scaled up: a caption's log-probability stays the model's own. The beginning stands above the other rules;
        after max_length tokens only the end is allowed; a row with no token left may end.
        """
        t = written.shape[1]
        if t < len(self.beginning):
            return self._only(model, last, state, self.beginning[t], k, named)
        if t >= self.max_length:
            return self._only(model, last, state, END, k, named)
        mask = self.mask(written)
        if k is None:
            found, state, attention = model.step(last, state, None, mask=mask)
            end = END
        else:
            ends = np.full((len(last), 1), END)
            asked = ends if named is None else np.concatenate([ends, named], axis=1)
            found, state, attention = model.step(last, state, k, named=asked, mask=mask)
            end = 0
        logs = np.array(found.log_probabilities)
        if t < self.min_length:
            its_own = logs[:, end].copy()
            logs[:, end] = -np.inf
            stuck = logs.max(axis=1) == -np.inf  # (N,)
            logs[stuck, end] = its_own[stuck]
        return Candidates(found.ids, logs), state, attention

    def _only(
        self, model: SearchModel[S], last: Ints, state: S, token: int, k: int | None, named: Ints | None
    ) -> tuple[Candidates, S, Floats]:
        """The same where one token is allowed: candidates (N, 1 + A + 1)."""
        found, state, attention = model.step(last, state, 0, named=np.full((len(last), 1), token))
        others = np.empty((len(last), 0), np.int64) if named is None else named
        ids = np.concatenate([np.full((len(last), 1), END), others, np.full((len(last), 1), token)], axis=1)
        allowed = ids == token
        allowed &= np.cumsum(allowed, axis=1) == 1  # it may be named, too
        logs = np.where(allowed, found.log_probabilities, -np.inf)
        return Candidates(ids, logs), state, attention

    def mask(self, written: Ints) -> TokenMask:
        """The tokens, besides the end, that cannot come next; written: (N, t)."""
        rows, tokens = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for row, token in self._forbidden(written):
            rows.append(row)
            tokens.append(token)
        return TokenMask(self._never, np.concatenate(rows), np.concatenate(tokens))

    @cached_property
    def _never(self) -> Ints:
        return np.array(self.never, np.int64)

    def _forbidden(self, written: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Rows and tokens that would end a forbidden phrase or an n-gram that the row has already."""
        t, size = written.shape[1], self.no_repeat_ngram_size
        for phrase in self.phrases:
            before = phrase[:-1]
            if t >= len(before):
                row = np.flatnonzero((written[:, t - len(before) :] == before).all(axis=1))
                yield row, np.full(len(row), phrase[-1])
        if size and t >= size:
            grams = np.lib.stride_tricks.sliding_window_view(written, size, axis=1)  # (N, t - size + 1, size)
            last = written[:, t - size + 1 :]  # (N, size - 1), what the next token would be added to
            row, place = np.nonzero((grams[:, :, :-1] == last[:, None, :]).all(axis=2))
            yield row, grams[row, place, -1]


def token_constraints(
    settings: SearchSettings, vocabulary: Vocabulary, objects: ObjectClasses
) -> TokenConstraints:
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
            never |= _tokens_with(form, vocabulary)
            for phrase in _every_way(form, vocabulary):
                if len(phrase) > 1:
                    phrases.add(phrase)
                if len(phrases) > MAX_PHRASES:
                    raise UserError(
                        f"Search settings: without forbids more than {MAX_PHRASES} phrases; give fewer or shorter "
                        "ones."
                    )
    return TokenConstraints(
        min_length=settings.min_length,
        max_length=settings.max_length,
        never=tuple(sorted(never)),
        phrases=tuple(sorted(phrases)),
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        beginning=beginning,
    )


def required_phrases(
    settings: SearchSettings, vocabulary: Vocabulary, objects: ObjectClasses, rules: TokenConstraints
) -> list[PhraseSet]:
    """The constraint of each `must`."""
    found = []
    for text in settings.must:
        phrases = phrases_for(text, vocabulary, objects, rules)
        if not phrases:
            raise UserError(
                f'Search settings: the model has no word for must "{text}", or it is forbidden; use another word.'
            )
        found.append(phrases)
    return found


def phrases_for(
    text: str, vocabulary: Vocabulary, objects: ObjectClasses, rules: TokenConstraints
) -> PhraseSet:
    """All phrases that stand for a text, without those that may not be written."""
    ways = (shortest_way(form, vocabulary) for form in _alternatives(text, objects))
    return frozenset(
        way
        for way in ways
        if way is not None
        and len(way) <= rules.max_length
        and not set(way) & set(rules.never)
        and way not in rules.phrases
    )


def unnamed_classes(
    regions: RegionArrays,
    classes: Sequence[str],
    captions: Sequence[Sequence[str]],
    settings: SearchSettings,
    objects: ObjectClasses,
) -> list[list[str]]:
    """For each picture, the classes that were detected surely and its caption does not name; the surest first."""
    owner = {form: each.name for each in objects.classes for form in (*each.words, *each.plurals)}
    found = []
    for labels, scores, tokens in zip(
        regions.labels.tolist(), regions.scores.tolist(), captions, strict=True
    ):
        named = {owner.get(token, token) for token in tokens}
        order = sorted(range(len(labels)), key=lambda at: -scores[at])
        sure = [
            classes[labels[at]]
            for at in order
            if 0 <= labels[at] < len(classes) and scores[at] >= settings.detected_score
        ]
        new = [name for name in dict.fromkeys(sure) if owner.get(name, name) not in named]
        found.append(new[: settings.detected])
    return found


def _alternatives(text: str, objects: ObjectClasses) -> list[str]:
    """The texts that stand for "zebra|horse": each alternative, with singular, plural and synonyms.

    The name of a class, or its first word, stands for all words of the class; another word of it only
    for itself in both numbers, because "man" does not mean "woman".
    """
    forms: dict[str, None] = {}
    parts = text.split("|")
    if len(parts) > MAX_ALTERNATIVES:
        raise UserError(
            f'Search settings: "{text[:40]}..." has {len(parts)} alternatives, and {MAX_ALTERNATIVES} is the most.'
        )
    for part in parts:
        words = tokenise(part)
        if not words:
            raise UserError(
                f'Search settings: "{text}" has an alternative without a word; write, e.g., "zebra|horse".'
            )
        if len(words) > MAX_WORDS:
            raise UserError(
                f'Search settings: "{part[:40]}..." has {len(words)} words, and {MAX_WORDS} is the most of a phrase.'
            )
        phrase = " ".join(words)
        forms[phrase] = None
        for each in objects.classes:
            forms.update(dict.fromkeys(_forms_of(phrase, each)))
    return list(forms)


def _forms_of(words: str, each: ObjectClass) -> list[str]:
    every = [*each.words, *each.plurals]
    if words in (each.name, each.singular, each.plural):
        return every
    if words not in every:
        return []
    return [form for form in every if plural(words) == form or plural(form) == words]


def shortest_way(text: str, vocabulary: Vocabulary) -> Phrase | None:
    """The fewest tokens that a text can be written with, or None: object names are one token.

    Only the shortest way up to each word is kept, so that the time is quadratic in the words.
    """
    words = text.split(" ")
    ways: list[Phrase | None] = [()]  # of the first 0, 1, 2, ... words
    for end in range(1, len(words) + 1):
        best: Phrase | None = None
        for start in range(max(0, end - MAX_WORDS), end):
            token, before = " ".join(words[start:end]), ways[start]
            if before is None or token not in vocabulary:
                continue
            if best is None or len(before) + 1 < len(best):
                best = (*before, vocabulary.id(token))
        ways.append(best)
    return ways[-1]


def _every_way(text: str, vocabulary: Vocabulary) -> list[Phrase]:
    """All ways to write a text of at most MAX_WORDS words, 2^(words - 1) if every part of it is a token."""
    ways: list[list[Phrase]] = [[()]]  # of the first 0, 1, 2, ... words
    words = text.split(" ")
    for end in range(1, len(words) + 1):
        tokens = [(start, " ".join(words[start:end])) for start in range(end)]
        known = [(start, vocabulary.id(token)) for start, token in tokens if token in vocabulary]
        ways.append([(*way, number) for start, number in known for way in ways[start]])
    return ways[-1]


def _beginning(text: str, vocabulary: Vocabulary) -> Phrase:
    words = " ".join(tokenise(text))
    if not words:
        return ()
    way = shortest_way(words, vocabulary)
    if way is None:
        unknown = [word for word in words.split(" ") if word not in vocabulary]
        raise UserError(
            f'Search settings: the model does not know "{(unknown or [words])[0]}" of beginning; use another word.'
        )
    return way


def _tokens_with(text: str, vocabulary: Vocabulary) -> set[int]:
    """The tokens that contain a text as whole words: without "dog", no "hot dog" either."""
    return {number for number, token in enumerate(vocabulary.units) if f" {text} " in f" {token} "}
