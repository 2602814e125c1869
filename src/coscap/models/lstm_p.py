"""LSTM-P (Li et al. 2019): a gate between generating a word and copying the name of a detected object.

h_t, x_{t-1} ─▶ gate g_t ┬─ 1 - g_t ─▶ softmax(W h_t) ───────────────────────────────┐
                         └─ g_t ─▶ p_t(r, number) ~ I_r exp(tanh(U v_r + n) . M h_t) ─┴─▶ p(x_t)
coverage: -log sigmoid(sum_t g_t p_t(object)) of each detected object that the caption names

I_r is the detector's score of region r, n says whether one or several are named.
"""

import torch
from torch import Tensor, nn

from coscap.models.base import TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import UpDownDecoder
from coscap.models.kernels import RowGroups
from coscap.models.pointing import Pointing, PointingModel, masked_log_softmax, picture_names
from coscap.models.regions import RegionValues, name_tokens
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import PAD, Vocabulary
from coscap.vision.regions import Recipe

LEAST_SCORE = 1e-6


class LstmP(PointingModel):
    """p(x_t | x_{<t}, I) = (1 - g_t) p^generated(x_t) + g_t p^copied(x_t)"""

    title = "LSTM-P"
    own_settings = ("coverage_weight",)
    names: Tensor  # (L, 2) tokens for one and for several of each label

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__(config, decoder)
        labels, width = config.classes + config.region_words, config.attention_width
        self.register_buffer("names", torch.full((labels, 2), -1))
        self.copy_key = nn.Linear(config.value_width, width)
        self.copy_number = nn.Parameter(torch.randn(2, width) * 0.1)
        self.copy_query = nn.Linear(config.language_lstm, width, bias=False)
        self.gate = nn.Linear(config.language_lstm + config.decoder_words, 1)

    def set_names(self, recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> None:
        super().set_names(recipe, objects, vocabulary)
        self.names.copy_(name_tokens(recipe, objects, vocabulary))

    def name_tokens(self) -> Tensor:
        return self.names

    def point(
        self, pictures: RegionValues, groups: RowGroups, words: Tensor, before: Tensor, hidden: Tensor
    ) -> Pointing:
        assert pictures.scores is not None
        tokens = picture_names(pictures, self.names, len(self.names)).flatten(1)  # (P, 2 R)
        keys = torch.tanh(self.copy_key(pictures.values)[:, :, None] + self.copy_number)  # (P, R, 2, A)
        queries = groups.spread(self.copy_query(hidden))  # (P, D, A)
        scores = queries @ keys.flatten(1, 2).transpose(1, 2)  # (P, D, 2 R)
        sure = torch.log(pictures.scores.clamp(min=LEAST_SCORE)).to(scores.dtype)  # (P, R)
        scores = groups.collect(scores + sure.repeat_interleave(2, dim=1)[:, None])  # (N, 2 R)
        own = tokens[groups.owners]
        switch = self.gate(torch.cat([hidden, words], dim=1))[:, 0]  # (N,)
        there = (own >= 0).any(1)
        generated = torch.where(there, nn.functional.logsigmoid(-switch), 0.0)
        copied = nn.functional.logsigmoid(switch)[:, None] + masked_log_softmax(scores, own >= 0)
        return Pointing(generated, copied, own)

    def further_loss(
        self, forced: TeacherForcedBatch, pointing: Pointing, vocabulary: Tensor, marginal: Tensor
    ) -> Tensor:
        """The coverage of the detected objects that a caption names, (B,)."""
        rows, labels = forced.batch.rows, forced.regions.labels
        assert labels is not None
        captions = forced.packing.captions
        shares = pointing.log_names.exp()  # (N, 2 R)
        total = shares.new_zeros(len(rows), shares.shape[1]).index_add(0, captions, shares)
        each = total.view(len(rows), -1, 2).sum(2)  # (B, R) how much of each region was copied
        same = labels[:, :, None] == labels[:, None, :]  # (P, R, R)
        covered = torch.einsum("brs,bs->br", same[rows].to(each.dtype), each)  # of each label
        tokens = picture_names(forced.regions, self.names, len(self.names))[rows]  # (B, R, 2)
        x_o = forced.batch.objects.masked_fill(forced.batch.objects == PAD, -2)  # (B, K)
        named = (tokens[:, :, :, None] == x_o[:, None, None]).flatten(2).any(2)  # (B, R)
        first = ~same.tril(-1).any(2)[rows]  # a label counts once
        missed = -nn.functional.logsigmoid(covered) * (named & first)
        return self.config.coverage_weight * missed.sum(1)
