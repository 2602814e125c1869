"""The captions of a picture that are chosen from, and what each of them is worth by a judge."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from coscap.contexts.judge import Judge, Judgement, Known, Selection, SupportWeights, detected_scores
from coscap.seam import Caption
from coscap.search.select import per_token, select, unit_interval
from coscap.text.faults import faults, mended
from coscap.text.objects import ObjectClasses
from coscap.vision.regions import Recipe, Regions
from coscap.vision.words import Evidence

FALLEN = 1.0  # nats a token: a caption so much less likely than the one that it varies is no sentence


@dataclass
class Pool:
    """Captions of one picture, and what is known of them."""

    found: list[Caption]  # of a search, then those of a beam
    drawn: int  # how many of `found` are not of the beam
    regions: Regions
    evidence: Evidence | None
    further: list[Caption] = field(default_factory=list)  # drawn because too few were borne out
    known: Known | None = None  # of `Judge.known`, once asked
    judged: dict[tuple[str, ...], Judgement] = field(
        default_factory=dict
    )  # by tokens; a text may have several

    @property
    def captions(self) -> list[Caption]:
        return [*self.found, *self.further]

    def rescored(self, captions: Sequence[Caption]) -> None:
        """The same captions with other scores."""
        size = len(self.found)
        self.found, self.further = list(captions[:size]), list(captions[size:])

    @property
    def beam(self) -> list[Caption]:
        return self.found[self.drawn :]

    def good(self, weights: SupportWeights) -> int:
        """How many of the texts are so well borne out that no more need be drawn."""
        good = (tokens for tokens, each in self.judged.items() if tier(each, weights.enough) == 0)
        return len({mended(" ".join(tokens)) for tokens in good})

    def judge(self, judge: Judge | None, objects: ObjectClasses, recipe: Recipe | None) -> None:
        """Ask what each caption is worth; nothing without a judge or evidence."""
        if judge is None or self.evidence is None:
            return
        captions = self.captions
        if self.known is None:
            detected = {} if recipe is None else detected_scores(self.regions, recipe)
            self.known = judge.known(self.evidence, detected)
        judged = judge.judge_known([each.tokens for each in captions], self.known, objects)
        self.judged = {caption.tokens: each for caption, each in zip(captions, judged, strict=True)}

    def best(self, n: int, variety: float, choice: Selection | None) -> list[Caption]:
        """Those that are shown."""
        if choice is None or not self.judged:
            return select(self.captions, n, variety)
        return select(self.captions, n, variety, *self.ranks(choice))

    def ranks(self, choice: Selection) -> tuple[list[float], list[int]]:
        """Worth and tier of each caption."""
        captions = self.captions
        return rank(captions, [self.judged[caption.tokens] for caption in captions], choice)


def tier(judged: Judgement, floors: tuple[float, float]) -> int:
    """0 to be shown, 1 hardly borne out, 2 with objects that are not, 3 at fault by its words alone. Captions of a tier
    are shown only where none of a lower one is left."""
    least, least_objects = floors
    return 3 if judged.faults else 2 if judged.objects < least_objects else int(judged.support < least)


def rank(
    captions: Sequence[Caption], judged: Sequence[Judgement], choice: Selection
) -> tuple[list[float], list[int]]:
    """What each caption is worth, and its tier."""
    parts = (
        unit_interval([per_token(caption) for caption in captions]),
        unit_interval([each.consensus for each in judged]),
        unit_interval([each.expected for each in judged]),
        [each.support for each in judged],
        [each.objects for each in judged],
    )
    worth = [
        sum(w * part for w, part in zip(choice.worth, row, strict=True)) for row in zip(*parts, strict=True)
    ]
    return worth, [tier(each, choice.floors) for each in judged]


def sound(captions: Sequence[Caption], likely: float, objects: ObjectClasses) -> list[Caption]:
    """Those that are sentences: without a fault, and not much less likely a token than `likely`."""
    whole = [caption for caption in captions if per_token(caption) >= likely - FALLEN]
    return [caption for caption in whole if not faults(caption.tokens, objects)]
