"""COS-CVAE: the context-object split of the latent space.

x^m ─▶ q(z^m) ─▶ z^m ─────────────┬─▶ decoder ─▶ x           posteriors, eq. 3; ELBO, eq. 6
x^o ─▶ q(z^o | z^m) ─▶ z^o ───────┘
x_{<t} ─▶ p(z^m), p(z^o | z^m)                               priors, eq. 4
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coscap.data.batch import Batch
from coscap.models.base import (
    OBJECT_NOISE,
    InferredLatents,
    LatentStart,
    TeacherForcedBatch,
)
from coscap.models.config import ModelConfig
from coscap.models.decoder import DecodeState, UpDownDecoder
from coscap.models.kernels import Packing, RowGroups, TransposedCopies, TransposedViews, UniqueTokens
from coscap.models.latents import Gaussian, Latents, LatentState, ObjectPosterior, Prior, PriorState, kl
from coscap.models.noise import NoiseSource, normals
from coscap.models.region_prior import RegionComponents, RegionMixture, RegionPrior, mixture_kl
from coscap.models.regions import RegionValues
from coscap.models.seq_cvae import SequentialModel, unpacked
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import END, PAD, START, Vocabulary
from coscap.vision.regions import Recipe


@dataclass(frozen=True)
class Posteriors:
    """Draws and the distributions they come from; without z^o where it comes from its prior."""

    context: Tensor  # (N, Zm)
    q_context: Gaussian
    objects: Tensor | None = None  # (N, Zo)
    q_objects: Gaussian | None = None  # of each word, or (M, Zo) of each object
    segments: "Segments | None" = (
        None  # which words belong to which object, where z^o is drawn for each object
    )


class CosCvae(SequentialModel):
    """p(x, z | I) = prod_t p(x_t | x_{<t}, z_{<=t}, I) p(z_t | z_{<t}, x_{<t}, I),  z_t = [z^m_t, z^o_t]   (eq. 1)"""

    title = "COS-CVAE"
    splits_objects = True
    learns_from_pseudo = True
    object_tokens: Tensor

    def __init__(self, config: ModelConfig, decoder: type[UpDownDecoder] = UpDownDecoder) -> None:
        super().__init__(config, decoder)
        self.object_posterior = ObjectPosterior(config)
        prior = RegionPrior if config.object_prior_over == "regions" else Prior
        self.object_prior = prior(
            config.word_width,
            config.context_latent + config.object_latent,
            config.value_width,
            config.object_prior,
            config.object_latent,
        )
        self.object_head = ObjectHead(config) if config.object_head != "none" else None
        if config.object_latent_per == "object":
            self.register_buffer("object_tokens", torch.zeros(config.vocabulary, dtype=torch.bool))

    @classmethod
    def latent_widths(cls, config: ModelConfig) -> tuple[int, int]:
        return config.context_latent, config.object_latent

    @property
    def noise_widths(self) -> tuple[int, int]:
        return self.config.context_latent, self.object_noise_width

    @property
    def object_noise_width(self) -> int:
        return self.config.object_latent + (self.config.object_prior_over == "regions")

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        if config.object_prior_over == "regions" and config.object_latent_per != "object":
            raise ValueError("object_prior_over: regions needs object_latent_per: object")

    @property
    def latent_priors(self) -> dict[str, Prior]:
        return {"context": self.context_prior, "object": self.object_prior}

    # Teacher forcing

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        return self.expect(forced, self.posteriors(forced, objects))

    def posteriors(self, forced: TeacherForcedBatch, objects: str) -> Posteriors:
        """q(z^o_t | z^o_{<t}, z^m_{<=t}, x^o, I) q(z^m_t | z^m_{<t}, x^m, I)   (eq. 3c); with objects="prior" the
        second factor alone (eq. 8)."""
        most = self.config.object_words
        x_o = forced.batch.objects[:, :most] if most else forced.batch.objects  # (B, K)
        context_words, object_words = self.embed(forced.context, x_o)
        z_m, q_m = self.infer_context(forced, context_words)
        if objects == "prior":
            return Posteriors(z_m, q_m)
        if self.config.object_latent_per == "object":
            return self.infer_each_object(forced, x_o, z_m, q_m)
        return Posteriors(z_m, q_m, *self.infer_objects(forced, x_o, object_words, z_m))

    def infer_each_object(
        self, forced: TeacherForcedBatch, x_o: Tensor, context: Tensor, q_context: Gaussian
    ) -> Posteriors:
        """q(z^o_k | z^o_{<k}, z^m_{<=t}, x^o_{<=k}, I), t being the word after the object before: from there on z^o_k
        says what is named next. A special case of eq. 3c, in which z^o_t = z^o_{t-1} unless x_{t-1} names an object."""
        segments = Segments.of(forced, self.names_object(forced.previous), x_o)
        noise = NoiseSource(
            segments.packing.captions, segments.packing.positions, forced.noise.generator, forced.keys
        ).normals(OBJECT_NOISE, self.config.object_latent)
        z, q = self.object_posterior.each_object(
            self.prior_words(segments.objects),
            segments.counts,
            forced.regions.mean,
            forced.batch,
            context[segments.starts],
            noise,
        )
        return Posteriors(context, q_context, z[segments.of_word], q, segments)

    def names_object(self, tokens: Tensor) -> Tensor:
        """Which tokens name an object, after which z^o is drawn anew; tokens: (N,) -> (N,)"""
        named: Tensor = self.object_tokens[tokens]
        return named

    def set_names(self, recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> None:
        super().set_names(recipe, objects, vocabulary)
        if self.config.object_latent_per == "object":
            names = {word for each in objects.classes for word in (*each.words, *each.plurals)}
            self.object_tokens.copy_(torch.tensor([token in names for token in vocabulary.units]))

    def infer_objects(
        self, forced: TeacherForcedBatch, x_o: Tensor, words: Tensor, context: Tensor
    ) -> tuple[Tensor, Gaussian]:
        """A draw z^o and q(z^o_t | z^o_{<t}, z^m_{<=t}, x^o, I). x_o: (B, K), words: (B, K, D) embedded x^o"""
        noise = forced.noise.normals(OBJECT_NOISE, self.config.object_latent)
        drawn: tuple[Tensor, Gaussian] = self.object_posterior(
            words, (x_o != PAD).sum(1), forced.regions.mean, forced.batch, context, noise, forced.packing
        )
        return drawn

    def expect(self, forced: TeacherForcedBatch, known: Posteriors) -> InferredLatents:
        """The priors given the words (eq. 4) and the KL of the posteriors to them (eq. 5). z^o is drawn from its prior
        where it has no posterior, and then costs nothing (eq. 8)."""
        words, z_m, z_o = self.prior_words(forced.previous), known.context, known.objects
        kl_context = kl(known.q_context, self.expect_context(forced, words, z_m))
        if z_o is None or known.q_objects is None:
            return InferredLatents(z_m, self.draw_objects(forced, words, z_m), kl_context)
        h = self.read_objects(forced, words, z_m, z_o)  # (N, H)
        extra = None if self.object_head is None else self.object_head(z_o, forced)
        if known.segments is None:
            p = Gaussian.of(self.object_prior.out(h))
            return InferredLatents(z_m, z_o, kl_context, kl(known.q_objects, p), extra)
        starts = known.segments.starts
        each = self.object_kl(known.q_objects, h[starts], forced, forced.owners[starts])  # (M, Zo)
        kl_object = each.new_zeros(len(z_o), each.shape[1]).index_put((starts,), each)
        drawn = torch.zeros(len(z_o), dtype=torch.bool, device=z_o.device).index_fill(0, starts, True)
        return InferredLatents(z_m, z_o, kl_context, kl_object, extra, drawn)

    def read_objects(
        self, forced: TeacherForcedBatch, words: Tensor, context: Tensor, objects: Tensor
    ) -> Tensor:
        """What p(z^o_t | z^o_{<t}, z^m_{<=t}, x_{<t}, I) has read, (N, H). words: (N, D) embedded x_{t-1}"""
        packing = forced.packing
        latents = torch.cat([self.context_seen(context, packing), packing.shift(objects)], dim=1)
        return self.object_prior.read(words, latents, forced.regions.mean, forced.owners, packing)

    def object_kl(self, q: Gaussian, h: Tensor, forced: TeacherForcedBatch, owners: Tensor) -> Tensor:
        """KL(q(z^o_k) || p(z^o_k)) of M objects. h: (M, H), owners: (M,) -> (M, Zo), with one column more for the
        choice of the region where p is over regions."""
        if isinstance(self.object_prior, RegionPrior):
            groups = RowGroups.of(owners, len(forced.regions.mean))
            components = self.object_prior.components(forced.regions)
            return mixture_kl(q, self.object_prior.mixture(h, components, groups))
        return kl(q, Gaussian.of(self.object_prior.out(h)))

    def context_seen(self, context: Tensor, packing: Packing) -> Tensor:
        """What p(z^o_t) sees of z^m: z^m_t (eq. 4) or z^m_{t-1} (appendix). context: (N, Zm) -> (N, Zm)"""
        return context if self.config.object_prior_sees == "current" else packing.shift(context)

    def draw_objects(self, forced: TeacherForcedBatch, words: Tensor, context: Tensor) -> Tensor:
        """z^o from its prior under teacher forcing. words: (N, D), context: (N, Zm) -> (N, Zo)"""
        return ObjectDraws(self, forced, context, self.config.pseudo_temperature).all(words)

    def redraw(self, forced: TeacherForcedBatch, temperature: float) -> InferredLatents:
        words = self.prior_words(forced.previous)
        context = self.redraw_context(forced, words, temperature)
        draws = ObjectDraws(self, forced, context, temperature)
        return InferredLatents(context, draws.all(words), extra=draws.surprise)

    def encode(
        self, batch: Batch, *, generator: torch.Generator | None = None, keys: Tensor | None = None
    ) -> Latents:
        """The posteriors of each caption's latents and a draw from them."""
        forced = self.teacher_force(batch, generator, keys)
        known = self.posteriors(forced, "posterior")
        assert known.objects is not None and known.q_objects is not None
        unpack, segments = forced.packing.unpack, known.segments
        objects, each = known.objects, forced.packing
        if segments is not None:
            objects, each = known.objects[segments.starts], segments.packing
        return Latents(
            lengths=batch.lengths,
            context=unpack(known.context),
            objects=each.unpack(objects),
            context_posterior=unpacked(known.q_context, forced.packing),
            object_posterior=unpacked(known.q_objects, each),
            object_lengths=None if segments is None else segments.counts,
        )

    # Decoding, word by word

    def start_latents(
        self, regions: RegionValues, context_keys: Tensor, object_keys: Tensor, given: Latents
    ) -> LatentStart:
        prior, width = self.object_prior, self.config.object_latent
        return replace(
            super().start_latents(regions, context_keys, object_keys, given),
            objects=LatentState.start(
                prior,
                width,
                object_keys,
                given.objects,
                given.lengths if given.object_lengths is None else given.object_lengths,
            ),
            object_gates=prior.gates.pictures(regions.mean),
            object_components=prior.components(regions) if isinstance(prior, RegionPrior) else None,
        )

    def draw(self, tokens: UniqueTokens, state: DecodeState) -> tuple[LatentState | None, LatentState | None]:
        """z^m_t ~ p(z^m_t | ...), then z^o_t ~ p(z^o_t | z^m_t, ...)   (eq. 4)"""
        words = self.prior_words(tokens.ids)
        context = self.draw_context(tokens, words, state)
        latent, shared, prior = state.objects, state.shared, self.object_prior
        assert state.context is not None and latent is not None and shared.object_gates is not None
        seen = context.z if self.config.object_prior_sees == "current" else state.context.z
        latents = torch.cat([seen, latent.z], dim=1)
        inputs = prior.gates.rows(
            tokens, words, latents, shared.object_gates, state.groups.owners, shared.transposed
        )
        p, after = object_step(
            prior, inputs, latent.prior, shared.transposed, shared.object_components, state.groups
        )
        temperature, mode = shared.temperatures[1], shared.mode
        if self.config.object_latent_per == "object":
            anew = tokens.spread(self.names_object(tokens.ids) | (tokens.ids == START))
            return context, latent.draw_where(anew, p, after, OBJECT_NOISE, temperature, mode)
        assert isinstance(p, Gaussian)
        return context, latent.draw(p, after, OBJECT_NOISE, state.step, temperature, mode)


