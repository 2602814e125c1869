"""The built-in map network as a torch module, so that it can be tuned, and back to ONNX.

    picture (B, H, W, 3) bytes ─▶ PPLCNetV2 ─▶ map m (B, 1024, H/32, W/32)
                                                 │  1 x 1 convolution
                                                 ▼
             evidence s_wp of word w at place p (B, W, H/32, W/32)
                                                 │  a_w mean_p s + (1 - a_w) log mean_p exp s
                                                 ▼
                                logits (B, W): does any caption of the picture have the word?

A word of the whole scene ("kitchen") learns a_w near 1, a word of one place ("bottle") near 0. The evidence of a place
says where a word was seen.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coscap.errors import UserError

MEAN = (0.485, 0.456, 0.406)  # ImageNet's, as in the graph's own first nodes
DEVIATION = (0.229, 0.224, 0.225)
ENTRANCE = "entrance."  # names of the nodes and weights that normalise the bytes
WORDS = "words."  # names of the head's weights
HALF, WHOLE = ".half", ".whole"  # endings of weights that are stored in 16 and 8 bits
SCALE, WIDE = ".channel_scale", ".wide"  # what one in 8 bits is multiplied with, and as float32 before that
LARGE = 10_000  # numbers from which on a weight is stored in 8 bits
OPERATIONS = ("Conv", "Relu", "Mul", "Add", "Sigmoid", "GlobalAveragePool")


class Backbone(nn.Module):
    """A convolutional network read from ONNX: convolutions with bias, ReLU, squeeze-and-excitation gates.

    `frozen` convolutions from the picture on keep their weights and run without a tape, in bfloat16 where `precision`
    says so: they hold edges and textures, half of the time of a backward pass and 2 % of the parameters.
    Depthwise convolutions always run in float32: their backward pass is slower in bfloat16 on a CPU.
    """

    def __init__(self, path: str | Path, *, frozen: int = 0, precision: str = "bf16") -> None:
        super().__init__()
        self.path, self.precision = Path(path), precision
        graph = read_graph(self.path).graph
        self.nodes = [_Node(node) for node in graph.node if not _is_entrance(node)]
        convolutions = [at for at, node in enumerate(self.nodes) if node.operation == "Conv"]
        if not 0 <= frozen < len(convolutions):
            raise UserError(
                f"frozen is {frozen}, and {path} has {len(convolutions)} convolutions; "
                f"give 0 to {len(convolutions) - 1}."
            )
        self.cut = convolutions[frozen]  # the first node that learns
        held = {name for node in self.nodes[: self.cut] for name in node.inputs}
        self.weights = nn.ParameterDict()
        for name, value in _initializers(graph):
            value = value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
            self.weights[_key(name)] = nn.Parameter(value, requires_grad=name not in held)
        self.width = int(self.weights[_key(self._last_convolution().inputs[1])].shape[0])

    def _last_convolution(self) -> "_Node":
        return [node for node in self.nodes if node.operation == "Conv"][-1]

    def forward(self, pictures: Tensor) -> Tensor:
        """pictures: (B, H, W, 3) uint8 -> map (B, C, H/32, W/32) float32"""
        scale = (
            pictures.new_tensor(MEAN, dtype=torch.float32),
            pictures.new_tensor(DEVIATION, dtype=torch.float32),
        )
        x = (pictures.permute(0, 3, 1, 2).float() / 255 - scale[0][:, None, None]) / scale[1][:, None, None]
        values = {self.nodes[0].inputs[0]: x.contiguous(memory_format=torch.channels_last)}
        with torch.no_grad():
            self._run(self.nodes[: self.cut], values)
        self._run(self.nodes[self.cut :], values)
        return values[self.nodes[-1].output].float()

    def _run(self, nodes: list["_Node"], values: dict[str, Tensor]) -> None:
        for node in nodes:
            inputs = [values[name] if name in values else self.weights[_key(name)] for name in node.inputs]
            values[node.output] = node(inputs, self.precision == "bf16")


class _Node:
    """One operation of the graph."""

    def __init__(self, node: Any) -> None:
        if node.op_type not in OPERATIONS:
            raise UserError(
                f"a backbone with the operation {node.op_type} cannot be tuned; known are {', '.join(OPERATIONS)}."
            )
        self.operation, self.inputs, self.output = node.op_type, list(node.input), node.output[0]
        options: dict[str, Any] = {item.name: list(item.ints) or item.i for item in node.attribute}
        self.strides: list[int] = options.get("strides", [1, 1])
        self.padding: list[int] = options.get("pads", [0, 0])[:2]
        self.groups: int = options.get("group", 1)

    def __call__(self, inputs: list[Tensor], low: bool) -> Tensor:
        if self.operation == "Conv":
            x, weight, bias = inputs
            kind = torch.bfloat16 if low and self.groups == 1 else torch.float32
            return functional.conv2d(
                x.to(kind), weight.to(kind), bias.to(kind), self.strides, self.padding, 1, self.groups
            )
        if self.operation == "Relu":
            return torch.relu_(inputs[0])
        if self.operation == "Mul":
            return inputs[0] * inputs[1].to(inputs[0].dtype)
        if self.operation == "Add":
            return inputs[0] + inputs[1]
        if self.operation == "Sigmoid":
            return torch.sigmoid(inputs[0])
        return inputs[0].mean((2, 3), keepdim=True)


class WordHead(nn.Module):
    """Words of a picture from its map: evidence at each place, pooled by a mixture of mean and log-mean-exp."""

    def __init__(self, width: int, frequencies: Tensor) -> None:
        """frequencies: (W,) the share of the pictures that have each word, where the logits start."""
        super().__init__()
        words = len(frequencies)
        self.weight = nn.Parameter(torch.zeros(words, width))
        self.bias = nn.Parameter(torch.logit(frequencies.clamp(1e-5, 1 - 1e-5)))
        self.mixture = nn.Parameter(torch.zeros(words))  # a_w = sigmoid of it

    def evidence(self, maps: Tensor) -> Tensor:
        """maps: (B, C, h, w) -> s (B, W, h, w)"""
        return functional.conv2d(maps, self.weight[:, :, None, None], self.bias)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, h, w) -> logits (B, W)"""
        evidence = self.evidence(maps).flatten(2)  # (B, W, P)
        peak = evidence.logsumexp(2) - math.log(evidence.shape[2])
        share = torch.sigmoid(self.mixture)
        return share * evidence.mean(2) + (1 - share) * peak


