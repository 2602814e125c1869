"""What a caption is worth when its own draw is forgotten.

Under its own draw a caption is always likely: the latents ask for it. To compare the captions of a picture, each is
read again with the latents at the means of their priors, which are the same for all.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coscap.data.batch import RegionBatch
from coscap.models.step import S, Step
from coscap.search.caption import Caption
from coscap.text.vocabulary import END, PAD, START, Vocabulary


@torch.inference_mode()
def rescore(
    model: Step[S], regions: RegionBatch, found: Sequence[Sequence[Caption]], vocabulary: Vocabulary
) -> list[list[Caption]]:
    """The same captions with their log-probability under the means of the priors."""
    rows = [(picture, caption) for picture, captions in enumerate(found) for caption in captions]
    if not rows:
        return [[] for _ in found]
    device = regions.keys.device
    owners = torch.tensor([picture for picture, _ in rows], device=device)
    scores = _score(model, regions, owners, _padded([caption for _, caption in rows], vocabulary, device))
    told = iter(scores.tolist())
    return [[replace(caption, log_probability=next(told)) for caption in captions] for captions in found]


def _padded(captions: Sequence[Caption], vocabulary: Vocabulary, device: torch.device) -> Tensor:
    """(N, T) the words of each caption, END, then PAD."""
    words = [torch.tensor([*vocabulary.encode(caption.units), END]) for caption in captions]
    return torch.nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=PAD).to(device)


def _score(model: Step[S], regions: RegionBatch, owners: Tensor, words: Tensor) -> Tensor:
    """log p of each caption's words, (N,); owners: (N,) the picture of each caption, words: (N, T).

    Without noise, what a model thinks after the same words of the same picture is the same. So a row is a beginning,
    and captions that begin alike share it.
    """
    state = model.start(regions, 1, temperature=0.0)
    total = torch.zeros(len(words), dtype=torch.float64, device=words.device)
    row = owners  # (N,) the beginning of each caption
    said = torch.full_like(regions.keys, START)  # (rows,) the last word of each beginning
    captions = torch.arange(len(words), device=words.device)
    for step in range(words.shape[1]):
        logs, state, _ = model.step(said, state)  # (rows, V)
        word = words[captions, step]
        total[captions] += logs[row, word].double()
        going = word != END
        captions = captions[going]
        if len(captions) == 0:
            break
        longer, row = torch.unique(row[going] * logs.shape[1] + word[going], return_inverse=True)
        said, state = longer % logs.shape[1], state.select(longer // logs.shape[1])
    return total
