"""Captions in onnxruntime are those of torch: every search, every kind of model, the same seed."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from coscap import Captioner
from coscap.export.int8 import quantise
from coscap.export.onnx import export
from coscap.models import Pretrained, build_model, preset
from coscap.models.pos import Pos
from coscap.models.stepper import TorchStepper
from coscap.models.stepper import candidates as torch_candidates
from coscap.models.templates import TAGS
from coscap.runtime import load_runtime
from coscap.runtime.candidates import candidates, top
from coscap.runtime.folder import session
from coscap.seam import Caption, RegionArrays, TokenMask
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.search.select import rescore
from coscap.search.variations import keep_latents, vary
from coscap.text import Vocabulary, load_classes
from coscap.text.vocabulary import START
from coscap.vision.regions import Recipe, Regions

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.jpg"))
OBJECTS = load_classes("coco")
WORDS = "a the on in of with holding sitting white small street two and near".split()
SEEN = ("person", "dog", "cup", "car")
VOCABULARY = Vocabulary.build([[*WORDS, *SEEN]], minimum=1, objects=OBJECTS)
RECIPE = Recipe("made", 12, SEEN, detections=5, grid=1, words=("white", "street", "never said"), most_words=3)
SIZES = dict(
    vocabulary=len(VOCABULARY), region_width=12, classes=len(SEEN), word_width=8, attention_lstm=16, language_lstm=16,
    attention_width=6, context_posterior=6, object_posterior=6, context_prior=8, object_prior=6, context_latent=4,
    object_latent=4,
)  # fmt: skip
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3},
    {"search": "beam", "num_beams": 4, "no_repeat_ngram_size": 2},
    {"search": "diverse", "num_beams": 2},
    {"search": "constrained", "must": ("dog", "cup")},
    {"do_sample": True},
    {"do_sample": True, "top_k": 5},
    {"do_sample": True, "top_p": 0.8, "without": ("car",)},
]


def made_regions(count: int, seed: int = 0) -> list[Regions]:
    """Detections, words and a cell of every number, none of them too."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        detections, words = random.integers(0, 6), random.integers(0, 4)
        size = detections + words + 1
        labels = [*random.integers(0, 4, detections), *(4 + random.permutation(3)[:words]), -1]
        corners = np.sort(random.random((size, 2, 2)), axis=1).reshape(size, 4)
        features = random.standard_normal((size, 12)).astype(np.float16)
        found.append(
            Regions(
                features,
                corners.astype(np.float32),
                np.array(labels, np.int16),
                random.random(size, np.float32),
            )
        )
    return found


def made_model(**settings: Any) -> Pretrained:
    torch.manual_seed(7)
    model = build_model(preset("paper", **{**SIZES, "decoder_word_width": 8, **settings}))
    model.set_names(RECIPE, OBJECTS, VOCABULARY)
    with torch.no_grad():  # as it was drawn, every caption of a random model is the same
        for weight in model.parameters():
            weight.mul_(2.5)
        if isinstance(model, Pos):
            model.templates.copy_(torch.randint(1, len(TAGS), model.templates.shape))
    return Pretrained("made", model.eval(), VOCABULARY, RECIPE, OBJECTS, {})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def texts(found: list[list[Caption]]) -> list[list[str]]:
    return [[caption.text for caption in captions] for captions in found]


