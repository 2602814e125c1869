"""The up-down decoder with [z_t, v-bar] as the context of its attention LSTM, and the layers at its two ends.

x_{t-1}, z_t, v-bar, h^lang_{t-1} ─▶ attention LSTM ─▶ h^att_t ─▶ query ┐
                                                         │             ▼
                                     regions v_1 .. v_R ─┼─▶ attention a_t ─▶ v^_t = sum a_tr v_r
                                                         ▼                     │
                                   h^lang_{t-1} ─▶ language LSTM ◀─────────────┘
                                                         ▼
                                              h^lang_t ─▶ output layer ─▶ p(x_t)

`kernels.decoder_cell` is this drawing as code, one word of many rows. A model is given its decoder as a class, so that
another one can take its place: it needs `encode`, `forward`, `start` and `step`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from coscap.models import kernels
from coscap.models.config import ModelConfig
from coscap.models.kernels import (
    CellInputs,
    CellRegions,
    CellState,
    CellWeights,
    InputGates,
    Packing,
    RowGroups,
    Tape,
    TransposedCopies,
    UniqueTokens,
    uniform,
)
from coscap.models.latents import Latents, LatentState
from coscap.models.region_prior import RegionComponents
from coscap.models.regions import RegionValues
from coscap.text.vocabulary import PAD, SLOT, SLOTS, START, UNK

T = TypeVar("T")
EXPECTED_WORDS = 11  # of a caption, for weighing what to compute ahead
NEVER = (PAD, START, SLOT, SLOTS)  # no caption has them as a word, so they take no probability
# Factors on initial weights, chosen by the loss after 50 steps (docs/training.md). A fresh LSTM's h is a tenth of what
# it reads in size. Without them words fade on their way through two of these, and training stands still at the
# frequencies of words for hundreds of steps.
WORD_LIFT, HIDDEN_LIFT, OUTPUT_LIFT = 2.0, 8.0, 4.0


class WordEmbedding(nn.Embedding):
    """Embeddings of unit variance whose weights are small, so that a tied vocabulary layer can share them."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__(count, width)
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = super().forward(ids)
        scaled: Tensor = embedded * self.embedding_dim**0.5
        return scaled


@dataclass(frozen=True)
class EncodedRegions:
    """The regions of P pictures, ready to be attended to."""

    cell: CellRegions
    gates: Tensor  # (P, 4 Ha) what v-bar adds to the attention LSTM

    def of(self, owners: Tensor) -> "EncodedRegions":
        """A copy for each row; owners: (N,)"""
        cell = CellRegions(*(None if each is None else each[owners] for each in self.cell))  # type: ignore[arg-type]
        return EncodedRegions(cell, self.gates[owners])


