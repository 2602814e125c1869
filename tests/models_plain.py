"""COS-CVAE once more, slowly: padded tensors, one word at a time, nothing but autograd. And each function of
`coscap.models.kernels` in a few plain lines of the same signature.

The tests compare the fast models with both. They share their parameters and none of their functions.
"""

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from coscap.data.batch import Batch
from coscap.models import CosCvae
from coscap.models.kernels import CellInputs, CellRegions, CellState, CellWeights, Packing


def cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o, g = gates.chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def padded_lstm(
    inputs: list[Tensor], gates, hidden: Tensor, mean: Tensor, alive: list[Tensor]
) -> list[Tensor]:
    """Keeps h and c where a sequence is not alive."""
    h = c = torch.zeros(len(mean), hidden.shape[1], dtype=mean.dtype)
    out = []
    for x, here in zip(inputs, alive, strict=True):
        pre = x @ gates.step.t() + mean @ gates.picture.t() + gates.bias + h @ hidden.t()
        new_h, new_c = cell(pre, c)
        h, c = torch.where(here, new_h, h), torch.where(here, new_c, c)
        out.append(h)
    return out


def posterior(chain, known: list[Tensor], noise: Tensor) -> tuple[list[Tensor], list[Normal]]:
    z = torch.zeros_like(noise[:, 0])
    drawn, q = [], []
    for t, x in enumerate(known):
        mean, log_variance = (chain.known(x) + z @ chain.previous.t()).chunk(2, dim=1)
        q.append(Normal(mean, torch.exp(0.5 * log_variance)))
        z = mean + torch.exp(0.5 * log_variance) * noise[:, t]
        drawn.append(z)
    return drawn, q


def prior(module, inputs: list[Tensor], mean: Tensor, alive: list[Tensor]) -> list[Normal]:
    out = []
    for h in padded_lstm(inputs, module.gates, module.hidden, mean, alive):
        m, log_variance = module.out(h).chunk(2, dim=1)
        out.append(Normal(m, torch.exp(0.5 * log_variance)))
    return out


