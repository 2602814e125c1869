"""Retrieval against plain, slow versions."""

import math

import numpy as np
import torch

from coscap.contexts.build import queries
from coscap.contexts.embedding import (
    TEMPERATURE,
    EmbeddingConfig,
    JointEmbedding,
    class_scores,
    contrastive_loss,
    recall,
)
from coscap.contexts.neighbours import distinct_contexts, nearest
from coscap.data.batch import RegionBatch


def unit_rows(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.nn.functional.normalize(
        torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    )


def test_nearest_equals_a_full_sort() -> None:
    generator = np.random.default_rng(0)
    pictures, contexts = unit_rows(37, 8, 1), unit_rows(300, 8, 2)
    own = [generator.choice(300, generator.integers(0, 6), replace=False) for _ in range(37)]
    slots, room = generator.integers(1, 6, 300), generator.integers(0, 5, 37)
    numbers, scores = nearest(pictures, contexts, own, 5, slots=slots, room=room, block=16)
    table = (pictures @ contexts.T).numpy()
    for row in range(37):
        allowed = [c for c in range(300) if c not in own[row] and slots[c] <= room[row]]
        best = sorted(allowed, key=lambda c: -table[row, c])[:5]
        assert numbers[row].tolist() == best + [-1] * (5 - len(best))
        np.testing.assert_allclose(scores[row, : len(best)], table[row, best], atol=1e-6)
    assert (numbers == -1).any(), "the case of too few contexts was not met"


def test_distinct_contexts_counts_what_it_leaves_out() -> None:
    contexts = [(9, 4, 8), (9, 4, 8), (9, 8), (4,) * 30, (5, 4)]
    found, dropped = distinct_contexts(
        lambda caption: contexts[caption], np.arange(5), 5, slot_ids=(4, 5), longest=20
    )
    assert found.caption.tolist() == [0, 4]
    assert found.of_caption.tolist() == [0, 0, -1, -1, 1]
    assert found.slots.tolist() == [1, 2]
    assert dropped == {"without a slot": 1, "too long": 1, "duplicates": 1}


def test_contrastive_loss_by_hand() -> None:
    pictures, contexts = unit_rows(6, 4, 3), unit_rows(6, 4, 4)
    same = torch.eye(6, dtype=torch.bool)
    same[0, 3] = True
    table = (pictures @ contexts.T).tolist()
    total = 0.0
    for i in range(6):
        across = max(table[i][j] for j in range(6) if not same[i, j])
        down = max(table[j][i] for j in range(6) if not same[j, i])
        total += max(0.0, 0.2 + across - table[i][i]) + max(0.0, 0.2 + down - table[i][i])
    assert abs(contrastive_loss(pictures, contexts, same, 0.2).item() - total / 6) < 1e-6


def test_mean_and_softmax_losses_by_hand() -> None:
    pictures, contexts = unit_rows(5, 4, 3), unit_rows(5, 4, 4)
    same = torch.eye(5, dtype=torch.bool)
    same[1, 2] = same[2, 1] = True
    table = (pictures @ contexts.T).tolist()
    pairs = [(i, j) for i in range(5) for j in range(5) if not same[i, j]]
    mean = sum(
        max(0.0, 0.2 + table[i][j] - table[i][i]) + max(0.0, 0.2 + table[i][j] - table[j][j])
        for i, j in pairs
    )
    assert abs(contrastive_loss(pictures, contexts, same, 0.2, "mean").item() - mean / len(pairs)) < 1e-6
    total = 0.0
    for i in range(5):
        across = [table[i][j] / TEMPERATURE for j in range(5) if j == i or not same[i, j]]
        down = [table[j][i] / TEMPERATURE for j in range(5) if j == i or not same[j, i]]
        total += math.log(sum(map(math.exp, across))) + math.log(sum(map(math.exp, down)))
        total -= 2 * table[i][i] / TEMPERATURE
    assert abs(contrastive_loss(pictures, contexts, same, 0.2, "softmax").item() - total / 5) < 1e-4


def test_recall_of_a_perfect_and_of_a_useless_embedding() -> None:
    pictures = unit_rows(20, 16, 5)
    owner = torch.arange(20).repeat_interleave(3)
    assert set(recall(pictures, pictures[owner], owner).values()) == {1.0}
    assert recall(pictures, pictures[(owner + 1) % 20], owner)["context_recall@1"] == 0.0


def region_batch() -> RegionBatch:
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    return RegionBatch(
        features=torch.randn(2, 3, 5, generator=generator),
        boxes=torch.rand(2, 3, 4, generator=generator),
        labels=torch.tensor([[1, 1, -1], [0, -1, -1]]),
        scores=torch.tensor([[0.4, 0.9, 1.0], [0.7, 0.0, 0.0]]),
        mask=mask,
        keys=torch.arange(2),
    )


def test_class_scores_take_the_best_detection() -> None:
    expected = torch.tensor([[0.0, 0.9, 0.0], [0.7, 0.0, 0.0]])
    assert torch.equal(class_scores(region_batch(), 3), expected)


def test_padding_changes_no_embedding() -> None:
    for pooling in ("mean", "attention"):
        model = JointEmbedding(
            EmbeddingConfig(vocabulary=10, region_width=5, classes=3, width=6, pooling=pooling)
        )
        both = model.embed_pictures(region_batch())
        alone = RegionBatch(
            *(value[1:, :1] if value.dim() > 1 else value[1:] for value in vars(region_batch()).values())
        )
        torch.testing.assert_close(both[1:], model.embed_pictures(alone))
        long = model.embed_contexts(torch.tensor([[7, 4, 2, 0, 0]]), torch.tensor([3]))
        torch.testing.assert_close(long, model.embed_contexts(torch.tensor([[7, 4, 2]]), torch.tensor([3])))


def test_queries_lie_between_a_picture_and_its_own_contexts() -> None:
    pictures, contexts = unit_rows(3, 8, 1), unit_rows(9, 8, 2)
    own = [np.array([1, 4]), np.zeros(0, np.int64), np.array([8])]
    found = queries(pictures, contexts, own, 0.5)
    for row, mine in enumerate(own):
        plain = pictures[row] + (0.5 * contexts[mine].mean(0) if len(mine) else 0)
        torch.testing.assert_close(found[row], plain / plain.norm())
    torch.testing.assert_close(queries(pictures, contexts, own, 0.0), pictures)
