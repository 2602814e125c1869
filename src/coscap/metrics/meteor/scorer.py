"""METEOR 1.5 for captions: equal to the official program, without Java."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from coscap.errors import UserError
from coscap.metrics.meteor import matches
from coscap.metrics.meteor.lexicon import Lexicon
from coscap.metrics.meteor.normalise import normalise
from coscap.metrics.meteor.statistics import COLUMNS, added_of, score_groups, score_of, scores_of, sum_of
from coscap.metrics.meteor.tables import Tables, open_tables

Array = np.ndarray[Any, Any]

_GROUPS_A_TASK = 32


class Meteor:
    """METEOR 1.5, English, as the COCO evaluation calls it (`-l en -norm`).

    >>> Meteor().score(["a dog runs"], [["a dog is running", "the dog"]])
    (0.31239469345701887, [0.31239469345701887])

    Captions and references are tokenised text, tokens joined by spaces. The word tables come from the installed
    pycocoevalcap and are converted once into `cache` (default: $XDG_CACHE_HOME or ~/.cache, folder coscap).
    With `java=True` the official jar aligns the words. Results do not depend on `threads`.
    """

    def __init__(
        self,
        java: bool = False,
        cache: str | Path | None = None,
        tables: Tables | None = None,
        threads: int | None = None,
    ) -> None:
        self._java = java
        self._threads = threads or os.cpu_count() or 1
        if not java:
            self._tables = tables if tables is not None else open_tables(cache)
            self._lexicon = Lexicon(self._tables)

    def score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> tuple[float, list[float]]:
        """The score of the corpus (of the added statistics, not the mean) and of each caption."""
        statistics = self.statistics([[hypothesis] for hypothesis in hypotheses], references)
        return corpus_score(statistics), scores(statistics).tolist()

    def score_samples(
        self, samples: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Scores of many captions for each picture: samples[i] all against references[i]."""
        flat = iter(scores(self.statistics(samples, references)).tolist())
        return [[next(flat) for _ in captions] for captions in samples]

    def statistics(self, samples: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Array:
        """Statistics of each caption against its best reference, (captions of all pictures in order, 23).

        `corpus_score(statistics[rows])` is the corpus score of any choice of captions.
        """
        _check(samples, references)
        if self._java:
            from coscap.metrics.meteor.java import official_statistics

            pairs = [
                (caption, refs)
                for captions, refs in zip(samples, references, strict=True)
                for caption in captions
            ]
            return official_statistics(pairs)
        sentences = _Sentences(self._tables, self._lexicon)
        picture_references = [[sentences.number(text) for text in refs] for refs in references]
        # The same caption twice for one picture is aligned once.
        captions = [[sentences.number(text) for text in each] for each in samples]
        distinct = [list(dict.fromkeys(each)) for each in captions]
        found = self._align(distinct, picture_references, sentences)
        rows: list[int] = []
        base = 0
        for each, unique in zip(captions, distinct, strict=True):
            place = {sentence: base + i for i, sentence in enumerate(unique)}
            rows += [place[sentence] for sentence in each]
            base += len(unique)
        return found[rows] if rows else found

    def _align(
        self, captions: list[list[int]], references: list[list[int]], sentences: "_Sentences"
    ) -> Array:
        words, start = sentences.words()
        lexicon = self._lexicon.arrays()
        phrases, phrase_start, rows = _phrases(words, start, lexicon.number, self._tables)
        h_start, h_sentence = _flat(captions)
        r_start, r_sentence = _flat(references)
        known = (lexicon.stem, lexicon.function, lexicon.synset_start, lexicon.synsets, lexicon.signature)
        out = np.zeros((len(h_sentence), COLUMNS), np.int64)

        def work(low: int) -> None:
            score_groups(
                low, min(low + _GROUPS_A_TASK, len(captions)), h_start, h_sentence, r_start, r_sentence,
                words, start, known, phrases, phrase_start, rows, out,
            )  # fmt: skip

        tasks = range(0, len(captions), _GROUPS_A_TASK)
        if self._threads == 1 or len(tasks) < 2:
            for low in tasks:
                work(low)
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(work, tasks))
        return out


def scores(statistics: Array) -> Array:
    """The score of each row of statistics."""
    return np.asarray(scores_of(statistics))


def corpus_score(statistics: Array) -> float:
    """The score of the captions together, of their added statistics; not the mean of their scores."""
    return float(score_of(sum_of(statistics)))


def corpus_terms(statistics: Array) -> Array:
    """What `corpus_score` adds up of each caption, (23, captions): sums of any choice go to `scores_of_sums`."""
    return np.ascontiguousarray(added_of(statistics).T, np.float64)


def scores_of_sums(sums: Array) -> Array:
    """Corpus scores of sums of `corpus_terms`, (23, ...) -> (...)."""
    rows = np.rint(sums.reshape(COLUMNS, -1).T).astype(np.int64)
    return scores(np.ascontiguousarray(rows)).reshape(sums.shape[1:])


class _Sentences:
    """Distinct sentences of one call, by number; the same words under other punctuation are one sentence."""

    def __init__(self, tables: Tables, lexicon: Lexicon) -> None:
        self._tables = tables
        self._lexicon = lexicon
        self._of_text: dict[str, int] = {}
        self._tokens: list[list[str]] = []

    def number(self, text: str) -> int:
        found = self._of_text.get(text)
        if found is None:
            found = self._of_text[text] = len(self._tokens)
            self._tokens.append(normalise(text, self._tables))
        return found

    def words(self) -> tuple[Array, Array]:
        place = self._lexicon.add(token for tokens in self._tokens for token in tokens)
        start, flat = _flat([[place[token] for token in tokens] for tokens in self._tokens])
        return flat, start


def _phrases(
    words: Array, start: Array, number: Array, tables: Tables
) -> tuple[Array, Array, tuple[Array, Array]]:
    """Phrases of the sentences, and the paraphrases among them with phrases numbered from 0."""
    phrase_start = np.zeros(len(start), np.int64)
    count = 4 * len(words)
    while True:
        columns = np.zeros((3, count), np.int64)
        needed = matches.find_phrases(
            words, start, number, tables.first_child, tables.node_word, tables.row_start, tables.is_target,
            phrase_start, *columns,
        )  # fmt: skip
        if needed <= count:
            break
        count = needed
    first, length, node = columns[:, :needed]
    nodes, local = np.unique(node, return_inverse=True)
    place = np.full(len(tables.node_word), -1, np.int32)
    place[nodes] = np.arange(len(nodes))
    row_start = np.zeros(len(nodes) + 1, np.int64)
    empty = np.zeros(0, np.int64)
    total = matches.local_rows(nodes, place, tables.row_start, tables.row_target, row_start, empty)
    targets = np.zeros(total, np.int64)
    matches.local_rows(nodes, place, tables.row_start, tables.row_target, row_start, targets)
    return np.ascontiguousarray(np.stack((first, length, local), axis=1)), phrase_start, (row_start, targets)


def _flat(lists: list[list[int]]) -> tuple[Array, Array]:
    start = np.concatenate(([0], np.cumsum([len(each) for each in lists]))).astype(np.int64)
    return start, np.array([value for each in lists for value in each], np.int64)


def _check(samples: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> None:
    if len(samples) != len(references):
        raise UserError(
            f"METEOR was given captions for {len(samples)} pictures and references for {len(references)}; "
            "give one list of references for each."
        )
    for index, each in enumerate(references):
        if not each or isinstance(each, str):
            raise UserError(
                f"METEOR needs a list of at least one reference for each picture; number {index} has none."
            )
