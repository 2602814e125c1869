"""Any object detector or vision encoder of the transformers library, by its hub name (`owner/name`, or
`owner/name@revision`) or from a local folder.

The features of a detection are the state of the query that found it: the decoder's last hidden state (DETR,
RT-DETR, D-FINE and their kin), the detection token (YOLOS) or the patch embedding (OWL-ViT, OWLv2). OWL models
look for the classes that the user names, so they can find objects that no training set has labelled.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coscap.errors import UserError, reason
from coscap.fetch import hub_name
from coscap.files import sha256
from coscap.vision.boxes import suppress
from coscap.vision.pooling import pool
from coscap.vision.regions import Recipe, Regions

if TYPE_CHECKING:
    from coscap.vision.detectors import Detector

DETECTIONS = 36  # as many as bottom-up attention's fixed setting
LEAST_SCORE = 0.1
MOST_OVERLAP = 0.5
OPEN_VOCABULARY = {"owlvit", "owlv2"}
PADDED_TO_SQUARE = {"owlv2"}  # its processor pads to a square, and its boxes are relative to that


def load_transformers(name: str, classes: Sequence[str] = (), device: str = "cpu") -> "Detector":
    """A detector where the model is one, and otherwise the encoder's grid."""
    transformers = _library()
    config = _load(transformers.AutoConfig, name)
    auto = transformers.models.auto.modeling_auto
    detectors = {
        *auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
        *auto.MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES,
    }
    if config.model_type in detectors:
        return TransformersDetector(name, config, classes, device)
    if classes:
        raise UserError(
            f"{name} finds no objects, it sees a grid; leave --classes out or take an OWLv2 model."
        )
    from coscap.vision.encoders import TransformersEncoder

    model = _load(transformers.AutoModel, name, use_safetensors=True)
    backend = {} if config.model_type == "timm_wrapper" else {"backend": "pil"}
    processor = _load(transformers.AutoImageProcessor, name, **backend)
    return TransformersEncoder(name, _identity(name, config), model, processor, device)


class TransformersDetector:
    """One picture at a time: padding a batch to its largest picture would change the smaller ones' regions."""

    least_side = 0
    batch = 8

    def __init__(self, name: str, config: Any, classes: Sequence[str] = (), device: str = "cpu") -> None:
        transformers = _library()
        self._open = config.model_type in OPEN_VOCABULARY
        self._padded = config.model_type in PADDED_TO_SQUARE
        if self._padded and importlib.util.find_spec("scipy") is None:
            raise UserError(f"{name} needs scipy for its pictures; run: pip install scipy.")
        if self._open and not classes:
            raise UserError(
                f"{name} looks for classes of your choice; name them, e.g. --classes 'zebra,kite'."
            )
        if classes and not self._open:
            raise UserError(f"{name} has classes of its own; leave --classes out or take an OWLv2 model.")
        kind = (
            transformers.AutoModelForZeroShotObjectDetection
            if self._open
            else transformers.AutoModelForObjectDetection
        )
        self._model = _load(kind, name, use_safetensors=True).to(device).eval()
        self._processor = _load(transformers.AutoImageProcessor, name, backend="pil")
        self._text = self._tokens(transformers, name, classes) if self._open else {}
        labels = getattr(config, "id2label", None) or {}
        names = tuple(classes) if self._open else tuple(labels[index] for index in sorted(labels))
        self._names = names
        self.recipe = Recipe(
            name=f"hf:{_identity(name, config)}/1",
            width=self._width(),
            classes=names,
            detections=DETECTIONS,
            grid=0,
        )

    def regions(self, pictures: Sequence[Image.Image]) -> list[Regions]:
        return [self._one(picture) for picture in pictures]

    def _one(self, picture: Image.Image) -> Regions:
        output = self._run(picture)
        scores, labels = _scores(output.logits[0].float().cpu().numpy(), len(self._names))  # (Q,), (Q,)
        boxes = _corners(output.pred_boxes[0].float().cpu().numpy())  # (Q, 4)
        if self._padded:
            side = max(picture.size)
            boxes = boxes * np.array([side / picture.width, side / picture.height] * 2, np.float32)
        boxes = boxes.clip(0, 1)
        order = np.argsort(-scores, kind="stable")
        # The best detection stays whatever its score: without a grid a picture must have some region.
        order = order[: max(1, int((scores > LEAST_SCORE).sum()))]
        kept = order[suppress(boxes[order], labels[order], MOST_OVERLAP, DETECTIONS)]
        return Regions(
            features=_features(output, boxes, len(scores))[kept].astype(np.float16),
            boxes=boxes[kept],
            labels=labels[kept].astype(np.int16),
            scores=scores[kept],
        )

    def _run(self, picture: Image.Image) -> Any:
        import torch

        inputs = self._processor(images=picture, return_tensors="pt")
        fields = {key: value.to(self._model.device) for key, value in {**inputs, **self._text}.items()}
        with torch.inference_mode():
            return self._model(**fields)

    def _tokens(self, transformers: Any, name: str, classes: Sequence[str]) -> dict[str, Any]:
        tokenizer = _load(transformers.AutoTokenizer, name)
        texts = [f"a photo of a {each}" for each in classes]  # the sentence OWL models were trained with
        most = self._model.config.text_config.max_position_embeddings
        encoded = tokenizer(
            texts, padding="max_length", max_length=most, truncation=True, return_tensors="pt"
        )
        return {key: encoded[key] for key in ("input_ids", "attention_mask")}

    def _width(self) -> int:
        """The features' width, from a black picture: no two architectures say it in the same field."""
        output = self._run(Image.new("RGB", (64, 64)))
        queries = output.logits.shape[1]
        return int(_features(output, np.zeros((queries, 4), np.float32), queries).shape[1])


