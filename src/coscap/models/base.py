"""What all models share: regions, words, decoder, output layer, the loss and decoding word by word.

A kind of model says what its latents are: `infer` under teacher forcing, `start_latents` and `draw` word by word.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from coscap.data import Prepared
from coscap.data.batch import Batch, RegionBatch
from coscap.errors import UserError
from coscap.models.config import ModelConfig
from coscap.models.decoder import DecodeState, OutputLayer, Shared, UpDownDecoder, WordEmbedding
from coscap.models.kernels import (
    MANY,
    CellState,
    Packing,
    RowGroups,
    TransposedCopies,
    TransposedViews,
    UniqueTokens,
)
from coscap.models.latents import Latents, LatentState, Prior
from coscap.models.noise import NoiseSource, row_keys
from coscap.models.region_prior import RegionComponents
from coscap.models.regions import RegionEncoder, RegionValues, label_tokens
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import SLOT, SLOTS, START, UNK, Vocabulary
from coscap.vision.regions import Recipe

CONTEXT_NOISE, OBJECT_NOISE, WORD_DROPOUT, ATTENTION_DROPOUT, OUTPUT_DROPOUT = range(1, 6)  # noise of a row


@dataclass(frozen=True)
class LossTerms:
    """The negative ELBO (eq. 6) in nats, term by term: sums over a caption's words, as the bound says."""

    reconstruction: Tensor  # (B,) -log p(x | z, I); with label smoothing in training
    kl_context: Tensor  # (B,) KL of z^m; of z in a seq_cvae; zeros in an updown
    kl_object: Tensor  # (B,) KL of z^o; zeros where there is none
    free_context: Tensor  # (B,) kl_context with its free bits: what the objective counts
    free_object: Tensor  # (B,) kl_object with its free bits
    extra: Tensor  # (B,) further losses of a kind of model, their weights included
    words: Tensor  # (B,) words scored, END included
    context_dimensions: Tensor  # (Zm,) KL of each dimension, a mean over words, without gradient
    object_dimensions: Tensor  # (Zo,); where p(z^o) is over regions, one more: the choice of the region
    figures: Mapping[str, Tensor] = field(default_factory=dict)  # sums over captions that the log shows too

    def objective(self, kl_context: float = 1.0, kl_object: float = 1.0, extra: float = 1.0) -> Tensor:
        """The mean over the captions of their sums over words; a gradient for each caption of the batch
        weighs 1/B. The weights are a schedule's."""
        total = self.reconstruction + kl_context * self.free_context + kl_object * self.free_object
        return (total + extra * self.extra).mean()

    def times(self, factor: float) -> "LossTerms":
        """The same captions counted `factor` times."""
        summed = ("reconstruction", "kl_context", "kl_object", "free_context", "free_object", "extra")
        return self if factor == 1 else replace(self, **{n: factor * getattr(self, n) for n in summed})


@dataclass(frozen=True)
class TeacherForcedBatch:
    """One batch under teacher forcing: packed words and what they belong to."""

    batch: Batch
    regions: RegionValues
    packing: Packing
    owners: Tensor  # (N,) the picture of each word
    targets: Tensor  # (N,) x_t
    previous: Tensor  # (N,) x_{t-1}, START at first
    context: Tensor  # (N,) x^m_t
    noise: NoiseSource
    keys: Tensor | None = None  # (B,) what the noise of each caption is seeded with, if it has its own
    word_temperature: float = 1.0  # at which the words were drawn

    def with_targets(self, targets: Tensor) -> "TeacherForcedBatch":
        """The same with other words; targets: (N,)"""
        first = self.previous[: self.packing.sizes[0]]
        previous = torch.cat([first, targets[self.packing.previous]])
        return replace(self, targets=targets, previous=previous)

    @property
    def slots(self) -> Tensor:
        """(N,) where x names an object."""
        return (self.context == SLOT) | (self.context == SLOTS)


