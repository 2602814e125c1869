"""Write a captioner as ONNX, after every graph has been run against torch.

config.json model.safetensors vocabulary.json classes.json   the model as torch reads it, too
start.onnx step.onnx                         see graphs.py; their weights are those of model.safetensors
step-int8.onnx                               where asked for: the step with rounded products, see int8.py
manifest.json                                graphs with their ports, sizes of states and latents, tokens, digests
picodet-s.onnx map.onnx regions.onnx         the built-in detector, if the captioner was trained on its regions
"""

import json
import logging
import shutil
import tempfile
import warnings
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coscap import __version__
from coscap.data.batch import RegionBatch
from coscap.errors import UserError
from coscap.export.graphs import Graph, Port, graphs_of
from coscap.export.int8 import quantise
from coscap.export.vision import See
from coscap.files import sha256, whole_folder, write_json
from coscap.models import CaptionModel, Pretrained
from coscap.models.hub import CLASSES, CONFIG, SCALE, VOCABULARY, WEIGHTS, save_pretrained, smallest_type
from coscap.models.stepper import TorchStepper
from coscap.runtime.folder import FORMAT, GRAPHS, INT8_STEP, MANIFEST, Precision, load_stepper
from coscap.seam import RegionArrays
from coscap.text.vocabulary import END, PAD, START, UNK
from coscap.vision import builtin
from coscap.vision.regions import Recipe
from coscap.vision.words import WordReader

MOST_DIFFERENCE = 1e-3  # between log-probabilities (or latents) of torch and onnxruntime
EXAMPLE_SIZES = {"P": 3, "R": 5, "U": 2, "N": 4}
TOKENS = 6  # steps of the check
SAFETENSORS_KINDS = {"F32": "FLOAT", "F16": "FLOAT16", "I8": "INT8"}


@dataclass(frozen=True)
class Exported:
    files: dict[str, int]  # bytes by name
    difference: float  # from torch, the largest
    int8_difference: float | None = None  # the same with rounded products


def export(pretrained: Pretrained, folder: str | Path, int8: bool = False) -> Exported:
    """Make the folder. Nothing is written if a graph does not give what torch gives.

    `int8` adds a step with rounded products, which the folder's captioner then runs unless float32 is asked for.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and the graphs are written as a folder; choose another --onnx.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} holds other files than an export; choose a new folder.")
    with whole_folder(folder) as partial:
        save_pretrained(
            pretrained.model,
            partial / "model",
            vocabulary=pretrained.vocabulary,
            recipe=pretrained.recipe,
            classes=pretrained.classes,
            notes=pretrained.notes,
            dtype=smallest_type(pretrained.model),
        )
        for path in (partial / "model").iterdir():
            path.replace(partial / path.name)
        (partial / "model").rmdir()
        manifest = write_graphs(pretrained, partial, str(folder), detector=True, int8=int8)
        files = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    return Exported(files, manifest["largest_difference"], manifest.get("int8_difference"))


def add_graphs(pretrained: Pretrained, folder: str | Path, int8: bool = False) -> Exported:
    """Put the graphs of a saved model beside its weights, in its own folder."""
    folder = Path(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as made:
        for name in (CONFIG, WEIGHTS, VOCABULARY, CLASSES):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, Path(made, name))
        manifest = write_graphs(pretrained, Path(made), str(folder), int8=int8)
        names = (*GRAPHS, *([INT8_STEP] if int8 else []), MANIFEST)
        for name in names:
            Path(made, name).replace(folder / name)
    if not int8:
        (folder / INT8_STEP).unlink(missing_ok=True)  # of an earlier export
    files = {name: (folder / name).stat().st_size for name in names}
    return Exported(files, manifest["largest_difference"], manifest.get("int8_difference"))


def write_graphs(
    pretrained: Pretrained, folder: Path, name: str, detector: bool = False, int8: bool = False
) -> dict[str, Any]:
    """Graphs and manifest beside a model's weights in `folder`, which messages call `name`. Gives the manifest."""
    model = pretrained.model.eval()
    graphs = graphs_of(model)
    for graph in graphs:
        write_graph(graph, folder / f"{graph.name}.onnx")
        share_weights(folder / f"{graph.name}.onnx", folder / WEIGHTS, tied=model.config.tie_words)
    manifest = _manifest(pretrained, graphs)
    difference = largest_difference(model, folder, manifest)
    network = map_network(pretrained.recipe)
    if detector and network is not None and pretrained.recipe is not None:
        shutil.copyfile(builtin.WEIGHTS / "picodet-s.onnx", folder / "picodet-s.onnx")
        shutil.copyfile(network, folder / "map.onnx")
        words = network.with_name("words.json")
        see = See(pretrained.recipe, WordReader(words) if words.is_file() else None)
        write_graph(see, folder / "regions.onnx")
        manifest["graphs"] = {see.name: _ports(see), **manifest["graphs"]}
        difference = max(difference, seen_difference(see, folder))
    if not difference <= MOST_DIFFERENCE:
        raise UserError(
            f"{name} was not written: its graphs differ from torch by {difference:.1e}, more than "
            f"{MOST_DIFFERENCE:.0e}; try other versions of onnx, onnxscript and onnxruntime."
        )
    manifest |= {"int8": int8, "largest_difference": difference}
    if int8:
        quantise(folder / "step.onnx", folder / INT8_STEP)
        manifest["int8_difference"] = largest_difference(model, folder, manifest, "int8")
    manifest["sha256"] = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    write_json(folder / MANIFEST, manifest, indent=1)
    return manifest


