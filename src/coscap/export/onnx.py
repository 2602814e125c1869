"""Write a captioner as ONNX, after every graph has been run against torch.

start.onnx priors.onnx decoder.onnx          see graphs.py
picodet-s.onnx pplcnetv2.onnx regions.onnx   the built-in detector, if the captioner was trained on its regions
vocabulary.json                              tokens by number
manifest.json                                graphs with their ports, sizes of states and noise, tokens, digests
"""

import logging
import shutil
import warnings
from collections.abc import Sequence
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
from coscap.export.vision import See
from coscap.files import sha256, whole_folder, write_json
from coscap.models import CaptionModel, Pretrained
from coscap.models.base import CONTEXT_NOISE, OBJECT_NOISE
from coscap.models.noise import normals, row_keys
from coscap.text.vocabulary import END, PAD, START, UNK
from coscap.vision.builtin import RECIPE, WEIGHTS

FORMAT = "coscap onnx 1"
MANIFEST = "manifest.json"
DETECTOR = ("picodet-s.onnx", "pplcnetv2.onnx")
MOST_DIFFERENCE = 1e-3  # between log-probabilities (or latents) of torch and onnxruntime
EXAMPLE_SIZES = {"P": 3, "R": 5, "N": 4}
WORDS = 6  # steps of the check


@dataclass(frozen=True)
class Exported:
    files: dict[str, int]  # bytes by name
    difference: float


