"""Models as folders: weights (safetensors), configuration and vocabulary (JSON), with digests of both.

config.json          format, model, recipe of the regions, digests, notes
model.safetensors    weights, float32, float16 or int8 (large matrices: NAME in whole numbers, NAME.scale for each row)
vocabulary.json      tokens by number
classes.json         the object classes that captions were split with (if the model has them)
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from coscap.errors import UserError, reason
from coscap.files import read_json, sha256, whole_folder, write_json
from coscap.models.base import CaptionModel
from coscap.models.config import ModelConfig, read_config
from coscap.models.registry import build_model
from coscap.text.objects import ObjectClasses, load_classes
from coscap.text.vocabulary import Vocabulary
from coscap.vision.regions import Recipe, check_recipe

FORMAT = "coscap model 1"
CONFIG, WEIGHTS, VOCABULARY, CLASSES = "config.json", "model.safetensors", "vocabulary.json", "classes.json"
LARGE = 10_000  # weights: smaller matrices are not worth rounding
STEPS = 127  # whole numbers on each side of 0 that a row is rounded to
SCALE = ".scale"
Stored = Literal["float32", "float16", "int8"]
WITHOUT_EFFECT = ("predict_unknown",)  # settings of earlier versions that changed nothing


@dataclass(frozen=True)
class Pretrained:
    """A model with all that it must be used with."""

    source: str
    model: CaptionModel
    vocabulary: Vocabulary
    recipe: Recipe | None  # None: the model does not say which regions it was trained on
    classes: ObjectClasses | None
    notes: Mapping[str, Any]  # run, scores, licence: whatever was saved with it
    weights: str = ""  # digest

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Refuse a vocabulary in which numbers mean other words."""
        if vocabulary.digest != self.vocabulary.digest:
            raise UserError(
                f"{self.source} was trained with another vocabulary ({len(self.vocabulary)} tokens, "
                f"{self.vocabulary.digest[:12]}) than the one given ({len(vocabulary)} tokens, "
                f"{vocabulary.digest[:12]}); use the vocabulary.json beside the model."
            )

    def check_recipe(self, recipe: Recipe) -> None:
        """Refuse regions that were made in another way."""
        check_recipe(self.source, self.recipe, recipe)


def save_pretrained(
    model: CaptionModel,
    folder: str | Path,
    *,
    vocabulary: Vocabulary,
    recipe: Recipe | None = None,
    classes: ObjectClasses | None = None,
    notes: Mapping[str, Any] | None = None,
    dtype: Stored = "float32",
) -> None:
    """Write a folder that `load_pretrained` reads; a model that is there already is replaced as a whole."""
    folder = Path(folder)
    if len(vocabulary) != model.config.vocabulary:
        raise UserError(
            f"the vocabulary has {len(vocabulary)} tokens and the model {model.config.vocabulary}; "
            "save the model with the vocabulary it was trained with."
        )
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise UserError(f"{folder} holds other files than a model; choose a new folder for the model.")
    stored = _stored(_tensors(model), dtype)
    weights = save_tensors(
        {name: value.to("cpu").contiguous() for name, value in stored.items()}, metadata={"format": "pt"}
    )
    description = {
        "format": FORMAT,
        "model": model.config.model_dump(mode="json"),
        "recipe": None if recipe is None else recipe.fields(),
        "vocabulary": vocabulary.digest,
        "weights": hashlib.sha256(weights).hexdigest(),
        "notes": dict(notes or {}),
    }
    with whole_folder(folder) as partial:
        (partial / WEIGHTS).write_bytes(weights)
        vocabulary.save(partial / VOCABULARY)
        if classes is not None:
            classes.save(partial / CLASSES)
        write_json(partial / CONFIG, description, indent=1)


def load_pretrained(name: str | Path) -> Pretrained:
    """The model in a folder, or, if there is no such folder, the one of that name on the Hugging Face hub."""
    folder = Path(name) if Path(name).is_dir() else _from_hub(str(name))
    content = _read_description(folder)
    settings = {name: value for name, value in content["model"].items() if name not in WITHOUT_EFFECT}
    config = read_config(settings, f"{folder / CONFIG}")
    vocabulary = Vocabulary.load(_there(folder, VOCABULARY))
    if vocabulary.digest != content.get("vocabulary") or len(vocabulary) != config.vocabulary:
        raise UserError(
            f"{folder / VOCABULARY} is not the vocabulary that this model was trained with "
            f"({len(vocabulary)} tokens, {config.vocabulary} expected); take the one that was saved with it."
        )
    weights = _there(folder, WEIGHTS)
    _check_shapes(weights, config)
    _check_digest(weights, content.get("weights"))
    model = build_model(config)
    model.load_state_dict(_restored(load_file(weights)), strict=False)
    return Pretrained(
        source=str(name),
        model=model.eval(),
        vocabulary=vocabulary,
        recipe=_read_recipe(content.get("recipe"), folder / CONFIG),
        classes=load_classes(folder / CLASSES) if (folder / CLASSES).is_file() else None,
        notes=content.get("notes") or {},
        weights=content["weights"],
    )


