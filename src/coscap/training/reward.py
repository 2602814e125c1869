"""A second stage after PS-NOC (Bujimalla et al. 2021): the model's own samples, rewarded.

picture ─▶ n captions, sampled ─▶ r_i = cider x CIDEr-D(caption, references) + f1 x F1(classes named, classes sure)
                 │                      - invented x classes named that are neither in a reference nor sure
                 │                      - unsaid x content words that no reference bears out
                 └─▶ loss = sum over i of (S - S_i) (-log p(x_i | I)),   its gradient is that of -E[S]

S is what the n captions are worth together: the mean of r, or its soft maximum, and how unlike they are. S_i does not
depend on x_i (what the others are worth, or the greedy caption), so the gradient's mean is the same with it. References
are the training captions of a picture, or pseudo captions of one that nobody captioned; which classes are sure is the
detector's word. No label of a test picture is seen.

Where captions come from latents, p is that of words and chosen regions given the latents' noise; the latents are made
anew from it with the present weights, so that decoder and priors learn (`CaptionModel.surprise`).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coscap.data import Prepared
from coscap.data.batch import Batch, RegionBatch
from coscap.data.collate import region_batch
from coscap.errors import UserError
from coscap.metrics.grams import Grams, document_frequency, flat, inverse_frequency
from coscap.metrics.overlap import compare
from coscap.metrics.reference_words import ReferenceWords
from coscap.metrics.references import read_references
from coscap.metrics.words import token_groups
from coscap.models import CaptionModel
from coscap.models.base import LossTerms
from coscap.models.noise import mix, row_keys
from coscap.models.stepper import TorchStepper
from coscap.seam import Caption
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.text.vocabulary import END, PAD
from coscap.training.config import Reward
from coscap.training.objective import REWARDED
from coscap.vision.published import Store

SHARES = 1 << 20  # how finely captions can be shared out
Rewards = NDArray[np.float32]
References = dict[int, list[str]]  # tokenised, by a picture's id


class CiderD:
    """CIDEr-D of single captions, with the document frequencies of the training captions."""

    def __init__(self, training: Sequence[Sequence[str]]) -> None:
        self.grams, self.documents = Grams(), len(training)
        captions, starts = flat(training)
        encoded = self.grams.encode(captions)
        self.frequency = document_frequency(encoded, starts, len(self.grams))

    def __call__(self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Rewards:
        """Of every caption of each picture, (B,), a picture's captions after each other."""
        known, known_starts = flat(references)
        written, written_starts = flat(captions)
        both = self.grams.encode(known), self.grams.encode(written)
        idf = inverse_frequency(self.frequency, self.documents, len(self.grams))
        scores = compare(both[1], written_starts, both[0], known_starts, idf).cider_d
        return np.asarray(
            scores, np.float32
        )  # numbers of n-grams differ after a resume, and with them the last bits