def plain_loss(model: CosCvae, batch: Batch, noise_m: Tensor, noise_o: Tensor) -> dict[str, Tensor]:
    """For a configuration in the paper's shape: LSTM encoders, aligned z^m, final state, z^m_t in p(z^o).
    noise_m: (B, T, Zm), noise_o: (B, T, Zo)"""
    pictures, steps = batch.pictures, batch.words.shape[1]
    mask = pictures.mask[batch.rows]
    values = pictures.features[batch.rows]
    mean = (values * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    alive = [(t < batch.lengths)[:, None] for t in range(steps)]
    embed = model.words.weight * model.words.embedding_dim**0.5

    x_m = [embed[batch.context[:, t]] for t in range(steps)]
    q = model.context_posterior
    forwards = padded_lstm(x_m, q.forwards.gates, q.forwards.hidden, mean, alive)
    backwards = padded_lstm(x_m[::-1], q.backwards.gates, q.backwards.hidden, mean, alive[::-1])[::-1]
    both = [torch.cat(pair, dim=1) for pair in zip(forwards, backwards, strict=True)]
    z_m, q_m = posterior(q.chain, both, noise_m)

    q = model.object_posterior
    counts = (batch.objects != 0).sum(1).clamp(min=1)
    listed = [
        torch.cat([embed[batch.objects[:, k]], torch.where(alive[k], z_m[k], 0)], dim=1)
        for k in range(batch.objects.shape[1])
    ]
    last = padded_lstm(
        listed, q.encoder.gates, q.encoder.hidden, mean, [(k < counts)[:, None] for k in range(len(listed))]
    )[-1]
    z_o, q_o = posterior(q.chain, [torch.cat([last, z], dim=1) for z in z_m], noise_o)

    start = torch.full_like(batch.words[:, 0], 1)
    before = [start, *batch.words.unbind(1)[:-1]]
    zero_m, zero_o = torch.zeros_like(z_m[0]), torch.zeros_like(z_o[0])
    p_m = prior(
        model.context_prior,
        [torch.cat([embed[w], z], 1) for w, z in zip(before, [zero_m, *z_m[:-1]], strict=True)],
        mean,
        alive,
    )
    p_o = prior(
        model.object_prior,
        [torch.cat([embed[w], m, o], 1) for w, m, o in zip(before, z_m, [zero_o, *z_o[:-1]], strict=True)],
        mean,
        alive,
    )

    d = model.decoder
    keys = d.key(values)
    h1 = c1 = torch.zeros(len(mean), d.query.shape[1], dtype=mean.dtype)
    h2 = c2 = torch.zeros(len(mean), d.language_bias.shape[0] // 4, dtype=mean.dtype)
    total = dict.fromkeys(("reconstruction", "kl_context", "kl_object"), torch.zeros((), dtype=mean.dtype))
    for t in range(steps):
        step = torch.cat([model.own_words(before[t]), z_m[t], z_o[t]], dim=1)
        gates = step @ d.gates.step.t() + mean @ d.gates.picture.t() + d.gates.bias
        h1, c1 = cell(gates + torch.cat([h2, h1], dim=1) @ d.attention_hidden.t(), c1)
        scores = torch.tanh(keys + (h1 @ d.query.t())[:, None]) @ d.score
        a = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=1)
        seen = (a[:, :, None] * values).sum(1)
        h2, c2 = cell(torch.cat([seen, h1, h2], 1) @ d.language_hidden.t() + d.language_bias, c2)
        logits = h2 @ model.output.weight.t() + model.output.bias
        logits[:, [0, 1, 4, 5]] = float("-inf")
        here = alive[t][:, 0]
        nll = -torch.log_softmax(logits, dim=1).gather(1, batch.words[:, t : t + 1])[:, 0]
        parts = {
            "reconstruction": nll,
            "kl_context": kl_divergence(q_m[t], p_m[t]).sum(1),
            "kl_object": kl_divergence(q_o[t], p_o[t]).sum(1),
        }
        total = {name: total[name] + torch.where(here, value, 0) for name, value in parts.items()}
    return total


# The kernels: packed words, block by block


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return cell(gates, c)


def lstm(inputs: Tensor, weight: Tensor, packing: Packing) -> Tensor:
    h = c = inputs.new_zeros(packing.sizes[0], weight.shape[1])
    hidden = []
    for start, end in packing.blocks:
        h, c = cell(inputs[start:end] + h[: end - start] @ weight.t(), c[: end - start])
        hidden.append(h)
    return torch.cat(hidden)


def latent_recurrence(base: Tensor, weight: Tensor, noise: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    z = base.new_zeros(packing.sizes[0], weight.shape[1])
    drawn, parameters = [], []
    for start, end in packing.blocks:
        here = base[start:end] + z[: end - start] @ weight.t()
        mean, log_variance = here.chunk(2, dim=1)
        z = mean + torch.exp(0.5 * log_variance) * noise[start:end].to(base.dtype)
        drawn.append(z)
        parameters.append(here)
    return torch.cat(drawn), torch.cat(parameters)


def decoder_cell(
    inputs: CellInputs, regions: CellRegions, weights: CellWeights, transposed, state, groups=None
) -> tuple[CellState, Tensor]:
    rows = len(inputs.attention)
    owners = torch.arange(rows) if groups is None else groups.owners
    keys, values, masked = (each[owners] for each in regions[:3])
    if state is None:
        widths = [weights.query.shape[1]] * 2 + [len(weights.language) // 4] * 2
        state = CellState(*(values.new_zeros(rows, width) for width in widths))
    gates = inputs.attention + torch.cat([state.language_h, state.attention_h], 1) @ weights.attention.t()
    h1, c1 = cell(gates, state.attention_c)
    read = h1 if inputs.dropout is None else h1 * inputs.dropout
    query = read @ weights.query.t() + (0 if inputs.query is None else inputs.query)
    a = torch.softmax(torch.tanh(keys + query[:, None]) @ weights.score + masked, dim=1)
    seen = (a[:, :, None] * values).sum(1)
    gates = inputs.language + torch.cat([seen, read, state.language_h], 1) @ weights.language.t()
    h2, c2 = cell(gates, state.language_c)
    return CellState(h1, c1, h2, c2), a


def decoder_loop(inputs: CellInputs, regions: CellRegions, weights: CellWeights, packing: Packing, tape=None):
    state, hidden, attention = None, [], []
    for start, end in packing.blocks:
        n = end - start
        if state is not None:
            state = CellState(*(each[:n] for each in vars(state).values()))
        here = CellRegions(*(each[:n] for each in regions[:3]))
        state, a = decoder_cell(inputs.rows(start, end), here, weights, None, state)
        hidden.append(state.language_h)
        attention.append(a.detach())
    return torch.cat(hidden), torch.cat(attention)


def cross_entropy(hidden, weight, bias, targets, never, smoothing=0.0) -> Tensor:
    logits = hidden @ weight.t() + (0 if bias is None else bias)
    allowed = torch.ones(len(weight), dtype=torch.bool).index_fill(0, never, False)
    logs = torch.log_softmax(logits[:, allowed], dim=1)
    place = allowed.cumsum(0) - 1
    target = -logs.gather(1, place[targets][:, None])[:, 0]
    return (1 - smoothing) * target - smoothing * logs.mean(1)


KERNELS = (lstm_cell, lstm, latent_recurrence, decoder_cell, decoder_loop, cross_entropy)
