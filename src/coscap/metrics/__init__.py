"""How good captions are: accuracy, oracle scores, diversity, hallucination, novel objects; consensus re-ranking.

    from coscap.metrics import evaluate, bleu, cider
    found = evaluate({42: ["a dog runs"]}, {42: ["a dog is running", "a brown dog runs"]})

Nothing here needs a model, a picture or Java (SPICE alone does). Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coscap.metrics.chair import ObjectWords, read_instances
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
    from coscap.metrics.evaluation import Evaluation, compare, evaluate, measure
    from coscap.metrics.human import agreement, read_ratings
    from coscap.metrics.novel_objects import HELD_OUT, object_f1
    from coscap.metrics.oracle import curves
    from coscap.metrics.overlap import bleu, cider, cider_plain, rouge_l
    from coscap.metrics.table import METRICS, Material, Metric

_HOME = {
    "chair": ("ObjectWords", "read_instances"),
    "consensus": ("Consensus", "best_first", "nearest"),
    "diversity": ("div_n", "mbleu4", "mean_length", "novel", "self_cider", "unique", "vocabulary_size"),
    "evaluation": ("Evaluation", "compare", "evaluate", "measure"),
    "human": ("agreement", "read_ratings"),
    "novel_objects": ("HELD_OUT", "object_f1"),
    "oracle": ("curves",),
    "overlap": ("bleu", "cider", "cider_plain", "rouge_l"),
    "table": ("METRICS", "Material", "Metric"),
}

__all__ = [
    "HELD_OUT",
    "METRICS",
    "Consensus",
    "Evaluation",
    "Material",
    "Metric",
    "ObjectWords",
    "agreement",
    "best_first",
    "bleu",
    "cider",
    "cider_plain",
    "compare",
    "curves",
    "div_n",
    "evaluate",
    "mbleu4",
    "mean_length",
    "measure",
    "nearest",
    "novel",
    "object_f1",
    "read_instances",
    "read_ratings",
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
