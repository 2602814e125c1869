"""The three graphs of a captioner, as modules that torch can export.

regions ─▶ start ─▶ pictures (what attention, decoder and priors need of each picture, once)
tokens, noise, pictures, states ─▶ priors ─▶ z^m, z^o, states          eq. 4; not for an up-down model
tokens, z^m, z^o, pictures, states ─▶ decoder ─▶ log-probabilities, attention, states

N rows are N captions being written; `owners` (N,) names the picture of each among P. Everything is computed by the
model's own parts. Only what shares work between rows in torch is left out: it looks at values, and a graph cannot.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.models import CaptionModel
from coscap.models.decoder import DecodeState, EncodedRegions, Shared
from coscap.models.kernels import (
    CellRegions,
    CellState,
    InputGates,
    RowGroups,
    TransposedViews,
    UniqueTokens,
)
from coscap.models.latents import LatentState, Prior, PriorState


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


class StartGraph(Graph):
    """features, boxes, labels, scores, mask -> keys, values, masked, gates of decoder and priors"""

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
        model = self.model
        # Padding stays: how much of it there is depends on the values, which a graph cannot look at.
        regions = model.regions(RegionBatch(features, boxes, labels, scores, mask, labels[:, 0]), trim=False)
        encoded = model.decoder.encode(regions)
        gates = [each.pictures(regions.mean).expand(regions.mean.shape[0], -1) for each in _gates(model)[1:]]
        return (*encoded.cell[:3], encoded.gates, *gates)


class PriorsGraph(Graph):
    """tokens, owners, noise, temperatures, pictures, states -> z^m (, z^o), states"""

    name, fixed = "priors", 3

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model = model
        states = _prior_states(model)
        gates = [port for port in _pictures(model) if port.name.endswith("_gates")][1:]
        self.inputs = (
            Port("tokens", ("N",), "int64"),
            Port("owners", ("N",), "int64"),
            Port("temperatures", (2,)),
            *(Port(f"{name}_noise", ("N", _width(prior))) for name, prior in model.latent_priors.items()),
            *gates,
            *states,
        )
        self.outputs = tuple(Port(f"next_{port.name}", port.sizes) for port in states)

    def forward(
        self, tokens: Tensor, owners: Tensor, temperatures: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        model, count = self.model, len(self.model.latent_priors)
        noise, gates, states = rest[:count], rest[count : 2 * count], rest[2 * count :]
        before: list[LatentState | None] = [None, None]
        pictures: list[Tensor | None] = [None, None]
        for number in range(count):
            z, h, c = states[3 * number : 3 * number + 3]
            before[number] = LatentState(PriorState(h, c), z, tokens, noise=noise[number][:, None])
            pictures[number] = gates[number][owners]  # (N, 4 H), every row with a copy of its picture's
        # A temperature may be a tensor: it multiplies or is an exponent, as in Gaussian.sample.
        shared = Shared(
            width=0,
            regions=None,  # type: ignore[arg-type]
            context_gates=pictures[0],
            object_gates=pictures[1],
            temperatures=(temperatures[0], temperatures[1]),  # type: ignore[arg-type]
            mode=model.config.temperature_mode,
            transposed=TransposedViews(),
        )
        state = DecodeState(shared, _single(tokens), None, *before)  # type: ignore[arg-type]
        after = [latent for latent in model.draw(UniqueTokens(tokens, None), state) if latent is not None]
        return tuple(value for latent in after for value in (latent.z, latent.prior.h, latent.prior.c))


class DecoderGraph(Graph):
    """tokens, owners (, z^m (, z^o)), pictures, states -> log-probabilities, attention, states"""

    name, fixed = "decoder", 2

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model, config = model, model.config
        states = (
            Port("attention_h", ("N", config.attention_lstm)),
            Port("attention_c", ("N", config.attention_lstm)),
            Port("language_h", ("N", config.language_lstm)),
            Port("language_c", ("N", config.language_lstm)),
        )
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
        latents, (keys, values, masked, gates), states = (
            rest[: self.latents],
            rest[self.latents : self.latents + 4],
            rest[self.latents + 4 :],
        )
        model, transposed = self.model, TransposedViews()
        # Every row looks at a picture of its own: a copy of its owner's.
        regions = EncodedRegions(CellRegions(keys, values, masked), gates).of(owners)
        objects = latents[1] if len(latents) > 1 else None
        hidden, attention, after = model.decoder.step(
            UniqueTokens(tokens, None),
            model.decoder_words(tokens),
            torch.cat(latents, dim=1) if latents else None,
            objects,
            regions,
            _single(tokens),
            CellState(*states),
            transposed,
        )
        logs = model.output.log_probabilities(hidden, objects, transposed)
        return logs, attention, after.attention_h, after.attention_c, after.language_h, after.language_c


def graphs_of(model: CaptionModel) -> list[Graph]:
    """All that there are for a model, in the order in which they run."""
    if model.draws and not model.latent_priors:
        raise UserError(f"a {model.title} cannot be exported: its latents have no sequential priors.")
    priors = [PriorsGraph(model)] if model.latent_priors else []
    return [StartGraph(model), *priors, DecoderGraph(model)]


def _pictures(model: CaptionModel) -> tuple[Port, ...]:
    """What is known of each picture; the gates are of the decoder, of p(z^m) and of p(z^o)."""
    config = model.config
    names = ("decoder", *model.latent_priors)
    return (
        Port("keys", ("P", "R", config.attention_width)),
        Port("values", ("P", "R", config.value_width)),
        Port("masked", ("P", "R")),
        *(
            Port(f"{name}_gates", ("P", gates.bias.shape[0]))
            for name, gates in zip(names, _gates(model), strict=True)
        ),
    )


def _gates(model: CaptionModel) -> list[InputGates]:
    return [model.decoder.gates, *(prior.gates for prior in model.latent_priors.values())]


def _prior_states(model: CaptionModel) -> tuple[Port, ...]:
    """z at the word before, h and c, of each latent; zeros before the first word."""
    return tuple(
        Port(f"{name}_{part}", ("N", _width(prior) if part == "z" else prior.hidden.shape[1]))
        for name, prior in model.latent_priors.items()
        for part in ("z", "h", "c")
    )


def _width(prior: Prior) -> int:
    """Of its latent."""
    return prior.out.out_features // 2


def _single(tokens: Tensor) -> RowGroups:
    """Each row with a picture of its own."""
    rows = tokens.shape[0]
    return RowGroups(rows, 1, torch.arange(rows), None)