def export(pretrained: Pretrained, folder: str | Path) -> Exported:
    """Make the folder. Nothing is written if a graph does not give what torch gives."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and the graphs are written as a folder; choose another --onnx.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} holds other files than an export; choose a new folder.")
    model = pretrained.model.eval()
    graphs = graphs_of(model)
    with whole_folder(folder) as partial:
        for graph in graphs:
            write_graph(graph, partial / f"{graph.name}.onnx")
        difference = largest_difference(model, partial)
        if pretrained.recipe == RECIPE:
            for name in DETECTOR:
                shutil.copyfile(WEIGHTS / name, partial / name)
            graphs = [See(), *graphs]
            write_graph(graphs[0], partial / "regions.onnx")
            difference = max(difference, seen_difference(graphs[0], partial))
        if not difference <= MOST_DIFFERENCE:
            raise UserError(
                f"{folder} was not written: its graphs differ from torch by {difference:.1e}, more than "
                f"{MOST_DIFFERENCE:.0e}; try other versions of onnx, onnxscript and onnxruntime."
            )
        pretrained.vocabulary.save(partial / "vocabulary.json")
        files = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        write_json(partial / MANIFEST, _manifest(pretrained, graphs, partial, difference), indent=1)
    return Exported(files, difference)


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


class Graphs:
    """The written graphs in onnxruntime, run on one dictionary of arrays that they read and extend."""

    def __init__(self, folder: str | Path, names: Sequence[str] = ("start", "priors", "decoder")) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.sessions = {
            path.stem: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for path in Path(folder).glob("*.onnx")
            if path.stem in names
        }

    def run(self, name: str, feed: dict[str, Any]) -> None:
        """Take the inputs from `feed` and put the outputs there; next_h becomes the h of the next call."""
        session = self.sessions[name]
        values = session.run(None, {each.name: feed[each.name] for each in session.get_inputs()})
        names = (each.name.removeprefix("next_") for each in session.get_outputs())
        feed.update(zip(names, values, strict=True))


@torch.no_grad()
def largest_difference(model: CaptionModel, folder: str | Path) -> float:
    """Between torch and the graphs, over some words of some captions; infinite if words or sizes differ."""
    graphs = Graphs(folder)
    pairs: list[tuple[Tensor, Any]] = []
    for pictures, draws in ((1, 1), (3, 4)):
        regions, temperatures = _made_up(model, pictures), (0.9, 0.7)
        state = model.start(regions, draws, seed=pictures, temperature=temperatures)
        rows = pictures * draws
        feed: dict[str, Any] = {
            name: getattr(regions, name).numpy() for name in ("features", "boxes", "labels", "scores", "mask")
        }
        feed |= {name: np.zeros((rows, size), np.float32) for name, size in states_of(model).items()}
        feed |= {"temperatures": np.array(temperatures, np.float32), "owners": np.arange(rows) // draws}
        graphs.run("start", feed)
        keys, words = row_keys(pictures, regions.keys, draws), torch.full((rows,), START)
        for step in range(WORDS):
            for stream, (name, size) in enumerate(noise_of(model).items(), CONTEXT_NOISE):
                feed[name] = normals(keys, stream, step, size).numpy()
            feed["tokens"] = words.numpy()
            if "priors" in graphs.sessions:
                graphs.run("priors", feed)
            graphs.run("decoder", feed)
            logs, state, attention = model.step(words, state)
            pairs += [(logs, feed["log_probabilities"]), (attention, feed["attention"])]
            latents = {"context_z": state.context, "object_z": state.objects}
            pairs += [(latent.z, feed[name]) for name, latent in latents.items() if latent is not None]
            words = logs.argmax(1)
    return max(_difference(ours, torch.from_numpy(theirs)) for ours, theirs in pairs)


@torch.no_grad()
def seen_difference(graph: Graph, folder: str | Path) -> float:
    """The same for the regions of two pictures, one of them without detections."""
    source = torch.Generator().manual_seed(0)
    sizes = [[2, *(int(size) for size in port.sizes[1:])] for port in graph.inputs]
    scores, sides, map = (torch.rand(size, generator=source) for size in sizes)
    scores = scores.pow(64) * torch.tensor([1.0, 0.0])[:, None, None]
    feed: dict[str, Any] = {"scores": scores.numpy(), "sides": sides.numpy(), "map": map.numpy()}
    ours = graph(scores, sides, map)
    Graphs(folder, [graph.name]).run(graph.name, feed)
    names = [port.name.removeprefix("next_") for port in graph.outputs]
    return max(
        _difference(each.float(), torch.from_numpy(feed[name]).float())
        for name, each in zip(names, ours, strict=True)
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


def states_of(model: CaptionModel) -> dict[str, int]:
    """Widths of what is carried from word to word; zeros before the first."""
    ports = [port for graph in graphs_of(model)[1:] for port in graph.outputs]
    return {
        port.name.removeprefix("next_"): int(port.sizes[1]) for port in ports if port.name.startswith("next_")
    }


def noise_of(model: CaptionModel) -> dict[str, int]:
    """Widths of the noise that the priors take, in the order of its streams: z^m, z^o."""
    assert (CONTEXT_NOISE, OBJECT_NOISE) == (1, 2)
    ports = [port for graph in graphs_of(model) for port in graph.inputs]
    return {port.name: int(port.sizes[1]) for port in ports if port.name.endswith("_noise")}


def _manifest(pretrained: Pretrained, graphs: list[Graph], folder: Path, difference: float) -> dict[str, Any]:
    model, recipe = pretrained.model, pretrained.recipe
    return {
        "format": FORMAT,
        "coscap": __version__,
        "kind": model.config.kind,
        "graphs": {
            graph.name: {
                "inputs": [asdict(port) for port in graph.inputs],
                "outputs": [asdict(port) for port in graph.outputs],
            }
            for graph in graphs
        },
        "states": states_of(model),
        "noise": noise_of(model),
        "tokens": {"pad": PAD, "start": START, "end": END, "unknown": UNK},
        "regions": None if recipe is None else recipe.fields(),
        "largest_difference": difference,
        "sha256": {path.name: sha256(path) for path in sorted(folder.iterdir())},
        "notes": "picodet-s.onnx and pplcnetv2.onnx: PaddlePaddle Authors, Apache-2.0, changed by coscap.",
    }
