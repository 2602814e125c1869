"""A model's folder with graphs: what is beside the weights, checked, and in onnxruntime.

manifest.json        format, version, what the graphs take, digests of all files
start.onnx step.onnx the graphs; their weights are those of model.safetensors, which they point into
step-int8.onnx       the step with rounded products, where the folder was made with --int8; it is then the default
model.safetensors    the weights, as torch reads them, too
vocabulary.json classes.json   as in any saved model
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coscap.errors import UserError
from coscap.files import read_json, sha256
from coscap.runtime.stepper import GUMBEL, LIKELIEST, GraphStepper
from coscap.text.objects import ObjectClasses, load_classes
from coscap.text.vocabulary import Vocabulary
from coscap.vision.regions import Recipe, check_recipe

FORMAT = "coscap graphs 3"
MANIFEST = "manifest.json"
GRAPHS = ("start.onnx", "step.onnx")
INT8_STEP = "step-int8.onnx"
CPU = ("CPUExecutionProvider",)
Precision = Literal["float32", "int8"]  # of the large products
MOST_WIDTH = 1 << 20  # of a state; more is no model


@dataclass(frozen=True)
class Loaded:
    """What belongs to a model besides its steps, and its steps."""

    source: str
    model: GraphStepper
    vocabulary: Vocabulary
    recipe: Recipe | None
    classes: ObjectClasses | None

    def check_recipe(self, recipe: Recipe) -> None:
        check_recipe(self.source, self.recipe, recipe)


def has_graphs(folder: str | Path) -> bool:
    return (Path(folder) / MANIFEST).is_file()


def load_runtime(
    folder: str | Path,
    *,
    providers: Sequence[str] = CPU,
    threads: int = 1,
    precision: Precision | None = None,
) -> Loaded:
    """The captioner in a folder that `coscap export` made. `providers` are onnxruntime's names of devices; `precision`
    is that of the large products, by default int8 where the folder was made with it and a CPU runs it."""
    folder = Path(folder)
    manifest = _read_manifest(folder)
    vocabulary = Vocabulary.load(folder / "vocabulary.json")
    try:
        recipe = None if manifest["recipe"] is None else Recipe.of(manifest["recipe"])
    except (KeyError, TypeError):
        raise UserError(
            f"{folder / MANIFEST}: recipe does not describe regions; make the folder again with coscap export."
        ) from None
    if precision is None:
        precision = "int8" if manifest["int8"] and tuple(providers) == CPU else "float32"
    if precision not in ("float32", "int8"):
        raise UserError(f"The precision is {precision!r}, and float32 or int8 was expected.")
    if precision == "int8" and not manifest["int8"]:
        raise UserError(
            f"{folder} has no graph in int8; make the folder again with coscap export --int8, or use float32."
        )
    classes = folder / "classes.json"
    return Loaded(
        source=str(folder),
        model=load_stepper(folder, manifest, providers, threads, precision),
        vocabulary=vocabulary,
        recipe=recipe,
        classes=load_classes(classes) if classes.is_file() else None,
    )


def load_stepper(
    folder: Path,
    manifest: Mapping[str, Any],
    providers: Sequence[str] = CPU,
    threads: int = 1,
    precision: Precision = "float32",
) -> GraphStepper:
    digests = "".join(manifest["sha256"].get(name, "") for name in sorted(manifest["sha256"]))
    start = session(folder / GRAPHS[0], providers, threads)
    step = session(folder / (INT8_STEP if precision == "int8" else GRAPHS[1]), providers, threads)
    return GraphStepper(start, step, manifest, hashlib.sha256((digests + precision).encode()).hexdigest())


def session(path: Path, providers: Sequence[str], threads: int) -> Any:
    """A graph in onnxruntime."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    missing = [name for name in providers if name not in available]
    if missing:
        raise UserError(
            f"onnxruntime has no {missing[0]} here, only {', '.join(available)}; install the onnxruntime package for "
            "that device, or take one of these."
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = (
        False  # rows come and go: what was laid out for one call does not fit the next
    )
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=list(providers))
    except Exception as error:  # onnxruntime has a class for each status, and none above them
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{path} cannot be loaded by onnxruntime {onnxruntime.__version__} ({reason}); make it again with "
            "coscap export."
        ) from None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder} holds no {MANIFEST}, so it has no graphs; make them with coscap export.")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise UserError(
            f"{path} has the format {found!r}, and this version of coscap reads {FORMAT!r}; make the folder again with "
            "coscap export."
        )
    if not _is_whole(content):
        raise UserError(f"{path} is not what coscap export writes; make the folder again with it.")
    for name, digest in content["sha256"].items():
        if not (folder / name).is_file():
            raise UserError(f"{folder} holds no {name}, which {MANIFEST} names; copy the whole folder again.")
        if sha256(folder / name) != digest:
            raise UserError(
                f"{folder / name} was changed after it was made: its checksum is not the one in {MANIFEST}; make the "
                "folder again with coscap export."
            )
    return content


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Whether it has all that is read, of the right types; digests must be of files in the folder itself."""
    digests, recipe = manifest.get("sha256"), manifest.get("recipe", "")
    tables = [manifest.get("latents"), manifest.get("states")]
    return (
        isinstance(digests, dict)
        and all(Path(name).name == name and isinstance(digest, str) for name, digest in digests.items())
        and isinstance(manifest.get("int8"), bool)
        and {*GRAPHS, *([INT8_STEP] if manifest["int8"] else [])} <= set(digests)
        and (recipe is None or isinstance(recipe, dict))
        and manifest.get("temperature_mode") in ("scale", "power")
        and manifest.get("choice", LIKELIEST) in (LIKELIEST, GUMBEL)
        and all(
            isinstance(table, dict)
            and all(isinstance(width, int) and 0 <= width < MOST_WIDTH for width in table.values())
            for table in tables
        )
    )
