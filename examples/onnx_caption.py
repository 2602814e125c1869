"""Caption a photograph with onnxruntime, numpy and pillow alone: no coscap, no torch.

coscap export shipped --onnx captioner-onnx
python examples/onnx_caption.py captioner-onnx examples/cat.jpg
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def squash(photo, *sides):
    """The photograph, upright, as a square of bytes; of a large one the smaller square is made of the larger."""
    image = Image.open(photo)
    image.draft("RGB", (768, 768))
    image = ImageOps.exif_transpose(image).convert("RGB")
    for side in sides:
        enough = min(image.size) >= side
        how = Image.Resampling.BOX if enough else Image.Resampling.BICUBIC
        if enough or side == sides[-1]:
            image = image.resize((side, side), how, reducing_gap=3.0)
    return np.asarray(image)[None]


def caption(folder, photo, draws, noise, longest=20):
    """As many captions as draws; noise(number, name, shape) moves the latents away from their means. The number is that
    of the word, or, where a latent is drawn once for each object, of the object of each caption."""
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    units = json.loads(Path(folder, "vocabulary.json").read_text())["units"]
    sessions = {path.stem: onnxruntime.InferenceSession(path) for path in Path(folder).glob("*.onnx")}
    latents, feed = manifest["latents"].items(), {}
    for name, width in manifest["states"].items():  # width 0: one whole number for each caption
        feed[name] = np.zeros((draws, width), np.float32) if width else np.zeros(draws, np.int64)
    for name, _ in latents:  # none is given, all are drawn
        feed |= {f"{name}_given": feed[f"{name}_z"], f"{name}_use": np.zeros(draws, np.int64)}

    def run(name, **given):
        """Inputs come from what is known so far, outputs join it; next_h is the h of the next word."""
        feed.update(given)
        session = sessions[name]
        values = session.run(None, {port.name: feed[port.name] for port in session.get_inputs()})
        names = (port.name.removeprefix("next_") for port in session.get_outputs())
        feed.update(zip(names, values, strict=True))

    run("picodet-s", picture=squash(photo, 384))
    run("map", picture=squash(photo, 384, 256))
    run("regions")
    run("start")
    end, said = manifest["tokens"]["end"], []
    feed |= {"temperatures": np.ones(2, np.float32), "owners": np.zeros(draws, np.int64)}
    feed |= {"ids": np.full(draws, manifest["tokens"]["start"]), "places": np.arange(draws)}
    for step in range(longest):
        for name, width in latents:
            feed[f"{name}_noise"] = noise(feed.get(f"{name}_drawn", step), name, (draws, width))
        run("step")
        feed["ids"] = feed["log_probabilities"].argmax(1)
        said.append(feed["ids"])
    rows = [[*row, end] for row in np.stack(said, axis=1)]
    return [" ".join(units[word] for word in row[: row.index(end)]) for row in rows]


if __name__ == "__main__":
    random = np.random.default_rng(0)
    told = caption(*sys.argv[1:3], 5, lambda number, name, shape: random.standard_normal(shape, np.float32))
    print(*told, sep="\n")
