"""The arrays of one picture's regions as strangers publish them, checked and brought into one form."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap.errors import UserError
from coscap.vision.regions import GRID_LABEL, Regions


def checked_regions(item: str, fields: dict[str, Any], width: int | None) -> Regions:
    """Check the arrays of one picture against each other and bring the boxes to 0..1."""
    features = np.asarray(fields["features"])
    if features.dtype.kind != "f":
        raise UserError(f"{item}: features have the type {features.dtype} and floats were expected.")
    if features.ndim not in (1, 2):
        raise UserError(f"{item}: features have the shape {features.shape} and (boxes, width) was expected.")
    count = _number(item, "num_boxes", fields["num_boxes"]) if "num_boxes" in fields else len(features)
    if not 0 <= count <= features.size or count != int(count):
        raise UserError(f"{item}: num_boxes is {count:g}, which does not fit features of {features.shape}.")
    count = int(count)
    features = _rows(item, "features", features, count)  # (R, F)
    if not np.isfinite(features).all():
        raise UserError(f"{item}: features hold values that are no numbers (nan or inf).")
    if width is not None and features.shape[1] != width:
        raise UserError(
            f"{item}: features are {features.shape[1]} wide, and those of the first picture {width}; "
            "all must come from one detector."
        )
    labels = np.full(count, GRID_LABEL, dtype=np.int16)
    scores = np.ones(count, dtype=np.float32)
    if "classes" in fields:
        given = _column(item, "classes", fields["classes"], count)
        if len(given) and not (given.min() >= GRID_LABEL and given.max() < 1 << 15):
            raise UserError(f"{item}: classes must be whole numbers from 0.")
        labels = given.astype(np.int16)
    if "scores" in fields:
        scores = _column(item, "scores", fields["scores"], count).astype(np.float32)
    return Regions(features, _boxes(item, fields, count), labels, scores)


def _number(item: str, name: str, value: Any) -> float:
    value = np.asarray(value)
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise UserError(f"{item}: {name} has the shape {value.shape} and one number was expected.")
    return float(value.reshape(-1)[0])


def _column(item: str, name: str, values: Any, count: int) -> NDArray[Any]:
    values = np.asarray(values)
    if values.dtype.kind not in "iuf":
        raise UserError(f"{item}: {name} have the type {values.dtype} and numbers were expected.")
    rows = _rows(item, name, values, count)
    return rows[:, 0] if rows.shape[1] else np.zeros(0, values.dtype)


def _rows(item: str, name: str, values: NDArray[Any], count: int) -> NDArray[Any]:
    """(count, width) out of rows, padded rows, or a flat array."""
    if values.ndim == 2 and len(values) >= count:
        return values[:count]
    if values.ndim == 1 and count and len(values) >= count and len(values) % count == 0:
        return values.reshape(count, -1)
    if values.ndim == 1 and name in ("classes", "scores") and len(values) >= count:
        return values[:count, None]
    raise UserError(f"{item}: {name} have the shape {values.shape}, which does not fit {count} boxes.")


def _boxes(item: str, fields: dict[str, Any], count: int) -> NDArray[np.float32]:
    if "boxes" not in fields:
        return np.tile(np.array([0, 0, 1, 1], dtype=np.float32), (count, 1))
    boxes = np.asarray(fields["boxes"])
    if boxes.dtype.kind not in "iuf":
        raise UserError(f"{item}: boxes have the type {boxes.dtype} and numbers were expected.")
    boxes = _rows(item, "boxes", boxes, count).astype(np.float32)
    if not np.isfinite(boxes).all():
        raise UserError(f"{item}: boxes hold values that are no numbers (nan or inf).")
    if count and boxes.shape[1] < 4:
        raise UserError(f"{item}: boxes have {boxes.shape[1]} columns and x1, y1, x2, y2 were expected.")
    boxes = boxes[:, :4] if count else np.zeros((0, 4), np.float32)
    if boxes.max(initial=0) > 1.5:  # pixels
        if "width" not in fields or "height" not in fields:
            raise UserError(
                f"{item}: boxes are in pixels, and there is no width and height to divide them by."
            )
        sides = [_number(item, name, fields[name]) for name in ("width", "height")]
        size = np.array(sides * 2, dtype=np.float32)
        if not (size > 0).all():
            raise UserError(f"{item}: the width and height of the picture must be above 0.")
        boxes = boxes / size
    return np.clip(boxes, 0, 1).astype(np.float32)
