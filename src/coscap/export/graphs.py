"""The three graphs of a captioner, as modules that torch can export.

regions ─▶ start ─▶ pictures (what attention, decoder and priors need of each picture, once)
tokens, noise, pictures, states ─▶ priors ─▶ z^m, z^o, states          eq. 4; not for an up-down model
tokens, z^m, z^o, pictures, states ─▶ decoder ─▶ log-probabilities, attention, states

N rows are N captions being written; `owners` (N,) names the picture of each among P. Everything is computed by the
model's own parts. Only what shares work between rows in torch is left out: it looks at values, a graph cannot.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.data.batch import RegionBatch
from coscap.models import CaptionModel, CosCvae
from coscap.models.decoder import DecoderState, Looked
from coscap.models.gaussian import Gaussian
from coscap.models.groups import Groups
from coscap.models.layers import Gates
from coscap.models.prior import Prior, PriorState
from coscap.models.regions import looked_at, or_else
from coscap.models.rows import Said, Straight
from coscap.models.sequential import SequentialModel

PLAIN = Straight()  # weights as they lie


@dataclass(frozen=True)
class Port:
    """An input or output of a graph; sizes are numbers, or names where they differ from call to call."""

    name: str
    sizes: tuple[int | str, ...]
    kind: str = "float32"


class Graph(nn.Module):
    """A module with named ports."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    fixed: int  # inputs that `forward` names; the others are its *rest
    strict: bool = (
        False  # follow the code itself when exporting, not a run of it: slower, but `len` stays open
    )


class Start(Graph):
    """features, boxes, labels, scores, mask -> keys, values, barred, gates of decoder and priors"""

    name, fixed = "start", 5

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model = model
        width = model.config.region_width
        self.inputs = (
            Port("features", ("P", "R", width)),
            Port("boxes", ("P", "R", 4)),
            Port("labels", ("P", "R"), "int64"),
            Port("scores", ("P", "R")),
            Port("mask", ("P", "R"), "bool"),
        )
        self.outputs = _pictures(model)

    def forward(
        self, features: Tensor, boxes: Tensor, labels: Tensor, scores: Tensor, mask: Tensor
    ) -> tuple[Tensor, ...]:
        model, encoder, config = self.model, self.model.regions, self.model.config
        regions = RegionBatch(features, boxes, labels, scores, mask, labels[:, 0])
        # As RegionEncoder.forward, but padding stays: how much of it there is depends on the values.
        used, detected = looked_at(config, mask, labels)
        values = encoder._describe(regions, used, mask.shape[1])  # (P, R, F)
        if encoder.project is not None:
            values = torch.relu(encoder.project(values))
        if encoder.norm is not None:
            values = encoder.norm(values)
        chosen = {"all": used, "detections": detected, "grid": used & ~detected}[config.mean_over]
        weights = or_else(chosen & used, used).to(values.dtype)
        mean = torch.einsum("pr,prf->pf", weights / weights.sum(1, keepdim=True), values)
        barred = torch.where(used, 0.0, float("-inf"))
        seen = [gates.pictures(mean).expand(mean.shape[0], -1) for gates in _gates(model)]
        return (model.decoder.key(values), values, barred, *seen)


