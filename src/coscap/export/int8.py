"""The large products of a graph with 8-bit inputs and 7-bit weights: `step.onnx` becomes `step-int8.onnx`.

    x (N, D) ─▶ a scale for each row, or 1/127 ─▶ 8 bits ─┬▶ sums of whole numbers ─▶ times both scales
    W (D, G) ─▶ a scale for each column ───────▶ 7 bits ─┘

The weights are still those of model.safetensors: that they are rounded is part of the graph, and onnxruntime computes
it once, when it loads the graph. A row's scale depends on that row alone, so what else is in a batch does not matter.
Inputs that a tanh bounds (hidden states) need no scale of their own. Sums of whole numbers are the same on every
machine, if they do not overflow: processors without VNNI instructions add two products of bytes in 16 bits, for which
weights may have 7 bits and no more.
"""

from pathlib import Path
from typing import Any

import numpy as np

from coscap.runtime.folder import session

LEAST = 100_000  # smaller weights stay as they are: with them there is little to gain
MOST_INPUT, MOST_WEIGHT, ZERO = (
    127.0,
    63.0,
    128,
)  # largest magnitudes, and the byte that stands for an input of 0
NUMBERS = {
    "most": np.float32(MOST_INPUT), "most_weight": np.float32(MOST_WEIGHT), "least": np.float32(1e-20),
    "middle": np.float32(ZERO + 0.5), "zero": np.uint8(ZERO), "unit": np.float32(1 / MOST_INPUT),
    "rows": np.array([0]), "columns": np.array([1]),
}  # fmt: skip


def quantise(path: Path, target: Path) -> int:
    """Write the graph in `path` with rounded products as `target`, beside it. Gives their number."""
    import onnx
    from onnx import helper, numpy_helper

    proto = onnx.load(path, load_external_data=False)
    graph = proto.graph
    products = [node for node in graph.node if node.op_type in ("Gemm", "MatMul") and _is_plain(node)]
    shapes = _constant_shapes(path, {name for node in products for name in node.input[1:]})
    large = {
        node.output[0]
        for node in products
        if len(shapes.get(node.input[1], ())) == 2 and np.prod(shapes[node.input[1]]) >= LEAST
    }
    bounded = _bounded(graph)
    nodes: list[Any] = []
    for node in graph.node:
        if node.output[0] in large:
            nodes += _rounded(node, node.input[0] in bounded, len(shapes.get(node.input[-1], ())) == 1)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    for name, value in NUMBERS.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"int8.{name}"))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    target.write_bytes(proto.SerializeToString())
    return len(large)


def _rounded(node: Any, bounded: bool, vector: bool) -> list[Any]:
    """x W (+ b) with whole numbers; bounded: x is within -1..1, vector: b is one of constants, (G,)."""
    from onnx import TensorProto, helper

    made: list[Any] = []

    def add(kind: str, *inputs: str, out: str, **attributes: Any) -> str:
        """A node. `=x` is one of NUMBERS; `out` belongs to this product, unless it is the product."""
        output = out if out == end else f"int8.{end}.{out}"
        named = [f"int8.{each[1:]}" if each.startswith("=") else each for each in inputs]
        made.append(helper.make_node(kind, named, [output], **attributes))
        return output

    (x, weight, *bias), end = node.input, node.output[0]
    # The weights: constants to onnxruntime.
    if any(each.name == "transB" and each.i for each in node.attribute):
        weight = add("Transpose", weight, out="weight", perm=[1, 0])  # (D, G)
    most = add("ReduceMax", add("Abs", weight, out="sizes"), "=rows", out="largest", keepdims=0)  # (G,)
    scale = add("Div", add("Max", most, "=least", out="positive"), "=most_weight", out="scale")
    whole = add("Round", add("Div", weight, scale, out="scaled"), out="rounded")
    whole = add("Cast", whole, out="weight_bytes", to=TensorProto.INT8)
    # The inputs.
    row = ""
    if bounded:
        x = add("QuantizeLinear", x, "=unit", "=zero", out="bytes")
    else:
        most = add(
            "ReduceMax", add("Abs", x, out="x_sizes"), "=columns", out="x_largest", keepdims=1
        )  # (N, 1)
        row = add("Max", most, "=least", out="x_positive")
        x = add("Mul", x, add("Div", "=most", row, out="x_factor"), out="x_scaled")
        x = add("Cast", add("Add", x, "=middle", out="x_shifted"), out="bytes", to=TensorProto.UINT8)
    inputs = [x, whole, "=unit", scale, "=zero"]
    if vector and not row:
        inputs, bias = [*inputs, "", *bias], []
    out = "product" if row or bias else end
    result = add("MatMulIntegerToFloat", *inputs, out=out, domain="com.microsoft")
    if row:
        result = add("Mul", result, row, out="rows" if bias else end)
    if bias:
        add("Add", result, *bias, out=end)
    return made


def _is_plain(node: Any) -> bool:
    """Whether it is x W + b and no more."""
    from onnx import helper

    values = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return values.get("alpha", 1.0) == values.get("beta", 1.0) == 1.0 and not values.get("transA")


def _bounded(graph: Any) -> set[str]:
    """The values that are within -1..1: hidden states, and what follows from them and from tanh and sigmoid."""
    found = {port.name for port in graph.input if port.name.endswith("_h")}
    for node in graph.node:
        parts = {"Mul": node.input, "Concat": node.input, "Slice": node.input[:1]}.get(node.op_type, ())
        if node.op_type in ("Tanh", "Sigmoid") or (parts and all(name in found for name in parts)):
            found.add(node.output[0])
    return found


def _constant_shapes(path: Path, names: set[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of those values that follow from the weights alone."""
    import onnx

    proto = onnx.load(path, load_external_data=False)
    graph = proto.graph
    known = {tensor.name for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        if all(name in known for name in node.input if name):
            known.update(node.output)
            nodes.append(node)
    constant = sorted(names & known)
    for part, kept in ((graph.node, nodes), (graph.input, ()), (graph.output, ())):
        del part[:]
        part.extend(kept)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in constant)
    weights = path.with_name(f"{path.stem}-weights.onnx")
    weights.write_bytes(proto.SerializeToString())
    try:
        found = session(weights, ("CPUExecutionProvider",), 1).run(constant, {})
    finally:
        weights.unlink()
    return {name: value.shape for name, value in zip(constant, found, strict=True)}
