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


class Tape:
    """The recurrence as it runs: a block of words after the other, with all that the backward pass needs.

    Sizes: N words, B captions, R regions of width F, A attention width, Ha and Hl hidden sizes.
    """

    def __init__(
        self,
        keys: Tensor,  # (B, R, A)
        values: Tensor,  # (B, R, F)
        barred: Tensor,  # (B, R)
        attention_weight: Tensor,  # (4 Ha, Hl + Ha) on [h^lang_{t-1}, h^att_{t-1}]
        query_weight: Tensor,  # (A, Ha)
        score: Tensor,  # (A,)
        language_weight: Tensor,  # (4 Hl, F + Ha + Hl) on [v^_t, h^att_t, h^lang_{t-1}]
        packing: Packing,
    ) -> None:
        words, (_, regions, width), features = packing.words, keys.shape, values.shape[2]
        hl, ha = language_weight.shape[0] // 4, query_weight.shape[1]
        new = keys.new_empty
        self.keys, self.values, self.barred, self.packing = keys, values, barred, packing
        self.query, self.score = query_weight.t(), score
        self.turned = attention_weight.t().contiguous(), language_weight.t().contiguous()
        self.gates, self.spoken_gates = new(words, 4 * ha), new(words, 4 * hl)
        self.before, self.joint = new(words, hl + ha), new(words, features + ha + hl)  # what the LSTMs read
        self.att_c, self.att_bent = new(words, ha), new(words, ha)
        self.att_h = self.joint[:, features : features + ha]
        self.c, self.bent, self.h = new(words, hl), new(words, hl), new(words, hl)
        self.met, self.a = new(words, regions, width), new(words, regions)
        self.before[: packing.sizes[0]] = 0
        self.joint[: packing.sizes[0], features + ha :] = 0

    def step(self, t: int, inputs: Tensor, asked: Tensor | None, spoken: Tensor) -> Tensor:
        """Word t of the n captions that have one -> attention (n, R).

        inputs: (n, 4 Ha) of the attention LSTM, asked: (n, A) added to the query, spoken: (n, 4 Hl) or
        (4 Hl,) of the language LSTM.
        """
        start, end = self.packing.blocks[t]
        n, here = end - start, slice(start, end)
        last = self.packing.blocks[t - 1][0] if t else 0
        prior, (features, ha) = slice(last, last + n), (self.values.shape[2], self.att_c.shape[1])
        gates, h = self.gates[here], self.att_h[here]
        if t:
            self.before[here, : self.h.shape[1]] = self.joint[here, features + ha :] = self.h[prior]
            self.before[here, self.h.shape[1] :] = self.att_h[prior]
            torch.addmm(inputs, self.before[here], self.turned[0], out=gates)
        else:
            gates.copy_(inputs)
        cell_forward(gates, self.att_c[prior] if t else None, self.att_c[here], self.att_bent[here], h)
        query = h @ self.query  # (n, A)
        if asked is not None:
            query += asked
        met = self.met[here]
        torch.add(self.keys[:n], query[:, None], out=met).tanh_()
        scores = torch.mv(met.view(-1, met.shape[2]), self.score).view(met.shape[:2]) + self.barred[:n]
        self.a[here] = torch.softmax(scores, dim=1)
        self.joint[here, :features] = torch.bmm(self.a[here, None], self.values[:n])[:, 0]
        gates = self.spoken_gates[here]
        torch.addmm(spoken, self.joint[here], self.turned[1], out=gates)
        cell_forward(gates, self.c[prior] if t else None, self.c[here], self.bent[here], self.h[here])
        return self.a[here]


class _Loop(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,  # (N, 4 Ha)
        asked: Tensor | None,  # (N, A)
        spoken: Tensor,  # (N, 4 Hl) or (4 Hl,)
        keys: Tensor,
        values: Tensor,
        barred: Tensor,
        attention_weight: Tensor,
        query_weight: Tensor,
        score: Tensor,
        language_weight: Tensor,
        packing: Packing,
        tape: Tape | None,
    ) -> tuple[Tensor, Tensor]:
        weights = attention_weight, query_weight, score, language_weight
        if tape is None:
            tape = Tape(keys, values, barred, *weights, packing)
            for t, (start, end) in enumerate(packing.blocks):
                query = None if asked is None else asked[start:end]
                tape.step(t, inputs[start:end], query, spoken if spoken.dim() == 1 else spoken[start:end])
        ctx.save_for_backward(
            values, *weights, tape.gates, tape.spoken_gates, tape.before, tape.joint,
            tape.att_c, tape.att_bent, tape.c, tape.bent, tape.met, tape.a,
        )  # fmt: skip
        ctx.packing, ctx.asks, ctx.speaks = packing, asked is not None, spoken.dim()
        ctx.mark_non_differentiable(tape.a)
        return tape.h, tape.a

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
    tape: Tape | None = None,
) -> tuple[Tensor, Tensor]:
    """h^lang (N, Hl) and the attention (N, R) of every word; the attention carries no gradient.

    keys, values and barred lie as the sorted captions: row j is caption packing.order[j]. Where a `tape`
    has run over the same inputs already, its results are used and only the gradient is made here.
    """
    with full_precision(inputs):
        inputs, spoken, keys, values, barred = full(inputs, spoken, keys, values, barred)
        weights = full(attention_weight, query_weight, score, language_weight)
        asked = None if asked is None else full(asked)[0]
        h, a = _Loop.apply(inputs, asked, spoken, keys, values, barred, *weights, packing, tape)
    return h, a
