"""Cross entropy of a vocabulary layer, a part of the words at a time.

The logits of a few hundred words stay in the cache while they become probabilities, and the gradient is
made in their place: one array of (N, V), where separate layers would write four.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

aten = torch.ops.aten

ROWS = 512  # 20 MB of logits at 10,000 words


class _CrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, never: Tensor
    ) -> Tensor:
        words = len(hidden)
        kept = any(ctx.needs_input_grad)
        scratch = hidden.new_empty(min(words, ROWS), len(weight))
        slopes = hidden.new_empty(words if kept else 0, len(weight))
        negative = hidden.new_empty(words)
        for start in range(0, words, ROWS):
            end = min(start + ROWS, words)
            part = scratch[: end - start]
            if bias is None:
                torch.mm(hidden[start:end], weight.t(), out=part)
            else:
                torch.addmm(bias, hidden[start:end], weight.t(), out=part)
            part.index_fill_(1, never, float("-inf"))
            chosen = targets[start:end, None]
            logs = slopes[start:end] if kept else torch.empty_like(part)
            aten._log_softmax.out(part, 1, False, out=logs)
            torch.neg(logs.gather(1, chosen)[:, 0], out=negative[start:end])
            if kept:  # softmax - one-hot: the gradient of each row but for its factor
                logs.exp_().scatter_add_(1, chosen, logs.new_full(chosen.shape, -1))
        ctx.save_for_backward(hidden, weight, slopes)
        ctx.has_bias = bias is not None
        return negative

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, slopes = ctx.saved_tensors
        factor = grad[:, None]
        scaled = hidden * factor  # rather than the (N, V) array
        dhidden = (slopes @ weight) * factor
        dweight = slopes.t() @ scaled
        dbias = torch.mv(slopes.t(), grad) if ctx.has_bias else None
        return dhidden, dweight, dbias, None, None


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, never: Tensor
) -> Tensor:
    """-log p of each target under softmax(hidden W^T + b), with no probability for the words in `never`.

    hidden: (N, H), weight: (V, H), bias: (V,) or None, targets: (N,), never: (M,) -> (N,)
    """
    if torch.is_autocast_enabled(hidden.device.type):  # mixed precision: let autocast choose
        logits = nn.functional.linear(hidden, weight, bias).float()
        return nn.functional.cross_entropy(
            logits.index_fill(1, never, float("-inf")), targets, reduction="none"
        )
    negative: Tensor = _CrossEntropy.apply(hidden, weight, bias, targets, never)
    return negative
