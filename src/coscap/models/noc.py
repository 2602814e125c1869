"""NOC, the novel object captioner (Venugopalan et al. 2017): pictures, text and captions learn the same words jointly.

text ─▶ language model ─▶ [x_{t-1}, h_t] = l_t ─▶ W tanh(S l_t) ┐
v-bar ─▶ W_I v-bar + b_I ───────────────────────────────────────┴─ sum ─▶ softmax ─▶ p(x_t)
loss = captions + sentences without pictures + which words a picture has, captioned or not, each a yes or a no

The words are vectors in which words that are used alike are near each other, before the LSTM and as W. They stay as
they are (`fixed_words`): captions, which never have a novel word, could only push it away from all that they say.
"""

import torch
from torch import Tensor, nn

from coscap.data import Prepared
from coscap.data.batch import RegionBatch
from coscap.data.sentences import Sentences
from coscap.data.word_targets import choose_words
from coscap.errors import UserError
from coscap.models.base import InferredLatents, LossTerms, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import UpDownDecoder
from coscap.models.language import SURE, LanguageModel
from coscap.models.regions import RegionValues, greatest_scores, name_tokens
from coscap.models.word_vectors import Vectors
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import PAD, Vocabulary
from coscap.vision.regions import Recipe

RARE = -6.0  # log odds of a word in a picture before anything is learnt


class Noc(LanguageModel):
    """p(x_t | x_{<t}, I) = softmax(language(x_{<t}) + picture(I))"""

    title = "NOC"
    learns_from_reward = True
    tempers_words = False
    own_settings = ("concepts", "concept_weight", "fixed_words")
    names: Tensor  # (C, 2) tokens for one and for several of each class
    concept_tokens: Tensor  # (K,) the words that are looked for in captions; PAD for none

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder]) -> None:
        super().__init__(config, decoder)
        self.register_buffer("names", torch.full((config.classes, 2), -1))
        self.register_buffer("concept_tokens", torch.full((config.concepts,), PAD))
        self.picture = nn.Linear(config.value_width, config.vocabulary)
        nn.init.constant_(self.picture.bias, 0.0)
        nn.init.normal_(self.picture.weight, std=0.01)
        if config.fixed_words:
            self.decoder_words.weight.requires_grad_(False)  # W too, where tie_words makes them one

    def set_names(self, recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> None:
        super().set_names(recipe, objects, vocabulary)
        self.names.copy_(name_tokens(recipe, objects, vocabulary)[: len(recipe.classes)])

    def read_captions(self, prepared: Prepared) -> None:
        words = choose_words(prepared, prepared.images("train"), self.config.concepts)
        tokens = torch.tensor(prepared.vocabulary.encode(words))
        self.concept_tokens[: len(tokens)] = tokens

    @torch.no_grad()
    def read_text(self, prepared: Prepared, text: Sentences, vectors: Vectors) -> None:
        """Begin with the vectors of words; what has none stays as it was drawn."""
        words = self.decoder_words.weight
        if vectors.shape[1] != words.shape[1]:
            raise UserError(
                f"field text.vectors: its vectors have {vectors.shape[1]} numbers and the model's words "
                f"{words.shape[1]}; set model.word_width and model.output_width to {vectors.shape[1]}."
            )
        known = torch.from_numpy(vectors.any(1))
        words[known] = torch.from_numpy(vectors)[known].to(words.dtype)

    def language_state(self, read: Tensor) -> Tensor:
        return self.output.last(read)

    def picture_words(self, pictures: RegionValues) -> Tensor:
        return pictures.mean

    def caption_layer(self) -> tuple[Tensor, Tensor]:
        weight = torch.cat([self.output.weight, self.picture.weight], dim=1)
        bias = self.picture.bias if self.output.bias is None else self.output.bias + self.picture.bias
        return weight, bias

    def presence(self, mean: Tensor, tokens: Tensor) -> Tensor:
        """Log odds that a picture has each of these words. mean: (P, F), tokens: (K,) -> (P, K)"""
        return nn.functional.linear(mean, self.picture.weight[tokens], self.picture.bias[tokens] + RARE)

    def class_loss(self, pictures: RegionValues) -> Tensor:
        """(P,) how well a picture's words name the classes that were surely detected in it."""
        named = self.names[:, 0] >= 0
        tokens = self.names[:, 0].clamp(min=0)
        has = (greatest_scores(pictures, len(tokens)) >= SURE).to(pictures.mean.dtype)  # (P, C)
        logits = self.presence(pictures.mean, tokens)
        each = nn.functional.binary_cross_entropy_with_logits(logits, has, reduction="none")
        return self.config.concept_weight * (each * named).sum(1)

    def picture_loss(self, pictures: RegionBatch) -> Tensor | None:
        return self.class_loss(self.regions(pictures))

    def score(self, forced: TeacherForcedBatch, latents: InferredLatents, hidden: Tensor) -> LossTerms:
        """Captions and, as `extra`, the words that a picture has: those of the caption and the detected classes."""
        rows = forced.batch.rows
        there = self.concept_tokens != PAD
        has = (forced.batch.words[:, :, None] == self.concept_tokens).any(1) & there  # (B, K)
        logits = self.presence(forced.regions.mean, self.concept_tokens)[rows]
        each = nn.functional.binary_cross_entropy_with_logits(logits, has.to(logits.dtype), reduction="none")
        extra = self.config.concept_weight * (each * there).sum(1) + self.class_loss(forced.regions)[rows]
        return self.loss_terms(
            forced, InferredLatents(extra=extra), self.reconstruction(forced, hidden, latents)
        )
