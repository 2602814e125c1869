"""A decoder without attention: one LSTM that reads the mean feature at each word (Aneja et al. 2019, Wang et al. 2017).

x_{t-1}, z_t, v-bar, h_{t-1} ─▶ LSTM ─▶ h_t ─▶ output layer ─▶ p(x_t)

Its LSTM has the width of the language LSTM, `language_lstm`. It takes the place of the up-down decoder, so its state
and its encoded regions have the same parts; those of the attention are zeros. The weights that it reports for each
region are equal, for that is what a mean looks at.
"""

import torch
from torch import Tensor, nn

from coscap.models import kernels
from coscap.models.config import ModelConfig
from coscap.models.decoder import HIDDEN_LIFT, WORD_LIFT, EncodedRegions, UpDownDecoder
from coscap.models.kernels import (
    CellRegions,
    CellState,
    InputGates,
    Packing,
    RowGroups,
    Tape,
    TransposedCopies,
    UniqueTokens,
    uniform,
)
from coscap.models.regions import RegionValues


class MeanDecoder(UpDownDecoder):
    """`latent` is the width of z_t, `objects` that of z^o_t for the output layer's inlet (0: there is none)."""

    attends = False

    def __init__(self, config: ModelConfig, latent: int, objects: int) -> None:
        nn.Module.__init__(self)  # the weights of attention and of the second LSTM are left out
        self.attention_lstm, self.attention_width = config.attention_lstm, config.attention_width
        self.gates = InputGates(config.decoder_words + latent, config.value_width, config.language_lstm)
        self.hidden = uniform(4 * config.language_lstm, config.language_lstm, width=config.language_lstm)
        with torch.no_grad():  # one LSTM has to lift what two lift together
            self.gates.step.mul_(WORD_LIFT * HIDDEN_LIFT**0.5)

    @classmethod
    def check(cls, config: ModelConfig, objects: int) -> None:
        inlets = [inlet for inlet in config.object_latent_to if inlet != "output"]
        if objects and inlets:
            raise ValueError(
                f"decoder: {config.decoder} has no {inlets[0]} that z^o could enter; "
                f"leave {inlets[0]} out of object_latent_to"
            )
        if config.attention_dropout:
            raise ValueError(f"decoder: {config.decoder} has no attention LSTM; set attention_dropout to 0")

    def encode(self, regions: RegionValues, draws: int = 0) -> EncodedRegions:
        values, mask = regions.values, regions.mask
        masked = values.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
        keys = values.new_zeros(*mask.shape, self.attention_width)
        return EncodedRegions(CellRegions(keys, values, masked), gates=self.gates.pictures(regions.mean))

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
        """h (N, Hl) and equal weights (N, R) of every word; the inputs are those of the up-down decoder."""
        owners = rows.index_select(0, packing.captions)
        step = words if z is None else torch.cat([words, z], dim=1)
        hidden = kernels.lstm(self.gates(step, regions.gates, owners), self.hidden, packing)
        return hidden, torch.softmax(regions.cell.masked, dim=1)[owners]

    def start(self, rows: int) -> CellState:
        attention = self.hidden.new_zeros(rows, self.attention_lstm)
        language = self.hidden.new_zeros(rows, self.hidden.shape[1])
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
        """One word of each row; words: (U, D) embedded `tokens.ids` -> h (N, Hl), weights (N, R), state."""
        gates = self.gates.rows(tokens, words, z, regions.gates, groups.owners, transposed)
        h, c = kernels.lstm_cell(
            torch.addmm(gates, state.language_h, transposed(self.hidden)), state.language_c
        )
        weights = torch.softmax(regions.cell.masked, dim=1)  # (P, R)
        attention = groups.collect(weights[:, None].expand(-1, groups.size, -1))
        idle = torch.zeros_like(state.attention_h)  # anew, for a graph cannot pass an input on as an output
        return h, attention, CellState(idle, idle.clone(), h, c)
