"""A decoder that is fed picture and latent once, before the first word (Wang et al. 2017, Vinyals et al. 2015).

v-bar ─▶ LSTM ─▶ z ─▶ LSTM ─▶ x_0 ─▶ LSTM ─▶ h_1 ─▶ x_1 ─▶ LSTM ─▶ h_2 ...        one LSTM, its inputs in turn

Its weights are those of the decoder on the mean feature; that one adds them all up at each word.
"""

import torch
from torch import Tensor

from coscap.models import kernels
from coscap.models.config import ModelConfig
from coscap.models.decoder import EncodedRegions
from coscap.models.kernels import CellState, Packing, RowGroups, Tape, TransposedCopies, UniqueTokens
from coscap.models.mean_decoder import MeanDecoder
from coscap.text.vocabulary import START


class FirstDecoder(MeanDecoder):
    """For models without latents, and for those with one latent for a whole caption."""

    @classmethod
    def check(cls, config: ModelConfig, objects: int) -> None:
        from coscap.models.once import CaptionLatentModel
        from coscap.models.registry import KINDS

        super().check(config, objects)
        kind = KINDS[config.kind]
        if sum(kind.latent_widths(config)) and not issubclass(kind, CaptionLatentModel):
            raise ValueError(
                f"decoder: {config.decoder} reads a latent once, and a {config.kind} draws one at each word; set "
                "decoder to mean"
            )

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
        """h (N, Hl) and equal weights (N, R) of every word; z: (N, Z), the same at all words of a caption"""
        count = packing.sizes[0]  # B: every caption has a first word
        word, latent = self.gates.step.split(
            [words.shape[1], self.gates.step.shape[1] - words.shape[1]], dim=1
        )
        inputs = [regions.gates.index_select(0, rows[packing.captions[:count]])]  # (B, G)
        if z is not None:
            inputs.append(torch.addmm(self.gates.bias, z[:count], latent.t()))  # (B, G)
        before = len(inputs)
        inputs.append(torch.addmm(self.gates.bias, words, word.t()))  # (N, G)
        lengths = torch.bincount(packing.captions, minlength=count) + before
        longer = Packing.of(
            lengths, packing.steps + before
        )  # captions keep their order, so words stay where they are
        hidden = kernels.lstm(torch.cat(inputs), self.hidden, longer)[before * count :]
        owners = rows.index_select(0, packing.captions)
        return hidden, torch.softmax(regions.cell.masked, dim=1)[owners]

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
        """One word of each row; before the first one, START, picture and latent."""
        weight, recurrent = transposed(self.gates.step), transposed(self.hidden)  # (D + Z, G), (Hl, G)
        h, c = state.language_h, state.language_c

        def read(gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            return kernels.lstm_cell(torch.addmm(gates, h, recurrent), c)

        exporting = torch.compiler.is_exporting()  # a graph cannot look whether there is a first word
        if exporting or bool((tokens.ids == START).any()):
            begun = read(regions.gates.index_select(0, groups.owners), h, c)
            if z is not None:
                begun = read(torch.addmm(self.gates.bias, z, weight[words.shape[1] :]), *begun)
            first = tokens.spread(tokens.ids == START)[:, None]
            h, c = torch.where(first, begun[0], h), torch.where(first, begun[1], c)
        h, c = read(tokens.spread(torch.addmm(self.gates.bias, words, weight[: words.shape[1]])), h, c)
        weights = torch.softmax(regions.cell.masked, dim=1)  # (P, R)
        attention = groups.collect(weights[:, None].expand(-1, groups.size, -1))
        idle = torch.zeros_like(state.attention_h)  # anew, for a graph cannot pass an input on as an output
        return h, attention, CellState(idle, idle.clone(), h, c)