KINDS: dict[str, dict[str, Any]] = {
    "cos_cvae": {"class_embedding": 3, "object_latent_to": ("query", "language", "output")},
    "label_words": {
        "label_words": True, "region_words": 3, "region_projection": 9, "decoder_word_width": 0, "tie_words": True,
        "output_width": 8, "geometry": True, "region_norm": True, "region_layers": 2, "region_heads": 3,
    },
    "object_latent_per": {"object_latent_per": "object", "label_words": True, "region_words": 3, "word_regions": 1},
    "object_prior_over": {"object_prior_over": "regions", "object_latent_per": "object", "object_latent_to": ["query"]},
    "seq_cvae": {"kind": "seq_cvae", "temperature_mode": "power", "grid": False},
    "seq_cvae_mean": {"kind": "seq_cvae", "decoder": "mean"},
    "ag_cvae": {"kind": "ag_cvae", "decoder": "first", "category_deviation": 0.5},
    "ag_cvae_attention": {"kind": "ag_cvae", "object_latent_to": []},
    "lnfmm": {"kind": "lnfmm", "text_latent": 4, "flow_layers": 3, "flow_width": 8, "temperature_mode": "power"},
    "pos": {"kind": "pos", "templates": 6},
    "pos_gumbel": {"kind": "pos", "templates": 6, "template_choice": "gumbel", "object_latent_to": []},
    "updown_first": {"kind": "updown", "decoder": "first"},
    "updown": {"kind": "updown", "mean_over": "detections", "detections": 1},
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small model of each kind in torch and in onnxruntime, and the folder of the latter."""
    pretrained = made_model(**KINDS[request.param])
    folder = tmp_path_factory.mktemp("graphs") / request.param
    assert export(pretrained, folder).difference < 1e-4
    return TorchStepper(pretrained.model), load_runtime(folder).model, folder


def test_every_search_gives_the_same_captions(both: Any) -> None:
    ours, theirs, _ = both
    assert ours.latent_names == theirs.latent_names and ours.digest != theirs.digest
    regions, different = RegionArrays.stack(made_regions(40)), set()
    for options in SEARCHES:
        settings = SearchSettings(max_length=8, seed=3, max_rows=64, **options)
        asked = dict(objects=OBJECTS, classes=SEEN)
        expected = generate(ours, regions, VOCABULARY, 4, settings, **asked)
        found = generate(theirs, regions, VOCABULARY, 4, settings, **asked)
        pairs = list(zip(chain(*expected), chain(*found), strict=True))
        same = [(one, other) for one, other in pairs if one.text == other.text]
        # Where words are drawn, the last bit of a sum may decide between two of them.
        assert len(same) >= len(pairs) - (2 if settings.do_sample else 0), options
        for one, other in same:
            assert other.log_probability == pytest.approx(one.log_probability, abs=1e-3)
            np.testing.assert_allclose(other.attention, one.attention, atol=1e-4)
        different |= {text for captions in texts(found) for text in captions}
    assert len(different) > 100


def test_200_sets_of_regions(both: Any) -> None:
    ours, theirs, _ = both
    regions, settings = RegionArrays.stack(made_regions(200, seed=1)), SearchSettings(max_length=6, seed=11)
    expected = generate(ours, regions, VOCABULARY, 3, settings)
    assert texts(generate(theirs, regions, VOCABULARY, 3, settings)) == texts(expected)
    again = [[each.log_probability for each in row] for row in rescore(theirs, regions, expected, VOCABULARY)]
    rescored = rescore(ours, regions, expected, VOCABULARY)
    for row, captions in zip(again, rescored, strict=True):
        assert row == pytest.approx([each.log_probability for each in captions], abs=1e-3)


@pytest.mark.parametrize("keep", ["context", "objects"])
def test_variations_are_the_same(both: Any, keep: Any) -> None:
    ours, theirs, _ = both
    if "objects" not in ours.latent_names:
        pytest.skip("only a COS-CVAE keeps context and objects apart")
    settings = SearchSettings(max_length=8, seed=2)
    for number in range(6):
        regions = RegionArrays.stack(made_regions(1, seed=number))
        (caption,) = generate(ours, regions, VOCABULARY, 3, settings)[0][2:]
        said = []
        for model in (ours, theirs):
            kept = keep_latents(model, regions, caption, VOCABULARY, keep=keep, settings=settings)
            more = settings.model_copy(update={"seed": 9})
            said.append(vary(model, regions, kept, VOCABULARY, OBJECTS, n=6, settings=more))
            values = [value for value in (kept.context, kept.objects) if value is not None]
            said[-1].append(values)
        (*one, (values,)), (*other, (also,)) = said
        assert [each.text for each in other] == [each.text for each in one]
        np.testing.assert_allclose(also, values, atol=1e-4)


def test_rows_are_selected_copied_and_recorded(both: Any) -> None:
    _, theirs, _ = both
    regions = RegionArrays.stack(made_regions(3))
    state = theirs.start(regions, 2, seed=5, record=True)
    tokens = np.full(6, START)
    for _ in range(3):
        found, state, _ = theirs.step(tokens, state, 1)
        tokens = found.ids[:, 0]
    rows = np.array([5, 0, 0, 3])
    few = state.select(rows)
    assert state.rows == 6 and few.rows == 4
    whole, _, _ = theirs.step(tokens, state, None)
    part, _, _ = theirs.step(tokens[rows], few, None)
    np.testing.assert_allclose(part.log_probabilities, whole.log_probabilities[rows], atol=1e-5)
    if theirs.latent_names:
        np.testing.assert_array_equal(few.latents().context, state.latents().context[rows])


def test_examples_in_both_runtimes() -> None:
    graphs = Captioner.from_pretrained(runtime="onnx", precision="float32")
    plain = Captioner.from_pretrained(runtime="torch")
    plain.__dict__["detector"] = graphs.detector
    opened = graphs.open(EXAMPLES)
    regions = [graphs.detector.regions([each.picture])[0] for each in opened]
    names = [path.name for path in EXAMPLES]
    for options in (
        {},
        {"search": "beam"},
        {"search": "diverse", "seed": 4},
        {"search": "constrained", "must": ["red"]},
    ):
        expected, found = (each.describe(names, regions, 5, **options) for each in (plain, graphs))
        for one, other in zip(expected, found, strict=True):
            assert [each.text for each in other.captions] == [each.text for each in one.captions]
            for one_caption, other_caption in zip(
                one.captions, other.captions, strict=True
            ):  # a word's box follows
                np.testing.assert_allclose(
                    one_caption.found.attention, other_caption.found.attention, atol=5e-5
                )
    first, also = expected[0].captions[0], found[0].captions[0]
    assert [each.text for each in graphs.vary(also)] == [each.text for each in plain.vary(first)]


@pytest.mark.parametrize("size", [7, 700])
def test_candidates_are_those_of_torch(size: int) -> None:
    random = np.random.default_rng(size)
    for trial in range(30):
        logs = random.integers(-9, 0, (5, size)).astype(np.float32)  # many are equal
        logs[random.random(logs.shape) < 0.2] = -np.inf
        named = None if trial % 3 == 0 else random.integers(0, size, (5, 2))
        if named is not None:
            named[2, 1] = -1
        mask = None
        if trial % 2:
            mask = TokenMask(np.array([1, 3]), np.array([0, 4]), np.array([2, 5]))
        for k in (0, 1, 4, None):
            if k is None and named is not None:
                continue
            found = candidates(logs.copy(), k, named, mask)
            expected = torch_candidates(torch.from_numpy(logs.copy()), k, named, mask)
            np.testing.assert_array_equal(found.log_probabilities, expected.log_probabilities)
            finite = np.isfinite(expected.log_probabilities)
            np.testing.assert_array_equal(found.ids[finite], expected.ids[finite])
    values, index = top(np.array([[1, 3, 3, 2]], np.float32), 3)
    assert values.tolist() == [[3, 3, 2]] and index.tolist() == [[1, 2, 3]]


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small model, and its folder with a graph in int8."""
    folder = tmp_path_factory.mktemp("graphs") / "int8"
    pretrained = made_model(**KINDS["label_words"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coscap.export.int8.LEAST", 60)  # the weights of a small model are small
        done = export(pretrained, folder, int8=True)
    assert done.difference < 1e-4 and done.int8_difference is not None
    assert 1e-4 < done.int8_difference < 3.0  # these weights are far larger than a trained model's
    return pretrained, folder


def test_int8_is_near(rounded: Any) -> None:
    pretrained, folder = rounded
    regions, settings = (
        RegionArrays.stack(made_regions(10)),
        SearchSettings(max_length=6, latent_temperature=0.0),
    )
    ours = texts(generate(TorchStepper(pretrained.model), regions, VOCABULARY, 1, settings))
    exact, near = load_runtime(folder, precision="float32").model, load_runtime(folder).model
    assert exact.digest != near.digest
    assert texts(generate(exact, regions, VOCABULARY, 1, settings)) == ours
    found = texts(generate(near, regions, VOCABULARY, 1, settings))
    assert sum(one == other for one, other in zip(ours, found, strict=True)) >= 5


def test_int8_does_not_depend_on_the_batch(rounded: Any) -> None:
    model = load_runtime(rounded[1], precision="int8").model
    made, settings = made_regions(24, seed=5), SearchSettings(max_length=8, seed=3)
    together = texts(generate(model, RegionArrays.stack(made), VOCABULARY, 5, settings))
    alone = [texts(generate(model, RegionArrays.stack([each]), VOCABULARY, 5, settings))[0] for each in made]
    assert alone == together
    backwards = texts(generate(model, RegionArrays.stack(made[::-1]), VOCABULARY, 5, settings))
    assert backwards[::-1] == together
    few = settings.model_copy(update={"max_rows": 7})
    assert texts(generate(model, RegionArrays.stack(made), VOCABULARY, 5, few)) == together


def test_rounded_product(tmp_path: Path) -> None:
    """One product against the same in whole numbers, over rows of very different sizes and one of zeros."""
    random = np.random.default_rng(0)
    weight, bias = random.standard_normal((300, 400)).astype(np.float32), np.arange(400, dtype=np.float32)
    x = (random.standard_normal((7, 300)) * 10.0 ** np.arange(-3, 4)[:, None]).astype(np.float32)
    x[3] = 0
    for name, values in (("x", x), ("x_h", np.tanh(x))):
        ports = [
            helper.make_tensor_value_info(port, TensorProto.FLOAT, ["N", width])
            for port, width in ((name, 300), ("y", 400))
        ]
        graph = helper.make_graph(
            [helper.make_node("Gemm", [name, "w", "b"], ["y"])], "product", ports[:1], ports[1:],
            [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        (tmp_path / "plain.onnx").write_bytes(model.SerializeToString())
        assert quantise(tmp_path / "plain.onnx", tmp_path / "rounded.onnx") == 1
        run = session(tmp_path / "rounded.onnx", ["CPUExecutionProvider"], 1)
        (found,) = run.run(["y"], {name: values})
        scale = np.abs(weight).max(axis=0) / 63
        whole = np.round(weight / scale)
        row = (
            np.ones((7, 1)) if name == "x_h" else np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-20)
        )
        sums = np.round(values * (127 / row)) @ whole
        assert np.abs(whole).max() == 63  # two products of an input below 256 fit into 16 bits
        np.testing.assert_allclose(found, sums * scale * row / 127 + bias, rtol=1e-3, atol=0.02)
        for number in range(7):
            (alone,) = run.run(["y"], {name: values[number : number + 1]})
            np.testing.assert_array_equal(alone[0], found[number])


def test_pictures_are_encoded_once(both: Any) -> None:
    _, theirs, _ = both
    regions, other = RegionArrays.stack(made_regions(2)), RegionArrays.stack(made_regions(2, seed=9))
    first = theirs.start(regions, 1)
    assert theirs.start(regions, 3, seed=4).pictures is first.pictures
    assert theirs.start(other, 1).pictures is not first.pictures
    again = theirs.start(regions, 1).pictures
    assert all(np.array_equal(again[name], values) for name, values in first.pictures.items())
