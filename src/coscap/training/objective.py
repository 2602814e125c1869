"""What is minimised: a weighted sum of loss terms that keep their names from the model to the log.

    paired captions ─▶ model.loss ─▶ reconstruction, kl_context, kl_object, extra        -L   (eq. 6)
    second term     ─▶ term(...)  ─▶ pseudo_reconstruction, pseudo_kl_context, ...       -L^  (eq. 8)
    further terms   ─▶ term(...)  ─▶ text_reconstruction, partial_reconstruction, ...    sentences; completed captions;
                                                                                         rewarded samples

    objective = (1 - alpha) L + alpha L^                                                 (appendix A)

A term is a sum over words for each caption, in nats. Here it is summed over the captions of a batch; the
loop divides by the captions (or words) of the joint batch. Free bits are the model's: the log shows the
KL divergences as they are, the objective counts them above their free bits.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.models.base import LossTerms
from coscap.models.noise import mix
from coscap.training.config import TrainConfig
from coscap.training.schedules import kl_weight, pseudo_weight

COUNTED = {
    "reconstruction": "reconstruction",
    "kl_context": "free_context",
    "kl_object": "free_object",
    "extra": "extra",
}  # the name of a term in the log, and the field of LossTerms that the objective counts for it
# The names of a further term's parts begin with these.
PSEUDO, TEXT, PARTIAL, REWARD = "pseudo_", "text_", "partial_", "reward_"
REWARDED = ("value", "cider", "f1", "invented", "unsaid", "unlike", "unique")
ACTIVE = 0.01  # nats a word: a latent dimension with a greater KL carries something


class Term(Protocol):
    """A further objective beside the captions of a batch, such as pseudo supervision.

    It gives the loss terms of the captions that it made, none or one for each caption of the batch. Its noise
    must follow from `keys`, (B,) int64, one for each caption of the batch, or from the global generators,
    which the loop seeds for each step: then a run that was broken off goes on to the same weights.
    """

    def __call__(self, model: Any, batch: Batch, keys: Tensor) -> LossTerms: ...


class EveryTerm:
    """A term that is learnt in one step of `every` only, and counts for the others too."""

    def __init__(self, term: Term, every: int) -> None:
        self.term, self.every = term, every

    def __call__(self, model: Any, batch: Batch, keys: Tensor) -> LossTerms:
        return self.term(model, batch, keys).times(self.every)


def weights_at(config: TrainConfig, epoch: float, step: int = 0) -> dict[str, float]:
    """What each term counts in a step after `epoch` epochs, by name."""
    context, objects = kl_weight(config.kl_context, epoch), kl_weight(config.kl_object, epoch)
    alpha = pseudo_weight(config.pseudo, epoch)
    paired = {"reconstruction": 1.0, "kl_context": context, "kl_object": objects, "extra": 1.0}
    weights = {name: (1 - alpha) * weight for name, weight in paired.items()}
    if config.pseudo is not None:
        second = paired | {"kl_context": context * config.pseudo.kl, "kl_object": objects * config.pseudo.kl}
        now = alpha if step % config.pseudo.every == 0 else 0.0
        weights |= {PSEUDO + name: now * weight for name, weight in second.items()}
    if config.text is not None:
        weights |= {TEXT + name: config.text.weight * weight for name, weight in paired.items()}
    if config.partial is not None:
        factor = config.partial.weight if epoch >= config.partial.from_epoch else 0.0
        weights |= {PARTIAL + name: factor * weight for name, weight in paired.items()}
    if config.reward is not None:
        factor = config.reward.weight if epoch >= config.reward.from_epoch else 0.0
        weights |= {REWARD + name: factor * weight for name, weight in paired.items()}
    return weights


class Objective(nn.Module):
    """The model with its terms, as one module, so that DDP sees a single forward a step."""

    def __init__(self, model: nn.Module, terms: Mapping[str, Term] | None = None):
        """`terms`: what else is learnt, by what its parts' names begin with."""
        super().__init__()
        self.model = model
        self.terms = dict(terms or {})

    def forward(
        self, batch: Batch, keys: Tensor, weights: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum over the captions of the batch, and sums by name for the log.

        keys: (B,) int64, what the noise of each caption follows from.
        """
        terms: LossTerms = self.model.loss(batch, keys=keys)  # type: ignore[operator]
        total, sums = weighed(terms, weights)
        sums |= dimension_sums(terms)
        others = keys
        for prefix, term in self.terms.items():
            others = mix(~others)  # noise of its own
            if weights.get(prefix + "reconstruction", 0.0) > 0:
                more, parts = weighed(term(self.model, batch, others), weights, prefix)
                total, sums = total + more, sums | parts
        return total, {"loss": total.detach()} | sums


def weighed(
    terms: LossTerms, weights: Mapping[str, float], prefix: str = ""
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum of the terms, with gradient, and the sum of each without."""
    counted = [
        weights[prefix + name] * getattr(terms, field).float().sum() for name, field in COUNTED.items()
    ]
    sums = {prefix + name: getattr(terms, name).detach().float().sum() for name in COUNTED}
    sums |= {prefix + name: value for name, value in terms.figures.items()}
    return torch.stack(counted).sum(), sums


def dimension_sums(terms: LossTerms) -> dict[str, Tensor]:
    """The KL of each latent dimension, summed over words: (Zm,) and (Zo,)."""
    words = terms.words.sum()
    return {
        "context_dimensions": terms.context_dimensions * words,
        "object_dimensions": terms.object_dimensions * words,
        "words": words,
    }


def figures(sums: Mapping[str, Tensor], captions: float) -> dict[str, float]:
    """Sums as figures for people: nats a caption, nats a word, and how many latent dimensions are in use."""
    words, sampled = float(sums["words"]), float(sums.get(REWARD + "captions", 0.0))
    shown = {
        name: float(value) / captions for name, value in sums.items() if value.ndim == 0 and name != "words"
    }
    if sampled:  # these are means over the sampled captions
        shown |= {REWARD + name: float(sums[REWARD + name]) / sampled for name in REWARDED}
    shown["reconstruction_per_word"] = float(sums["reconstruction"]) / words
    for latent in ("context", "object"):
        dimensions = sums[f"{latent}_dimensions"]
        if len(dimensions):
            shown[f"active_{latent}"] = float((dimensions / words > ACTIVE).sum())
    return shown