def _tensors(model: CaptionModel) -> dict[str, Tensor]:
    """The weights by name, each once: a tied vocabulary layer is the word embedding."""
    tied = {"output.weight"} if model.config.tie_words else set()
    return {name: value.detach() for name, value in model.state_dict().items() if name not in tied}


def _stored(tensors: Mapping[str, Tensor], dtype: Stored) -> dict[str, Tensor]:
    """Weights in the type asked for; numbers of tokens stay what they are."""
    kind, found = torch.float32 if dtype == "float32" else torch.float16, {}
    for name, value in tensors.items():
        if dtype == "int8" and value.is_floating_point() and value.ndim == 2 and value.numel() >= LARGE:
            scale = value.abs().amax(1, keepdim=True).clamp(min=1e-20) / STEPS  # (rows, 1)
            found[name] = torch.round(value / scale).to(torch.int8)
            found[name + SCALE] = scale.float()
        else:
            found[name] = value.to(kind) if value.is_floating_point() else value
    return found


def _restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float32."""
    found = {}
    for name, value in tensors.items():
        if name + SCALE in tensors:
            found[name] = value.float() * tensors[name + SCALE]
        elif not name.endswith(SCALE):
            found[name] = value.float() if value.is_floating_point() else value
    return found


def smallest_type(model: CaptionModel) -> Stored:
    """The smallest type that loses nothing, because the weights were stored so before."""
    weights = {name: each for name, each in _tensors(model).items() if each.is_floating_point()}
    smaller: tuple[Stored, ...] = ("int8", "float16")
    for dtype in smaller:
        restored = _restored(_stored(weights, dtype))
        if all(torch.allclose(restored[name], each, rtol=1e-6, atol=0) for name, each in weights.items()):
            return dtype
    return "float32"


def _check_shapes(path: Path, config: ModelConfig) -> None:
    """Refuse weights that are not those of the configuration, by the file's header and a model without memory: a file
    of a kilobyte can claim gigabytes, and so can a configuration."""
    shapes = _read_shapes(path)
    found = {name: shape for name, shape in shapes.items() if not name.endswith(SCALE)}
    scales = {name.removesuffix(SCALE): shape for name, shape in shapes.items() if name.endswith(SCALE)}
    for name, shape in scales.items():
        if len(found.get(name, ())) != 2 or shape != (found[name][0], 1):
            raise _other_weights(path, name + SCALE)
    if config.flow_layers > max(len(found), 100):  # each layer has weights of its own
        raise _other_weights(path, "flow_layers")
    try:
        with torch.device("meta"):
            wanted = {name: tuple(each.shape) for name, each in _tensors(build_model(config)).items()}
    except (RuntimeError, TypeError, OverflowError):  # sizes that no tensor can have
        raise UserError(
            f"{path.with_name(CONFIG)} describes a model that is too large to exist; take the file that was saved "
            "with the model."
        ) from None
    if wanted != found:
        wrong = min(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise _other_weights(path, wrong)


def _read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes that a file of weights claims. That their bytes are there is checked, the bytes are not read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged or no safetensors file ({reason(error)}); copy it again."
        ) from None


def _other_weights(path: Path, difference: str) -> UserError:
    return UserError(
        f"{path} holds other weights than {CONFIG} describes (first difference: {difference}); "
        "the two files must be of the same model."
    )


def _read_description(folder: Path) -> dict[str, Any]:
    path = _there(folder, CONFIG)
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(
            f"{path} does not describe a model of coscap (its format should be {FORMAT!r}); check the folder."
        )
    if not isinstance(content.get("model"), dict):
        raise UserError(f"{path} has no settings under `model`; take the file that was saved with the model.")
    return content


def _check_digest(path: Path, digest: str | None) -> None:
    if sha256(path) != digest:
        raise UserError(
            f"{path} is damaged or of another model: its checksum is not the one in {CONFIG}; copy it again."
        )


def _read_recipe(content: Any, path: Path) -> Recipe | None:
    if content is None:
        return None
    try:
        return Recipe.of(content)
    except (TypeError, KeyError):
        raise UserError(
            f"{path} describes no recipe of regions that this version knows; update coscap."
        ) from None


def _there(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise UserError(f"{folder} holds no {name}, so it is not a saved model; check the path.")
    return folder / name


def _from_hub(name: str) -> Path:
    """Downloads, or finds in the hub's cache, the model `owner/name`, or `owner/name@revision`."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from coscap.fetch import hub_name

    repository, revision = hub_name(name)
    patterns = [CONFIG, WEIGHTS, VOCABULARY, CLASSES]
    try:
        return Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"{name} is no folder with a model and could not be fetched from the hub ({reason(error)}); "
            "check the name and the connection."
        ) from None