def _scores(logits: NDArray[np.float32], classes: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """The best class of each query. A model with one output more than classes has "nothing" as its last."""
    if logits.shape[1] == classes + 1:
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances = (powers / powers.sum(axis=1, keepdims=True))[:, :-1]
    else:
        chances = 0.5 * (1 + np.tanh(0.5 * logits))  # the logistic function, which cannot overflow so
    return chances.max(axis=1).astype(np.float32), chances.argmax(axis=1)


def _corners(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Centre and size to corners."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def _features(output: Any, boxes: NDArray[np.float32], queries: int) -> NDArray[np.float32]:
    """(Q, F): the queries' own states, or else the encoder's map pooled over their boxes."""
    patches = getattr(output, "image_embeds", None)  # OWL: (1, h, w, F), a query for each patch
    # (1, Q, F); YOLOS puts its patches before its queries
    states = getattr(output, "last_hidden_state", None) if patches is None else patches.flatten(1, 2)
    if states is not None and states.ndim == 3 and states.shape[1] >= queries:
        return states[0, -queries:].float().cpu().numpy()  # type: ignore[no-any-return]
    encoded = getattr(output, "encoder_last_hidden_state", None)
    if encoded is not None and encoded.ndim == 4:
        return pool(encoded[0].float().cpu().numpy(), boxes).astype(np.float32)
    raise UserError("this detector gives no feature for a detection; take RT-DETR, DETR, YOLOS or OWLv2.")


def _library() -> Any:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise UserError(
            "a hf: detector needs the transformers library; run: pip install 'coscap[detectors]'."
        ) from None
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _load(kind: Any, name: str, **options: Any) -> Any:
    repository, revision = (name, None) if Path(name).is_dir() else hub_name(name)
    if revision:
        options["revision"] = revision
    try:
        return kind.from_pretrained(repository, **options)
    except Exception as error:  # whatever the library says of a file that is not as it must be
        raise UserError(
            f"{name} cannot be loaded as a detector or an encoder ({reason(error)}); give a hub name or a folder."
        ) from None


def _identity(name: str, config: Any) -> str:
    """A name that says which weights they are: the hub's commit, or a hash of the files in the folder."""
    folder = Path(name)
    if not folder.is_dir():
        repository, revision = hub_name(name)
        return f"{repository}@{(getattr(config, '_commit_hash', None) or revision or 'main')[:12]}"
    hashes = [sha256(path) for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]]
    return f"{folder.resolve().name}@{hashlib.sha256(''.join(hashes).encode()).hexdigest()[:12]}"
