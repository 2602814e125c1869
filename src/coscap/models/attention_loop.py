"""The decoder's recurrence over packed captions: attention LSTM, attention, language LSTM.

As in `recurrent`, the backward pass keeps the gradients of gates and queries, and makes each weight's
gradient at the end as one multiplication over all words.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from coscap.models.packing import Packing
from coscap.models.recurrent import cell_backward, cell_forward, full, full_precision

aten = torch.ops.aten


class _Loop(Function):
    """Sizes: N words, B captions, R regions of width F, A attention width, Ha and Hl hidden sizes."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,  # (N, 4 Ha) of the attention LSTM
        asked: Tensor | None,  # (N, A) added to the query
        spoken: Tensor,  # (N, 4 Hl) or (4 Hl,) of the language LSTM
        keys: Tensor,  # (B, R, A)
        values: Tensor,  # (B, R, F)
        barred: Tensor,  # (B, R)
        attention_weight: Tensor,  # (4 Ha, Hl + Ha) on [h^lang_{t-1}, h^att_{t-1}]
        query_weight: Tensor,  # (A, Ha)
        score: Tensor,  # (A,)
        language_weight: Tensor,  # (4 Hl, F + Ha + Hl) on [v^_t, h^att_t, h^lang_{t-1}]
        packing: Packing,
    ) -> tuple[Tensor, Tensor]:
        words, (_, regions, width), features = len(inputs), keys.shape, values.shape[2]
        hl, ha = language_weight.shape[0] // 4, query_weight.shape[1]
        new = inputs.new_empty
        gates, spoken_gates = new(words, 4 * ha), new(words, 4 * hl)
        before, joint = new(words, hl + ha), new(words, features + ha + hl)  # inputs of the two LSTMs
        att_c, att_bent, att_h = new(words, ha), new(words, ha), joint[:, features : features + ha]
        c, bent, h = new(words, hl), new(words, hl), new(words, hl)
        met, a = new(words, regions, width), new(words, regions)
        turned = attention_weight.t().contiguous(), language_weight.t().contiguous()
        before[: packing.sizes[0]] = 0
        joint[: packing.sizes[0], features + ha :] = 0
        last = 0
        for start, end in packing.blocks:
            n, here = end - start, slice(start, end)
            prior = slice(last, last + n)
            if start:
                before[here, :hl] = joint[here, features + ha :] = h[prior]
                before[here, hl:] = att_h[prior]
                torch.addmm(inputs[here], before[here], turned[0], out=gates[here])
            else:
                gates[here] = inputs[here]
            cell_forward(
                gates[here], att_c[prior] if start else None, att_c[here], att_bent[here], att_h[here]
            )
            query = att_h[here] @ query_weight.t()  # (n, A)
            if asked is not None:
                query += asked[here]
            torch.add(keys[:n], query[:, None], out=met[here]).tanh_()
            scores = torch.mv(met[here].view(-1, width), score).view(n, regions) + barred[:n]
            a[here] = torch.softmax(scores, dim=1)
            joint[here, :features] = torch.bmm(a[here, None], values[:n])[:, 0]
            added = spoken if spoken.dim() == 1 else spoken[here]
            torch.addmm(added, joint[here], turned[1], out=spoken_gates[here])
            cell_forward(spoken_gates[here], c[prior] if start else None, c[here], bent[here], h[here])
            last = start
        ctx.save_for_backward(
            values, attention_weight, query_weight, score, language_weight, gates, spoken_gates,
            before, joint, att_c, att_bent, c, bent, met, a,
        )  # fmt: skip
        ctx.packing, ctx.asks, ctx.speaks = packing, asked is not None, spoken.dim()
        ctx.mark_non_differentiable(a)
        return h, a

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (
            values, attention_weight, query_weight, score, language_weight, gates, spoken_gates,
            before, joint, att_c, att_bent, c, bent, met, a,
        ) = ctx.saved_tensors  # fmt: skip
        packing: Packing = ctx.packing
        blocks, captions = packing.blocks, packing.sizes[0]
        features, (regions, width) = values.shape[2], met.shape[1:]
        hl, ha = c.shape[1], att_c.shape[1]
        dgates, dspoken = torch.empty_like(gates), torch.empty_like(spoken_gates)
        dquery, dscores = grad.new_empty(len(grad), width), grad.new_empty(len(grad), regions)
        dkeys = grad.new_zeros(captions, regions, width)
        dseen = grad.new_empty(len(grad), features) if ctx.needs_input_grad[4] else None
        dh, dc = grad.new_zeros(captions, hl), grad.new_zeros(captions, hl)
        att_dh, att_dc = grad.new_zeros(captions, ha), grad.new_zeros(captions, ha)
        bend = grad.new_empty(captions, regions, width)
        one = grad.new_ones(())
        for t in reversed(range(len(blocks))):
            start, end = blocks[t]
            n, here = end - start, slice(start, end)
            prior = slice(blocks[t - 1][0], blocks[t - 1][0] + n)
            dh[:n] += grad[here]
            cell_backward(
                dh[:n], dc[:n], spoken_gates[here], c[prior] if t else None, bent[here], dspoken[here]
            )
            djoint = dspoken[here] @ language_weight  # (n, F + Ha + Hl)
            seen = djoint[:, :features]
            if dseen is not None:
                dseen[here] = seen
            weights = torch.bmm(seen[:, None], values[:n].transpose(1, 2))[:, 0]  # (n, R)
            dscores[here] = aten._softmax_backward_data(weights, a[here], 1, a.dtype)
            u = torch.addcmul(one, met[here], met[here], value=-1, out=bend[:n])  # 1 - tanh^2
            u *= dscores[here, :, None]
            dkeys[:n] += u
            torch.mul(u.sum(1), score, out=dquery[here])
            att_dh[:n] += djoint[:, features : features + ha]
            att_dh[:n].addmm_(dquery[here], query_weight)
            cell_backward(
                att_dh[:n], att_dc[:n], gates[here], att_c[prior] if t else None, att_bent[here], dgates[here]
            )
            if t:
                dbefore = dgates[here] @ attention_weight  # (n, Hl + Ha)
                torch.add(djoint[:, features + ha :], dbefore[:, :hl], out=dh[:n])
                att_dh[:n] = dbefore[:, hl:]
        dkeys *= score
        return (
            dgates,
            dquery if ctx.asks else None,
            dspoken.sum(0) if ctx.speaks == 1 else dspoken,
            dkeys,
            None if dseen is None else _spread(a, dseen, packing),
            None,
            dgates[captions:].t() @ before[captions:],
            dquery.t() @ joint[:, features : features + ha],
            torch.mv(met.view(-1, width).t(), dscores.view(-1)),
            dspoken.t() @ joint,
            None,
        )


