"""The two graphs of a captioner, as modules that torch can export.

regions ─▶ start ─▶ pictures (what attention, decoder and priors need of each picture, once)
tokens, noise, pictures, states ─▶ step ─▶ log-probabilities, attention, states
                                    │ priors ─▶ z^m, z^o (eq. 4; not in an up-down model) ─▶ decoder

N rows are N captions being written; `owners` (N,) names the picture of each among P. The U different tokens among the
rows' last ones are `ids` (U,), and `places` (N,) says which is whose, so that each is projected once. Everything is
computed by the model's own parts. Only what looks at values is left out, because a graph cannot.
"""

from dataclasses import dataclass

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
from coscap.models.once import CaptionLatentModel
from coscap.models.region_prior import RegionComponents, RegionPrior
from coscap.models.regions import RegionValues


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
    choices: Tensor | None  # (K, Z) of a latent that is one of K

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
        choices = model.choices() if isinstance(model, CaptionLatentModel) else None
        self.register_buffer("choices", None if choices is None else choices.detach())
        self.outputs = _pictures(model)
        if choices is not None:
            self.outputs += (Port("context_choices", tuple(choices.shape)),)

    def forward(
        self, features: Tensor, boxes: Tensor, labels: Tensor, scores: Tensor, mask: Tensor
    ) -> tuple[Tensor, ...]:
        model = self.model
        # Padding stays: how much of it there is depends on the values, which a graph cannot look at.
        regions = model.regions(RegionBatch(features, boxes, labels, scores, mask, labels[:, 0]), trim=False)
        encoded = model.decoder.encode(regions)
        gates = [each.pictures(regions.mean).expand(regions.mean.shape[0], -1) for each in _gates(model)[1:]]
        choices = () if self.choices is None else (self.choices.clone(),)
        return (*encoded.cell[:3], encoded.gates, *gates, *self._components(regions), *choices)

    def _components(self, regions: RegionValues) -> tuple[Tensor, ...]:
        if isinstance(self.model, CaptionLatentModel):
            return (self.model.condition(regions),)
        prior = _region_prior(self.model)
        if prior is None:
            return ()
        components = prior.components(regions)
        return components.keys, components.means


