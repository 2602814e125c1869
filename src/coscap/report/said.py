"""What the captions of a picture vary in: how many contexts, which objects, and whether people name these too."""

from collections.abc import Sequence

import numpy as np

from coscap.text.objects import ObjectClasses
from coscap.text.slots import Split, split


class Said:
    """Splits captions into contexts and objects and holds them against the references of their pictures."""

    def __init__(self, references: Sequence[Sequence[str]], classes: ObjectClasses) -> None:
        """references: tokenised captions of each picture"""
        self.classes = classes
        self.named = [_classes(self._split(captions)) for captions in references]

    def figures(self, tokens: Sequence[Sequence[str]], budgets: Sequence[int]) -> dict[str, float]:
        """tokens: the samples of each picture. Figures are of the first n of them, for each n of the budgets."""
        figures: dict[str, float] = {}
        parts = [self._split(captions) for captions in tokens]
        for n in budgets:
            first = [each[:n] for each in parts]
            told = [_classes(each) for each in first]
            spoken = [found for each in first for found in each]
            by_people = [
                index in named
                for each, named in zip(first, self.named, strict=True)
                for found in each
                for index in set(found.classes)
            ]
            asked = [(told_of, named) for told_of, named in zip(told, self.named, strict=True) if named]
            values = {
                "contexts": 100
                * np.mean([len({found.context for found in each}) / len(each) for each in first]),
                "objects-each": np.mean([len(set(found.classes)) for found in spoken]),
                "objects": np.mean([len(told_of) for told_of in told]),
            }
            if by_people:
                values["named"] = 100 * np.mean(by_people)
            if asked:
                values["found"] = 100 * np.mean(
                    [len(told_of & named) / len(named) for told_of, named in asked]
                )
            figures |= {f"said/{n}/{name}": float(value) for name, value in values.items()}
        return figures

    def _split(self, captions: Sequence[str]) -> list[Split]:
        return [split(caption.split(" "), self.classes) for caption in captions]


def _classes(parts: Sequence[Split]) -> set[int]:
    return {index for found in parts for index in found.classes}
