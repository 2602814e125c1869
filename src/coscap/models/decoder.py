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
from typing import cast

import torch
from torch import Tensor, nn

from coscap.models.attention_loop import Tape, attention_loop
from coscap.models.config import ModelConfig
from coscap.models.groups import Groups
from coscap.models.layers import Gates, uniform
from coscap.models.packing import Packing
from coscap.models.recurrent import full, full_precision, lstm_cell
from coscap.models.regions import Memory
from coscap.models.rows import Said, Turned

Known = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
EXPECTED_WORDS = 11  # of a caption, for weighing what to compute ahead


WORD_LIFT, HIDDEN_LIFT = 2.0, 8.0  # chosen by the loss after 50 steps: docs/training.md


@dataclass(frozen=True)
class Looked:
    """The regions of P pictures, ready to be attended to."""

    keys: Tensor  # (P, R, A)
    values: Tensor  # (P, R, F)
    barred: Tensor  # (P, R) 0 where there is a region, -inf where not
    gates: Tensor  # (P, 4 Ha) what v-bar adds to the attention LSTM
    spoken: Tensor | None  # (P, R, 4 Hl) what each region adds to the language LSTM, if it is known ahead


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
            # A fresh LSTM's h is a tenth of what it reads in size. Without a lift, words fade on their way through
            # two of them, and training stands still at the frequencies of words for hundreds of steps.
            self.gates.step.mul_(WORD_LIFT)
            self.language_hidden[:, config.value_width : config.value_width + attention].mul_(HIDDEN_LIFT)
        inlets = config.object_latent_to if config.kind == "cos_cvae" else ()
        size = config.object_latent
        self.query_latent = uniform(config.attention_width, size, width=size) if "query" in inlets else None
        self.language_latent = uniform(4 * language, size, width=size) if "language" in inlets else None

    def look(self, memory: Memory, draws: int = 0) -> Looked:
        """All that depends on the picture alone, computed once for all its captions and words.

        The language LSTM takes W v^_t = sum_r a_tr W v_r. With many `draws` a picture it is cheaper to
        multiply each region than each word's attended region; with few (or in training) it is not.
        """
        ahead = draws * EXPECTED_WORDS > memory.values.shape[1]
        regions = self.language_hidden[:, : memory.values.shape[2]]
        barred = torch.zeros(memory.mask.shape, dtype=memory.values.dtype, device=memory.values.device)
        return Looked(
            keys=self.key(memory.values),
            values=memory.values,
            barred=barred.masked_fill(~memory.mask, float("-inf")),
            gates=self.gates.pictures(memory.mean),
            spoken=memory.values @ regions.t() if ahead else None,
        )

    def forward(
        self,
        words: Tensor,
        z: Tensor | None,
        objects: Tensor | None,
        looked: Looked,
        rows: Tensor,
        packing: Packing,
        tape: Tape | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Teacher forcing over whole captions.

        words: (N, D) embedded x_{t-1}, z: (N, Z), objects: (N, Zo) z^o for the further inlets,
        rows: (B,) the picture of each caption, tape: of `say` over the same -> h^lang (N, Hl), attention (N, R).
        """
        step = words if z is None else torch.cat([words, z], dim=1)
        inputs = self.gates(step, looked.gates, rows.index_select(0, packing.captions))
        query, language = self._inlets(objects)
        return attention_loop(inputs, query, language, *self._known(looked, rows, packing), packing, tape)

    def tape(self, looked: Looked, rows: Tensor, packing: Packing) -> Tape:
        """For teacher forcing where a word depends on the attention before it; without gradients."""
        return Tape(*cast(Known, full(*self._known(looked, rows, packing))), packing)

    def say(
        self, tape: Tape, t: int, words: Tensor, z: Tensor, objects: Tensor, looked: Looked, owners: Tensor
    ) -> Tensor:
        """Word t of the n captions that have one. words: (n, D), z: (n, Z), objects: (n, Zo),
        owners: (n,) the picture of each -> attention (n, R)"""
        inputs = self.gates(torch.cat([words, z], dim=1), looked.gates, owners)
        query, language = self._inlets(objects)
        with full_precision(inputs):
            inputs, language = full(inputs, language)
            return tape.step(t, inputs, None if query is None else full(query)[0], language)

    def _known(self, looked: Looked, rows: Tensor, packing: Packing) -> Known:
        """What the loop needs besides the words; regions by falling length of the captions."""
        owners = rows[packing.order]
        return (
            looked.keys.index_select(0, owners),
            looked.values.index_select(0, owners),
            looked.barred[owners],
            self.attention_hidden,
            self.query,
            self.score,
            self.language_hidden,
        )

    def start(self, rows: int) -> DecoderState:
        attention = self.query.new_zeros(rows, self.query.shape[1])
        language = self.query.new_zeros(rows, self.language_bias.shape[0] // 4)
        return DecoderState(attention, attention, language, language)

    def step(
        self,
        said: Said,
        words: Tensor,
        z: Tensor | None,
        objects: Tensor | None,
        looked: Looked,
        groups: Groups,
        state: DecoderState,
        turned: Turned,
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """One word of each row; words: (U, D) embedded `said.ids` -> h^lang (N, Hl), attention (N, R), state."""
        inputs = self.gates.say(said, words, z, looked.gates, groups.owners, turned)
        query, language = self._inlets(objects)
        before = torch.cat([state.language_h, state.attention_h], dim=1)
        gates = torch.addmm(inputs, before, turned(self.attention_hidden))
        attention_h, attention_c = lstm_cell(gates, state.attention_c)
        asked = attention_h @ self.query.t()  # (N, A)
        if query is not None:
            asked = asked + query
        a = self._attend(asked, looked, groups)  # (P, D, R)
        weight, known = turned(self.language_hidden), [attention_h, state.language_h]
        if looked.spoken is None:
            known.insert(0, groups.collect(torch.bmm(a, looked.values)))  # v^_t
            gates = torch.addmm(language, torch.cat(known, dim=1), weight)
        else:
            gates = torch.addmm(language, torch.cat(known, dim=1), weight[looked.values.shape[2] :])
            gates = gates + groups.collect(torch.bmm(a, looked.spoken))
        language_h, language_c = lstm_cell(gates, state.language_c)
        after = DecoderState(attention_h, attention_c, language_h, language_c)
        return language_h, groups.collect(a), after

    def _attend(self, asked: Tensor, looked: Looked, groups: Groups) -> Tensor:
        """(P, D, R). The rows of a picture share its keys: nothing of them is copied for each row."""
        queries = groups.spread(asked)  # (P, D, A)
        met = (looked.keys[:, None] + queries[:, :, None]).tanh_()  # (P, D, R, A)
        return torch.softmax(met @ self.score + looked.barred[:, None], dim=2)

    def _inlets(self, objects: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """What enters the query, (N, A) or None, and the language LSTM, (N, 4 Hl) or (4 Hl,), from outside."""
        query: Tensor | None = None
        language: Tensor = self.language_bias
        if self.query_latent is not None and objects is not None:
            query = objects @ self.query_latent.t()
        if self.language_latent is not None and objects is not None:
            language = torch.addmm(self.language_bias, objects, self.language_latent.t())
        return query, language
