"""Small models of the supported architectures, written to disk and loaded by the public call."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from coscap.cli.main import app
from coscap.errors import UserError
from coscap.vision.detectors import load_detector
from coscap.vision.huggingface import DETECTIONS, _corners, _features, _scores

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

pytest.importorskip("scipy")  # for the processor of OWLv2

LABELS = {0: "cat", 1: "dog", 2: "kite"}
PICTURES = [Image.new("RGB", (90, 50), "red"), Image.effect_noise((64, 64), 80).convert("RGB")]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """For models this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def make(kind: str):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            torch.manual_seed(3)
            BUILDERS[kind](made[kind])
        return made[kind]

    return make


def _rt_detr(path) -> None:
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=16, encoder_in_channels=[16, 16, 16], feat_strides=[8, 16, 32],
        encoder_ffn_dim=16, encoder_attention_heads=2, d_model=16, num_queries=12, decoder_layers=2,
        decoder_in_channels=[16, 16, 16], decoder_ffn_dim=16, decoder_attention_heads=2, decoder_n_points=2,
        num_denoising=0, anchor_image_size=None, id2label=LABELS, label2id={v: k for k, v in LABELS.items()},
    )  # fmt: skip
    transformers.RTDetrForObjectDetection(config).save_pretrained(path)
    transformers.RTDetrImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(path)


def _yolos(path) -> None:
    config = transformers.YolosConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=[64, 64],
        patch_size=16, num_detection_tokens=10, id2label=LABELS, label2id={v: k for k, v in LABELS.items()},
    )  # fmt: skip
    transformers.YolosForObjectDetection(config).save_pretrained(path)
    size = {"shortest_edge": 48, "longest_edge": 96}
    transformers.YolosImageProcessorPil(size=size).save_pretrained(path)


def _owlv2(path) -> None:
    words = ["<|startoftext|>", "<|endoftext|>", *(f"{c}</w>" for c in "aofp"), *"abcdefghijklmnopqrstuvwxyz"]
    words += [f"{c}</w>" for c in "abcdefghijklmnopqrstuvwxyz" if f"{c}</w>" not in words]
    (path / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (path / "merges.txt").write_text("#version: 0.2\n")
    tokens = {"bos_token": words[0], "eos_token": words[1], "pad_token": words[1], "unk_token": words[1]}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer", **tokens}))
    text = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "vocab_size": len(words),
        "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
    }  # fmt: skip
    vision = {
        "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 64,
        "patch_size": 16,
    }  # fmt: skip
    config = transformers.Owlv2Config(text_config=text, vision_config=vision, projection_dim=16)
    transformers.Owlv2ForObjectDetection(config).save_pretrained(path)
    transformers.Owlv2ImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(path)


BUILDERS = {"rt_detr": _rt_detr, "yolos": _yolos, "owlv2": _owlv2}


@pytest.mark.parametrize(("kind", "width"), [("rt_detr", 16), ("yolos", 24), ("owlv2", 24)])
def test_every_architecture(folder, kind: str, width: int) -> None:
    classes = ("zebra", "blue kite") if kind == "owlv2" else ()
    detector = load_detector(f"hf:{folder(kind)}", classes=classes)
    assert detector.recipe.width == width
    assert detector.recipe.classes == (classes or tuple(LABELS.values()))
    assert detector.recipe.name.startswith(f"hf:{folder(kind).name}@")
    both = detector.regions(PICTURES)
    alone = detector.regions(PICTURES[1:])[0]
    for regions in both:
        assert 1 <= len(regions) <= DETECTIONS
        assert regions.features.shape == (len(regions), width)
        assert regions.features.dtype == np.float16 and np.isfinite(regions.features).all()
        assert (regions.boxes >= 0).all() and (regions.boxes <= 1).all()
        assert (regions.boxes[:, :2] <= regions.boxes[:, 2:]).all()
        assert (np.diff(regions.scores) <= 0).all()
        assert ((regions.labels >= 0) & (regions.labels < len(detector.recipe.classes))).all()
    for field in ("features", "boxes", "labels", "scores"):
        assert np.array_equal(getattr(both[1], field), getattr(alone, field))


def test_agrees_with_the_library(folder) -> None:
    """Boxes, labels and scores are those of the library's own post-processing."""
    path = folder("rt_detr")
    detector = load_detector(f"hf:{path}")
    model = transformers.AutoModelForObjectDetection.from_pretrained(path).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
    picture = PICTURES[1]
    with torch.inference_mode():
        output = model(**processor(images=picture, return_tensors="pt"))
    size = [(picture.height, picture.width)]
    (theirs,) = processor.post_process_object_detection(
        output, threshold=0.0, target_sizes=torch.tensor(size)
    )
    best = int(theirs["scores"].argmax())
    ours = detector.regions([picture])[0]
    assert ours.scores[0] == pytest.approx(float(theirs["scores"][best]), abs=1e-5)
    assert ours.labels[0] == int(theirs["labels"][best])
    box = theirs["boxes"][best].numpy() / np.array([picture.width, picture.height] * 2)
    assert np.allclose(ours.boxes[0], box.clip(0, 1), atol=1e-5)


