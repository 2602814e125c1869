"""Recurrent and vocabulary products with 8-bit weights (a scale for each column) and inputs (a scale for each call)."""

from pathlib import Path
from typing import Any

import numpy as np

LEAST = (
    50_000  # smaller weights stay as they are: they cost little and are all that small errors would add to
)


def quantise(path: Path) -> int:
    """Rewrite a graph in place: x W -> float(int8(x) int8(W)) * scales. Gives the number of products changed."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    folded = path.with_name(f"{path.stem}-folded.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folded)  # transposes, slices and casts of weights are computed
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    proto = onnx.load(folded)
    folded.unlink()
    graph = proto.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[Any] = []
    changed = 0
    for node in graph.node:
        tensor = weights.get(node.input[1]) if node.op_type in ("Gemm", "MatMul") else None
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0 and not attributes.get(
            "transA"
        )
        if tensor is None or not plain or len(tensor.dims) != 2 or np.prod(tensor.dims) < LEAST:
            nodes.append(node)
            continue
        weight = numpy_helper.to_array(tensor)
        weight = weight.T if attributes.get("transB") else weight  # (D, G)
        scale = np.maximum(np.abs(weight).max(axis=0), 1e-12) / 127  # (G,)
        rounded = np.round(weight / scale).astype(np.int8)
        name, out = f"int8.{changed}", node.output[0]
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(rounded), f"{name}.weight"))
        graph.initializer.append(numpy_helper.from_array(scale.astype(np.float32), f"{name}.scale"))
        added = len(node.input) > 2
        product = f"{name}.product" if added else out
        nodes += [
            helper.make_node(
                "DynamicQuantizeLinear", [node.input[0]], [f"{name}.x", f"{name}.x_scale", f"{name}.x_zero"]
            ),
            helper.make_node(
                "MatMulInteger", [f"{name}.x", f"{name}.weight", f"{name}.x_zero"], [f"{name}.sum"]
            ),
            helper.make_node("Cast", [f"{name}.sum"], [f"{name}.float"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}.x_scale", f"{name}.scale"], [f"{name}.scales"]),
            helper.make_node("Mul", [f"{name}.float", f"{name}.scales"], [product]),
        ]
        if added:
            nodes.append(helper.make_node("Add", [product, node.input[2]], [out]))
        changed += 1
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    path.write_bytes(proto.SerializeToString())
    return changed