def map_network(recipe: Recipe | None) -> Path | None:
    """The map network of the package that makes regions of this recipe, if one does."""
    if recipe is not None and builtin.is_of_package(recipe):
        return builtin.EYES / "backbone.onnx"
    return builtin.WEIGHTS / "pplcnetv2.onnx" if recipe == builtin.RECIPE else None


def write_graph(graph: Graph, path: Path) -> None:
    """One ONNX file, with sizes that stay open where the ports name them."""
    inputs = tuple(_example(port) for port in graph.inputs)
    open_sizes = [
        {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(port.sizes) if isinstance(size, str)}
        for port in graph.inputs
    ]
    fixed = graph.fixed
    shapes = (*open_sizes[:fixed], tuple(open_sizes[fixed:])) if fixed < len(inputs) else tuple(open_sizes)
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.export.export(graph.eval(), inputs, dynamic_shapes=shapes, strict=False)
        made = torch.onnx.export(
            program,
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            dynamo=True,
            optimize=False,  # onnxruntime does that when it loads, in a tenth of the time
            verbose=False,
        )
        assert made is not None
        _plain_casts(made.model)
        made.save(path, external_data=False)


def _plain_casts(model: Any) -> None:
    """Write each CastLike as the Cast that it is: onnxruntime cannot fold the former and warns of it."""
    import onnx_ir

    for node in model.graph.all_nodes():
        if node.op_type == "CastLike":
            like = node.inputs[1]
            constant = onnx_ir.convenience.get_const_tensor(like)
            kind = like.dtype if constant is None else constant.dtype
            node.op_type = "Cast"
            node.attributes.add(onnx_ir.AttrInt64("to", int(kind)))
            node.resize_inputs(1)


def _example(port: Port) -> Tensor:
    sizes = [EXAMPLE_SIZES[size] if isinstance(size, str) else size for size in port.sizes]
    return torch.zeros(sizes, dtype=getattr(torch, port.kind))