@dataclass(frozen=True)
class Segments:
    """The words of captions by the object that is named next: segment k ends with object k, the last one with END."""

    objects: Tensor  # (B, K + 1) x^o and END
    counts: Tensor  # (B,) segments of each caption
    packing: Packing  # of the M segments
    of_word: Tensor  # (N,) the segment of each word
    starts: Tensor  # (M,) the word at which each segment begins

    @classmethod
    def of(cls, forced: TeacherForcedBatch, after_object: Tensor, x_o: Tensor) -> "Segments":
        """after_object: (N,) whether the word before names an object; x_o: (B, K) objects, PAD after the last."""
        packing, rows = forced.packing, torch.arange(len(x_o), device=x_o.device)
        counts = (x_o != PAD).sum(1)
        objects = nn.functional.pad(x_o, (0, 1), value=PAD)  # (B, K + 1)
        objects[rows, counts] = END
        # As many segments as the words make; objects beyond the list count as its end.
        number = packing.unpack(after_object.long()).cumsum(1)  # (B, T)
        used = number.gather(1, (forced.batch.lengths - 1)[:, None])[:, 0] + 1  # (B,)
        most = int(used.max())
        if most > objects.shape[1]:
            objects = torch.cat([objects, objects.new_full((len(x_o), most - objects.shape[1]), END)], dim=1)
        objects = objects[:, :most].masked_fill(objects[:, :most] == PAD, END)
        segments = Packing.of(used, most)
        table = torch.zeros(len(x_o) * most, dtype=torch.long, device=x_o.device)
        table[segments.cells] = torch.arange(segments.words, device=x_o.device)
        of_word = table[packing.captions * most + packing.pack(number)]
        begins = after_object | (packing.positions == 0)
        starts = torch.empty(segments.words, dtype=torch.long, device=x_o.device)
        starts[of_word[begins]] = begins.nonzero()[:, 0]
        return cls(objects, used, segments, of_word, starts)


