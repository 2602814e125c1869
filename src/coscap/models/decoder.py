"""The up-down decoder with [z_t, v-bar] as the context of its attention LSTM.

x_{t-1}, z_t, v-bar, h^lang_{t-1} ─▶ attention LSTM ─▶ h^att_t ─▶ query ┐
                                                         │             ▼
                                     regions v_1 .. v_R ─┼─▶ attention a_t ─▶ v^_t = sum a_tr v_r
                                                         ▼                     │
                                   h^lang_{t-1} ─▶ language LSTM ◀─────────────┘
                                                         ▼
                                              h^lang_t ─▶ output layer ─▶ p(x_t)
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.models.attention_loop import attention_loop
from coscap.models.config import ModelConfig
from coscap.models.groups import Groups
from coscap.models.layers import Gates, uniform
from coscap.models.packing import Packing
from coscap.models.recurrent import lstm_cell
from coscap.models.regions import Memory


@dataclass(frozen=True)
class Looked:
    """The regions of P pictures, ready to be attended to."""

    keys: Tensor  # (P, R, A)
    values: Tensor  # (P, R, F)
    barred: Tensor  # (P, R) 0 where there is a region, -inf where not
    gates: Tensor  # (P, 4 H) what v-bar adds to the attention LSTM


@dataclass(frozen=True)
class DecoderState:
    attention_h: Tensor  # (N, Ha)
    attention_c: Tensor  # (N, Ha)
    language_h: Tensor  # (N, Hl)
    language_c: Tensor  # (N, Hl)


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        attention, language = config.attention_lstm, config.language_lstm
        self.gates = Gates(config.decoder_words + config.latent, config.value_width, attention)
        self.attention_hidden = uniform(4 * attention, language + attention, width=attention)
        self.key = nn.Linear(config.value_width, config.attention_width)
        self.query = uniform(config.attention_width, attention, width=attention)
        self.score = uniform(config.attention_width, width=config.attention_width)
        inputs = config.value_width + attention + language
        self.language_hidden = uniform(4 * language, inputs, width=language)
        self.language_bias = nn.Parameter(torch.zeros(4 * language))
        with torch.no_grad():
            self.language_bias[language : 2 * language] = 1
        inlets = config.object_latent_to if config.kind == "cos_cvae" else ()
        size = config.object_latent
        self.query_latent = uniform(config.attention_width, size, width=size) if "query" in inlets else None
        self.language_latent = uniform(4 * language, size, width=size) if "language" in inlets else None

    def look(self, memory: Memory) -> Looked:
        """All that depends on the picture alone, computed once for all its captions and words."""
        barred = torch.zeros(memory.mask.shape, dtype=memory.values.dtype, device=memory.values.device)
        return Looked(
            keys=self.key(memory.values),
            values=memory.values,
            barred=barred.masked_fill(~memory.mask, float("-inf")),
            gates=self.gates.pictures(memory.mean),
        )

    def forward(
        self,
        words: Tensor,
        z: Tensor | None,
        objects: Tensor | None,
        looked: Looked,
        rows: Tensor,
        packing: Packing,
    ) -> tuple[Tensor, Tensor]:
        """Teacher forcing over whole captions.

        words: (N, D) embedded x_{t-1}, z: (N, Z), objects: (N, Zo) z^o for the further inlets,
        rows: (B,) the picture of each caption -> h^lang (N, Hl), attention (N, R).
        """
        inputs, query, language = self._inputs(words, z, objects, looked, rows[packing.captions])
        owners = rows[packing.order]  # captions by falling length
        return attention_loop(
            inputs,
            query,
            language,
            looked.keys.index_select(0, owners),
            looked.values.index_select(0, owners),
            looked.barred[owners],
            self.attention_hidden,
            self.query,
            self.score,
            self.language_hidden,
            packing,
        )

    def start(self, rows: int) -> DecoderState:
        attention = self.query.new_zeros(rows, self.query.shape[1])
        language = self.query.new_zeros(rows, self.language_bias.shape[0] // 4)
        return DecoderState(attention, attention, language, language)

    def step(
        self,
        words: Tensor,
        z: Tensor | None,
        objects: Tensor | None,
        looked: Looked,
        groups: Groups,
        state: DecoderState,
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """One word of each row -> h^lang (N, Hl), attention (N, R), state."""
        inputs, query, language = self._inputs(words, z, objects, looked, groups.owners)
        before = torch.cat([state.language_h, state.attention_h], dim=1)
        gates = torch.addmm(inputs, before, self.attention_hidden.t())
        attention_h, attention_c = lstm_cell(gates, state.attention_c)
        asked = attention_h @ self.query.t()  # (N, A)
        if query is not None:
            asked = asked + query
        a, seen = self._attend(asked, looked, groups)
        before = torch.cat([seen, attention_h, state.language_h], dim=1)
        gates = torch.addmm(language, before, self.language_hidden.t())
        language_h, language_c = lstm_cell(gates, state.language_c)
        return language_h, a, DecoderState(attention_h, attention_c, language_h, language_c)

    def _attend(self, asked: Tensor, looked: Looked, groups: Groups) -> tuple[Tensor, Tensor]:
        """The rows of a picture share its keys and values: nothing of them is copied for each row."""
        queries = groups.spread(asked)  # (P, D, A)
        met = torch.tanh(looked.keys[:, None] + queries[:, :, None])  # (P, D, R, A)
        scores = met @ self.score + looked.barred[:, None]  # (P, D, R)
        a = torch.softmax(scores, dim=2)
        return groups.collect(a), groups.collect(torch.bmm(a, looked.values))

    def _inputs(
        self, words: Tensor, z: Tensor | None, objects: Tensor | None, looked: Looked, owners: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What enters from outside the recurrence: attention LSTM (N, 4 Ha), query (N, A) or None,
        language LSTM (N, 4 Hl) or (4 Hl,)."""
        step = words if z is None else torch.cat([words, z], dim=1)
        inputs = self.gates(step, looked.gates, owners)
        query: Tensor | None = None
        language: Tensor = self.language_bias
        if self.query_latent is not None and objects is not None:
            query = objects @ self.query_latent.t()
        if self.language_latent is not None and objects is not None:
            language = torch.addmm(self.language_bias, objects, self.language_latent.t())
        return inputs, query, language
