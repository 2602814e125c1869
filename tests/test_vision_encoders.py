"""Small vision encoders of the transformers library, written to disk and loaded by the public call as a grid."""

import json

import numpy as np
import pytest
from PIL import Image

from coscap.errors import UserError
from coscap.vision.detectors import load_detector
from coscap.vision.encoders import GRID, as_map
from coscap.vision.pooling import grid_boxes
from coscap.vision.regions import GRID_LABEL

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SEEN = {"hidden_size": 24, "image_size": 64, "patch_size": 8, **SMALL}
TEXT = {"hidden_size": 16, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, **SMALL}


def build(kind: str):
    """(model, processor, width, grid) of an architecture."""
    edge, square = {"shortest_edge": 72}, {"height": 64, "width": 64}
    cropped = {"size": edge, "crop_size": square, "do_center_crop": True}
    match kind:
        case "clip":
            config = transformers.CLIPConfig(text_config=TEXT, vision_config=SEEN, projection_dim=8)
            return transformers.CLIPModel(config), transformers.CLIPImageProcessorPil(**cropped), 24, 8
        case "clip_vision":
            config = transformers.CLIPVisionConfig(**SEEN)
            return transformers.CLIPVisionModel(config), transformers.CLIPImageProcessorPil(**cropped), 24, 8
        case "siglip":
            config = transformers.SiglipConfig(text_config=TEXT, vision_config=SEEN)
            return transformers.SiglipModel(config), transformers.SiglipImageProcessorPil(size=square), 24, 8
        case "dinov2":  # trained at 112, looked through at 64, as its processor does with 518 and 224
            config = transformers.Dinov2Config(**{**SEEN, "image_size": 112, "mlp_ratio": 1})
            return transformers.Dinov2Model(config), transformers.BitImageProcessorPil(**cropped), 24, 8
        case "registers":
            config = transformers.Dinov2WithRegistersConfig(
                **{**SEEN, "patch_size": 32, "num_register_tokens": 4}
            )
            model = transformers.Dinov2WithRegistersModel(config)
            return model, transformers.BitImageProcessorPil(**cropped), 24, 2
        case "vit":
            config = transformers.ViTConfig(**{**SEEN, "patch_size": 4})
            return transformers.ViTModel(config), transformers.ViTImageProcessorPil(size=square), 24, 8
        case "deit":  # two tokens before the patches
            config = transformers.DeiTConfig(**SEEN)
            return transformers.DeiTModel(config), transformers.ViTImageProcessorPil(size=square), 24, 8
        case "convnext":
            config = transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 32], depths=[1, 1, 1, 1])
            size = {"shortest_edge": 64}
            return (
                transformers.ConvNextModel(config),
                transformers.ConvNextImageProcessorPil(size=size),
                32,
                2,
            )
        case "swin":  # merges its patches
            config = transformers.SwinConfig(
                image_size=64, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
            )
            return transformers.SwinModel(config), transformers.ViTImageProcessorPil(size=square), 16, 8
    raise ValueError(kind)


