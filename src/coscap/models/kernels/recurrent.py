"""LSTM, GRU and the latents' recurrence over packed captions; input projections are computed outside.

Autograd would write the whole gradient of the recurrent weights at every word. The functions below keep
the gradients of the gates instead and make the weights' gradient of them at the end, as one
multiplication over all words. Gates are stored as i, f, o, g, so that the three sigmoids are one block.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from coscap.models.kernels.packing import Packing

aten = torch.ops.aten


# Products in mixed precision: factors in bfloat16, sums in float32. Which it is follows from the type of the weight.


def lowered(weight: Tensor, low: bool) -> Tensor:
    """The weight as products take it."""
    return weight.to(torch.bfloat16) if low else weight


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in the type of a; a: (n, k), b: (k, m), one of them perhaps in bfloat16"""
    if b.dtype == torch.bfloat16 and a.dtype != torch.bfloat16:
        return (a.to(torch.bfloat16) @ b).to(a.dtype)
    return a @ b


def add_product(total: Tensor, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """total + a @ b"""
    if b.dtype == torch.bfloat16:
        sum_: Tensor = torch.add(total, product(a, b), out=out)
        return sum_
    result: Tensor = torch.addmm(total, a, b, out=out)
    return result


def weight_gradient(dgates: Tensor, read: Tensor, low: bool) -> Tensor:
    """dgates^T read, over all words. dgates: (N, G), read: (N, D) -> (G, D)"""
    if low:
        return (dgates.to(torch.bfloat16).t() @ read.to(torch.bfloat16)).to(dgates.dtype)
    return dgates.t() @ read


def is_low(tensor: Tensor) -> bool:
    """Whether mixed precision is on where this tensor is."""
    device = tensor.device.type
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """gates: (n, 4 H) all that is added up before the non-linearities; c: (n, H). Gives h and c."""
    size = c.shape[1]
    opened = torch.sigmoid(gates[:, : 3 * size])
    i, f, o = opened[:, :size], opened[:, size : 2 * size], opened[:, 2 * size :]
    g = torch.tanh(gates[:, 3 * size :])
    c = f * c + i * g
    return o * torch.tanh(c), c


Buffers = tuple[Tensor | None, Tensor | None, Tensor | None]


def lstm_cell_(
    gates: Tensor, before: Tensor | None, out: Buffers = (None, None, None)
) -> tuple[Tensor, Tensor]:
    """`lstm_cell` in place: gates (n, 4 H) become their activations; h and c are written into `out` (c, tanh(c), h).
    before: (n, H) the cell state of the word before, None at the first."""
    if before is not None and torch.compiler.is_exporting():
        return lstm_cell(gates, before)
    size = gates.shape[1] // 4
    gates[:, : 3 * size].sigmoid_()
    gates[:, 3 * size :].tanh_()
    c: Tensor = torch.mul(gates[:, :size], gates[:, 3 * size :], out=out[0])
    if before is not None:
        c.addcmul_(gates[:, size : 2 * size], before)
    tanh_c = torch.tanh(c, out=out[1])
    h: Tensor = torch.mul(gates[:, 2 * size : 3 * size], tanh_c, out=out[2])
    return h, c


def lstm_cell_backward(
    dh: Tensor, dc: Tensor, gates: Tensor, before: Tensor | None, tanh_c: Tensor, dgates: Tensor
) -> None:
    """The gradient of one LSTM step. dh: (n, H) of its h; dc: (n, H) of its c, changed into that of the
    word before; gates: (n, 4 H) activations; dgates: (n, 4 H) is written."""
    size = dh.shape[1]
    i, f, o, g = gates.split(size, dim=1)
    dc += aten.tanh_backward(dh * o, tanh_c)
    torch.mul(dc, g, out=dgates[:, :size])
    if before is None:
        dgates[:, size : 2 * size].zero_()
    else:
        torch.mul(dc, before, out=dgates[:, size : 2 * size])
    torch.mul(dh, tanh_c, out=dgates[:, 2 * size : 3 * size])
    sigmoids = dgates[:, : 3 * size]
    aten.sigmoid_backward.grad_input(sigmoids, gates[:, : 3 * size], grad_input=sigmoids)
    aten.tanh_backward.grad_input(dc * i, g, grad_input=dgates[:, 3 * size :])
    dc *= f


class _Lstm(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, packing: Packing, low: bool) -> Tensor:
        size = weight.shape[1]
        gates = torch.empty_like(inputs)  # (N, 4 H)
        c, tanh_c, h = (inputs.new_empty(len(inputs), size) for _ in range(3))  # (N, H)
        transposed = lowered(weight.t(), low).contiguous()
        last = 0
        for start, end in packing.blocks:
            before = slice(last, last + end - start)
            if start:
                add_product(inputs[start:end], h[before], transposed, out=gates[start:end])
            else:
                gates[start:end] = inputs[start:end]
            out = c[start:end], tanh_c[start:end], h[start:end]
            lstm_cell_(gates[start:end], c[before] if start else None, out)
            last = start
        ctx.save_for_backward(weight, gates, c, tanh_c, h)
        ctx.packing, ctx.low = packing, low
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        weight, gates, c, tanh_c, h = ctx.saved_tensors
        weight = lowered(weight, ctx.low)
        packing: Packing = ctx.packing
        blocks = packing.blocks
        dgates = torch.empty_like(gates)
        dc = grad.new_zeros(packing.sizes[0], weight.shape[1])
        for t in reversed(range(len(blocks))):
            start, end = blocks[t]
            n = end - start
            dh = grad[start:end].clone()
            if t + 1 < len(blocks):
                later = slice(*blocks[t + 1])
                dh[: packing.sizes[t + 1]] += product(dgates[later], weight)
            last = blocks[t - 1][0]
            lstm_cell_backward(
                dh,
                dc[:n],
                gates[start:end],
                c[last : last + n] if t else None,
                tanh_c[start:end],
                dgates[start:end],
            )
        dweight = None
        if ctx.needs_input_grad[1]:
            dweight = weight_gradient(dgates[packing.sizes[0] :], h[packing.previous], ctx.low)
        return dgates, dweight, None, None


def lstm(inputs: Tensor, weight: Tensor, packing: Packing) -> Tensor:
    """inputs: (N, 4 H), weight: (4 H, H) of the recurrence -> hidden states (N, H)."""
    low = is_low(inputs)
    with full_precision(inputs):
        hidden: Tensor = _Lstm.apply(*full(inputs, weight), packing, low)
    return hidden


def gru(inputs: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> Tensor:
    """inputs: (N, 3 H) as r, u, n; weight: (3 H, H); bias: (H,) of n's recurrent part -> (N, H).
    Left to autograd: only the `released` configuration uses it."""
    size = weight.shape[1]
    h = inputs.new_zeros(packing.sizes[0], size)
    hidden = []
    for start, end in packing.blocks:
        h = h[: end - start]
        given, recurrent = inputs[start:end], h @ weight.t()
        r, u = torch.sigmoid(given[:, : 2 * size] + recurrent[:, : 2 * size]).chunk(2, dim=1)
        new = torch.tanh(given[:, 2 * size :] + r * (recurrent[:, 2 * size :] + bias))
        h = new + u * (h - new)
        hidden.append(h)
    return torch.cat(hidden)


class _LatentRecurrence(Function):
    @staticmethod
    def forward(
        ctx: Any, base: Tensor, weight: Tensor, noise: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor]:
        size = weight.shape[1]
        parameters, z = base.clone(), torch.empty_like(noise)
        spread = torch.empty_like(noise)  # deviation times noise; half of it is dz / d log variance
        last = 0
        for start, end in packing.blocks:
            gaussian = parameters[start:end]
            if start:
                gaussian.addmm_(z[last : last + end - start], weight.t())
            torch.exp(gaussian[:, size:] * 0.5, out=spread[start:end]).mul_(noise[start:end])
            torch.add(gaussian[:, :size], spread[start:end], out=z[start:end])
            last = start
        spread *= 0.5
        ctx.save_for_backward(weight, z, spread)
        ctx.packing = packing
        return z, parameters

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, dparameters: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weight, z, spread = ctx.saved_tensors
        packing: Packing = ctx.packing
        blocks, size = packing.blocks, weight.shape[1]
        total = dparameters.clone()  # (N, 2 Z) becomes the gradient of base
        for t in reversed(range(len(blocks))):
            here = slice(*blocks[t])
            dz_t = dz[here].clone()
            if t + 1 < len(blocks):
                dz_t[: packing.sizes[t + 1]].addmm_(total[slice(*blocks[t + 1])], weight)
            total[here, :size] += dz_t
            total[here, size:].addcmul_(dz_t, spread[here])
        dweight = total[packing.sizes[0] :].t() @ z[packing.previous]
        return total, dweight, None, None


def latent_recurrence(base: Tensor, weight: Tensor, noise: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """The posterior's recurrence: [mean_t, log variance_t] = base_t + W z_{t-1}, z_t drawn with the noise.

    base: (N, 2 Z), weight: (2 Z, Z), noise: (N, Z) -> z (N, Z), parameters (N, 2 Z).
    """
    with full_precision(base):
        base, weight = full(base, weight)
        z, parameters = _LatentRecurrence.apply(base, weight, noise.to(base.dtype), packing)
    return z, parameters


def full_precision(tensor: Tensor) -> torch.autocast:
    """Under mixed precision the recurrences keep their states and sums in float32; only factors are rounded."""
    return torch.autocast(tensor.device.type, enabled=False)


def full(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor for tensor in tensors
    )
