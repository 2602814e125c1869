"""POS (Deshpande et al. 2019): a picture's likely part-of-speech templates, and a decoder that follows one.

x ─▶ tags ─▶ nearest of K templates s ─▶ LSTM over its tags ─▶ z, the same at each word ─▶ decoder ─▶ x
v-bar ─▶ linear, ReLU, linear ─▶ p(s | I)          -log p(x, s | I) = -log p(x | s, I) - log p(s | I)

k captions come from k templates: the likeliest ones, or those that Gumbel noise puts first, which is a sample
without replacement.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coscap.data import Prepared
from coscap.data.batch import Batch, RegionBatch
from coscap.models.base import CONTEXT_NOISE, InferredLatents, TeacherForcedBatch
from coscap.models.config import ModelConfig
from coscap.models.decoder import DecodeState, UpDownDecoder
from coscap.models.kernels import UniqueTokens
from coscap.models.latents import Latents, LatentState
from coscap.models.noise import uniforms
from coscap.models.once import CaptionLatentModel
from coscap.models.regions import RegionValues
from coscap.models.templates import LENGTH, TAGS, k_medoids, load_tagger, tag_sequences, token_tags

TAG_WIDTH = 32


class TemplateEncoder(nn.Module):
    """tags ─▶ LSTM ─▶ h at the last tag"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tags = nn.Embedding(len(TAGS), TAG_WIDTH)
        self.lstm = nn.LSTM(TAG_WIDTH, width, batch_first=True)

    def forward(self, templates: Tensor) -> Tensor:
        """templates: (B, LENGTH), 0 after the last tag -> (B, Z)"""
        hidden, _ = self.lstm(self.tags(templates))  # (B, LENGTH, Z)
        places = torch.arange(templates.shape[1], device=templates.device)
        last = torch.where(templates != 0, places, 0).amax(1)  # (B,)
        found: Tensor = hidden[torch.arange(len(last), device=last.device), last]
        return found


class Pos(CaptionLatentModel):
    """p(s | I), p(x_t | x_{<t}, s, I)"""

    title = "POS"
    embeds_words = False
    own_settings = ("templates", "template_choice")
    token_tags: Tensor  # (V,) the part of speech of each token
    templates: Tensor  # (K, LENGTH)

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__(config, decoder)
        self.register_buffer("token_tags", torch.zeros(config.vocabulary, dtype=torch.long))
        self.register_buffer("templates", torch.zeros(config.templates, LENGTH, dtype=torch.long))
        self.encoder = TemplateEncoder(config.context_latent)
        self.classifier = nn.Sequential(
            nn.Linear(config.value_width, config.context_prior),
            nn.ReLU(),
            nn.Linear(config.context_prior, config.templates),
        )

    @classmethod
    def latent_widths(cls, config: ModelConfig) -> tuple[int, int]:
        return config.context_latent, 0

    def read_captions(self, prepared: Prepared) -> None:
        tags = token_tags(prepared, load_tagger())
        medoids = k_medoids(*tag_sequences(prepared, tags), self.config.templates)
        self.token_tags.copy_(torch.from_numpy(tags))
        self.templates.copy_(torch.from_numpy(medoids.astype("int64")))

    def template_of(self, words: Tensor) -> Tensor:
        """The nearest template of each caption, the first of equal ones. words: (B, T) -> (B,)"""
        tags = self.token_tags[words[:, :LENGTH]]  # END and PAD have tag 0
        tags = nn.functional.pad(tags, (0, LENGTH - tags.shape[1]))
        distance = (tags[:, None] != self.templates).sum(2)  # (B, K)
        count = len(self.templates)
        return (distance * count + torch.arange(count, device=words.device)).argmin(1)

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        batch = forced.batch
        chosen = self.template_of(batch.words)  # (B,)
        logs = torch.log_softmax(self.classifier(forced.regions.mean), dim=1)  # (P, K)
        # The posterior is certain of s, so that KL(q || p) = -log p(s | I).
        cost, drawn = self.at_first_words(forced, -logs[batch.rows, chosen][:, None])
        z = self.encoder(self.templates[chosen])[forced.packing.captions]
        return InferredLatents(context=z, kl_context=cost, context_draws=drawn)

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        """The encoded template of each caption, (B, 1, Z)."""
        templates = self.templates[self.template_of(batch.words)]
        return Latents(lengths=batch.lengths, context=self.encoder(templates)[:, None])

    # Decoding, word by word

    def condition(self, regions: RegionValues) -> Tensor:
        """log p(s | I), (P, K)"""
        return torch.log_softmax(self.classifier(regions.mean), dim=1)

    @property
    def condition_width(self) -> int:
        return self.config.templates

    def choices(self) -> Tensor:
        """Every template, encoded."""
        return self.encoder(self.templates)  # type: ignore[no-any-return]

    def draw_caption(self, condition: Tensor, noise: Tensor, temperature: float) -> Tensor:
        """Templates are chosen for all draws of a picture together (`start`): a graph is given what to use."""
        return noise

    @torch.no_grad()
    def start(self, regions: RegionBatch, draws: int, **options: Any) -> DecodeState:
        """As every model; draw d of a picture follows its template d."""
        state = super().start(regions, draws, **options)
        latent = state.context
        assert latent is not None and latent.condition is not None
        logs, keys = latent.condition[::draws], latent.keys[::draws]  # (P, K), (P,)
        chosen = self.choose(logs, keys, draws, state.shared.temperatures[0]).flatten()  # (N,)
        drawn = latent.next(self.choices()[chosen], latent.prior, 0)
        return replace(state, context=replace(drawn, condition=None))

    def choose(self, logs: Tensor, keys: Tensor, draws: int, temperature: float) -> Tensor:
        """The templates of each picture's draws; from the first again where there are more draws than templates.

        logs: (P, K) log p(s | I), keys: (P,) of the noise -> (P, draws)
        """
        if self.config.template_choice == "gumbel":
            u = uniforms(keys, CONTEXT_NOISE, 0, logs.shape[1])
            logs = logs - temperature * torch.log(-torch.log(u)).to(logs.dtype)
        ranked = logs.sort(dim=1, descending=True, stable=True).indices
        return ranked[:, torch.arange(draws, device=logs.device) % logs.shape[1]]

    def draw(self, tokens: UniqueTokens, state: DecodeState) -> tuple[LatentState | None, LatentState | None]:
        return super().draw(tokens, state) if torch.compiler.is_exporting() else (state.context, None)
