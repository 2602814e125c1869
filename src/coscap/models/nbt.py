"""NBT, neural baby talk (Lu et al. 2018): a word of the template or a region, then the region's name.

h_t ─▶ a_t over [v_1 .. v_R, sentinel s_t] ┬─ sentinel ─▶ softmax(W h_t)                                ─┐
                                           └─ region r ─▶ number ─▶ finer name among its class's words ──┴─▶ p(x_t)
s_t = sigmoid(W_x x_{t-1} + W_h h_{t-1}) * h_t

The words that name a detected object are learnt as choices of its regions, all others as words of the template. A class
that no caption names can be read as a seen one (`novel_like`): its embedding and those of its words are the other's.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from coscap.data import Prepared
from coscap.data.prepared import ranges
from coscap.errors import UserError
from coscap.models.base import TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import Shared, UpDownDecoder
from coscap.models.kernels import CellState, RowGroups, UniqueTokens, uniform
from coscap.models.latents import LatentState
from coscap.models.pointing import (
    Pointing,
    PointingModel,
    distinct,
    masked_log_softmax,
    matching,
    picture_names,
)
from coscap.models.regions import RegionValues, label_tokens
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import UNK, Vocabulary
from coscap.vision.regions import Recipe

FIRST_WORD = 10  # the word that a class is called by counts as if it had been seen so often


class Nbt(PointingModel):
    """p(x_t | x_{<t}, I) = p_t(sentinel) p(x_t | template) + sum_r p_t(r) p(number | r) p(x_t | number, r)"""

    title = "NBT"
    own_settings = ("finer_names", "pointer_weight", "novel_like")
    names: Tensor  # (L, 2, K) tokens for one and for several of each label
    read_as: Tensor  # (V,) the token whose embedding the decoder reads in place of each; only with novel_like
    name_prior: Tensor  # (L, 2, K) log of how often training captions have them

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__(config, decoder)
        labels, width, hidden = (
            config.classes + config.region_words,
            config.attention_width,
            config.language_lstm,
        )
        self.register_buffer("names", torch.full((labels, 2, config.finer_names), -1))
        self.register_buffer("name_prior", torch.zeros(labels, 2, config.finer_names))
        if config.novel_like:
            self.register_buffer("read_as", torch.arange(config.vocabulary))
        self.pointer_key = nn.Linear(config.value_width, width)
        self.pointer_query = nn.Linear(hidden, width, bias=False)
        self.pointer_score = uniform(width, width=width)
        self.sentinel_gate = nn.Linear(config.decoder_words + hidden, hidden)
        self.sentinel_key = nn.Linear(hidden, width)
        self.number_region = nn.Linear(config.value_width, width)
        self.number_word = nn.Linear(hidden, width, bias=False)
        self.number = nn.Linear(width, 2)
        self.name_region = nn.Linear(config.value_width, config.decoder_words, bias=False)
        self.name_word = nn.Linear(hidden, config.decoder_words, bias=False)

    def set_names(self, recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> None:
        """Every word of a class in the order of the list; `read_captions` then keeps the commonest."""
        super().set_names(recipe, objects, vocabulary)
        self.every_name = class_words(recipe, objects, vocabulary)
        self._keep(torch.zeros(len(vocabulary)))
        tokens = label_tokens(recipe, objects, vocabulary)
        for novel, seen in self.config.novel_like.items():
            self._read_as(_label(recipe, novel), _label(recipe, seen), tokens)
        self.regions.set_label_tokens(tokens)

    def _read_as(self, novel: int, seen: int, tokens: Tensor) -> None:
        """Let a class look and read like another. tokens: (L,) of all labels, changed here"""
        self.regions.read_as[novel + 1] = seen + 1  # row 0 of the class embedding is for no class
        tokens[novel] = tokens[seen]
        for own, other in zip(self.every_name[novel], self.every_name[seen], strict=True):
            if other:
                self.read_as[own] = other[0]

    def read_captions(self, prepared: Prepared) -> None:
        captions, offsets = prepared.trainable("train"), prepared.arrays["word_offsets"]
        words = prepared.arrays["words"][ranges(offsets[captions], offsets[captions + 1])]
        self._keep(torch.from_numpy(np.bincount(words, minlength=len(prepared.vocabulary))))

    def _keep(self, counts: Tensor) -> None:
        """The commonest words of each label and number; counts: (V,) of each token in training captions"""
        self.names.fill_(-1)
        self.name_prior.zero_()
        most = self.names.shape[2]
        for label, numbers in enumerate(self.every_name):
            for number, tokens in enumerate(numbers):
                seen = [
                    float(counts[token]) + (FIRST_WORD if place == 0 else 1)
                    for place, token in enumerate(tokens)
                ]
                kept = sorted(range(len(tokens)), key=lambda place: -seen[place])[:most]
                for place, at in enumerate(kept):
                    self.names[label, number, place] = tokens[at]
                    self.name_prior[label, number, place] = torch.log(torch.tensor(seen[at]))

    def name_tokens(self) -> Tensor:
        return self.names.flatten(1)

    def input_tokens(self, forced: TeacherForcedBatch) -> Tensor:
        tokens = super().input_tokens(forced)
        return self.read_as[tokens] if self.config.novel_like else tokens

    def decode(
        self,
        tokens: UniqueTokens,
        context: LatentState | None,
        objects: LatentState | None,
        shared: Shared,
        groups: RowGroups,
        state: CellState,
    ) -> tuple[Tensor, Tensor, CellState]:
        if self.config.novel_like:
            tokens = replace(tokens, ids=self.read_as[tokens.ids])
        return super().decode(tokens, context, objects, shared, groups, state)

    def point(
        self, pictures: RegionValues, groups: RowGroups, words: Tensor, before: Tensor, hidden: Tensor
    ) -> Pointing:
        owners, values = groups.owners, pictures.values
        tokens = picture_names(pictures, self.name_tokens(), len(self.names))  # (P, R, 2 K)
        tokens = tokens.unflatten(2, self.names.shape[1:])  # (P, R, 2, K)
        there = (tokens >= 0)[owners]  # (N, R, 2, K)
        query = self.pointer_query(hidden)  # (N, A)
        regions = torch.tanh(self.pointer_key(values)[owners] + query[:, None]) @ self.pointer_score  # (N, R)
        gate = torch.sigmoid(self.sentinel_gate(torch.cat([words, before], dim=1)))
        sentinel = torch.tanh(self.sentinel_key(gate * hidden) + query) @ self.pointer_score  # (N,)
        named = nn.functional.pad(
            there.flatten(2).any(2), (0, 1), value=True
        )  # (N, R + 1), the sentinel last
        choice = masked_log_softmax(torch.cat([regions, sentinel[:, None]], dim=1), named)
        number = self._number(values, hidden, owners, there.any(3))  # (N, R, 2)
        name = self._name(pictures, hidden, owners, tokens)  # (N, R, 2, K)
        every = choice[:, :-1, None, None] + number[:, :, :, None] + name
        return Pointing(choice[:, -1], every.flatten(1), tokens.flatten(1)[owners])

    def _number(self, values: Tensor, hidden: Tensor, owners: Tensor, there: Tensor) -> Tensor:
        """log p(one or several | r, h_t); there: (N, R, 2) where there is a word -> (N, R, 2)"""
        seen = torch.relu(self.number_region(values)[owners] + self.number_word(hidden)[:, None])
        return masked_log_softmax(self.number(seen), there)

    def _name(self, pictures: RegionValues, hidden: Tensor, owners: Tensor, tokens: Tensor) -> Tensor:
        """log p(word | number, r, h_t); tokens: (P, R, 2, K) -> (N, R, 2, K)"""
        assert pictures.labels is not None
        every = distinct(self.names)
        scale = self.decoder_words.embedding_dim**-0.5
        words = self.decoder_words(every) * scale  # (U, D)
        if not len(every):
            return hidden.new_full((len(owners), *tokens.shape[1:]), float("-inf"))
        places = torch.searchsorted(every, tokens.clamp(min=0)).clamp(max=len(every) - 1)  # (P, R, 2, K)
        from_region = self.name_region(pictures.values) @ words.t()  # (P, R, U)
        from_region = from_region.gather(2, places.flatten(2)).view(places.shape)
        prior = self.name_prior[pictures.labels.clamp(0, len(self.names) - 1)].to(from_region.dtype)
        from_word = self.name_word(hidden) @ words.t()  # (N, U)
        own = places.flatten(1)[owners]
        from_word = from_word.gather(1, own).view(len(owners), *places.shape[1:])
        return masked_log_softmax((from_region + prior)[owners] + from_word, (tokens >= 0)[owners])

    def further_loss(
        self, forced: TeacherForcedBatch, pointing: Pointing, vocabulary: Tensor, marginal: Tensor
    ) -> Tensor:
        """What is lost, (B,), where a word may come from its own place alone: with p(x_t) it is the published loss."""
        copied, found = matching(pointing, forced.targets)
        path = torch.where(found & forced.slots, copied, vocabulary)
        return self.config.pointer_weight * forced.packing.sums(marginal - path)


def _label(recipe: Recipe, name: str) -> int:
    if name not in recipe.classes:
        raise UserError(
            f"field model.novel_like: {recipe.name} does not know {name!r}; its classes are "
            f"{', '.join(recipe.classes[:5])}, ..."
        )
    return recipe.classes.index(name)


def class_words(
    recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary
) -> list[tuple[list[int], list[int]]]:
    """The tokens for one and for several of each label, the words of its class in the order of the list."""
    known = {each.name: each for each in objects.classes}

    def tokens(words: tuple[str, ...]) -> list[int]:
        return [number for number in vocabulary.encode(list(words)) if number != UNK]

    found = []
    for name in recipe.classes:
        each = known.get(name)
        found.append((tokens(each.words), tokens(each.plurals)) if each else (tokens((name,)), []))
    ones = {word for each in objects.classes for word in each.words}
    many = {word for each in objects.classes for word in each.plurals}
    for word in recipe.words:
        one = tokens((word,)) if word in ones else []
        found.append((one, tokens((word,)) if word in many and not one else []))
    return found
