"""The built-in detector: its weights, its arithmetic against plain versions, and what it finds."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coscap.errors import UserError
from coscap.files import read_json, sha256
from coscap.vision import builtin
from coscap.vision.boxes import suppress
from coscap.vision.builtin import RECIPE, WEIGHTS, BuiltinDetector, shrunk, squash
from coscap.vision.classes import COCO_CLASSES
from coscap.vision.detectors import load_detector
from coscap.vision.picodet import Anchors, decode
from coscap.vision.pictures import open_picture
from coscap.vision.pooling import grid_boxes, pool, unit
from coscap.vision.regions import GRID_LABEL, Regions, noise_key

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def detector() -> BuiltinDetector:
    return BuiltinDetector()


def test_weights_are_those_of_the_record_and_small() -> None:
    files = read_json(WEIGHTS / "weights.json")["files"]
    assert {path.name for path in WEIGHTS.glob("*.onnx")} == set(files)
    assert all(sha256(WEIGHTS / name) == digest for name, digest in files.items())
    assert sum((WEIGHTS / name).stat().st_size for name in files) <= 25_000_000


def test_changed_weights_are_refused(tmp_path, monkeypatch) -> None:
    for path in (each for each in WEIGHTS.iterdir() if each.is_file()):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "picodet-s.onnx").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\0\1\2")
    monkeypatch.setattr(builtin, "WEIGHTS", tmp_path)
    with pytest.raises(UserError, match=r"picodet-s\.onnx is not the file"):
        BuiltinDetector()


def test_classes_are_in_cocos_order() -> None:
    assert len(COCO_CLASSES) == len(set(COCO_CLASSES)) == 80
    assert [COCO_CLASSES[index] for index in (0, 1, 2, 15, 33, 41, 79)] == [
        "person", "bicycle", "car", "cat", "kite", "cup", "toothbrush",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("photo", "objects"),
    [
        ("cat", ["cat"]),
        ("coffee", ["cup", "dining table"]),
        ("astronaut", ["person"]),
        ("photographer", ["person"]),
        ("admiral", ["person", "tie"]),
    ],
)
def test_finds_what_the_examples_show(detector, photo: str, objects: list[str]) -> None:
    regions = detector.regions([open_picture(EXAMPLES / f"{photo}.jpg", least_side=detector.least_side)])[0]
    sure = {
        COCO_CLASSES[label]
        for label, score in zip(regions.labels, regions.scores, strict=True)
        if label >= 0 and score > 0.8
    }
    assert sure == set(objects)


def test_regions_are_as_the_recipe_says(detector) -> None:
    pictures = [open_picture(path) for path in sorted(EXAMPLES.glob("*.jpg"))] + [Image.new("RGB", (3, 500))]
    found = detector.regions(pictures)
    for regions in found:
        cells = regions.labels == GRID_LABEL
        assert cells.sum() == 16 and (~cells).sum() <= RECIPE.detections
        assert cells[-16:].all()
        assert regions.features.shape == (len(regions), RECIPE.width) and regions.features.dtype == np.float16
        assert np.allclose(np.linalg.norm(regions.features.astype(float), axis=1), 1, atol=2e-3)
        assert (regions.boxes >= 0).all() and (regions.boxes <= 1).all()
        assert (np.diff(regions.scores[~cells]) <= 0).all() and (regions.scores[cells] == 1).all()
        assert (regions.scores[~cells] > 0.1).all()
        assert np.array_equal(regions.boxes[-16:], grid_boxes(4))


def test_a_picture_does_not_depend_on_its_batch(detector) -> None:
    pictures = [open_picture(path) for path in sorted(EXAMPLES.glob("*.jpg"))]
    together = detector.regions(pictures)
    for picture, regions in list(zip(pictures, together, strict=True))[1::2]:
        alone = detector.regions([picture])[0]
        for field in ("features", "boxes", "labels", "scores"):
            assert np.array_equal(getattr(alone, field), getattr(regions, field))


def test_no_pictures(detector) -> None:
    assert detector.regions([]) == []


def test_a_large_photograph_is_shrunk_once_and_a_small_one_never() -> None:
    random = np.random.default_rng(3)
    large = Image.fromarray(random.integers(0, 256, (768, 1152, 3), np.uint8))
    square = (
        np.asarray(large, np.float64).reshape(384, 2, 384, 3, 3).mean(axis=(1, 3))
    )  # of 2 x 3 pixels each
    assert np.abs(np.asarray(shrunk(large)) - square).max() <= 1
    assert np.array_equal(squash(shrunk(large), 384), squash(large, 384))
    small = large.resize((500, 300))
    assert shrunk(small) is small


def test_squash_keeps_a_picture_of_the_right_size() -> None:
    picture = Image.effect_noise((256, 256), 60).convert("RGB")
    assert np.array_equal(squash(picture, 256), np.asarray(picture))
    assert squash(picture.resize((30, 700)), 64).shape == (64, 64, 3)


def test_pool_is_the_mean_over_the_box() -> None:
    """Against counting on a grid 40 times finer, where boxes have edges on fine cells."""
    dice = np.random.default_rng(1)
    features = dice.normal(size=(3, 8, 8)).astype(np.float32)
    fine = features.repeat(40, axis=1).repeat(40, axis=2)
    corners = np.sort(dice.integers(0, 321, size=(50, 2, 2)), axis=1)
    corners[:, 1] += corners[:, 0] == corners[:, 1]
    corners[corners.max(axis=(1, 2)) > 320] -= 1
    boxes = corners.reshape(50, 4).astype(np.float32) / 320
    expected = [fine[:, y1:y2, x1:x2].mean(axis=(1, 2)) for (x1, y1), (x2, y2) in corners]
    assert np.allclose(pool(features, boxes), expected, atol=1e-5)


def test_pool_of_the_grid_is_the_mean_of_four() -> None:
    features = np.random.default_rng(2).normal(size=(5, 8, 8)).astype(np.float32)
    expected = features.reshape(5, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(5, 16).T
    assert np.allclose(pool(features, grid_boxes(4)), expected, atol=1e-6)


def test_pool_of_boxes_without_area() -> None:
    features = np.arange(64, dtype=np.float32).reshape(1, 8, 8)
    boxes = np.array([[0.99, 0.3, 0.99, 0.3], [1, 1, 1, 1], [0, 0, 0, 0]], np.float32)
    pooled = pool(features, boxes)
    assert np.isfinite(pooled).all() and pooled[1, 0] == 63 and pooled[2, 0] == 0


def test_unit_of_nothing_is_nothing() -> None:
    assert np.array_equal(unit(np.zeros((2, 3), np.float32)), np.zeros((2, 3)))


def test_suppress_against_a_plain_loop() -> None:
    dice = np.random.default_rng(3)
    for _ in range(20):
        corners = np.sort(dice.uniform(size=(60, 2, 2)), axis=1)
        boxes = corners.reshape(60, 4).astype(np.float32)
        labels = dice.integers(0, 3, 60)
        kept: list[int] = []
        for index in range(60):
            if all(
                labels[index] != labels[other] or _overlap(boxes[index], boxes[other]) <= 0.3
                for other in kept
            ):
                kept.append(index)
        assert suppress(boxes, labels, 0.3, 1000).tolist() == kept
        assert suppress(boxes, labels, 0.3, 5).tolist() == kept[:5]
    assert suppress(np.zeros((0, 4), np.float32), np.zeros(0, int), 0.5, 5).tolist() == []


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (area[0] + area[1] - width * height)


def test_decode_one_anchor() -> None:
    """An anchor of stride 16 whose sides say 1, 2, 3 and 4 strides for sure."""
    anchors = Anchors.of(64)
    assert len(anchors.strides) == 64 + 16 + 4 + 1
    place = 64 + 5  # row 1, column 1 of the second level: centre at 24, 24
    scores = np.zeros((80, 85), np.float32)
    scores[7, place], scores[9, 3] = 0.9, 0.05
    sides = np.full((4, 8, 85), -50, np.float32)
    for side, distance in enumerate((1, 2, 0, 2)):
        sides[side, distance, place] = 50
    found = decode(scores, sides.reshape(32, 85), anchors, least_score=0.1, most_overlap=0.5, most=9)
    assert found.labels.tolist() == [7] and found.scores.tolist() == [np.float32(0.9)]
    assert np.allclose(found.boxes[0] * 64, [24 - 16, 0, 24, 24 + 32], atol=1e-4)  # the top is cut at 0


def test_names_of_detectors() -> None:
    assert load_detector("builtin:imagenet").recipe == RECIPE
    assert load_detector("builtin").recipe.words
    with pytest.raises(UserError, match="is not a detector"):
        load_detector("yolo")
    with pytest.raises(UserError, match="classes of its own"):
        load_detector("builtin", classes=("zebra",))


def test_torchvision_is_asked_for() -> None:
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        with pytest.raises(UserError, match="needs torchvision"):
            load_detector("torchvision:fasterrcnn_resnet50_fpn")
    else:
        with pytest.raises(UserError, match="no Faster R-CNN called"):
            load_detector("torchvision:resnet50")


def test_noise_follows_from_what_is_seen_and_not_from_the_last_digits(detector) -> None:
    photos = [open_picture(path, least_side=detector.least_side) for path in sorted(EXAMPLES.glob("*.jpg"))]
    everything = detector.regions(photos)
    assert len({noise_key(each) for each in everything}) == len(photos)
    random = np.random.default_rng(0)
    for seen in everything:
        parts = {name: getattr(seen, name) for name in ("features", "boxes", "scores")}
        other = {
            name: np.asarray(values * (1 + 1e-6 * random.standard_normal(values.shape)), values.dtype)
            for name, values in parts.items()
        }
        other["features"] = other["features"].copy()
        other["features"][0, 0] += np.float16(0.01)
        assert noise_key(Regions(**other, labels=seen.labels)) == noise_key(seen)
        cells = [np.asarray(values)[seen.labels == GRID_LABEL] for values in (*parts.values(), seen.labels)]
        grid = Regions(cells[0], cells[1], labels=cells[3], scores=cells[2])
        changed = Regions(-cells[0], cells[1], labels=cells[3], scores=cells[2])
        assert noise_key(grid) != noise_key(changed)  # nothing else tells pictures of bare cells apart