def _spread(a: Tensor, dseen: Tensor, packing: Packing) -> Tensor:
    """The gradient of the values, sum over words of a_t dv^_t. a: (N, R), dseen: (N, F) -> (B, R, F)"""
    captions, steps = packing.sizes[0], len(packing.sizes)
    starts = torch.tensor([start for start, _ in packing.blocks], device=a.device)
    places = torch.arange(len(a), device=a.device) - starts[packing.positions]  # (N,) among the sorted
    cells = places * steps + packing.positions
    padded_a = a.new_zeros(captions * steps, a.shape[1]).index_copy(0, cells, a)
    padded_seen = dseen.new_zeros(captions * steps, dseen.shape[1]).index_copy(0, cells, dseen)
    return torch.bmm(
        padded_a.view(captions, steps, -1).transpose(1, 2), padded_seen.view(captions, steps, -1)
    )


def attention_loop(
    inputs: Tensor,
    asked: Tensor | None,
    spoken: Tensor,
    keys: Tensor,
    values: Tensor,
    barred: Tensor,
    attention_weight: Tensor,
    query_weight: Tensor,
    score: Tensor,
    language_weight: Tensor,
    packing: Packing,
) -> tuple[Tensor, Tensor]:
    """h^lang (N, Hl) and the attention (N, R) of every word; the attention carries no gradient.

    keys, values and barred lie as the sorted captions: row j is caption packing.order[j].
    """
    with full_precision(inputs):
        inputs, spoken, keys, values, barred = full(inputs, spoken, keys, values, barred)
        weights = full(attention_weight, query_weight, score, language_weight)
        asked = None if asked is None else full(asked)[0]
        h, a = _Loop.apply(inputs, asked, spoken, keys, values, barred, *weights, packing)
    return h, a
