"""A language model that learns from text alone, and what a picture adds to its words: what DCC and NOC share.

x_{t-1} ─▶ LSTM ─▶ [x_{t-1}, h_t] ─▶ state of the language ┬─▶ softmax(W [state, picture] + b) ─▶ p(x_t | x_{<t}, I)
regions ─▶ words of the picture ────────────────────────────┘        sentences without pictures ─▶ p(x_t | x_{<t})
"""

from abc import abstractmethod

import torch
from torch import Tensor

from coscap.data import Prepared
from coscap.data.batch import RegionBatch
from coscap.data.sentences import Sentences
from coscap.models import kernels
from coscap.models.base import CaptionModel, InferredLatents, LossTerms, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import NEVER, OutputLayer, Shared, UpDownDecoder
from coscap.models.kernels import CellState, InputGates, Packing, RowGroups, UniqueTokens
from coscap.models.latents import LatentState
from coscap.models.mean_decoder import MeanDecoder
from coscap.models.regions import RegionValues
from coscap.models.word_vectors import Vectors
from coscap.text.vocabulary import START, UNK

SURE = 0.5  # the score from which a detection is a label of the picture


class TextDecoder(MeanDecoder):
    """One LSTM that reads words alone: x_{t-1}, z_t, h_{t-1} ─▶ LSTM ─▶ h_t"""

    def __init__(self, config: ModelConfig, latent: int, objects: int) -> None:
        super().__init__(config, latent, objects)
        step = self.gates.step
        self.gates = InputGates(step.shape[1], 0, config.language_lstm)
        self.gates.step = step

    def read(self, words: Tensor, packing: Packing) -> Tensor:
        """h of every word of sentences without pictures; words: (N, D) embedded x_{t-1} -> (N, H)"""
        gates = self.gates(words, self.gates.bias[None], packing.captions)
        return kernels.lstm(gates, self.hidden, packing)


class LanguageModel(CaptionModel):
    """p(x_t | x_{<t}, I) from what a language model and a picture say of the next word."""

    draws = False
    embeds_words = False
    exports = False
    reads_text = True

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder]) -> None:
        super().__init__(config, decoder)
        read = config.model_copy(update={"language_lstm": self.language_width(config)})
        self.output = OutputLayer(read, self.decoder_words, 0)  # of the language model alone

    @staticmethod
    def language_width(config: ModelConfig) -> int:
        """Width of [x_{t-1}, h_t]."""
        return config.decoder_words + config.language_lstm

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        if config.decoder != "text":
            raise ValueError(
                f"kind: {config.kind} needs decoder: text, the language model that it begins with"
            )
        if not config.classes:
            raise ValueError(
                f"kind: {config.kind} needs regions with classes, and the recipe of these has none"
            )

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        return InferredLatents()

    @abstractmethod
    def read_text(self, prepared: Prepared, text: Sentences, vectors: Vectors) -> None:
        """Take what a new model needs from sentences and word vectors, (V, D)."""

    @abstractmethod
    def language_state(self, read: Tensor) -> Tensor:
        """What the captions' layer reads of the language. read: (N, D + H) [x_{t-1}, h_t] -> (N, S)"""

    @abstractmethod
    def picture_words(self, pictures: RegionValues) -> Tensor:
        """What it reads of a picture, (P, K)."""

    @abstractmethod
    def caption_layer(self) -> tuple[Tensor, Tensor]:
        """Its weight (V, S + K) and bias (V,)."""

    def caption_inputs(self, words: Tensor, hidden: Tensor, pictures: RegionValues, owners: Tensor) -> Tensor:
        """(N, S + K); words: (N, D) embedded x_{t-1}, hidden: (N, H), owners: (N,) the picture of each row"""
        state = self.language_state(torch.cat([words, hidden], dim=1))
        return torch.cat([state, self.picture_words(pictures)[owners]], dim=1)

    def reconstruction(self, forced: TeacherForcedBatch, hidden: Tensor, latents: InferredLatents) -> Tensor:
        smoothing = self.config.label_smoothing if self.training else 0.0
        never = torch.tensor(NEVER, device=hidden.device)
        words = self.decoder_words(self.input_tokens(forced))
        inputs = self.caption_inputs(words, hidden, forced.regions, forced.owners)
        return kernels.cross_entropy(inputs, *self.caption_layer(), forced.targets, never, smoothing)

    def decode(
        self,
        tokens: UniqueTokens,
        context: LatentState | None,
        objects: LatentState | None,
        shared: Shared,
        groups: RowGroups,
        state: CellState,
    ) -> tuple[Tensor, Tensor, CellState]:
        words = self.decoder_words(tokens.ids)
        hidden, attention, after = self.decoder.step(
            tokens, words, None, None, shared.regions, groups, state, shared.transposed
        )
        assert shared.pictures is not None
        weight, bias = self.caption_layer()
        inputs = self.caption_inputs(tokens.spread(words), hidden, shared.pictures, groups.owners)
        logits = torch.addmm(bias, inputs, weight.t())
        logits.index_fill_(1, torch.tensor(NEVER, device=logits.device), float("-inf"))
        logs = torch.log_softmax(logits, dim=1)
        logs[:, UNK] = float("-inf")
        return logs, attention, after

    # Text and pictures that are no pairs

    def text_loss(self, words: Tensor, lengths: Tensor) -> Tensor:
        """-log p of each sentence under the language model alone, (B,); words: (B, T) with END, lengths: (B,)"""
        packing = Packing.of(lengths, words.shape[1])
        targets = packing.pack(words)
        first = targets.new_full((packing.sizes[0],), START)
        previous = torch.cat([first, targets[packing.previous]])
        assert isinstance(self.decoder, TextDecoder)
        read = self.decoder_words(previous)  # (N, D)
        hidden = self.decoder.read(read, packing)
        return packing.sums(self.output(torch.cat([read, hidden], dim=1), None, targets))

    def picture_loss(self, pictures: RegionBatch) -> Tensor | None:
        """What pictures without captions teach, (P,); None: nothing."""
        return None

    def unpaired_loss(self, words: Tensor, lengths: Tensor, pictures: RegionBatch | None) -> LossTerms:
        """The terms of sentences and of pictures that are no pairs."""
        read = self.text_loss(words, lengths)
        seen = None if pictures is None else self.picture_loss(pictures)
        none = read.new_zeros(len(read))
        extra = none if seen is None else none + seen.sum() / len(read)
        dimensions = read.new_zeros(0)
        return LossTerms(read, none, none, none, none, extra, lengths, dimensions, dimensions)