def share_weights(path: Path, weights: Path, tied: bool = False) -> None:
    """Let a graph point into the safetensors file beside it instead of holding copies of the weights.

    Weights that are stored at half precision or in whole numbers become float32 when the graph is loaded.
    """
    import onnx

    header, begin = _safetensors_header(weights)
    proto = onnx.load(path)
    casts = []

    def point(tensor: Any, name: str) -> None:
        """Let an initializer be the bytes of a stored tensor."""
        first, last = header[name]["data_offsets"]
        tensor.data_type = getattr(onnx.TensorProto, SAFETENSORS_KINDS[header[name]["dtype"]])
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (("location", weights.name), ("offset", begin + first), ("length", last - first)):
            tensor.external_data.add(key=key, value=str(value))

    for tensor in list(proto.graph.initializer):
        name = tensor.name.partition("model.")[2] or tensor.name
        if tied and name == "output.weight":
            name = "own_words.weight" if "own_words.weight" in header else "words.weight"
        stored = header.get(name)
        if stored is None or stored["shape"] != list(tensor.dims) or stored["dtype"] not in SAFETENSORS_KINDS:
            continue
        used, kind = tensor.name, tensor.data_type
        point(tensor, name)
        if tensor.data_type == kind:
            continue
        tensor.name = f"{used}.stored"
        if name + SCALE in header:
            scale = proto.graph.initializer.add(name=f"{used}.scale", dims=header[name + SCALE]["shape"])
            point(scale, name + SCALE)
            # No DequantizeLinear: onnxruntime would compute that anew in each run.
            casts.append(onnx.helper.make_node("Cast", [tensor.name], [f"{used}.whole"], to=kind))
            casts.append(onnx.helper.make_node("Mul", [f"{used}.whole", scale.name], [used]))
        else:
            casts.append(onnx.helper.make_node("Cast", [tensor.name], [used], to=kind))
    nodes = [*casts, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    del proto.graph.value_info[:]
    for node in proto.graph.node:  # where a node came from in the source is of no use here
        del node.metadata_props[:]
        node.ClearField("doc_string")
    path.write_bytes(proto.SerializeToString())


def _safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """The tensors of a safetensors file by name, and where the first of their bytes is."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
    return header, 8 + size


@torch.no_grad()
def largest_difference(
    model: CaptionModel, folder: Path, manifest: dict[str, Any], precision: Precision = "float32"
) -> float:
    """Between torch and the graphs, over some tokens of some captions; infinite if tokens or sizes differ."""
    ours = TorchStepper(model)
    theirs = load_stepper(folder, {**manifest, "sha256": {}}, precision=precision)
    pairs: list[tuple[Any, Any]] = []
    for pictures, draws in ((1, 1), (3, 4)):
        regions = RegionArrays.of(_made_up(model, pictures))
        asked: dict[str, Any] = {"seed": pictures, "latent_temperature": 0.9, "record": True}
        one, other = ours.start(regions, draws, **asked), theirs.start(regions, draws, **asked)
        tokens = np.full(pictures * draws, START)
        for _ in range(TOKENS):
            found, one, attention = ours.step(tokens, one, None)
            also, other, looked = theirs.step(tokens, other, None)
            pairs += [(found.log_probabilities, also.log_probabilities), (attention, looked)]
            tokens = found.log_probabilities.argmax(axis=1)
        mine, its = vars(one.latents()), vars(other.latents())
        pairs += [(values, its[name]) for name, values in mine.items() if values is not None]
    return max(_difference(torch.from_numpy(mine), torch.from_numpy(its)) for mine, its in pairs)


@torch.no_grad()
def seen_difference(graph: Graph, folder: str | Path) -> float:
    """The same for the regions of two pictures, one of them without detections."""
    source = torch.Generator().manual_seed(0)
    sizes = [[2, *(int(size) for size in port.sizes[1:])] for port in graph.inputs]
    inputs = [torch.rand(size, generator=source) for size in sizes]
    inputs[0] = inputs[0].pow(64) * torch.tensor([1.0, 0.0])[:, None, None]  # scores
    feed: dict[str, Any] = {
        port.name: value.numpy() for port, value in zip(graph.inputs, inputs, strict=True)
    }
    ours = graph(*inputs)
    content = (Path(folder) / f"{graph.name}.onnx").read_bytes()
    theirs = builtin.session(content, threads=1).run([port.name for port in graph.outputs], feed)
    return max(
        _difference(mine.float(), torch.from_numpy(its).float())
        for mine, its in zip(ours, theirs, strict=True)
    )


def _difference(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape or not torch.equal(ours.isfinite(), theirs.isfinite()):
        return float("inf")
    finite = ours.isfinite()
    return float((ours[finite] - theirs[finite]).abs().max())


def _made_up(model: CaptionModel, pictures: int) -> RegionBatch:
    """Regions of every kind: detections, cells of a grid, a picture without detections, padding."""
    config, most = model.config, 7
    source = torch.Generator().manual_seed(pictures)
    features = torch.rand(pictures, most, config.region_width, generator=source)
    features = torch.nn.functional.normalize(features, dim=2)
    corners = torch.rand(pictures, most, 2, 2, generator=source).sort(dim=2).values
    labels = torch.randint(0, max(1, config.classes), (pictures, most), generator=source)
    labels[:, 4:] = -1
    mask = torch.ones(pictures, most, dtype=torch.bool)
    if pictures > 1:
        labels[1] = -1
        mask[2, 2:] = False
    return RegionBatch(
        features=features,
        boxes=corners.flatten(2),
        labels=torch.where(mask, labels, -1),
        scores=torch.rand(pictures, most, generator=source),
        mask=mask,
        keys=torch.arange(pictures),
    )


def _manifest(pretrained: Pretrained, graphs: list[Graph]) -> dict[str, Any]:
    model, recipe = pretrained.model, pretrained.recipe
    step = graphs[-1]
    states = {port.name.removeprefix("next_"): port for port in step.outputs if port.name.startswith("next_")}
    return {
        "format": FORMAT,
        "coscap": __version__,
        "kind": model.config.kind,
        "graphs": {graph.name: _ports(graph) for graph in graphs},
        "states": {name: int(port.sizes[1]) if len(port.sizes) > 1 else 0 for name, port in states.items()},
        "latents": {
            port.name.removesuffix("_noise"): int(port.sizes[1])
            for port in step.inputs
            if port.name.endswith("_noise")
        },
        "temperature_mode": model.config.temperature_mode,
        "choice": model.config.template_choice,  # of a latent that is one of several
        "tokens": {"pad": PAD, "start": START, "end": END, "unknown": UNK},
        "recipe": None if recipe is None else recipe.fields(),
        "notes": "picodet-s.onnx and map.onnx: PaddlePaddle Authors, Apache-2.0, changed by coscap.",
    }


def _ports(graph: Graph) -> dict[str, Any]:
    return {
        "inputs": [asdict(port) for port in graph.inputs],
        "outputs": [asdict(port) for port in graph.outputs],
    }
