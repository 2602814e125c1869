"""DCC, the deep compositional captioner (Hendricks et al. 2016): a lexical classifier and a language model, each learnt
by itself, and a layer over both that is learnt from captions; novel words borrow what it learnt of a similar word.

text ─▶ language model ─▶ [x_{t-1}, h_t] = l_t ────────────────┐
detector, v-bar ─▶ classifier of words ─▶ f, a word's presence ┴─▶ softmax(W_L l_t + W_I f + b) ─▶ p(x_t)
when captioning, for a novel class n that is like the seen class c:
    W[n] = W[c],   W_I[n, n] = W_I[c, c],   W_I[n, c] = W_I[c, n] = 0
"""

import logging

import numpy as np
import torch
from torch import Tensor, nn

from coscap.data import Prepared
from coscap.data.sentences import Sentences
from coscap.data.word_targets import choose_words
from coscap.models.base import InferredLatents, LossTerms, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import UpDownDecoder
from coscap.models.kernels import uniform
from coscap.models.language import LanguageModel
from coscap.models.regions import RegionValues, greatest_scores, name_tokens
from coscap.models.word_vectors import Vectors, nearest
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import PAD, Vocabulary
from coscap.vision.regions import Recipe

log = logging.getLogger("coscap.models")


class Dcc(LanguageModel):
    """p(x_t | x_{<t}, I) = softmax(W_L [x_{t-1}, h_t] + W_I f(I) + b)"""

    title = "DCC"
    own_settings = ("concepts", "concept_weight")
    names: Tensor  # (C, 2) tokens for one and for several of each class
    similar: Tensor  # (C,) the seen class that a novel one is like; itself for all others
    concept_tokens: Tensor  # (K,) the words that the classifier knows besides the classes; PAD for none

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder]) -> None:
        super().__init__(config, decoder)
        width = self.language_width(config) + config.classes + config.concepts
        self.register_buffer("names", torch.full((config.classes, 2), -1))
        self.register_buffer("similar", torch.arange(config.classes))
        self.register_buffer("concept_tokens", torch.full((config.concepts,), PAD))
        self.classifier = nn.Linear(config.value_width, config.concepts)
        self.caption_weight = uniform(config.vocabulary, width, width=config.language_lstm)
        self.caption_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self._borrowed: tuple[tuple[int, ...], Tensor, Tensor] | None = None

    def set_names(self, recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> None:
        super().set_names(recipe, objects, vocabulary)
        self.names.copy_(name_tokens(recipe, objects, vocabulary)[: len(recipe.classes)])

    def read_captions(self, prepared: Prepared) -> None:
        words = choose_words(prepared, prepared.images("train"), self.config.concepts)
        tokens = torch.tensor(prepared.vocabulary.encode(words))
        self.concept_tokens[: len(tokens)] = tokens

    def read_text(self, prepared: Prepared, text: Sentences, vectors: Vectors) -> None:
        """Find the seen class that each novel one is used like."""
        seen_tokens = np.unique(prepared.arrays["objects"])
        names = self.names.numpy()
        named = np.isin(names, seen_tokens).any(1)  # (C,)
        seen = np.flatnonzero(named & (names[:, 0] >= 0))
        for label in np.flatnonzero(~named & (names[:, 0] >= 0)).tolist():
            found = nearest(vectors, int(names[label, 0]), names[seen, 0])
            if found is None:
                word = prepared.vocabulary.units[int(names[label, 0])]
                log.warning(
                    "the text says nothing of %r, so that it borrows the weights of no other word", word
                )
            else:
                self.similar[label] = int(seen[int(np.flatnonzero(names[seen, 0] == found)[0])])

    def language_state(self, read: Tensor) -> Tensor:
        return read.detach()  # captions do not teach the language model

    def picture_words(self, pictures: RegionValues) -> Tensor:
        known = torch.sigmoid(self.classifier(pictures.mean)).detach()
        return torch.cat([greatest_scores(pictures, self.config.classes).to(known.dtype), known], dim=1)

    def caption_layer(self) -> tuple[Tensor, Tensor]:
        """As it is learnt; when captioning, with what novel words borrow."""
        if self.training:
            return self.caption_weight, self.caption_bias
        parts = (self.caption_weight, self.caption_bias, self.similar, self.names)
        versions = tuple(number for part in parts for number in (id(part), part._version))
        if self._borrowed is None or self._borrowed[0] != versions:
            self._borrowed = versions, *self.borrowed()
        return self._borrowed[1:]

    @torch.no_grad()
    def borrowed(self) -> tuple[Tensor, Tensor]:
        """Weight and bias in which each novel class's words are those of its similar class."""
        weight, bias, first = (
            self.caption_weight.clone(),
            self.caption_bias.clone(),
            self.language_width(self.config),
        )
        for novel in (
            (self.similar != torch.arange(len(self.similar), device=bias.device)).nonzero()[:, 0].tolist()
        ):
            seen = int(self.similar[novel])
            for own, other in zip(self.names[novel].tolist(), self.names[seen].tolist(), strict=True):
                if own < 0 or other < 0:
                    continue
                weight[own], bias[own] = self.caption_weight[other], self.caption_bias[other]
                weight[own, first + novel] = self.caption_weight[other, first + seen]
                weight[own, first + seen] = weight[other, first + novel] = 0
        return weight, bias

    def score(self, forced: TeacherForcedBatch, latents: InferredLatents, hidden: Tensor) -> LossTerms:
        """The captions' layer and, as `extra`, the classifier: which of its words a caption has."""
        logits = self.classifier(forced.regions.mean)[forced.batch.rows]  # (B, K)
        there = self.concept_tokens != PAD
        has = (forced.batch.words[:, :, None] == self.concept_tokens).any(1) & there  # (B, K)
        each = nn.functional.binary_cross_entropy_with_logits(logits, has.to(logits.dtype), reduction="none")
        extra = self.config.concept_weight * (each * there).sum(1)
        return self.loss_terms(
            forced, InferredLatents(extra=extra), self.reconstruction(forced, hidden, latents)
        )