class RewardTerm:
    """The loss of sampled captions. Which pictures are drawn, and all noise, follow from the captions' keys."""

    def __init__(self, settings: Reward, prepared: Prepared, store: Store) -> None:
        self.settings, self.prepared, self.store = settings, prepared, store
        self.words = self._words()  # of each label that counts
        captioned = _training_references(prepared, store)
        pseudo = _pseudo_references(settings, prepared, store)
        self.references = captioned | pseudo
        self.captioned, self.pseudo = np.array(list(captioned), np.int64), np.array(list(pseudo), np.int64)
        self.cider = CiderD(list(captioned.values()))

    def _words(self) -> dict[int, frozenset[str]]:
        """The units that name a class, by its label."""
        recipe, wanted = self.store.recipe, self.settings.classes
        unknown = [name for name in wanted if name not in recipe.classes]
        if unknown:
            raise UserError(
                f"field reward.classes: {recipe.name} does not know {unknown[0]!r}; its classes are "
                f"{', '.join(recipe.classes[:5])}, ..."
            )
        words = {each.name: frozenset((*each.words, *each.plurals)) for each in self.prepared.classes.classes}
        named = [name for name in recipe.classes if name in words and (name in wanted or not wanted)]
        return {recipe.classes.index(name): words[name] for name in named}

    def __call__(self, model: CaptionModel, batch: Batch, keys: Tensor) -> LossTerms:
        """keys: (B,) int64, one for each caption of the batch."""
        chosen = keys[keys % SHARES < self.settings.share * SHARES] // SHARES
        if not len(chosen):
            return _terms(torch.zeros(0, device=keys.device), torch.zeros(0, device=keys.device).long(), {})
        regions, ids = self.draw(chosen)
        learning = model.training
        model.eval()  # what is sampled is what is scored, without dropout
        try:
            samples = self.sample(model, regions, self.settings.draws)
            rewards, parts = self.rewards(regions, ids, samples)  # (P, draws)
            gained = self.advantage(model, regions, ids, rewards)
            apart = unlike(samples)  # (P, draws, draws)
            gained = gained + np.float32(self.settings.unlike) * added_by_each(apart)
            advantage = torch.from_numpy(gained).to(keys.device)
            scored = self.batch_of(regions, ids, samples)
            noise = row_keys(0, regions.keys, self.settings.draws)
            surprise = model.surprise(
                scored, noise, self.settings.temperature, self.settings.word_temperature
            )  # (P draws,)
        finally:
            model.train(learning)
        parts["unlike"] = apart.sum(2).flatten() / np.float32(rewards.shape[1] - 1)
        parts["unique"] = np.repeat(
            [len({each.text for each in one}) / len(one) for one in samples], rewards.shape[1]
        )
        loss = advantage.flatten().to(surprise.dtype) * surprise
        return _terms(loss, scored.lengths, parts)

    def draw(self, keys: Tensor) -> tuple[RegionBatch, Tensor]:
        """A picture for each key, with the key as that of its noise, and the pictures' ids; keys: (P,)"""
        numbers = mix(keys).cpu().numpy() % (1 << 62)
        novel = (keys.cpu().numpy() % SHARES < self.settings.novel * SHARES) & (len(self.pseudo) > 0)
        ids = np.where(novel, _pick(self.pseudo, numbers), _pick(self.captioned, numbers))
        regions = region_batch([self.store.get(int(image_id)) for image_id in ids]).to(keys.device)
        return replace(regions, keys=keys), torch.from_numpy(ids).to(keys.device)

    def sample(self, model: CaptionModel, regions: RegionBatch, draws: int) -> list[list[Caption]]:
        """Captions of each picture, drawn word by word; with draws = 0 the greedy one."""
        settings = SearchSettings(
            do_sample=draws > 0,
            latent_temperature=self.settings.temperature if draws else 0.0,
            temperature=self.settings.word_temperature if draws else 1.0,
            min_length=0,
            max_length=self.prepared.max_length,
        )
        stepper, vocabulary = TorchStepper(model), self.prepared.vocabulary
        with torch.autocast(regions.keys.device.type, enabled=False):  # words are drawn in float32
            return generate(
                stepper, regions, vocabulary, max(1, draws), settings, objects=self.prepared.classes
            )

    def rewards(
        self, regions: RegionBatch, ids: Tensor, samples: Sequence[Sequence[Caption]]
    ) -> tuple[Rewards, dict[str, NDArray[np.floating]]]:
        """(P, n) what each caption is worth, and its parts by name, (P n,) each."""
        references = [self.references[image_id] for image_id in ids.tolist()]
        cider = self.cider([[each.text for each in one] for one in samples], references)
        f1, invented, unsaid = [], [], []
        for row, sure in enumerate(self.sure(regions)):
            words = [text.split() for text in references[row]]
            known = sure.union(*map(self.named, words))
            mentioned = ReferenceWords(words, self.prepared.classes)
            for each in samples[row]:
                named = self.named(each.tokens)
                f1.append(self.f1(named, sure))
                invented.append(len(named - known))
                unsaid.append(len(mentioned.unsaid(each.tokens)))
        parts = {"cider": cider}
        for name, values in (("f1", f1), ("invented", invented), ("unsaid", unsaid)):
            parts[name] = np.array(values, np.float32)
        value = np.float32(self.settings.cider) * cider + np.float32(self.settings.f1) * parts["f1"]
        value = value - np.float32(self.settings.invented) * parts["invented"]
        value = value - np.float32(self.settings.unsaid) * parts["unsaid"]
        return value.reshape(len(samples), -1), {"value": value, **parts}

    def sure(self, regions: RegionBatch) -> list[set[int]]:
        """The labels that count and that the detector is sure of, of each picture."""
        found = []
        for labels, scores in zip(regions.labels.tolist(), regions.scores.tolist(), strict=True):
            pairs = zip(labels, scores, strict=True)
            found.append(
                {label for label, score in pairs if label in self.words and score >= self.settings.score}
            )
        return found

    def named(self, tokens: Sequence[str]) -> set[int]:
        """The labels that count and that a caption names."""
        return {label for label, words in self.words.items() if not words.isdisjoint(tokens)}

    def f1(self, named: set[int], sure: set[int]) -> float:
        """2 |named and sure| / (|named| + |sure|); 1 where nothing is to be named and nothing is."""
        return 2 * len(named & sure) / (len(named) + len(sure)) if named or sure else 1.0

    def advantage(self, model: CaptionModel, regions: RegionBatch, ids: Tensor, rewards: Rewards) -> Rewards:
        """S - S_i, (P, draws); rewards: (P, draws)"""
        draws = rewards.shape[1]
        if self.settings.baseline == "greedy":
            return (rewards - self.rewards(regions, ids, self.sample(model, regions, 0))[0]) / np.float32(
                draws
            )
        if self.settings.soft_best is None:
            others: Rewards = (rewards.sum(1, keepdims=True) - rewards) / np.float32(draws - 1)
            return (rewards - others) / np.float32(draws)
        scaled = rewards / np.float32(self.settings.soft_best)
        others = np.where(np.eye(draws, dtype=bool), -np.inf, scaled[:, None])  # (P, draws, draws)
        gain: Rewards = np.logaddexp.reduce(scaled, 1, keepdims=True) - np.logaddexp.reduce(others, 2)
        gain = np.float32(self.settings.soft_best) * (gain - np.float32(np.log(draws / (draws - 1))))
        return gain

    def batch_of(self, regions: RegionBatch, ids: Tensor, samples: Sequence[Sequence[Caption]]) -> Batch:
        """The samples as captions to be scored. One that was cut at the greatest length did not choose its end."""
        units = [self.prepared.vocabulary.encode(list(each.tokens)) for one in samples for each in one]
        most, device = self.prepared.max_length, ids.device
        rows = [[*each, END][:most] for each in units]
        lengths = torch.tensor([len(row) for row in rows], device=device)
        words = torch.full((len(rows), int(lengths.max())), PAD, device=device)
        for place, row in enumerate(rows):
            words[place, : len(row)] = torch.tensor(row, device=device)
        owners = torch.arange(len(ids), device=device).repeat_interleave(len(samples[0]))
        return Batch(regions, owners, words, words, words.new_full((len(rows), 1), PAD), lengths, ids)