class StepGraph(Graph):
    """ids, places, owners, temperatures, latents, pictures, states -> log-probabilities, attention, states

    Of each latent it takes noise, and a value that is used instead of a draw in the rows where `use` is 1.
    """

    name, fixed = "step", 4

    def __init__(self, model: CaptionModel) -> None:
        super().__init__()
        self.model, config = model, model.config
        cell = (
            Port("attention_h", ("N", config.attention_lstm)),
            Port("attention_c", ("N", config.attention_lstm)),
            Port("language_h", ("N", config.language_lstm)),
            Port("language_c", ("N", config.language_lstm)),
        )
        self.counts_objects = config.object_latent_per == "object" and "object" in model.latent_priors
        latents = [
            port
            for (name, width), noise in zip(_latent_widths(model).items(), model.noise_widths, strict=False)
            for port in (
                Port(f"{name}_noise", ("N", noise)),
                Port(f"{name}_given", ("N", width)),
                Port(f"{name}_use", ("N",), "int64"),
            )
        ]
        drawn = (Port("object_drawn", ("N",), "int64"),) if self.counts_objects else ()
        states = (*cell, *_prior_states(model), *drawn)
        groups = (latents, _pictures(model), states)
        self.parts = [len(group) for group in groups]
        self.inputs = (
            Port("ids", ("U",), "int64"),
            Port("places", ("N",), "int64"),
            Port("owners", ("N",), "int64"),
            Port("temperatures", (2,)),
            *(port for group in groups for port in group),
        )
        self.outputs = (
            Port("log_probabilities", ("N", config.vocabulary)),
            Port("attention", ("N", "R")),
            *(Port(f"next_{port.name}", port.sizes, port.kind) for port in states),
        )

    def forward(
        self, ids: Tensor, places: Tensor, owners: Tensor, temperatures: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        model, rows = self.model, owners.shape[0]
        latents, regions, states = _cut(rest, self.parts)
        keys, values, masked = (each.index_select(0, owners) for each in regions[:3])  # (N, R, ...)
        decoder_gates, *others = regions[3:]  # (P, ...)
        prior_gates = others[: len(model.latent_priors)]
        components = others[len(model.latent_priors) :]
        once = isinstance(model, CaptionLatentModel)
        if components and not once:
            object_keys, object_means = components  # the latter stay (P, R, Z): a draw takes one of them
            components = [object_keys.index_select(0, owners), object_means]
        drawn = states[-1] if self.counts_objects else None
        before: list[LatentState | None] = [None, None]
        for number in range(len(latents) // 3):
            noise, given, use = latents[3 * number : 3 * number + 3]
            z, h, c = (states[4], states[4], states[4]) if once else states[4 + 3 * number : 7 + 3 * number]
            count = drawn if number == 1 else None
            before[number] = LatentState(
                PriorState(h, c),
                z,
                owners,
                given=given[:, None],
                lengths=use if count is None else count + use,
                noise=noise[:, None],
                drawn=count,
                condition=components[0].index_select(0, owners) if once else None,
            )
        # A temperature may be a tensor: it multiplies or is an exponent, as in Gaussian.sample.
        shared = Shared(
            width=0,
            regions=EncodedRegions(CellRegions(keys, values, masked), decoder_gates),
            context_gates=prior_gates[0] if prior_gates else None,
            object_gates=prior_gates[1] if len(prior_gates) > 1 else None,
            temperatures=(temperatures[0], temperatures[1]),  # type: ignore[arg-type]
            mode=model.config.temperature_mode,
            transposed=TransposedViews(),
            object_components=None
            if once or not components
            else RegionComponents(components[0], components[1], masked),
        )
        groups = RowGroups(rows, 1, owners, None)  # each row with keys and values of its own
        tokens, cell = UniqueTokens(ids, places), CellState(*states[:4])
        context, objects = model.draw(tokens, DecodeState(shared, groups, cell, before[0], before[1]))
        logs, attention, cell = model.decode(tokens, context, objects, shared, groups, cell)
        drew = [latent for latent in (context, objects) if latent is not None]
        parts = ("z",) if once else ("z", "h", "c")
        after = [
            latent.z if part == "z" else getattr(latent.prior, part) for latent in drew for part in parts
        ]
        if self.counts_objects and objects is not None and objects.drawn is not None:
            after.append(objects.drawn)
        hidden = cell.attention_h, cell.attention_c, cell.language_h, cell.language_c
        return logs, attention, *hidden, *after


def graphs_of(model: CaptionModel) -> list[Graph]:
    """All that there are for a model, in the order in which they run."""
    if not model.exports or not model.decoder.exports:
        raise UserError(
            f"a {model.title} cannot be exported: there is no graph of its words; use it with torch."
        )
    if model.draws and not _latent_widths(model):
        raise UserError(f"a {model.title} cannot be exported: there is no graph of its latents.")
    return [StartGraph(model), StepGraph(model)]


def _cut(values: tuple[Tensor, ...], sizes: list[int]) -> list[tuple[Tensor, ...]]:
    """Consecutive parts of these sizes."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _pictures(model: CaptionModel) -> tuple[Port, ...]:
    """What is known of each picture; the gates are of the decoder, of p(z^m) and of p(z^o), keys and means of a p(z^o)
    over regions, or what a latent for a whole caption is drawn from, come last."""
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
        *_component_ports(model),
    )


def _component_ports(model: CaptionModel) -> tuple[Port, ...]:
    if isinstance(model, CaptionLatentModel):
        return (Port("context_condition", ("P", model.condition_width)),)
    prior = _region_prior(model)
    if prior is None:
        return ()
    return (
        Port("object_keys", ("P", "R", prior.key.out_features)),
        Port("object_means", ("P", "R", prior.means.out_features)),
    )


def _region_prior(model: CaptionModel) -> RegionPrior | None:
    prior = model.latent_priors.get("object")
    return prior if isinstance(prior, RegionPrior) else None


def _gates(model: CaptionModel) -> list[InputGates]:
    return [model.decoder.gates, *(prior.gates for prior in model.latent_priors.values())]


def _prior_states(model: CaptionModel) -> tuple[Port, ...]:
    """z at the word before, h and c, of each latent; zeros before the first word."""
    if isinstance(model, CaptionLatentModel):
        return (Port("context_z", ("N", model.latent_widths(model.config)[0])),)
    return tuple(
        Port(f"{name}_{part}", ("N", _width(prior) if part == "z" else prior.hidden.shape[1]))
        for name, prior in model.latent_priors.items()
        for part in ("z", "h", "c")
    )


def _latent_widths(model: CaptionModel) -> dict[str, int]:
    """Of each latent, by the name that its ports begin with."""
    if isinstance(model, CaptionLatentModel):
        return {"context": model.latent_widths(model.config)[0]}
    return {name: _width(prior) for name, prior in model.latent_priors.items()}


def _width(prior: Prior) -> int:
    """Of its latent."""
    return prior.out.out_features // 2
