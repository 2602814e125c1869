"""How good captions are: accuracy, oracle scores, diversity, novel objects; consensus re-ranking.

    from coscap.metrics import evaluate, bleu, cider
    report = evaluate({42: ["a dog runs"]}, {42: ["a dog is running", "a brown dog runs"]})

Nothing here needs a model, a picture or Java (SPICE alone does). Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coscap.metrics.consensus import Consensus, best_first, nearest
    from coscap.metrics.diversity import (
        div_n,
        mbleu4,
        mean_length,
        novel,
        self_cider,
        unique,
        vocabulary_size,
    )
    from coscap.metrics.novel_objects import HELD_OUT, object_f1
    from coscap.metrics.oracle import curves
    from coscap.metrics.overlap import bleu, cider, cider_plain, rouge_l
    from coscap.metrics.report import Report, diversity_of, evaluate

_HOME = {
    "consensus": ("Consensus", "best_first", "nearest"),
    "diversity": ("div_n", "mbleu4", "mean_length", "novel", "self_cider", "unique", "vocabulary_size"),
    "novel_objects": ("HELD_OUT", "object_f1"),
    "oracle": ("curves",),
    "overlap": ("bleu", "cider", "cider_plain", "rouge_l"),
    "report": ("Report", "diversity_of", "evaluate"),
}

__all__ = [
    "HELD_OUT",
    "Consensus",
    "Report",
    "best_first",
    "bleu",
    "cider",
    "cider_plain",
    "curves",
    "div_n",
    "diversity_of",
    "evaluate",
    "mbleu4",
    "mean_length",
    "nearest",
    "novel",
    "object_f1",
    "rouge_l",
    "self_cider",
    "unique",
    "vocabulary_size",
]


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"coscap.metrics.{module}"), name)
    raise AttributeError(f"module 'coscap.metrics' has no attribute {name!r}")
