"""Vocabulary layer and cross entropy in one, a part of the words at a time.

The logits of a few hundred words stay in the cache while they become probabilities, and the gradient is
made in their place: one array of (N, V), where separate layers would write four.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from coscap.models.kernels.recurrent import full, full_precision, is_low, lowered

aten = torch.ops.aten

ROWS = 512  # 20 MB of logits at 10,000 words


class _CrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        never: Tensor,
        smoothing: float,
        low: bool,
    ) -> Tensor:
        words, allowed = len(hidden), len(weight) - len(never)
        needs_gradient = any(ctx.needs_input_grad)
        scratch = hidden.new_empty(min(words, ROWS), len(weight))
        kept = torch.bfloat16 if low else hidden.dtype
        dlogits = hidden.new_empty(words if needs_gradient else 0, len(weight), dtype=kept)
        factors = lowered(hidden, low), lowered(weight, low)
        loss = hidden.new_empty(words)
        for start in range(0, words, ROWS):
            end = min(start + ROWS, words)
            logits = scratch[: end - start]
            if low:
                logits.copy_(factors[0][start:end] @ factors[1].t())
                if bias is not None:
                    logits += bias
            elif bias is None:
                torch.mm(hidden[start:end], weight.t(), out=logits)
            else:
                torch.addmm(bias, hidden[start:end], weight.t(), out=logits)
            logits.index_fill_(1, never, float("-inf"))
            target = targets[start:end, None]
            logs = dlogits[start:end] if needs_gradient and not low else torch.empty_like(logits)
            aten._log_softmax.out(logits, 1, False, out=logs)
            torch.neg(logs.gather(1, target)[:, 0], out=loss[start:end])
            if smoothing:
                others = logs.index_fill(1, never, 0).sum(1) / allowed  # mean log-probability
                loss[start:end].mul_(1 - smoothing).sub_(others, alpha=smoothing)
            if needs_gradient:  # softmax - target distribution: the gradient of each row but for its factor
                logs.exp_().scatter_add_(1, target, logs.new_full(target.shape, smoothing - 1))
                if smoothing:
                    logs.sub_(smoothing / allowed).index_fill_(1, never, 0)
                if low:
                    dlogits[start:end] = logs
        ctx.save_for_backward(hidden, weight, dlogits)
        ctx.has_bias, ctx.low = bias is not None, low
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, dlogits = ctx.saved_tensors
        factor = grad[:, None]
        scaled = hidden * factor  # rather than the (N, V) array
        low = ctx.low
        dhidden = (dlogits @ lowered(weight, low)).to(hidden.dtype) * factor
        dweight = (dlogits.t() @ lowered(scaled, low)).to(weight.dtype)
        dbias = None
        if ctx.has_bias:
            dbias = torch.mv(dlogits.t(), lowered(grad, low)).to(grad.dtype)
        return dhidden, dweight, dbias, None, None, None, None


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    never: Tensor,
    smoothing: float = 0.0,
) -> Tensor:
    """-log p of each target under softmax(hidden W^T + b), with no probability for the tokens in `never`.

    With label smoothing the target is (1 - smoothing) of the token and the rest spread evenly over all tokens that
    are not in `never`. hidden: (N, H), weight: (V, H), bias: (V,) or None, targets: (N,), never: (M,) -> (N,)
    """
    low = is_low(hidden)
    with full_precision(hidden):
        hidden, weight = full(hidden, weight)
        loss: Tensor = _CrossEntropy.apply(hidden, weight, bias, targets, never, smoothing, low)
    return loss
