"""Sentences and pictures that are no pairs, for models that learn from each by itself (DCC, NOC)."""

import numpy as np
import torch
from torch import Tensor

from coscap.data import Prepared
from coscap.data.batch import Batch, RegionBatch
from coscap.data.collate import region_batch
from coscap.data.sentences import Sentences, read_sentences, training_sentences
from coscap.models import CaptionModel
from coscap.models.base import LossTerms
from coscap.models.language import LanguageModel
from coscap.models.noise import mix
from coscap.models.word_vectors import counted_vectors, read_vectors
from coscap.training.config import Text
from coscap.vision.published import Store

SHARE = 4  # a picture without captions for every fourth caption


class UnpairedPictures:
    """The pictures of the split `unpaired` that have regions, drawn by keys."""

    def __init__(self, prepared: Prepared, store: Store) -> None:
        self.store = store
        ids = [int(prepared.image_ids[image]) for image in prepared.images("unpaired").tolist()]
        self.ids = np.array([image_id for image_id in ids if image_id in store], np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def draw(self, keys: Tensor) -> tuple[RegionBatch, Tensor]:
        """A picture for each key, and the pictures' ids, (P,); keys: (P,)"""
        ids = self.ids[keys.cpu().numpy() % len(self.ids)]
        regions = region_batch([self.store.get(int(image_id)) for image_id in ids])
        return regions.to(keys.device), torch.from_numpy(ids).to(keys.device)


class TextTerm:
    """A sentence for every caption of a batch, and for every fourth a picture that nobody captioned."""

    def __init__(self, sentences: Sentences, pictures: UnpairedPictures) -> None:
        self.sentences, self.pictures = sentences, pictures

    def __call__(self, model: LanguageModel, batch: Batch, keys: Tensor) -> LossTerms:
        numbers = (mix(keys) % len(self.sentences)).cpu().numpy()
        words, lengths = (torch.from_numpy(each).to(keys.device) for each in self.sentences.padded(numbers))
        chosen = keys[keys % SHARE == 0] // SHARE
        seen = self.pictures.draw(chosen)[0] if len(chosen) and len(self.pictures) else None
        return model.unpaired_loss(words, lengths, seen)


def text_term(settings: Text, prepared: Prepared, store: Store, model: CaptionModel, new: bool) -> TextTerm:
    """The term of a configuration's text; a new model first takes from it what it needs."""
    assert isinstance(model, LanguageModel)
    sentences = read_sentences(settings.file, prepared)
    if new:
        width = model.decoder_words.embedding_dim
        if settings.vectors is not None:
            vectors = read_vectors(settings.vectors, prepared.vocabulary)
        else:
            texts = [sentences, training_sentences(prepared)]
            vectors = counted_vectors(texts, len(prepared.vocabulary), width)
        model.read_text(prepared, sentences, vectors)
    return TextTerm(sentences, UnpairedPictures(prepared, store))