def object_step(
    prior: Prior,
    inputs: Tensor,
    state: PriorState,
    transposed: TransposedCopies,
    components: RegionComponents | None,
    groups: RowGroups,
) -> tuple[Gaussian | RegionMixture, PriorState]:
    """p(z^o) one word on; inputs: (N, 4 H) from `prior.gates`."""
    if isinstance(prior, RegionPrior) and components is not None:
        after = prior.advance(inputs, state, transposed)
        return prior.mixture(after.h, components, groups), after
    return prior.step(inputs, state, transposed)


class ObjectDraws:
    """z^o under teacher forcing, each draw an input of the next; with keys, the noise of captions written with them."""

    def __init__(
        self, model: CosCvae, forced: TeacherForcedBatch, context: Tensor, temperature: float
    ) -> None:
        self.config, self.prior, self.forced = model.config, model.object_prior, forced
        self.names_object, self.temperature = model.names_object, temperature
        self.seen = model.context_seen(context, forced.packing)  # (N, Zm)
        self.gates = self.prior.gates.pictures(forced.regions.mean)  # (P, 4 H)
        self.noise = forced.noise.normals(OBJECT_NOISE, model.object_noise_width)  # (N, Zo), or one more
        captions = forced.packing.sizes[0]
        self.state = self.prior.start(captions)
        self.z = self.noise.new_zeros(captions, self.config.object_latent)
        self.chosen = torch.full((captions,), -1, device=self.z.device)  # the region that z^o stands for
        self.number = torch.zeros_like(self.chosen)  # draws so far, where z^o is drawn for each object
        self.choices: list[Tensor] = []  # log pi of the regions chosen at each word, (n,) each
        prior = self.prior
        self.components = prior.components(forced.regions) if isinstance(prior, RegionPrior) else None

    def all(self, words: Tensor) -> Tensor:
        """words: (N, D) embedded x_{t-1} -> z^o of every word, (N, Zo)"""
        previous, blocks = self.forced.previous, enumerate(self.forced.packing.blocks)
        return torch.cat([self.step(t, previous[start:end], words[start:end]) for t, (start, end) in blocks])

    @property
    def surprise(self) -> Tensor | None:
        """-log p of the regions that were chosen, (B,); None where z^o stands for no region."""
        return -self.forced.packing.sums(torch.cat(self.choices)) if self.choices else None

    def step(self, t: int, tokens: Tensor, words: Tensor) -> Tensor:
        """tokens: (n,) x_{t-1} of the captions that have a word t, words: (n, D) embedded -> (n, Zo)"""
        start, end = self.forced.packing.blocks[t]
        n = end - start
        step = torch.cat([words, self.seen[start:end], self.z[:n]], dim=1)
        owners = self.forced.owners[start:end]
        inputs = self.prior.gates(step, self.gates, owners)
        groups, before = RowGroups.of(owners, len(self.gates)), self.state.first(n)
        p, self.state = object_step(self.prior, inputs, before, TransposedViews(), self.components, groups)
        each = self.config.object_latent_per == "object"
        anew = self.names_object(tokens) if each and t else torch.ones_like(tokens, dtype=torch.bool)
        noise = self._noise(start, end)
        z = torch.where(
            anew[:, None], p.sample(noise, self.temperature, self.config.temperature_mode), self.z[:n]
        )
        self.chosen, self.number = self.chosen[:n], self.number[:n] + anew
        if isinstance(p, RegionMixture):
            chosen = p.choose(noise, self.temperature)
            logs = p.log_choice(chosen, self.temperature)
            self.choices.append(torch.where(anew, logs, torch.zeros_like(logs)))
            self.chosen = torch.where(anew, chosen, self.chosen)
        self.z = z
        return z

    def _noise(self, start: int, end: int) -> Tensor:
        """Of the words start..end: by the number of the draw where z^o is drawn for each object, otherwise by word."""
        keys = self.forced.noise.keys
        if keys is None or self.config.object_latent_per == "word":
            return self.noise[start:end]
        return normals(keys[start:end], OBJECT_NOISE, self.number[: end - start], self.noise.shape[1])