class UpDownDecoder(nn.Module):
    """`latent` is the width of z_t, `objects` that of z^o_t for the further inlets (0: there is none)."""

    attends: ClassVar[bool] = True  # it looks at regions, so that slots can be filled from them
    exports: ClassVar[bool] = True  # `coscap.export` has graphs of it

    def __init__(self, config: ModelConfig, latent: int, objects: int) -> None:
        super().__init__()
        attention, language = config.attention_lstm, config.language_lstm
        self.gates = InputGates(config.decoder_words + latent, config.value_width, attention)
        self.attention_hidden = uniform(4 * attention, language + attention, width=attention)
        self.key = nn.Linear(config.value_width, config.attention_width)
        self.query = uniform(config.attention_width, attention, width=attention)
        self.score = uniform(config.attention_width, width=config.attention_width)
        inputs = config.value_width + attention + language
        self.language_hidden = uniform(4 * language, inputs, width=language)
        self.language_bias = nn.Parameter(torch.zeros(4 * language))
        with torch.no_grad():
            self.language_bias[language : 2 * language] = 1
            self.gates.step.mul_(WORD_LIFT)
            self.language_hidden[:, config.value_width : config.value_width + attention].mul_(HIDDEN_LIFT)
        inlets = config.object_latent_to if objects else ()
        self.query_latent = (
            uniform(config.attention_width, objects, width=objects) if "query" in inlets else None
        )
        self.language_latent = uniform(4 * language, objects, width=objects) if "language" in inlets else None

    @classmethod
    def check(cls, config: ModelConfig, objects: int) -> None:
        """Refuse settings that this decoder does not know, by a ValueError; `objects` is the width of z^o_t."""

    @property
    def weights(self) -> CellWeights:
        return CellWeights(self.attention_hidden, self.query, self.score, self.language_hidden)

    def encode(self, regions: RegionValues, draws: int = 0) -> EncodedRegions:
        """All that depends on the picture alone, computed once for all its captions and words.

        The language LSTM takes W v^_t = sum_r a_tr W v_r. With many `draws` a picture it is cheaper to
        multiply each region than each word's attended region; with few (or in training) it is not.
        """
        values, mask = regions.values, regions.mask
        ahead = draws * EXPECTED_WORDS > values.shape[1]
        masked = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
        cell = CellRegions(
            keys=self.key(values),
            values=values,
            masked=masked.masked_fill(~mask, float("-inf")),
            projected=values @ self.language_hidden[:, : values.shape[2]].t() if ahead else None,
        )
        return EncodedRegions(cell, gates=self.gates.pictures(regions.mean))

    # Teacher forcing over whole captions

    def forward(
        self,
        words: Tensor,
        z: Tensor | None,
        objects: Tensor | None,
        regions: EncodedRegions,
        rows: Tensor,
        packing: Packing,
        dropout: Tensor | None = None,
        tape: Tape | None = None,
    ) -> tuple[Tensor, Tensor]:
        """h^lang (N, Hl) and attention (N, R) of every word.

        words: (N, D) embedded x_{t-1}, z: (N, Z), objects: (N, Zo) z^o for the further inlets, rows: (B,) the picture
        of each caption, dropout: (N, Ha) factors on h^att, tape: filled by `tape_step` with the same words.
        """
        owners = rows.index_select(0, packing.captions)
        inputs = self._inputs(words, z, objects, regions, owners, dropout)
        captions = self._captions(regions, rows, packing)
        return kernels.decoder_loop(inputs, captions, self.weights, packing, tape)

    def tape(self, regions: EncodedRegions, rows: Tensor, packing: Packing) -> Tape:
        """For teacher forcing where a word depends on the attention before it; without gradients."""
        captions = self._captions(regions, rows, packing)
        keys, values, masked, *weights = kernels.full(*captions[:3], *self.weights)
        return Tape(CellRegions(keys, values, masked), CellWeights(*weights), packing, kernels.is_low(keys))

    def tape_step(
        self,
        tape: Tape,
        t: int,
        words: Tensor,
        z: Tensor,
        objects: Tensor,
        regions: EncodedRegions,
        owners: Tensor,
        dropout: Tensor | None = None,
    ) -> Tensor:
        """Word t of the n captions that have one. words: (n, D), z: (n, Z), objects: (n, Zo),
        owners: (n,) the picture of each, dropout: (n, Ha) -> attention (n, R)"""
        inputs = self._inputs(words, z, objects, regions, owners, dropout)
        with kernels.full_precision(inputs.attention):
            return tape.step(t, CellInputs(*(None if x is None else kernels.full(x)[0] for x in inputs)))  # type: ignore[arg-type]

    def _inputs(
        self,
        words: Tensor,
        z: Tensor | None,
        objects: Tensor | None,
        regions: EncodedRegions,
        owners: Tensor,
        dropout: Tensor | None,
    ) -> CellInputs:
        step = words if z is None else torch.cat([words, z], dim=1)
        return CellInputs(self.gates(step, regions.gates, owners), *self._inlets(objects), dropout)

    def _captions(self, regions: EncodedRegions, rows: Tensor, packing: Packing) -> CellRegions:
        """The regions of each caption's picture, by falling length of the captions."""
        owners = rows[packing.order]
        keys, values, masked, _ = regions.cell
        return CellRegions(keys.index_select(0, owners), values.index_select(0, owners), masked[owners])

    # One word at a time

    def start(self, rows: int) -> CellState:
        attention = self.query.new_zeros(rows, self.query.shape[1])
        language = self.query.new_zeros(rows, self.language_bias.shape[0] // 4)
        return CellState(attention, attention, language, language)

    def step(
        self,
        tokens: UniqueTokens,
        words: Tensor,
        z: Tensor | None,
        objects: Tensor | None,
        regions: EncodedRegions,
        groups: RowGroups,
        state: CellState,
        transposed: TransposedCopies,
    ) -> tuple[Tensor, Tensor, CellState]:
        """One word of each row; words: (U, D) embedded `tokens.ids` -> h^lang (N, Hl), attention (N, R), state."""
        gates = self.gates.rows(tokens, words, z, regions.gates, groups.owners, transposed)
        inputs = CellInputs(gates, *self._inlets(objects), None)
        after, attention = kernels.decoder_cell(inputs, regions.cell, self.weights, transposed, state, groups)
        return after.language_h, attention, after

    def _inlets(self, objects: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """What z^o adds to the query, (N, A) or None, and what the language LSTM adds, (N, 4 Hl) or (4 Hl,)."""
        query: Tensor | None = None
        language: Tensor = self.language_bias
        if self.query_latent is not None and objects is not None:
            query = objects @ self.query_latent.t()
        if self.language_latent is not None and objects is not None:
            language = torch.addmm(self.language_bias, objects, self.language_latent.t())
        return query, language


class OutputLayer(nn.Module):
    """h^lang (, z^o) (─▶ linear, tanh) ─▶ vocabulary"""

    def __init__(self, config: ModelConfig, words: nn.Embedding, objects: int) -> None:
        super().__init__()
        self.inlet = objects > 0 and "output" in config.object_latent_to
        width = config.language_lstm + (objects if self.inlet else 0)
        self.squeeze = nn.Linear(width, config.output_width) if config.output_width else None
        width = config.output_width or width
        tied = words.weight if config.tie_words else None
        self.weight = uniform(config.vocabulary, width, width=width) if tied is None else tied
        if self.squeeze is not None:
            with torch.no_grad():
                self.squeeze.weight.mul_(OUTPUT_LIFT)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.output_bias else None

    def last(self, hidden: Tensor, objects: Tensor | None = None) -> Tensor:
        """What the vocabulary layer multiplies; (N, H) -> (N, O)"""
        if self.inlet and objects is not None:
            hidden = torch.cat([hidden, objects], dim=1)
        return hidden if self.squeeze is None else torch.tanh(self.squeeze(hidden))

    def forward(
        self,
        hidden: Tensor,
        objects: Tensor | None,
        targets: Tensor,
        smoothing: float = 0.0,
        temperature: float = 1.0,
    ) -> Tensor:
        """-log p of each target. hidden: (N, H), objects: (N, Zo) or None, targets: (N,) -> (N,)"""
        last, bias = self.last(hidden, objects), self.bias
        if temperature != 1.0:
            last = last / temperature
        colder = bias if bias is None or temperature == 1.0 else bias / temperature
        never = torch.tensor(NEVER, device=last.device)
        return kernels.cross_entropy(last, self.weight, colder, targets, never, smoothing)

    def log_probabilities(
        self, hidden: Tensor, objects: Tensor | None, transposed: TransposedCopies
    ) -> Tensor:
        """(N, V). <unk> keeps its share of the probability, but cannot be chosen."""
        last, weight = self.last(hidden, objects), transposed(self.weight)
        if torch.compiler.is_exporting():  # the same with additions, which graphs are faster at
            bias = torch.zeros(weight.shape[1]) if self.bias is None else self.bias
            logits = torch.addmm(bias + _struck_out(NEVER, len(bias)), last, weight)
            return torch.log_softmax(logits, dim=1) + _struck_out((UNK,), len(bias))
        logits = last @ weight if self.bias is None else torch.addmm(self.bias, last, weight)
        logits.index_fill_(1, torch.tensor(NEVER, device=logits.device), float("-inf"))
        logs = torch.log_softmax(logits, dim=1)
        logs[:, UNK] = float("-inf")
        return logs


def _struck_out(tokens: tuple[int, ...], size: int) -> Tensor:
    """(size,) -inf for these tokens, 0 for the others"""
    return torch.tensor([float("-inf") if each in tokens else 0.0 for each in range(size)])


# The state of captions that are being decoded


@dataclass(frozen=True)
class Shared:
    """What all rows use and no step changes."""

    width: int  # R of the pictures as they were given
    regions: EncodedRegions
    context_gates: Tensor | None
    object_gates: Tensor | None
    temperatures: tuple[float, float]  # of z^m and z^o
    mode: str
    transposed: TransposedCopies
    object_components: RegionComponents | None = None  # of a p(z^o) over regions
    pictures: RegionValues | None = None  # of models whose words come from regions too; a graph has none


@dataclass(frozen=True)
class DecodeState:
    """What a model knows of the N captions that it is decoding. Immutable: `step` and `select` give new ones."""

    shared: Shared
    groups: RowGroups
    decoder: CellState
    context: LatentState | None
    objects: LatentState | None
    step: int = 0
    history: tuple[tuple[Tensor | None, Tensor | None, Tensor | None], ...] | None = None
    # z^m and z^o of each word so far, and how many z^o had been drawn

    @property
    def rows(self) -> int:
        return len(self.groups.owners)

    def select(self, rows: Tensor) -> "DecodeState":
        """The state whose row i is this state's row rows[i]; rows: (N',) int64."""

        def take(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows)

        return replace(
            self,
            groups=self.groups.select(rows),
            decoder=_map(self.decoder, take),
            context=_map(self.context, take),
            objects=_map(self.objects, take),
            history=_map(self.history, take),
        )

    def latents(self) -> Latents:
        """The values drawn so far, for decoding with them again (needs `start(..., record=True)`)."""
        if self.history is None:
            raise ValueError("this state does not record its latents; start it with record=True")
        columns = list(zip(*self.history, strict=True)) or [(), (), ()]
        lengths = torch.full((self.rows,), len(self.history), device=self.groups.owners.device)
        context, objects, drawn = (_stacked(column) for column in columns)
        if drawn is None or objects is None:
            return Latents(lengths=lengths, context=context, objects=objects)
        each = objects.new_zeros(self.rows, int(drawn.max()), objects.shape[2])
        rows = torch.arange(self.rows, device=lengths.device)[:, None].expand_as(drawn)
        each[rows, drawn - 1] = objects  # (N, K, Zo), the same value at every word of an object
        return Latents(lengths=lengths, context=context, objects=each, object_lengths=drawn[:, -1])


def _stacked(column: tuple[Tensor | None, ...]) -> Tensor | None:
    values = [value for value in column if value is not None]
    return torch.stack(values, dim=1) if values else None


def _map(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """The same structure with every tensor in it changed."""
    result: Any = value
    if isinstance(value, Tensor):
        result = change(value)
    elif isinstance(value, tuple):
        result = tuple(_map(part, change) for part in value)
    elif is_dataclass(value) and not isinstance(value, type):
        result = replace(
            value, **{field.name: _map(getattr(value, field.name), change) for field in fields(value)}
        )
    return cast(T, result)