class WordNetwork(nn.Module):
    """Backbone and head."""

    def __init__(self, backbone: Backbone, head: WordHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 -> logits (B, W)"""
        logits: Tensor = self.head(self.backbone(pictures))
        return logits


def read_graph(path: Path) -> Any:
    """The network without its words: weights in float32, one output `map`."""
    try:
        import onnx
    except ImportError:
        raise UserError(
            "tuning a backbone needs the package onnx; `pip install coscap[export]` brings it."
        ) from None
    model = onnx.load(str(path))
    graph = model.graph
    stored = _float_weights(graph)
    nodes = [node for node in graph.node if not _is_widening(node) and node.output[0] != "evidence"]
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()]
    del graph.node[:], graph.initializer[:], graph.output[1:]
    graph.node.extend(nodes)
    graph.initializer.extend(each for each in weights if not each.name.startswith(WORDS))
    return model


def read_head(path: Path) -> tuple[Tensor, Tensor]:
    """Weight (W, C) and bias (W,) of the words of a tuned graph."""
    import onnx

    stored = _float_weights(onnx.load(str(path)).graph)
    weight = torch.from_numpy(stored[WORDS + "weight"])
    return weight[:, :, 0, 0], torch.from_numpy(stored[WORDS + "bias"])


def _float_weights(graph: Any) -> dict[str, Any]:
    from onnx import numpy_helper

    stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    weights = {}
    for name, value in stored.items():
        if name.endswith(WHOLE):
            weight = name.removesuffix(WHOLE)
            weights[weight] = value.astype("float32") * stored[weight + SCALE]
        elif name.endswith(HALF):
            weights[name.removesuffix(HALF)] = value.astype("float32")
        elif not name.endswith(SCALE):
            weights[name] = value.copy()
    return weights


def _is_widening(node: Any) -> bool:
    """A node that turns a weight that is stored in fewer bits into float32."""
    return node.op_type in ("Cast", "Mul") and str(node.input[0]).endswith((HALF, WHOLE, WIDE))


def save_tuned(network: WordNetwork, path: Path) -> None:
    """The tuned graph with outputs `map` and `evidence` (B, W, h, w).

    Large weights are stored as whole numbers of 8 bits with a scale for each output channel, smaller ones in half
    precision; a session turns them into float32 once, when it opens the file.
    """
    from onnx import TensorProto, helper, save

    model = read_graph(network.backbone.path)
    graph = model.graph
    tuned = {name: network.backbone.weights[_key(name)].detach().cpu() for name, _ in _initializers(graph)}
    head = network.head
    tuned[WORDS + "weight"] = head.weight.detach().cpu()[:, :, None, None]
    tuned[WORDS + "bias"] = head.bias.detach().cpu()
    kept = [each for each in graph.initializer if each.name.startswith(ENTRANCE)]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    widening: list[Any] = []
    for name, value in tuned.items():
        arrays, nodes = _stored(name, value.float().contiguous().numpy())
        graph.initializer.extend(arrays)
        widening += nodes
    nodes = list(graph.node)
    nodes.append(helper.make_node("Conv", ["map", WORDS + "weight", WORDS + "bias"], ["evidence"]))
    del graph.node[:]
    graph.node.extend([*widening, *nodes])
    shape: list[str | int | None] = ["batch", len(head.bias), "rows", "columns"]
    graph.output.append(helper.make_tensor_value_info("evidence", TensorProto.FLOAT, shape))
    save(model, str(path))


def _stored(name: str, value: NDArray[np.float32]) -> tuple[list[Any], list[Any]]:
    """A weight as its initializers, and the nodes that make float32 of them."""
    from onnx import TensorProto, helper, numpy_helper

    if value.ndim < 2:
        return [numpy_helper.from_array(value, name)], []
    if value.size < LARGE:
        cast = helper.make_node("Cast", [name + HALF], [name], to=TensorProto.FLOAT)
        return [numpy_helper.from_array(value.astype(np.float16), name + HALF)], [cast]
    scale = np.abs(value).max(axis=tuple(range(1, value.ndim)), keepdims=True) / 127
    scale[scale == 0] = 1
    whole = np.rint(value / scale).astype(np.int8)
    arrays = [numpy_helper.from_array(whole, name + WHOLE), numpy_helper.from_array(scale, name + SCALE)]
    nodes = [
        helper.make_node("Cast", [name + WHOLE], [name + WIDE], to=TensorProto.FLOAT),
        helper.make_node("Mul", [name + WIDE, name + SCALE], [name]),
    ]
    return arrays, nodes


def _initializers(graph: Any) -> Iterator[tuple[str, Tensor]]:
    from onnx import numpy_helper

    for each in graph.initializer:
        if not each.name.startswith(ENTRANCE):
            yield each.name, torch.from_numpy(numpy_helper.to_array(each).copy())


def _is_entrance(node: Any) -> bool:
    """The nodes that normalise the bytes; the last of them writes the network's own input."""
    return any(name.startswith(ENTRANCE) for name in [*node.input, *node.output])


def _key(name: str) -> str:
    return name.replace(".", "_")