class ObjectHead(nn.Module):
    """A head that names the caption's objects from z^o alone, so that z^o has something to carry.

    z^o ─▶ linear ─▶ one distribution over the vocabulary, scored on the tokens of x^o
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.over, self.weight = config.object_head, config.object_head_weight
        self.name = nn.Linear(config.object_latent, config.vocabulary)

    def forward(self, objects: Tensor, forced: TeacherForcedBatch) -> Tensor:
        """objects: (N, Zo) z^o -> (B,) weighted loss, summed over the objects of a caption."""
        if self.over == "slots":
            return self.weight * self._at_slots(objects, forced)
        padded = forced.packing.unpack(objects)  # (B, T, Zo)
        lengths = forced.batch.lengths
        if self.over == "mean":
            pooled = padded.sum(1) / lengths[:, None]
        else:
            past = torch.arange(padded.shape[1], device=lengths.device) >= lengths[:, None]
            pooled = padded.masked_fill(past[:, :, None], float("-inf")).amax(1)
        logs = torch.log_softmax(self.name(pooled), dim=1)  # (B, V)
        x_o = forced.batch.objects  # (B, K)
        return -self.weight * (logs.gather(1, x_o) * (x_o != PAD)).sum(1)

    def _at_slots(self, objects: Tensor, forced: TeacherForcedBatch) -> Tensor:
        slots = forced.slots.nonzero()[:, 0]
        missed = nn.functional.cross_entropy(
            self.name(objects[slots]), forced.targets[slots], reduction="none"
        )
        each = missed.new_zeros(len(objects)).index_put((slots,), missed)
        return forced.packing.sums(each)
