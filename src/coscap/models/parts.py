"""The loss in its parts, a number for each caption."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Parts:
    """The negative ELBO (eq. 6) in nats, term by term: sums over a caption's words, as the bound says."""

    reconstruction: Tensor  # (B,) -log p(x | z, I)
    kl_context: Tensor  # (B,) KL of z^m; of z in a seq_cvae; zeros in an updown
    kl_object: Tensor  # (B,) KL of z^o; zeros where there is none
    free_context: Tensor  # (B,) kl_context with its free bits: what the objective counts
    free_object: Tensor  # (B,) kl_object with its free bits
    extra: Tensor  # (B,) loss of the head that names objects from z^o, its weight included
    words: Tensor  # (B,) words scored, END included
    context_dimensions: Tensor  # (Zm,) KL of each dimension, a mean over words, without gradient
    object_dimensions: Tensor  # (Zo,)

    def objective(self, kl_context: float = 1.0, kl_object: float = 1.0, extra: float = 1.0) -> Tensor:
        """The mean over the captions of their sums over words; a gradient for each caption of the batch
        weighs 1/B. The weights are a schedule's."""
        total = self.reconstruction + kl_context * self.free_context + kl_object * self.free_object
        return (total + extra * self.extra).mean()

    def times(self, factor: float) -> "Parts":
        """The same captions counted `factor` times."""
        summed = ("reconstruction", "kl_context", "kl_object", "free_context", "free_object", "extra")
        return self if factor == 1 else replace(self, **{n: factor * getattr(self, n) for n in summed})
