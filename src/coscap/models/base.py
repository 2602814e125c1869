"""What the three models share: regions, words, decoder, output layer, the loss and the `Step` protocol."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch, RegionBatch
from coscap.errors import UserError
from coscap.models.config import ModelConfig
from coscap.models.decoder import Decoder
from coscap.models.groups import Groups
from coscap.models.latents import Latents
from coscap.models.layers import Words
from coscap.models.noise import Source, row_keys
from coscap.models.output import Output
from coscap.models.packing import Packing
from coscap.models.parts import Parts
from coscap.models.regions import Memory, RegionEncoder
from coscap.models.rows import MANY, Said, Straight, Turned
from coscap.models.state import Chain, DecodeState, Shared
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import SLOT, SLOTS, START, UNK, Vocabulary
from coscap.vision.regions import Recipe

if TYPE_CHECKING:
    from coscap.models.build import Model

CONTEXT_NOISE, OBJECT_NOISE, DROPOUT_NOISE = 1, 2, 3  # streams of a row's noise


@dataclass(frozen=True)
class Teacher:
    """One batch under teacher forcing: packed words and what they belong to."""

    batch: Batch
    memory: Memory
    packing: Packing
    owners: Tensor  # (N,) the picture of each word
    targets: Tensor  # (N,) x_t
    previous: Tensor  # (N,) x_{t-1}, START at first
    context: Tensor  # (N,) x^m_t
    noise: Source

    def saying(self, targets: Tensor) -> "Teacher":
        """The same with other words; targets: (N,)"""
        first = self.previous[: self.packing.sizes[0]]
        previous = torch.cat([first, targets[self.packing.previous]])
        return replace(self, targets=targets, previous=previous)


@dataclass(frozen=True)
class Inferred:
    """What a model's latents are for one batch; None where it has none."""

    context: Tensor | None = None  # (N, Zm)
    objects: Tensor | None = None  # (N, Zo)
    kl_context: Tensor | None = None  # (N, Zm)
    kl_object: Tensor | None = None  # (N, Zo)
    extra: Tensor | None = None  # (B,)

    def z(self) -> Tensor | None:
        """[z^m_t, z^o_t], (N, Z)"""
        parts = [part for part in (self.context, self.objects) if part is not None]
        return torch.cat(parts, dim=1) if parts else None


