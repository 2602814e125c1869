"""The cell of the up-down decoder, its loop over packed captions, and the gradient of that loop.

`decoder_cell` is the one cell there is: `decoder_loop` runs it over the captions of a training batch, searches run it
word by word, and an export is a trace of it. As in `recurrent`, the backward pass keeps the gradients of gates and
queries, and makes each weight's gradient at the end as one multiplication over all words.

Sizes: N rows or words, P pictures, R regions of width F, A attention width, Ha and Hl hidden sizes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from coscap.models.kernels.packing import Packing
from coscap.models.kernels.recurrent import (
    add_product,
    full,
    full_precision,
    is_low,
    lowered,
    lstm_cell_,
    lstm_cell_backward,
    product,
    weight_gradient,
)
from coscap.models.kernels.rows import RowGroups, TransposedCopies

aten = torch.ops.aten


class CellInputs(NamedTuple):
    """What enters the cell from outside."""

    attention: Tensor  # (N, 4 Ha) x_{t-1}, z_t and v-bar, projected to the gates of the attention LSTM
    query: Tensor | None  # (N, A) added to the query
    language: Tensor  # (N, 4 Hl) or (4 Hl,) added to the gates of the language LSTM
    dropout: Tensor | None  # (N, Ha) factors on h^att_t as query and language LSTM read it

    def rows(self, start: int, end: int) -> "CellInputs":
        return CellInputs(
            self.attention[start:end],
            None if self.query is None else self.query[start:end],
            self.language if self.language.dim() == 1 else self.language[start:end],
            None if self.dropout is None else self.dropout[start:end],
        )


class CellRegions(NamedTuple):
    """The regions that are attended to."""

    keys: Tensor  # (P, R, A)
    values: Tensor  # (P, R, F)
    masked: Tensor  # (P, R) 0 where there is a region, -inf where there is none
    projected: Tensor | None = None  # (P, R, 4 Hl) W v_r for the language LSTM, if computed ahead


class CellWeights(NamedTuple):
    attention: Tensor  # (4 Ha, Hl + Ha) on [h^lang_{t-1}, h^att_{t-1}]
    query: Tensor  # (A, Ha)
    score: Tensor  # (A,)
    language: Tensor  # (4 Hl, F + Ha + Hl) on [v^_t, h^att_t, h^lang_{t-1}]


@dataclass(frozen=True)
class CellState:
    attention_h: Tensor  # (N, Ha)
    attention_c: Tensor  # (N, Ha)
    language_h: Tensor  # (N, Hl)
    language_c: Tensor  # (N, Hl)


class CellBuffers(NamedTuple):
    """Where a cell writes what the backward pass needs; None: new tensors, which nobody keeps."""

    previous: Tensor | None = None  # (N, Hl + Ha) what the attention LSTM's recurrence reads
    attention_gates: Tensor | None = None  # (N, 4 Ha) activations
    attention_c: Tensor | None = None  # (N, Ha)
    attention_tanh_c: Tensor | None = None
    read_h: Tensor | None = None  # (N, Ha) h^att_t after dropout; these columns of `joint`
    activations: Tensor | None = None  # (N, R, A) tanh(keys + query)
    joint: Tensor | None = None  # (N, F + Ha + Hl) what the language LSTM reads
    language_gates: Tensor | None = None  # (N, 4 Hl) activations
    language_c: Tensor | None = None  # (N, Hl)
    language_tanh_c: Tensor | None = None
    language_h: Tensor | None = None


NO_BUFFERS = CellBuffers()


def decoder_cell(
    inputs: CellInputs,
    regions: CellRegions,
    weights: CellWeights,
    transposed: TransposedCopies,
    state: CellState | None,
    groups: RowGroups | None = None,
    out: CellBuffers = NO_BUFFERS,
) -> tuple[CellState, Tensor]:
    """One word of N rows: the state after it and the attention a_t (N, R).

    `groups` says which rows share a picture; None: each row has one of its own. `state` is None before the first word.
    """
    # h^att_t = LSTM([h^lang_{t-1}, v-bar, x_{t-1}, z_t], h^att_{t-1})
    if state is None:
        gates = (
            inputs.attention.clone()
            if out.attention_gates is None
            else out.attention_gates.copy_(inputs.attention)
        )
    else:
        previous = torch.cat([state.language_h, state.attention_h], dim=1, out=out.previous)
        gates = add_product(
            inputs.attention, previous, transposed(weights.attention), out=out.attention_gates
        )
    buffers = out.attention_c, out.attention_tanh_c, out.read_h if inputs.dropout is None else None
    attention_h, attention_c = lstm_cell_(gates, None if state is None else state.attention_c, buffers)
    read_h = attention_h
    if inputs.dropout is not None:
        read_h = torch.mul(attention_h, inputs.dropout, out=out.read_h)

    # a_t = softmax_r(w tanh(W_v v_r + W_h h^att_t))
    query = read_h @ weights.query.t()  # (N, A)
    if inputs.query is not None:
        query = query + inputs.query
    queries = query[:, None] if groups is None else groups.spread(query)  # (P, D, A)
    kept = None if out.activations is None else out.activations[:, None]
    activations = torch.add(regions.keys[:, None], queries[:, :, None], out=kept).tanh_()  # (P, D, R, A)
    scores = _scores(activations, weights.score)  # (P, D, R)
    attention = torch.softmax(scores + regions.masked[:, None], dim=2)

    # h^lang_t = LSTM([v^_t, h^att_t], h^lang_{t-1}) with v^_t = sum_r a_tr v_r
    language_h = (
        attention_h.new_zeros(len(query), weights.language.shape[0] // 4)
        if state is None
        else state.language_h
    )
    language_weight = transposed(weights.language)
    if regions.projected is None:
        attended = _by_row(torch.bmm(attention, regions.values), groups)  # (N, F)
        joint = _joint(attended, read_h, language_h, out.joint)
        gates = add_product(inputs.language, joint, language_weight, out=out.language_gates)
    else:  # W v^_t = sum_r a_tr W v_r
        own = torch.cat([read_h, language_h], dim=1)
        gates = add_product(inputs.language, own, language_weight[regions.values.shape[2] :])
        gates = gates + _by_row(torch.bmm(attention, regions.projected), groups)
    buffers = out.language_c, out.language_tanh_c, out.language_h
    language_h, language_c = lstm_cell_(gates, None if state is None else state.language_c, buffers)
    return CellState(attention_h, attention_c, language_h, language_c), _by_row(attention, groups)


def _scores(activations: Tensor, score: Tensor) -> Tensor:
    """(P, D, R, A), (A,) -> (P, D, R)"""
    if torch.compiler.is_exporting():  # a product from the left takes a thirtieth of the time in a graph
        return torch.nn.functional.linear(score[None], activations.flatten(0, 2)).view(activations.shape[:3])
    return activations @ score


def _joint(attended: Tensor, read_h: Tensor, language_h: Tensor, out: Tensor | None) -> Tensor:
    """[v^_t, h^att_t, h^lang_{t-1}]; h^att_t is in `out` already."""
    if out is None:
        return torch.cat([attended, read_h, language_h], dim=1)
    out[:, : attended.shape[1]] = attended
    out[:, out.shape[1] - language_h.shape[1] :] = language_h
    return out


def _by_row(spread: Tensor, groups: RowGroups | None) -> Tensor:
    """(P, D, X) -> (N, X)"""
    return spread[:, 0] if groups is None else groups.collect(spread)


class Tape:
    """The cell over packed captions, one block of words after the other, with all that the backward pass needs.

    regions and masks are in the order of the sorted captions: row j is of caption packing.order[j].
    """

    def __init__(
        self, regions: CellRegions, weights: CellWeights, packing: Packing, low: bool = False
    ) -> None:
        words, (_, count, width), features = packing.words, regions.keys.shape, regions.values.shape[2]
        hl, ha = weights.language.shape[0] // 4, weights.query.shape[1]
        new = regions.keys.new_empty
        self.regions, self.weights, self.packing = regions, weights, packing
        self.transposed = TransposedCopies(low)
        joint = new(words, features + ha + hl)
        self.buffers = CellBuffers(
            new(words, hl + ha), new(words, 4 * ha), new(words, ha), new(words, ha),
            joint[:, features : features + ha], new(words, count, width), joint,
            new(words, 4 * hl), new(words, hl), new(words, hl), new(words, hl),
        )  # fmt: skip
        self.attention = new(words, count)
        self.state: CellState | None = None

    def step(self, t: int, inputs: CellInputs) -> Tensor:
        """Word t of the n captions that have one; gives its attention (n, R)."""
        start, end = self.packing.blocks[t]
        n, state = end - start, self.state
        if state is not None:
            state = CellState(*(tensor[:n] for tensor in vars(state).values()))
        regions = CellRegions(self.regions.keys[:n], self.regions.values[:n], self.regions.masked[:n])
        out = CellBuffers(*(buffer[start:end] for buffer in self.buffers if buffer is not None))
        self.state, attention = decoder_cell(inputs, regions, self.weights, self.transposed, state, None, out)
        self.attention[start:end] = attention
        return self.attention[start:end]


class _Loop(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        query: Tensor | None,
        language: Tensor,
        dropout: Tensor | None,
        keys: Tensor,
        values: Tensor,
        masked: Tensor,
        attention_weight: Tensor,
        query_weight: Tensor,
        score: Tensor,
        language_weight: Tensor,
        packing: Packing,
        tape: Tape | None,
        low: bool,
    ) -> tuple[Tensor, Tensor]:
        weights = CellWeights(attention_weight, query_weight, score, language_weight)
        if tape is None:
            tape = Tape(CellRegions(keys, values, masked), weights, packing, low)
            cell_inputs = CellInputs(inputs, query, language, dropout)
            for t, (start, end) in enumerate(packing.blocks):
                tape.step(t, cell_inputs.rows(start, end))
        kept = tape.buffers._replace(read_h=None, language_h=None)
        hidden = tape.buffers.language_h
        ctx.save_for_backward(values, *weights, dropout, tape.attention, *kept)
        ctx.packing, ctx.low = packing, low
        ctx.has_query, ctx.language_dim = query is not None, language.dim()
        ctx.mark_non_differentiable(tape.attention)
        assert hidden is not None
        return hidden, tape.attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (
            values, attention_weight, query_weight, score, language_weight, dropout, attention,
            previous, gates, att_c, att_tanh_c, _, activations, joint, language_gates, c, tanh_c, _,
        ) = ctx.saved_tensors  # fmt: skip
        packing: Packing = ctx.packing
        blocks, captions, low = packing.blocks, packing.sizes[0], ctx.low
        language_weight, attention_weight = lowered(language_weight, low), lowered(attention_weight, low)
        features, (count, width) = values.shape[2], activations.shape[1:]
        hl, ha = c.shape[1], att_c.shape[1]
        dgates, dlanguage = torch.empty_like(gates), torch.empty_like(language_gates)
        dquery, dscores = grad.new_empty(len(grad), width), grad.new_empty(len(grad), count)
        dkeys = grad.new_zeros(captions, count, width)
        dattended = grad.new_empty(len(grad), features) if ctx.needs_input_grad[5] else None
        dh, dc = grad.new_zeros(captions, hl), grad.new_zeros(captions, hl)
        att_dh, att_dc = grad.new_zeros(captions, ha), grad.new_zeros(captions, ha)
        scratch = grad.new_empty(captions, count, width)
        one = grad.new_ones(())
        for t in reversed(range(len(blocks))):
            start, end = blocks[t]
            n, here = end - start, slice(start, end)
            last = slice(blocks[t - 1][0], blocks[t - 1][0] + n)
            dh[:n] += grad[here]
            lstm_cell_backward(
                dh[:n], dc[:n], language_gates[here], c[last] if t else None, tanh_c[here], dlanguage[here]
            )
            djoint = product(dlanguage[here], language_weight)  # (n, F + Ha + Hl)
            dattended_t = djoint[:, :features]
            if dattended is not None:
                dattended[here] = dattended_t
            dattention = torch.bmm(dattended_t[:, None], values[:n].transpose(1, 2))[:, 0]  # (n, R)
            dscores[here] = aten._softmax_backward_data(dattention, attention[here], 1, attention.dtype)
            # 1 - tanh^2
            dtanh = torch.addcmul(one, activations[here], activations[here], value=-1, out=scratch[:n])
            dtanh *= dscores[here, :, None]
            dkeys[:n] += dtanh
            torch.mul(dtanh.sum(1), score, out=dquery[here])
            if dropout is None:
                att_dh[:n] += djoint[:, features : features + ha]
                att_dh[:n].addmm_(dquery[here], query_weight)
            else:
                dread = torch.addmm(djoint[:, features : features + ha], dquery[here], query_weight)
                att_dh[:n].addcmul_(dread, dropout[here])
            lstm_cell_backward(
                att_dh[:n],
                att_dc[:n],
                gates[here],
                att_c[last] if t else None,
                att_tanh_c[here],
                dgates[here],
            )
            if t:
                dprevious = product(dgates[here], attention_weight)  # (n, Hl + Ha)
                torch.add(djoint[:, features + ha :], dprevious[:, :hl], out=dh[:n])
                att_dh[:n] = dprevious[:, hl:]
        dkeys *= score
        return (
            dgates,
            dquery if ctx.has_query else None,
            dlanguage.sum(0) if ctx.language_dim == 1 else dlanguage,
            None,
            dkeys,
            None if dattended is None else _values_gradient(attention, dattended, packing),
            None,
            weight_gradient(dgates[captions:], previous[captions:], low),
            dquery.t() @ joint[:, features : features + ha],
            torch.mv(activations.view(-1, width).t(), dscores.view(-1)),
            weight_gradient(dlanguage, joint, low),
            None,
            None,
            None,
        )


def _values_gradient(attention: Tensor, dattended: Tensor, packing: Packing) -> Tensor:
    """The sum over words of a_t dv^_t. attention: (N, R), dattended: (N, F) -> (B, R, F)"""
    captions, steps = packing.sizes[0], len(packing.sizes)
    starts = torch.tensor([start for start, _ in packing.blocks], device=attention.device)
    places = torch.arange(len(attention), device=attention.device) - starts[packing.positions]  # (N,)
    cells = places * steps + packing.positions
    padded_a = attention.new_zeros(captions * steps, attention.shape[1]).index_copy(0, cells, attention)
    padded_d = dattended.new_zeros(captions * steps, dattended.shape[1]).index_copy(0, cells, dattended)
    return torch.bmm(padded_a.view(captions, steps, -1).transpose(1, 2), padded_d.view(captions, steps, -1))


def decoder_loop(
    inputs: CellInputs,
    regions: CellRegions,
    weights: CellWeights,
    packing: Packing,
    tape: Tape | None = None,
) -> tuple[Tensor, Tensor]:
    """`decoder_cell` over whole captions: h^lang (N, Hl) and the attention (N, R) of every word. The attention
    carries no gradient.

    regions are in the order of the sorted captions: row j is of caption packing.order[j]. Where a `tape` has run over
    the same inputs already, its results are used and only the gradient is computed.
    """
    low = is_low(regions.values)
    with full_precision(inputs.attention):
        attention, language = full(inputs.attention, inputs.language)
        query, dropout = (None if each is None else full(each)[0] for each in (inputs.query, inputs.dropout))
        tensors = full(regions.keys, regions.values, regions.masked, *weights)
        hidden, a = _Loop.apply(attention, query, language, dropout, *tensors, packing, tape, low)
    return hidden, a