class Priors(Graph):
    """tokens, owners, noise, temperatures, pictures, states -> z^m (, z^o), states"""

    name, fixed = "priors", 3

    def __init__(self, model: SequentialModel) -> None:
        super().__init__()
        self.model = model
        latents = {"context": model.config.context_latent}
        if isinstance(model, CosCvae):
            latents["object"] = model.config.object_latent
        states = _prior_states(model)
        gates = [port for port in _pictures(model) if port.name.endswith("_gates")][1:]
        self.inputs = (
            Port("tokens", ("N",), "int64"),
            Port("owners", ("N",), "int64"),
            Port("temperatures", (2,)),
            *(Port(f"{name}_noise", ("N", size)) for name, size in latents.items()),
            *gates,
            *states,
        )
        self.outputs = tuple(Port(f"next_{port.name}", port.sizes) for port in states)

    def forward(
        self, tokens: Tensor, owners: Tensor, temperatures: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        model, mode = self.model, self.model.config.temperature_mode
        words = model.known_words(tokens)
        split = isinstance(model, CosCvae)
        noise, gates, states = (rest[:2], rest[2:4], rest[4:]) if split else (rest[:1], rest[1:2], rest[2:])
        z, h, c = states[:3]
        p, state = _run(model.context_prior, words, z, gates[0][owners], PriorState(h, c))
        # A temperature may be a tensor: it multiplies or is an exponent, as in Gaussian.sample.
        context = p.sample(noise[0], temperatures[0], mode)  # type: ignore[arg-type]
        if not isinstance(model, CosCvae):
            return context, state.h, state.c
        seen = context if model.config.object_prior_sees == "current" else z
        before, h, c = states[3:]
        latents = torch.cat([seen, before], dim=1)
        q, other = _run(model.object_prior, words, latents, gates[1][owners], PriorState(h, c))
        objects = q.sample(noise[1], temperatures[1], mode)  # type: ignore[arg-type]
        return context, state.h, state.c, objects, other.h, other.c


class Decoder(Graph):
    """tokens, owners (, z^m (, z^o)), pictures, states -> log-probabilities, attention, states"""

    name, fixed, strict = "decoder", 2, True

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model = model
        config = model.config
        hidden = {"attention": config.attention_lstm, "language": config.language_lstm}
        states = tuple(Port(f"{name}_{part}", ("N", size)) for name, size in hidden.items() for part in "hc")
        latents = tuple(port for port in _prior_states(model) if port.name.endswith("_z"))
        self.latents = len(latents)
        self.inputs = (
            Port("tokens", ("N",), "int64"),
            Port("owners", ("N",), "int64"),
            *latents,  # of this word: what the priors gave
            *_pictures(model)[:4],
            *states,
        )
        self.outputs = (
            Port("log_probabilities", ("N", config.vocabulary)),
            Port("attention", ("N", "R")),
            *(Port(f"next_{port.name}", port.sizes) for port in states),
        )

    def forward(self, tokens: Tensor, owners: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        latents, (keys, values, barred, gates), states = (
            rest[: self.latents],
            rest[self.latents : self.latents + 4],
            rest[self.latents + 4 :],
        )
        model, rows = self.model, tokens.shape[0]
        # Every row looks at a picture of its own: a copy of its owner's.
        looked = Looked(keys[owners], values[owners], barred[owners], gates[owners], None)
        groups = Groups(rows, 1, torch.arange(rows), None)
        objects = latents[1] if len(latents) > 1 else None
        z = torch.cat(latents, dim=1) if latents else None
        hidden, attention, after = model.decoder.step(
            Said(tokens, None),
            model.decoder_words(tokens),
            z,
            objects,
            looked,
            groups,
            DecoderState(*states),
            PLAIN,
        )
        logs = model.output.log_probabilities(hidden, objects, PLAIN)
        return logs, attention, after.attention_h, after.attention_c, after.language_h, after.language_c


def graphs_of(model: CaptionModel) -> list[Graph]:
    """All that there are for a model, in the order in which they run."""
    priors = [Priors(model)] if isinstance(model, SequentialModel) else []
    return [Start(model), *priors, Decoder(model)]


def _pictures(model: CaptionModel) -> tuple[Port, ...]:
    """What is known of each picture; the gates are of the decoder, of p(z^m) and of p(z^o)."""
    config = model.config
    names = ("decoder_gates", "context_gates", "object_gates")
    return (
        Port("keys", ("P", "R", config.attention_width)),
        Port("values", ("P", "R", config.value_width)),
        Port("barred", ("P", "R")),
        *(Port(name, ("P", gates.bias.shape[0])) for name, gates in zip(names, _gates(model), strict=False)),
    )


def _gates(model: CaptionModel) -> list[Gates]:
    found = [model.decoder.gates]
    if isinstance(model, SequentialModel):
        found.append(model.context_prior.gates)
    if isinstance(model, CosCvae):
        found.append(model.object_prior.gates)
    return found


def _prior_states(model: CaptionModel) -> tuple[Port, ...]:
    """z at the word before, h and c, of each latent; zeros before the first word."""
    config, found = model.config, []
    if isinstance(model, SequentialModel):
        found.append(("context", config.context_latent, config.context_prior))
    if isinstance(model, CosCvae):
        found.append(("object", config.object_latent, config.object_prior))
    return tuple(
        Port(f"{name}_{part}", ("N", latent if part == "z" else hidden))
        for name, latent, hidden in found
        for part in ("z", "h", "c")
    )


def _run(
    prior: Prior, words: Tensor, latents: Tensor, gates: Tensor, state: PriorState
) -> tuple[Gaussian, PriorState]:
    """One word of a prior; gates: (N, 4 H) what the picture adds."""
    inputs = torch.addmm(gates, torch.cat([words, latents], dim=1), prior.gates.step.t())
    return prior.step(inputs, state, PLAIN)