class CaptionModel(nn.Module, ABC):
    """A model of captions given regions. Subclasses say what their latents are."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.regions = RegionEncoder(config)
        own = config.decoder_word_width > 0
        needed = config.kind != "updown" or not own
        self.words = Words(config.vocabulary, config.word_width) if needed else None
        self.own_words = Words(config.vocabulary, config.decoder_word_width) if own else None
        self.decoder = Decoder(config)
        self.output = Output(config, self.decoder_words)
        self._turned = Turned()

    @property
    def decoder_words(self) -> nn.Embedding:
        words = self.own_words if self.own_words is not None else self.words
        assert words is not None
        return words

    # Training

    def train(self, mode: bool = True) -> Self:
        self._turned = Turned()  # weights are about to change
        return super().train(mode)

    def loss(
        self,
        batch: Batch,
        *,
        generator: torch.Generator | None = None,
        keys: Tensor | None = None,
        objects: Literal["posterior", "prior"] = "posterior",
    ) -> Parts:
        """The negative ELBO of each caption, part by part.

        Noise comes from `generator`, or, with `keys` (B,) int64, from each caption's own key: then it does
        not depend on the batch. `objects="prior"` draws z^o from its prior (pseudo captions, eq. 8).
        """
        teacher = self._teacher(batch, generator, keys)
        inferred = self._infer(teacher, objects)
        looked = self.decoder.look(teacher.memory)
        words = self.decoder_words(self._drop(teacher))
        hidden, _ = self.decoder(words, inferred.z(), inferred.objects, looked, batch.rows, teacher.packing)
        negative = self.output(hidden, inferred.objects, teacher.targets)  # (N,)
        return self._parts(teacher, inferred, negative)

    def _teacher(self, batch: Batch, generator: torch.Generator | None, keys: Tensor | None) -> Teacher:
        packing = Packing.of(batch.lengths, batch.words.shape[1])
        targets = packing.pack(batch.words)
        first = targets.new_full((packing.sizes[0],), START)
        return Teacher(
            batch=batch,
            memory=self.regions(batch.pictures),
            packing=packing,
            owners=batch.rows[packing.captions],
            targets=targets,
            previous=torch.cat([first, targets[packing.previous]]),
            context=packing.pack(batch.context),
            noise=Source(packing.captions, packing.positions, generator, keys),
        )

    def _drop(self, teacher: Teacher) -> Tensor:
        """The decoder's input words, in training some of them replaced by <unk>."""
        dropped = self._dropped(teacher)
        return teacher.previous if dropped is None else teacher.previous.masked_fill(dropped, UNK)

    def _dropped(self, teacher: Teacher) -> Tensor | None:
        """Which of the words the decoder does not get to read, (N,); whatever the words are. None: it reads all."""
        rate = self.config.word_dropout
        object_rate = rate if self.config.object_word_dropout is None else self.config.object_word_dropout
        if not self.training or max(rate, object_rate) == 0:
            return None
        slots = (teacher.context == SLOT) | (teacher.context == SLOTS)
        named = torch.cat([slots.new_zeros(teacher.packing.sizes[0]), slots[teacher.packing.previous]])
        rates = torch.where(named, object_rate, rate)
        return (teacher.noise.uniforms(DROPOUT_NOISE) < rates) & (teacher.previous != START)

    @abstractmethod
    def _infer(self, teacher: Teacher, objects: str) -> Inferred:
        """The latents of a batch; `objects` says where z^o comes from, its posterior or its prior."""

    def _parts(self, teacher: Teacher, inferred: Inferred, negative: Tensor) -> Parts:
        packing, config = teacher.packing, self.config
        zeros = negative.new_zeros(len(teacher.batch.rows))

        def counted(kl: Tensor | None, floor: float) -> tuple[Tensor, Tensor, Tensor]:
            if kl is None:
                return zeros, zeros, negative.new_zeros(0)
            each = kl.sum(1)  # (N,)
            whole = packing.sums(each)
            free = whole
            if floor and config.free_bits_per == "step":
                free = packing.sums(each.clamp(min=floor))
            elif floor:
                free = whole.clamp(min=floor)
            return whole, free, kl.detach().mean(0)

        kl_context, free_context, context_dimensions = counted(inferred.kl_context, config.free_bits_context)
        kl_object, free_object, object_dimensions = counted(inferred.kl_object, config.free_bits_object)
        return Parts(
            reconstruction=packing.sums(negative),
            kl_context=kl_context,
            kl_object=kl_object,
            free_context=free_context,
            free_object=free_object,
            extra=zeros if inferred.extra is None else inferred.extra,
            words=teacher.batch.lengths,
            context_dimensions=context_dimensions,
            object_dimensions=object_dimensions,
        )

    # Writing, word by word

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

        `temperature` is of both latents, or a pair (z^m, z^o), in the mode of the configuration unless
        another is given. `context_seed` and `object_seed` stand in
        for `seed` of one latent: the same noise for z^m with new noise for z^o, and the other way round.
        `latents` gives values instead of draws, `record` keeps those drawn for `state.latents()`.
        """
        memory = self.regions(regions)
        pair = temperature if isinstance(temperature, tuple) else (temperature, temperature)
        context_keys = row_keys(seed if context_seed is None else context_seed, regions.keys, draws)
        object_keys = row_keys(seed if object_seed is None else object_seed, regions.keys, draws)
        given = latents or Latents(lengths=context_keys.new_zeros(len(context_keys)))
        if len(given.lengths) != len(context_keys):
            raise ValueError(f"{len(given.lengths)} rows of latents for {len(context_keys)} rows to write")
        context, context_gates = self._start_context(memory, context_keys, given)
        objects, object_gates = self._start_objects(memory, object_keys, given)
        return DecodeState(
            shared=Shared(
                regions=regions.mask.shape[1],
                looked=self.decoder.look(memory, draws),
                context_gates=context_gates,
                object_gates=object_gates,
                temperatures=pair,
                mode=temperature_mode or self.config.temperature_mode,
                turned=self._turned if len(context_keys) >= MANY and not self.training else Straight(),
            ),
            groups=Groups.even(len(regions.keys), draws, regions.keys.device),
            decoder=self.decoder.start(len(context_keys)),
            context=context,
            objects=objects,
            history=() if record else None,
        )

    def _start_context(
        self, memory: Memory, keys: Tensor, given: Latents
    ) -> tuple[Chain | None, Tensor | None]:
        return None, None

    def _start_objects(
        self, memory: Memory, keys: Tensor, given: Latents
    ) -> tuple[Chain | None, Tensor | None]:
        return None, None

    def _draw(self, said: Said, state: DecodeState) -> tuple[Chain | None, Chain | None]:
        """The latents of the next word."""
        return None, None

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState, Tensor]:
        """tokens: (N,) the words chosen last, START at first.

        Gives log-probabilities (N, V), the next state, and attention over regions (N, R).
        """
        said = Said.of(tokens)
        context, objects = self._draw(said, state)
        zs = Inferred(
            context=None if context is None else context.z, objects=None if objects is None else objects.z
        )
        shared, words = state.shared, self.decoder_words(said.ids)
        hidden, attention, decoder = self.decoder.step(
            said, words, zs.z(), zs.objects, shared.looked, state.groups, state.decoder, shared.turned
        )
        logs = self.output.log_probabilities(hidden, zs.objects, shared.turned)
        history = None if state.history is None else (*state.history, (zs.context, zs.objects))
        after = DecodeState(state.shared, state.groups, decoder, context, objects, state.step + 1, history)
        short = state.shared.regions - attention.shape[1]
        return logs, after, nn.functional.pad(attention, (0, short))

    # Files

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        vocabulary: Vocabulary,
        recipe: Recipe | None = None,
        classes: ObjectClasses | None = None,
        notes: Mapping[str, Any] | None = None,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        """Write weights, configuration and vocabulary as a folder; float16 halves it on disk."""
        from coscap.models.pretrained import save_pretrained

        model = cast("Model", self)
        save_pretrained(
            model, folder, vocabulary=vocabulary, recipe=recipe, classes=classes, notes=notes, dtype=dtype
        )

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, vocabulary: Vocabulary | None = None, recipe: Recipe | None = None
    ) -> Self:
        """The model of a folder or of a hub's name, in evaluation mode and float32. What is given of
        vocabulary and recipe must be what it was trained with."""
        from coscap.models.pretrained import load_pretrained

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