def test_owlv2_undoes_its_padding(folder) -> None:
    path = folder("owlv2")
    detector = load_detector(f"hf:{path}", classes=("zebra",))
    picture = PICTURES[0]  # wide: the processor pads below
    output = detector._run(picture)
    query = int(output.logits[0, :, 0].argmax())
    raw = _corners(output.pred_boxes[0].numpy())[query]
    expected = (raw * np.array([1, 90 / 50, 1, 90 / 50])).clip(0, 1)
    assert np.allclose(detector.regions([picture])[0].boxes[0], expected, atol=1e-5)


def test_scores_with_and_without_a_class_for_nothing() -> None:
    scores, labels = _scores(np.array([[0.0, 2.0, 5.0], [4.0, 0.0, 0.0]], np.float32), classes=2)
    assert labels.tolist() == [1, 0]
    assert scores[0] == pytest.approx(np.exp(2) / (1 + np.exp(2) + np.exp(5)), rel=1e-5)
    scores, _ = _scores(np.array([[0.0, 2.0]], np.float32), classes=2)
    assert scores[0] == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-5)


def test_features_from_the_encoder_where_queries_have_none() -> None:
    class Output:
        encoder_last_hidden_state = torch.arange(8.0).reshape(1, 2, 2, 2)

    whole = np.array([[0, 0, 1, 1], [0, 0, 0.5, 0.5]], np.float32)
    assert _features(Output(), whole, 2).tolist() == [[1.5, 5.5], [0, 4]]
    with pytest.raises(UserError, match="no feature"):
        _features(object(), whole, 2)


def test_wrong_names(folder, tmp_path) -> None:
    with pytest.raises(UserError, match="name them"):
        load_detector(f"hf:{folder('owlv2')}")
    with pytest.raises(UserError, match="classes of its own"):
        load_detector(f"hf:{folder('yolos')}", classes=("zebra",))
    with pytest.raises(UserError, match="cannot be loaded") as caught:
        load_detector(f"hf:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_pictures_without_captions_and_a_class_of_your_own(folder, tmp_path) -> None:
    """From a folder to a trained captioner, as docs/guide/novel-objects.md has it: any detector with class names."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for number in range(24):
        picture = Image.effect_noise((64, 48), 20 + 8 * number).convert("RGB")
        picture.save(mine / f"{number:02}.png")
        if number < 16:  # the last eight are unpaired
            (mine / f"{number:02}.txt").write_text(
                f"a {('cat', 'dog')[number % 2]} on a mat\na man beside a {('dog', 'cat')[number % 2]}\n"
            )
    detector = transformers.RTDetrForObjectDetection.from_pretrained(folder("rt_detr"))
    for name, weights in detector.named_parameters():  # sure of a cat and a kite, whatever it looks at
        if "class_embed" in name or "enc_score_head" in name:
            weights.data = weights.data if weights.ndim > 1 else torch.tensor([2.0, -4.0, 2.0])
    knows = shutil.copytree(folder("rt_detr"), tmp_path / "knows")
    detector.save_pretrained(knows)
    classes, data, regions = tmp_path / "classes.txt", tmp_path / "data", tmp_path / "mine.h5"
    contexts, run, captions = tmp_path / "contexts", tmp_path / "run", tmp_path / "captions.json"
    classes.write_text("cat\ndog\nkite\n")
    sizes = ("attention_lstm", "language_lstm", "region_projection", "attention_width")
    changes = [f"data={data}", f"regions={regions}", f"pseudo.contexts={contexts}", "pseudo.classes=[kite]"]
    changes += [*(f"model.{name}=8" for name in sizes), "model.grid=false", "pseudo.every=2"]
    changes += ["steps=4", "batch_size=4", "validation=null", "log_steps=1"]
    both = f"--data {data} --regions {regions}"
    commands = (
        f"data folder {mine} --objects {classes} --min-count 1 --validation 2 --test 0 --out {data}",
        f"features {mine} --detector hf:{knows} --out {regions}",
        f"contexts {data} --regions {regions} --out {contexts} --own 0 --epochs 1",
        " --set ".join([f"train configs/novel.yaml --out {run}", *changes]),
        f"sample {run} {both} --split unpaired -n 2 --out {captions}",
    )
    for command in commands:
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception}"
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert any("pseudo_reconstruction" in line and line["pseudo_reconstruction"] > 0 for line in log)
    assert len(json.loads(captions.read_text())) == 8 * 2
