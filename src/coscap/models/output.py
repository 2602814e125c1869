"""From the language LSTM to words."""

import torch
from torch import Tensor, nn

from coscap.models.config import ModelConfig
from coscap.models.cross_entropy import cross_entropy
from coscap.models.layers import uniform
from coscap.models.rows import Turned
from coscap.text.vocabulary import PAD, SLOT, SLOTS, START, UNK

OUTPUT_LIFT = 4.0  # as the lifts in decoder.py
NEVER = (PAD, START, SLOT, SLOTS)  # no caption has them as a word, so they take no probability


class Output(nn.Module):
    """h^lang (, z^o) (─▶ linear, tanh) ─▶ vocabulary"""

    def __init__(self, config: ModelConfig, words: nn.Embedding) -> None:
        super().__init__()
        inlet = config.kind == "cos_cvae" and "output" in config.object_latent_to
        width = config.language_lstm + (config.object_latent if inlet else 0)
        self.inlet = inlet
        self.squeeze = nn.Linear(width, config.output_width) if config.output_width else None
        width = config.output_width or width
        tied = words.weight if config.tie_words else None
        self.weight = uniform(config.vocabulary, width, width=width) if tied is None else tied
        if self.squeeze is not None:
            with torch.no_grad():
                self.squeeze.weight.mul_(OUTPUT_LIFT)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.output_bias else None
        self.predict_unknown = config.predict_unknown

    def _last(self, hidden: Tensor, objects: Tensor | None) -> Tensor:
        if self.inlet and objects is not None:
            hidden = torch.cat([hidden, objects], dim=1)
        return hidden if self.squeeze is None else torch.tanh(self.squeeze(hidden))

    def forward(self, hidden: Tensor, objects: Tensor | None, targets: Tensor) -> Tensor:
        """-log p of each target. hidden: (N, H), objects: (N, Zo) or None, targets: (N,) -> (N,)"""
        last = self._last(hidden, objects)
        never = torch.tensor(NEVER, device=last.device)
        return cross_entropy(last, self.weight, self.bias, targets, never)

    def log_probabilities(self, hidden: Tensor, objects: Tensor | None, turned: Turned) -> Tensor:
        """(N, V). <unk> keeps its share of the probability, but cannot be chosen."""
        last, weight = self._last(hidden, objects), turned(self.weight)
        logits = last @ weight if self.bias is None else torch.addmm(self.bias, last, weight)
        logits.index_fill_(1, torch.tensor(NEVER, device=logits.device), float("-inf"))
        logs = torch.log_softmax(logits, dim=1)
        if not self.predict_unknown:
            logs[:, UNK] = float("-inf")
        return logs