@dataclass(frozen=True)
class InferredLatents:
    """The latents of one batch; None where a model has none."""

    context: Tensor | None = None  # (N, Zm)
    objects: Tensor | None = None  # (N, Zo)
    kl_context: Tensor | None = None  # (N, Zm)
    kl_object: Tensor | None = None  # (N, Zo)
    extra: Tensor | None = None  # (B,) further losses
    object_draws: Tensor | None = None  # (N,) the words at which z^o is drawn; None: all
    context_draws: Tensor | None = None  # (N,) the words at which z^m is drawn; None: all

    @property
    def z(self) -> Tensor | None:
        """[z^m_t, z^o_t], (N, Z)"""
        parts = [part for part in (self.context, self.objects) if part is not None]
        return torch.cat(parts, dim=1) if parts else None


@dataclass(frozen=True)
class LatentStart:
    """The latents before the first word, and what v-bar adds to the gates of their priors, (P, 4 H)."""

    context: LatentState | None = None
    objects: LatentState | None = None
    context_gates: Tensor | None = None
    object_gates: Tensor | None = None
    object_components: RegionComponents | None = None


class CaptionModel(nn.Module, ABC):
    """A model of captions given regions, p(x | I). Subclasses are the kinds of `coscap.models.registry`."""

    title: ClassVar[str]  # how reports call it
    draws: ClassVar[bool] = True  # captions of a picture differ by draws of latents
    splits_objects: ClassVar[bool] = False  # z^m and z^o can be held, moved and exchanged apart
    learns_from_pseudo: ClassVar[bool] = False  # `coscap.models.pseudo` can fill slots with it
    learns_from_reward: ClassVar[bool] = False  # `surprise` is that of its draws, with its gradient
    tempers_words: ClassVar[bool] = True  # `surprise` knows word temperatures other than 1
    reads_text: ClassVar[bool] = False  # it learns from sentences without pictures, as `LanguageModel` does
    exports: ClassVar[bool] = True  # `coscap.export` has graphs of it
    embeds_words: ClassVar[bool] = True  # posteriors and priors read words, besides the decoder
    own_settings: ClassVar[tuple[str, ...]] = ()  # fields of ModelConfig that only some kinds know

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__()
        self.config = config
        self.regions = RegionEncoder(config)
        own = config.decoder_word_width > 0
        shared = self.embeds_words or not own
        self.words = WordEmbedding(config.vocabulary, config.word_width) if shared else None
        self.own_words = WordEmbedding(config.vocabulary, config.decoder_word_width) if own else None
        self.regions.share_words(self.decoder_words)
        context, objects = self.latent_widths(config)
        self.decoder = decoder(config, context + objects, objects)
        self.output = OutputLayer(config, self.decoder_words, objects)
        self._transposed = TransposedCopies()

    @classmethod
    def latent_widths(cls, config: ModelConfig) -> tuple[int, int]:
        """Widths of z^m_t (or of all of z_t) and of z^o_t; 0 where there is none."""
        return 0, 0

    @property
    def noise_widths(self) -> tuple[int, int]:
        """How many normals a draw of z^m_t and of z^o_t takes; 0 where there is none."""
        return self.latent_widths(self.config)

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        """Refuse a configuration that this kind cannot be built from, by a ValueError."""

    @property
    def latent_priors(self) -> dict[str, Prior]:
        """The sequential priors by the names that an export gives them, in the order of their draws."""
        return {}

    @property
    def decoder_words(self) -> nn.Embedding:
        words = self.own_words if self.own_words is not None else self.words
        assert words is not None
        return words

    def set_names(self, recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> None:
        """Tell a new model which tokens the labels of regions stand for; they are saved with its weights."""
        self.regions.set_label_tokens(label_tokens(recipe, objects, vocabulary))

    def read_captions(self, prepared: Prepared) -> None:
        """Read off the training captions what a new model needs before its first step; saved with its weights."""

    # Training

    def train(self, mode: bool = True) -> Self:
        self._transposed = TransposedCopies()  # weights are about to change
        return super().train(mode)

    def loss(
        self,
        batch: Batch,
        *,
        generator: torch.Generator | None = None,
        keys: Tensor | None = None,
        objects: Literal["posterior", "prior"] = "posterior",
    ) -> LossTerms:
        """The negative ELBO of each caption, term by term (eq. 2; eq. 6 in a cos_cvae).

        Noise comes from `generator`, or, with `keys` (B,) int64, from each caption's own key: then it does
        not depend on the batch. `objects="prior"` draws z^o from its prior (pseudo captions, eq. 8).
        """
        forced = self.teacher_force(batch, generator, keys)
        return self.loss_given(forced, self.infer(forced, objects))

    def surprise(
        self, batch: Batch, keys: Tensor, temperature: float = 1.0, word_temperature: float = 1.0
    ) -> Tensor:
        """-log p of captions that were drawn, given the noise of their latents, (B,). keys: (B,) `row_keys` of the draw

        z moves with the weights (z = mean + deviation * noise), so that the priors learn, too, and a region that z^o
        chose counts like a word: the gradient of sum_i r_i surprise_i is that of -E[r] (`training.reward`).
        """
        forced = replace(self.teacher_force(batch, None, keys), word_temperature=word_temperature)
        terms = self.loss_given(forced, self.redraw(forced, temperature))
        return terms.reconstruction + terms.extra

    def redraw(self, forced: TeacherForcedBatch, temperature: float) -> InferredLatents:
        """The latents of captions that were drawn, from their priors with the same noise."""
        return self.infer(forced, "prior")

    def loss_given(self, forced: TeacherForcedBatch, latents: InferredLatents) -> LossTerms:
        regions, rows = self.looked_at(forced, latents)
        hidden, _ = self.decoder(
            self.decoder_words(self.input_tokens(forced)),
            latents.z,
            latents.objects,
            self.decoder.encode(regions),
            rows,
            forced.packing,
            self.attention_dropout(forced),
        )
        return self.score(forced, latents, self.drop_output(forced, hidden))

    def score(self, forced: TeacherForcedBatch, latents: InferredLatents, hidden: Tensor) -> LossTerms:
        """The terms of a batch whose hidden states are known; hidden: (N, Hl)"""
        return self.loss_terms(forced, latents, self.reconstruction(forced, hidden, latents))

    @abstractmethod
    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        """The latents of a batch and what they cost; `objects` says where z^o comes from, posterior or prior."""

    def looked_at(self, forced: TeacherForcedBatch, latents: InferredLatents) -> tuple[RegionValues, Tensor]:
        """The regions that the decoder sees, and the place of each caption among them, (B,)."""
        return forced.regions, forced.batch.rows

    def teacher_force(
        self, batch: Batch, generator: torch.Generator | None, keys: Tensor | None
    ) -> TeacherForcedBatch:
        packing = Packing.of(batch.lengths, batch.words.shape[1])
        targets = packing.pack(batch.words)
        first = targets.new_full((packing.sizes[0],), START)
        return TeacherForcedBatch(
            batch=batch,
            regions=self.regions(batch.pictures),
            packing=packing,
            owners=batch.rows[packing.captions],
            targets=targets,
            previous=torch.cat([first, targets[packing.previous]]),
            context=packing.pack(batch.context),
            noise=NoiseSource(packing.captions, packing.positions, generator, keys),
            keys=keys,
        )

    def input_tokens(self, forced: TeacherForcedBatch) -> Tensor:
        """The tokens that the decoder reads, (N,): x_{t-1}, in training some of them replaced by <unk>."""
        dropped = self.dropped_words(forced)
        return forced.previous if dropped is None else forced.previous.masked_fill(dropped, UNK)

    def dropped_words(self, forced: TeacherForcedBatch) -> Tensor | None:
        """Word dropout: which words the decoder does not read, (N,), whatever the words are; None: it reads all."""
        rate = self.config.word_dropout
        object_rate = rate if self.config.object_word_dropout is None else self.config.object_word_dropout
        if not self.training or max(rate, object_rate) == 0:
            return None
        slots = forced.slots
        named = torch.cat([slots.new_zeros(forced.packing.sizes[0]), slots[forced.packing.previous]])
        rates = torch.where(named, object_rate, rate)
        return (forced.noise.uniforms(WORD_DROPOUT, 1)[:, 0] < rates) & (forced.previous != START)

    def attention_dropout(self, forced: TeacherForcedBatch) -> Tensor | None:
        """Factors on h^att as the query and the language LSTM read it, (N, Ha)."""
        rate = self.config.attention_dropout
        if not self.training or not rate:
            return None
        return forced.noise.dropout(ATTENTION_DROPOUT, rate, self.config.attention_lstm)

    def drop_output(self, forced: TeacherForcedBatch, hidden: Tensor) -> Tensor:
        """h^lang as the output layer reads it, in training with dropout; (N, Hl) -> (N, Hl)"""
        rate = self.config.output_dropout
        if not self.training or not rate:
            return hidden
        return hidden * forced.noise.dropout(OUTPUT_DROPOUT, rate, hidden.shape[1])

    def reconstruction(self, forced: TeacherForcedBatch, hidden: Tensor, latents: InferredLatents) -> Tensor:
        """-log p(x_t | x_{<t}, z_{<=t}, I) of each word, (N,); hidden: (N, Hl) after dropout"""
        smoothing = self.config.label_smoothing if self.training else 0.0
        scored: Tensor = self.output(
            hidden, latents.objects, forced.targets, smoothing, forced.word_temperature
        )
        return scored

    def loss_terms(
        self, forced: TeacherForcedBatch, latents: InferredLatents, reconstruction: Tensor
    ) -> LossTerms:
        packing, config = forced.packing, self.config
        zeros = reconstruction.new_zeros(len(forced.batch.rows))

        def summed(
            kl: Tensor | None, floor: float, drawn: Tensor | None = None
        ) -> tuple[Tensor, Tensor, Tensor]:
            if kl is None:
                return zeros, zeros, reconstruction.new_zeros(0)
            each = kl.sum(1)  # (N,)
            whole = packing.sums(each)
            free = whole
            if floor and config.free_bits_per == "step":
                free = each.clamp(min=floor)
                free = packing.sums(free if drawn is None else free * drawn)
            elif floor:
                free = whole.clamp(min=floor)
            return whole, free, kl.detach().mean(0)

        kl_context, free_context, context_dimensions = summed(
            latents.kl_context, config.free_bits_context, latents.context_draws
        )
        kl_object, free_object, object_dimensions = summed(
            latents.kl_object, config.free_bits_object, latents.object_draws
        )
        return LossTerms(
            reconstruction=packing.sums(reconstruction),
            kl_context=kl_context,
            kl_object=kl_object,
            free_context=free_context,
            free_object=free_object,
            extra=zeros if latents.extra is None else latents.extra,
            words=forced.batch.lengths,
            context_dimensions=context_dimensions,
            object_dimensions=object_dimensions,
        )

    # Decoding, word by word

    @torch.no_grad()
    def start(
        self,
        regions: RegionBatch,
        draws: int,
        *,
        seed: int = 0,
        temperature: float | tuple[float, float] = 1.0,
        temperature_mode: Literal["scale", "power"] | None = None,
        context_seed: int | None = None,
        object_seed: int | None = None,
        latents: Latents | None = None,
        record: bool = False,
    ) -> DecodeState:
        """The state before the first word, with `draws` rows for each picture, picture-major.

        `temperature` is of both latents, or a pair (z^m, z^o), in the mode of the configuration unless another is
        given. `context_seed` and `object_seed` replace `seed` for one latent: the same noise for z^m with new noise
        for z^o, and the other way round. `latents` gives values instead of draws, `record` keeps those drawn for
        `state.latents()`.
        """
        encoded = self.regions(regions)
        pair = temperature if isinstance(temperature, tuple) else (temperature, temperature)
        context_keys = row_keys(seed if context_seed is None else context_seed, regions.keys, draws)
        object_keys = row_keys(seed if object_seed is None else object_seed, regions.keys, draws)
        rows = len(context_keys)
        given = latents or Latents(lengths=context_keys.new_zeros(rows))
        if len(given.lengths) != rows:
            raise ValueError(f"{len(given.lengths)} rows of latents for {rows} rows to decode")
        first = self.start_latents(encoded, context_keys, object_keys, given)
        return DecodeState(
            shared=Shared(
                width=regions.mask.shape[1],
                regions=self.decoder.encode(encoded, draws),
                pictures=encoded,
                context_gates=first.context_gates,
                object_gates=first.object_gates,
                object_components=first.object_components,
                temperatures=pair,
                mode=temperature_mode or self.config.temperature_mode,
                transposed=self._transposed if rows >= MANY and not self.training else TransposedViews(),
            ),
            groups=RowGroups.even(len(regions.keys), draws, regions.keys.device),
            decoder=self.decoder.start(rows),
            context=first.context,
            objects=first.objects,
            history=() if record else None,
        )

    def start_latents(
        self, regions: RegionValues, context_keys: Tensor, object_keys: Tensor, given: Latents
    ) -> LatentStart:
        """The latents before the first word; keys: (N,) of the noise of z^m and of z^o."""
        return LatentStart()

    def draw(self, tokens: UniqueTokens, state: DecodeState) -> tuple[LatentState | None, LatentState | None]:
        """z^m_t and z^o_t of the next word from their priors (eq. 4)."""
        return None, None

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState, Tensor]:
        """tokens: (N,) the words chosen last, START at first.

        Gives log-probabilities (N, V), the next state, and attention over regions (N, R).
        """
        unique, shared = UniqueTokens.of(tokens), state.shared
        context, objects = self.draw(unique, state)
        logs, attention, decoder = self.decode(unique, context, objects, shared, state.groups, state.decoder)
        history = state.history
        if history is not None:
            history = (*history, (_value(context), _value(objects), objects.drawn if objects else None))
        after = DecodeState(shared, state.groups, decoder, context, objects, state.step + 1, history)
        return logs, after, nn.functional.pad(attention, (0, shared.width - attention.shape[1]))

    def decode(
        self,
        tokens: UniqueTokens,
        context: LatentState | None,
        objects: LatentState | None,
        shared: Shared,
        groups: RowGroups,
        state: CellState,
    ) -> tuple[Tensor, Tensor, CellState]:
        """p(x_t | x_{<t}, z_{<=t}, I): log-probabilities (N, V), attention (N, R), the decoder's next state."""
        latents = InferredLatents(_value(context), _value(objects))
        hidden, attention, after = self.decoder.step(
            tokens,
            self.decoder_words(tokens.ids),
            latents.z,
            latents.objects,
            shared.regions,
            groups,
            state,
            shared.transposed,
        )
        return self.output.log_probabilities(hidden, latents.objects, shared.transposed), attention, after

    # Files

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        vocabulary: Vocabulary,
        recipe: Recipe | None = None,
        classes: ObjectClasses | None = None,
        notes: Mapping[str, Any] | None = None,
        dtype: Literal["float32", "float16", "int8"] = "float32",
    ) -> None:
        """Write weights, configuration and vocabulary as a folder; float16 halves it on disk, int8 quarters it."""
        from coscap.models.hub import save_pretrained

        save_pretrained(
            self, folder, vocabulary=vocabulary, recipe=recipe, classes=classes, notes=notes, dtype=dtype
        )

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, vocabulary: Vocabulary | None = None, recipe: Recipe | None = None
    ) -> Self:
        """The model of a folder or of a hub's name, in evaluation mode and float32. What is given of
        vocabulary and recipe must be what it was trained with."""
        from coscap.models.hub import load_pretrained

        loaded = load_pretrained(name)
        if vocabulary is not None:
            loaded.check_vocabulary(vocabulary)
        if recipe is not None:
            loaded.check_recipe(recipe)
        if not isinstance(loaded.model, cls):
            raise UserError(
                f"{name} holds a {loaded.model.config.kind}, not a {cls.__name__}; load it as that."
            )
        return loaded.model


def _value(latent: LatentState | None) -> Tensor | None:
    return None if latent is None else latent.z