def unlike(samples: Sequence[Sequence[Caption]]) -> Rewards:
    """1 - the Jaccard overlap of the word pairs of a picture's captions, (P, n, n); 0 for each with itself."""
    found = np.zeros((len(samples), len(samples[0]), len(samples[0])), np.float32)
    for picture, captions in enumerate(samples):
        pairs = [set(pairwise((*each.tokens, "."))) for each in captions]
        for (i, one), (j, other) in combinations(enumerate(pairs), 2):
            both = len(one | other)
            found[picture, i, j] = found[picture, j, i] = 1 - len(one & other) / both if both else 0.0
    return found


def added_by_each(apart: Rewards) -> Rewards:
    """The mean over pairs of captions, less that of the pairs without caption i, (P, n); apart: (P, n, n)"""
    n, each = apart.shape[1], apart.sum(2)  # (P, n)
    total = each.sum(1, keepdims=True)
    rest = (total - 2 * each) / np.float32(max((n - 1) * (n - 2), 1))
    added: Rewards = total / np.float32(n * (n - 1)) - rest
    return added


def _terms(loss: Tensor, words: Tensor, parts: dict[str, NDArray[np.floating]]) -> LossTerms:
    none, empty = torch.zeros_like(loss.detach()), loss.new_zeros(0)
    figures = {"captions": torch.tensor(float(len(loss)), device=loss.device)}
    for name in REWARDED:
        figures[name] = torch.tensor(float(parts[name].sum()) if name in parts else 0.0, device=loss.device)
    return LossTerms(loss, none, none, none, none, none, words, empty, empty, figures)


def _pick(ids: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return ids[numbers % len(ids)] if len(ids) else np.zeros_like(numbers)


def _training_references(prepared: Prepared, store: Store) -> References:
    """The captions of the training pictures that have regions."""
    images = [int(image) for image in prepared.images("train") if len(prepared.captions_of(int(image)))]
    images = [image for image in images if int(prepared.image_ids[image]) in store]
    texts = token_groups([[prepared.text(c) for c in prepared.captions_of(image)] for image in images])
    return {int(prepared.image_ids[image]): text for image, text in zip(images, texts, strict=True)}


def _pseudo_references(settings: Reward, prepared: Prepared, store: Store) -> References:
    """The pseudo captions of pictures of the split `unpaired` that have regions."""
    if settings.captions is None:
        return {}
    unpaired = {int(prepared.image_ids[image]) for image in prepared.images("unpaired").tolist()}
    given = {
        int(name): texts for name, texts in read_references(settings.captions).items() if str(name).isdigit()
    }
    ids = [
        image_id for image_id, texts in given.items() if image_id in unpaired and image_id in store and texts
    ]
    if not ids:
        raise UserError(
            f"field reward.captions: {settings.captions} has no caption of a picture of the split unpaired that has "
            "regions; write captions of such pictures, or leave it out."
        )
    return dict(zip(ids, token_groups([given[image_id] for image_id in ids]), strict=True))
