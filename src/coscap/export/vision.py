"""What the built-in detector does after its networks, as a graph: boxes, suppression, words, features.

scores (P, 80, A), sides (P, 32, A) of PicoDet ─▶ at most 16 boxes ───┐
map (P, 1024, 8, 8) of PPLCNetV2 ─────────────────────────────────────┼▶ the inputs of `start`
evidence (P, W, 8, 8), where it is tuned ─▶ at most 16 words, places ─┘

The same as `coscap.vision.builtin`, with a fixed number of regions: where fewer are found, the mask says so.
"""

import math

import torch
from torch import Tensor

from coscap.export.graphs import Graph, Port
from coscap.vision.builtin import DETECTOR_SIDE, LEAST_SCORE, MOST_OVERLAP
from coscap.vision.picodet import BINS, Anchors
from coscap.vision.pooling import LEAST_SIDE, grid_boxes
from coscap.vision.regions import GRID_LABEL, Recipe
from coscap.vision.words import FLOOR, SPREAD, WordReader

MAP_CELLS = 8


class See(Graph):
    """scores, sides, map (, evidence) -> features, boxes, labels, scores, mask"""

    name = "regions"
    centres: Tensor  # (2, A)
    strides: Tensor  # (A,)
    grid: Tensor  # (G, 4)
    mean_share: Tensor  # (W,) of words that are seen
    cells: Tensor  # (2, 64) x and y of each cell of the map

    def __init__(self, recipe: Recipe, reader: WordReader | None = None) -> None:
        super().__init__()
        self.recipe, self.reader = recipe, reader
        anchors = Anchors.of(DETECTOR_SIDE)
        self.register_buffer("centres", torch.from_numpy(anchors.centres.T.copy()))
        self.register_buffer("strides", torch.from_numpy(anchors.strides))
        self.register_buffer("grid", torch.from_numpy(grid_boxes(recipe.grid)))
        classes, count = len(recipe.classes), len(anchors.strides)
        size = (MAP_CELLS, MAP_CELLS)
        self.inputs: tuple[Port, ...] = (
            Port("scores", ("P", classes, count)),
            Port("sides", ("P", 4 * BINS, count)),
            Port("map", ("P", recipe.width, *size)),
        )
        if reader is not None:
            self.inputs += (Port("evidence", ("P", len(reader.words), *size)),)
            self.register_buffer("mean_share", torch.from_numpy(reader.mean_share))
            at = (torch.arange(MAP_CELLS) + 0.5) / MAP_CELLS
            self.register_buffer("cells", torch.stack(torch.meshgrid(at, at, indexing="xy")).flatten(1))
        self.fixed = len(self.inputs)
        found = recipe.detections + (recipe.most_words if reader else 0) + len(self.grid)
        self.outputs = (
            Port("features", ("P", found, recipe.width)),
            Port("boxes", ("P", found, 4)),
            Port("labels", ("P", found), "int64"),
            Port("next_scores", ("P", found)),
            Port("mask", ("P", found), "bool"),
        )

    def forward(
        self, scores: Tensor, sides: Tensor, map: Tensor, evidence: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        pictures, cells = scores.shape[0], self.grid.shape[0]
        boxes, labels, values = self._detect(scores, self._boxes(sides))
        grid, ones = self.grid.expand(pictures, -1, -1), torch.ones(pictures, cells)
        none = torch.full((pictures, cells), GRID_LABEL, dtype=torch.int64)
        parts = [(self._pool(map, boxes), boxes, labels, values, values > 0)]
        if evidence is not None:
            parts.append(self._words(map, evidence))
        parts.append((self._pool(map, grid), grid, none, ones, ones > 0))
        features, boxes, labels, values, found = (
            torch.cat(column, dim=1) for column in zip(*parts, strict=True)
        )
        length = features.square().sum(2, keepdim=True).sqrt()
        features = (features / length.clamp(min=1e-6)).half().float()
        return features, boxes, torch.where(found, labels, GRID_LABEL), values, found

    def _words(self, map: Tensor, evidence: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Features, boxes, labels, probabilities of the most probable words, and which of them are probable enough:
        what `WordReader.best` does."""
        assert self.reader is not None
        flat = evidence.flatten(2)  # (P, W, 64)
        peak = torch.logsumexp(flat, dim=2) - math.log(flat.shape[2])
        pooled = self.mean_share * flat.mean(2) + (1 - self.mean_share) * peak
        seen, number = torch.sigmoid(self.reader.scale * pooled + self.reader.shift).topk(
            self.recipe.most_words, dim=1
        )  # (P, K)
        chosen = flat.gather(1, number[:, :, None].expand(-1, -1, flat.shape[2]))  # (P, K, 64)
        places = chosen.softmax(2)
        edges = []
        for position in self.cells:
            centre = places @ position  # (P, K)
            spread = (places @ position.square() - centre.square()).clamp(min=0).sqrt()
            edges.append((centre, SPREAD * spread + 0.5 / MAP_CELLS))
        (x, across), (y, down) = edges
        boxes = torch.stack([x - across, y - down, x + across, y + down], dim=2).clamp(0, 1)
        probable = (seen >= FLOOR) | (torch.arange(seen.shape[1]) == 0)
        features = places @ map.flatten(2).transpose(1, 2)  # (P, K, C)
        return features, boxes, number + len(self.recipe.classes), seen, probable

    def _boxes(self, sides: Tensor) -> Tensor:
        """(P, 4, A): the centre of each anchor, less and plus the expected distances of the four sides."""
        weights = sides.reshape(sides.shape[0], 4, BINS, -1).softmax(2)
        distances = torch.einsum("psba,b->psa", weights, torch.arange(BINS).float()) * self.strides
        corners = torch.cat([self.centres - distances[:, :2], self.centres + distances[:, 2:]], dim=1)
        return corners.clamp(0, 1)

    def _detect(self, scores: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best boxes (P, D, 4), labels and scores (P, D), without those that overlap a better one of their
        class; scores are 0 where there are no more."""
        classes, count = scores.shape[1], scores.shape[2]
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])  # (P, A)
        left = torch.where(scores > LEAST_SCORE, scores, 0.0)  # (P, K, A)
        found = []
        for _ in range(self.recipe.detections):
            value, best = left.flatten(1).max(1)  # (P,)
            label, place = best // count, best % count
            box = boxes.gather(2, place[:, None, None].expand(-1, 4, 1))  # (P, 4, 1)
            low, high = torch.maximum(boxes[:, :2], box[:, :2]), torch.minimum(boxes[:, 2:], box[:, 2:])
            width, height = (high - low).clamp(min=0).unbind(1)
            shared = width * height  # (P, A)
            covered = shared > MOST_OVERLAP * (areas + areas.gather(1, place[:, None]) - shared)
            covered = covered | (torch.arange(count) == place[:, None])
            same = torch.arange(classes) == label[:, None]  # (P, K)
            left = torch.where(same[:, :, None] & covered[:, None], 0.0, left)
            found.append((box[:, :, 0], label, value))
        return tuple(torch.stack(column, dim=1) for column in zip(*found, strict=True))  # type: ignore[return-value]

    def _pool(self, map: Tensor, boxes: Tensor) -> Tensor:
        """(P, R, C): the mean of the map over each box, cells weighted by the area that they share with it."""
        across, down = _cover(boxes[:, :, 0], boxes[:, :, 2]), _cover(boxes[:, :, 1], boxes[:, :, 3])
        area = down[:, :, :, None] * across[:, :, None]  # (P, R, 8, 8)
        return area.flatten(2) @ map.flatten(2).transpose(1, 2)


def _cover(start: Tensor, end: Tensor) -> Tensor:
    """(P, R, 8): how much of [start, end] is in each of the cells of 0..1; rows sum to 1."""
    edges = torch.arange(MAP_CELLS + 1).float() / MAP_CELLS
    end = torch.maximum(end, start + LEAST_SIDE)[:, :, None]
    start = start.clamp(max=1 - LEAST_SIDE)[:, :, None]
    shared = (torch.minimum(end, edges[1:]) - torch.maximum(start, edges[:-1])).clamp(min=0)
    return shared / shared.sum(2, keepdim=True)
