"""What a model makes of a picture's regions, once a picture."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coscap.data.batch import OnDevice, RegionBatch
from coscap.models.config import ModelConfig
from coscap.text.objects import ObjectClasses
from coscap.text.vocabulary import UNK, Vocabulary
from coscap.vision.regions import Recipe

NORM_GAIN = 0.15  # regions are small beside the words at first, or they drown them


@dataclass(frozen=True)
class RegionValues(OnDevice):
    """The regions of P pictures as posteriors, priors and decoder see them."""

    values: Tensor  # (P, R, F)
    mask: Tensor  # (P, R) bool, at least one True in each row
    mean: Tensor  # (P, F) v-bar
    labels: Tensor | None = None  # (P, R) the class of each region; below 0 for none
    scores: Tensor | None = None  # (P, R)


class RegionLayer(nn.Module):
    """Regions read each other: v + attention(norm v), then v + MLP(norm v). Before training it changes nothing."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        for last in (self.attention_out, self.mlp_out):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """values: (P, R, F), mask: (P, R) -> (P, R, F)"""
        pictures, count, width = values.shape
        joint = self.query_key_value(self.attention_norm(values))  # (P, R, 3 F)
        heads = joint.view(pictures, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (3, P, H, R, F / H)
        query, key, value = heads.unbind(0)
        read = nn.functional.scaled_dot_product_attention(query, key, value, mask[:, None, None, :])
        values = values + self.attention_out(read.transpose(1, 2).reshape(pictures, count, width))
        changed: Tensor = values + self.mlp_out(torch.relu(self.mlp_in(self.mlp_norm(values))))
        return changed


class RegionEncoder(nn.Module):
    """features (+ class embedding) (+ box, size and score) (-> linear (+ word), ReLU) (-> layers) = values;
    their mean = v-bar

    Where `label_words` says so, regions share the decoder's word embedding, which stays the decoder's (`share_words`).
    """

    label_tokens: Tensor
    read_as: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # Row 0 is for regions without a class: cells of the grid; the last one, if there are words, for all of them.
        kinds = config.classes + 1 + (config.region_words > 0)
        self.classes = nn.Embedding(kinds, config.class_embedding) if config.class_embedding else None
        if config.novel_like:
            self.register_buffer(
                "read_as", torch.arange(kinds)
            )  # the row of each kind; of a novel class another's
        self.project = (
            nn.Linear(config.described_width, config.region_projection) if config.region_projection else None
        )
        self._words: tuple[nn.Embedding, ...] = ()  # a tuple, so that its weights are not listed twice
        self.word: nn.Linear | None = None
        if config.label_words:
            self.word = nn.Linear(config.decoder_words, config.value_width, bias=False)
            labels = torch.full((config.classes + config.region_words,), UNK)
            self.register_buffer("label_tokens", labels)  # (C + W,) the token of each label, UNK for none
        self.layers = nn.ModuleList(
            RegionLayer(config.value_width, config.region_heads) for _ in range(config.region_layers)
        )
        self.norm = nn.LayerNorm(config.value_width) if config.region_norm else None
        if self.norm is not None:
            nn.init.constant_(self.norm.weight, NORM_GAIN)

    def forward(self, regions: RegionBatch, trim: bool = True) -> RegionValues:
        """`trim` leaves out columns that are padding for every picture; an exported graph keeps them."""
        used, detected = used_regions(self.config, regions.mask, regions.labels)  # (P, R) each
        if trim:
            width = int(used.any(0).nonzero().max()) + 1
            used, detected = used[:, :width], detected[:, :width]
        values = self.encode(regions, used)  # (P, R', F)
        grid = used & (regions.labels[:, : used.shape[1]] < 0)
        chosen = {"all": used, "detections": detected, "grid": grid}[self.config.mean_over]
        weights = or_else(chosen & used, used).to(values.dtype)
        weights = weights / weights.sum(1, keepdim=True)
        mean = torch.einsum("pr,prf->pf", weights, values)
        width = used.shape[1]
        return RegionValues(values, used, mean, regions.labels[:, :width], regions.scores[:, :width])

    def encode(self, regions: RegionBatch, used: Tensor) -> Tensor:
        """The value of each region. used: (P, R') -> (P, R', F)"""
        values = self._describe(regions, used)
        if self.project is not None:
            values = self.project(values)
        if self.word is not None:
            values = values + self.word(self._label_words(regions, used))
        if self.project is not None:
            values = torch.relu(values)
        for layer in self.layers:
            values = layer(values, used)
        return values if self.norm is None else self.norm(values)

    def share_words(self, words: nn.Embedding) -> None:
        self._words = (words,)

    def set_label_tokens(self, tokens: Tensor) -> None:
        """tokens: (C + W,) the vocabulary's number of each label's word, UNK where it has none."""
        if self.word is not None:
            self.label_tokens.copy_(tokens)

    def _label_words(self, regions: RegionBatch, used: Tensor) -> Tensor:
        """The embedding of each label's word times the region's score, (P, R', D); zeros where there is no word."""
        width = used.shape[1]
        labels, scores = regions.labels[:, :width], regions.scores[:, :width]
        tokens: Tensor = self.label_tokens[labels.clamp(min=0)]  # (P, R')
        known = used & (labels >= 0) & (tokens != UNK)
        weight = torch.where(known, scores, 0)
        embedded: Tensor = self._words[0](tokens) * weight[:, :, None]
        return embedded

    def _describe(self, regions: RegionBatch, used: Tensor) -> Tensor:
        """Features with class and geometry, (P, R', D). Another kind of region is described here."""
        width = used.shape[1]
        features = regions.features[:, :width]  # (P, R', F)
        if self.config.region_scale != 1:
            features = features * self.config.region_scale
        parts = [features]
        if self.classes is not None:
            kinds = (regions.labels[:, :width] + 1).clamp(max=self.classes.num_embeddings - 1)
            parts.append(self.classes(self.read_as[kinds] if self.config.novel_like else kinds))
        if self.config.geometry:
            x1, y1, x2, y2 = regions.boxes[:, :width].unbind(2)
            w, h = x2 - x1, y2 - y1
            scores = regions.scores[:, :width]
            parts.append(torch.stack([x1, y1, x2, y2, w, h, w * h, scores], dim=2))
        joint = torch.cat(parts, dim=2) if len(parts) > 1 else features
        return torch.where(used[:, :, None], joint, 0)  # what padding holds must not matter


def label_tokens(recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> Tensor:
    """(C + W,) the token of each label of a recipe: what a class is called in captions, or the word; UNK for none."""
    singular = {each.name: each.singular for each in objects.classes}
    names = [singular.get(name, name) for name in recipe.classes]
    return torch.tensor(vocabulary.encode([*names, *recipe.words]), dtype=torch.long)


def name_tokens(recipe: Recipe, objects: ObjectClasses, vocabulary: Vocabulary) -> Tensor:
    """(C + W, 2) the tokens that name one and several of what a label stands for; -1 where the vocabulary has none.

    A class is called as in captions; the detector's classes are matched by name. A word of a recipe names something
    where it is a word of one of the classes.
    """
    known = {each.name: each for each in objects.classes}
    ones = {word for each in objects.classes for word in each.words}
    many = {word for each in objects.classes for word in each.plurals}

    def token(text: str) -> int:
        number = vocabulary.encode([text])[0]
        return -1 if number == UNK else number

    rows = [
        (token(known[name].singular), token(known[name].plural)) if name in known else (token(name), -1)
        for name in recipe.classes
    ]
    rows += [
        (token(word) if word in ones else -1, token(word) if word in many else -1) for word in recipe.words
    ]
    return torch.tensor(rows, dtype=torch.long).view(-1, 2)


def greatest_scores(regions: RegionValues, classes: int) -> Tensor:
    """(P, C) the greatest score of each class among the detections of a picture; 0 where it was not detected."""
    assert regions.labels is not None and regions.scores is not None
    scores = torch.where(regions.mask, regions.scores, 0)[:, :, None]  # (P, R, 1)
    of_class = regions.labels[:, :, None] == torch.arange(classes, device=scores.device)  # (P, R, C)
    return torch.where(of_class, scores, 0).amax(1)


def used_regions(config: ModelConfig, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (P, R) of the regions that a model uses, never none of a picture, and of the detections among them."""
    words = mask & (labels >= config.classes) & (config.region_words > 0)
    detected = mask & (labels >= 0) & ~words
    used = _first(detected, config.detections) | _first(words, config.word_regions)
    if config.grid:
        used = used | (mask & ~detected & ~words)
    used = or_else(or_else(used, mask), torch.arange(mask.shape[1], device=mask.device)[None] == 0)
    return used, detected & used


def _first(mask: Tensor, most: int | None) -> Tensor:
    """The first `most` of each row, which come by falling score; all if None."""
    return mask if most is None else mask & (mask.cumsum(1) <= most)


def or_else(mask: Tensor, other: Tensor) -> Tensor:
    """mask, and in rows where it is empty the other."""
    return mask | (other & ~mask.any(1, keepdim=True))
