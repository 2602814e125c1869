"""Words of a picture, from the evidence that the tuned map network finds at each place."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.files import read_json
from coscap.vision.pooling import unit

SPREAD = 1.7  # a word's box reaches this many deviations of its evidence to each side
FLOOR = 0.02  # less probable words are not worth a region


@dataclass(frozen=True)
class SeenWords:
    """The most probable words of one picture, best first."""

    numbers: NDArray[np.int16]  # (K,) indices into the list of words
    probabilities: NDArray[np.float32]  # (K,)
    boxes: NDArray[np.float32]  # (K, 4) where the evidence is, in 0..1
    places: NDArray[np.float32]  # (K, P) the share of each place of the map in the evidence; rows sum to 1


@dataclass(frozen=True)
class Evidence:
    """What the tuned map network sees in one picture."""

    vector: NDArray[np.float32]  # (F,) the mean of the map, of length 1: pictures alike have vectors alike
    words: NDArray[np.float32]  # (W, h, w) evidence of each word at each place

    @classmethod
    def of(cls, maps: NDArray[np.float32], evidence: NDArray[np.float32]) -> "list[Evidence]":
        """maps: (B, F, h, w), evidence: (B, W, h, w)"""
        vectors = unit(maps.mean(axis=(2, 3)))  # (B, F)
        return [cls(*each) for each in zip(vectors, evidence, strict=True)]


class WordReader:
    """Turns evidence into words. `words.json` beside the network has the list and how evidence is pooled."""

    def __init__(self, path: Path) -> None:
        content = read_json(path)
        try:
            self.words = tuple(str(word) for word in content["words"])
            self.mean_share = np.array(content["mean_share"], np.float32)  # (W,) a_w
            self.scale, self.shift = map(float, content.get("calibration", (1.0, 0.0)))
            self.frequencies = np.array(content["frequencies"], np.float32)  # (W,) of training pictures
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{path} does not describe words; tune the backbone again.") from None
        if len(self.words) != len(self.mean_share) or not self.words:
            raise UserError(
                f"{path} has {len(self.words)} words and {len(self.mean_share)} shares; tune again."
            )

    def logits(self, evidence: NDArray[np.float32]) -> NDArray[np.float32]:
        """evidence: (W, h, w) -> (W,) before calibration"""
        flat = evidence.reshape(len(evidence), -1)  # (W, P)
        most = flat.max()
        share = np.einsum("wp->w", np.exp(flat - most)) / np.float32(
            flat.shape[1]
        )  # einsum sums four times as fast
        peak = most + np.log(np.maximum(share, np.finfo(np.float32).tiny))
        mean = np.einsum("wp->w", flat) / np.float32(flat.shape[1])
        pooled: NDArray[np.float32] = self.mean_share * mean + (1 - self.mean_share) * peak
        return pooled

    def probabilities(self, evidence: NDArray[np.float32]) -> NDArray[np.float32]:
        """(W,) how likely it is that a caption of the picture has each word"""
        logits = self.scale * self.logits(evidence) + self.shift
        probabilities: NDArray[np.float32] = (1 / (1 + np.exp(-logits))).astype(np.float32)
        return probabilities

    def best(self, evidence: NDArray[np.float32], most: int, floor: float = FLOOR) -> SeenWords:
        """At most `most` words with a probability of at least `floor`; one word where none reaches it."""
        probabilities = self.probabilities(evidence)
        least = np.partition(probabilities, -most)[-most] if most < len(probabilities) else 0
        likely = np.flatnonzero(probabilities >= least)  # sorting all would take longer
        order = likely[np.argsort(-probabilities[likely], kind="stable")[:most]]
        kept = order[: max(1, int((probabilities[order] >= floor).sum()))]
        places = _shares(evidence[kept])
        return SeenWords(
            kept.astype(np.int16), probabilities[kept], _boxes(places, *evidence.shape[1:]), places
        )


def _shares(evidence: NDArray[np.float32]) -> NDArray[np.float32]:
    """(K, h, w) -> (K, P) softmax over places"""
    flat = evidence.reshape(len(evidence), -1)
    shares = np.exp(flat - flat.max(axis=1, keepdims=True))
    result: NDArray[np.float32] = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
    return result


def _boxes(places: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """The centre of the evidence, and to each side half a cell and its deviation. places: (K, P) -> (K, 4)"""
    y, x = np.divmod(np.arange(height * width), width)
    edges = []
    for position, cells in ((x, width), (y, height)):
        at = ((position + 0.5) / cells).astype(np.float32)  # (P,)
        centre = places @ at
        reach = SPREAD * np.sqrt(np.maximum(places @ np.square(at) - np.square(centre), 0)) + 0.5 / cells
        edges.append((centre - reach, centre + reach))
    (x1, x2), (y1, y2) = edges
    return np.stack([x1, y1, x2, y2], axis=1).clip(0, 1).astype(np.float32)