KINDS = ["clip", "clip_vision", "siglip", "dinov2", "registers", "vit", "deit", "convnext", "swin"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def make(kind: str):
        if kind not in made:
            torch.manual_seed(3)
            model, processor, width, grid = build(kind)
            made[kind] = tmp_path_factory.mktemp(kind), width, grid
            model.save_pretrained(made[kind][0])
            processor.save_pretrained(made[kind][0])
        return made[kind]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_is_a_grid(folder, kind: str) -> None:
    path, width, grid = folder(kind)
    encoder = load_detector(f"hf:{path}")
    assert encoder.recipe.width == width and encoder.recipe.grid == grid
    assert encoder.recipe.classes == () and encoder.recipe.detections == 0
    assert encoder.recipe.name.startswith(f"hf:{path.name}@") and encoder.recipe.name.endswith(
        f"/grid-{grid}/1"
    )
    pictures = [Image.new("RGB", (90, 50), "red"), Image.effect_noise((64, 64), 80).convert("RGB")]
    both, alone = encoder.regions(pictures), encoder.regions(pictures[1:])[0]
    for regions in both:
        assert regions.features.shape == (grid * grid, width) and regions.features.dtype == np.float16
        assert np.isfinite(regions.features).all() and np.array_equal(regions.boxes, grid_boxes(grid))
        assert (regions.labels == GRID_LABEL).all() and (regions.scores == 1).all()
    assert np.array_equal(both[1].features, alone.features)
    assert not np.array_equal(both[0].features, both[1].features)


@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2", "vit", "deit", "registers"])
def test_agrees_with_the_library(folder, kind: str) -> None:
    """On a picture of the encoder's own size: the library's pixels and hidden states, averaged by hand."""
    path, width, grid = folder(kind)
    model = transformers.AutoModel.from_pretrained(path).eval()
    model = getattr(model, "vision_model", model)
    processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
    picture = Image.effect_noise((64, 64), 80).convert("RGB")
    pixels = processor(images=picture, do_resize=False, do_center_crop=False, return_tensors="pt")[
        "pixel_values"
    ]
    options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
    with torch.inference_mode():
        hidden = model(pixel_values=pixels, **options).last_hidden_state[0]
    patches = {"vit": 16, "registers": 2}.get(kind, 8)
    cells = hidden[-patches * patches :].reshape(grid, patches // grid, grid, patches // grid, width)
    expected = cells.mean(dim=(1, 3)).reshape(grid * grid, width).numpy()
    ours = load_detector(f"hf:{path}").regions([picture])[0].features
    assert np.allclose(ours, expected, atol=2e-3)


def test_the_grid_sees_where_things_are(folder) -> None:
    """Other pixels in one quarter of the picture move the cells of that quarter most."""
    path, _, grid = folder("vit")
    encoder = load_detector(f"hf:{path}")
    plain = Image.effect_noise((128, 128), 60).convert("RGB")
    marked = plain.copy()
    marked.paste(Image.effect_noise((64, 64), 60).convert("RGB"), (64, 0))  # above, right
    one, other = (encoder.regions([each])[0].features.astype(np.float32) for each in (plain, marked))
    moved = np.abs(one - other).sum(axis=1).reshape(grid, grid)
    quarters = moved.reshape(2, grid // 2, 2, grid // 2).mean(axis=(1, 3))
    assert quarters[0, 1] > 3 * max(quarters[0, 0], quarters[1, 0], quarters[1, 1])


def test_tokens_before_the_patches_are_left_out() -> None:
    tokens = np.arange(9.0, dtype=np.float32)[:, None]  # 5 and 2 x 2, or 3 x 3
    assert as_map(tokens, 2, "x")[0].tolist() == [[5, 6], [7, 8]]
    assert as_map(tokens, None, "x").shape == (1, 3, 3)
    assert as_map(np.zeros((4, 4, 24), np.float32), None, "x").shape == (24, 4, 4)
    with pytest.raises(UserError, match="no square of patches"):
        as_map(np.zeros((24 * 24 + 40, 3), np.float32), None, "x")


def test_a_store_and_the_whole_way(folder, tmp_path) -> None:
    from coscap.vision.extract import ExtractJob, extract, list_pictures
    from coscap.vision.store import RegionStore

    path, width, grid = folder("dinov2")
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.effect_noise((80, 60), 20 + number).convert("RGB").save(tmp_path / "photos" / f"{number}.jpg")
    extract(list_pictures(tmp_path / "photos"), tmp_path / "r.h5", ExtractJob(detector=f"hf:{path}"))
    store = RegionStore.open(tmp_path / "r.h5")
    assert len(store) == 3 and store.at(0).features.shape == (grid * grid, width)


def test_wrong_names(folder, tmp_path, monkeypatch) -> None:
    path, _, _ = folder("vit")
    with pytest.raises(UserError, match="sees a grid; leave --classes out"):
        load_detector(f"hf:{path}", classes=("zebra",))
    (tmp_path / "bert").mkdir()
    text = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 16,
        **SMALL,
        "vocab_size": 30,
    }
    (tmp_path / "bert" / "config.json").write_text(json.dumps(text))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_detector(f"hf:{tmp_path / 'bert'}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="does not exist: runs is a folder without a model nosuch"):
        (tmp_path / "runs").mkdir()
        load_detector("hf:runs/nosuch")


def test_timm(tmp_path) -> None:
    try:
        import timm
    except (ImportError, RuntimeError):  # timm needs torchvision, in the build that belongs to torch
        pytest.skip("timm does not load")
    for name, width, grid in (("resnet10t.c3_in1k", 512, 2), ("vit_tiny_patch16_224", 192, GRID)):
        size = 64 if grid == 2 else 224
        model = timm.create_model(name.split(".")[0], pretrained=False)
        config = transformers.TimmWrapperConfig(
            architecture=name.split(".")[0],
            pretrained_cfg={**model.pretrained_cfg, "input_size": [3, size, size]},
            num_features=width,
        )
        wrapped = transformers.TimmWrapperModel(config)
        wrapped.save_pretrained(tmp_path / name)
        encoder = load_detector(f"hf:{tmp_path / name}")
        assert (encoder.recipe.width, encoder.recipe.grid) == (width, grid)
        assert encoder.regions([Image.new("RGB", (90, 50), "red")])[0].features.shape == (grid * grid, width)
