"""The public API and the command, from real photographs to captions, with a small model of random weights."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coscap import Captioner
from coscap.alt import alt_text
from coscap.contexts.judge import detected_scores
from coscap.data.collate import region_batch
from coscap.errors import UserError
from coscap.photos import OpenedPhoto, PhotoCaption, PhotoCaptions, PhotoError, as_picture
from coscap.pool import rank
from coscap.seam import Caption, LatentValues, RegionArrays
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.search.manner import ACCURATE, VARIETY, manner
from coscap.search.select import rescore, select
from coscap.search.variations import read_latents
from coscap.shipped import detector_name
from tiny_captioner import save_tiny_model

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.jpg"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def captioner(folder: Path) -> Captioner:
    return Captioner.from_pretrained(folder)


def test_captions_have_words_with_boxes_and_do_not_depend_on_company(captioner: Captioner) -> None:
    settings = SearchSettings(max_length=6)
    alone = captioner(EXAMPLES[0], n=3, settings=settings)
    assert alone.photo == str(EXAMPLES[0])
    assert 1 <= len(alone.captions) <= 3
    assert len({caption.text for caption in alone.captions}) == len(alone.captions)
    for caption in alone.captions:
        assert caption.text == " ".join(word.word for word in caption.words)
        assert caption.log_probability < 0
        for word in caption.words:
            x1, y1, x2, y2 = word.box
            assert 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1
            assert 0 < word.weight <= 1
    together = captioner([EXAMPLES[1], EXAMPLES[0]], n=3, settings=settings)
    assert [c.text for c in together[1].captions] == [c.text for c in alone.captions]


def test_paths_bytes_pictures_and_arrays_give_the_same(captioner: Captioner) -> None:
    path = EXAMPLES[0]
    picture = Image.open(path).convert("RGB")
    many = captioner([path, str(path), path.read_bytes(), picture, np.asarray(picture)], n=2)
    assert len({tuple(c.text for c in result.captions) for result in many}) == 1


def test_what_is_no_photograph_is_one_sentence(captioner: Captioner) -> None:
    with pytest.raises(UserError, match="uint8"):
        captioner(np.zeros((4, 4, 3)))
    with pytest.raises(UserError, match="variety"):
        captioner(EXAMPLES[0], variety=2.0)


def test_vary_keeps_one_latent(captioner: Captioner) -> None:
    first = captioner(EXAMPLES[0].with_name("coffee.jpg"), n=2).captions[0]  # more than one thing to speak of
    for keep in ("context", "objects"):
        others = captioner.vary(first, keep=keep, n=9)
        assert others and all(other.text != first.text for other in others)
    with pytest.raises(UserError, match="keep"):
        captioner.vary(first, keep="both")  # type: ignore[arg-type]


def test_a_variation_can_be_varied_and_keeps_what_it_kept(captioner: Captioner) -> None:
    settings = SearchSettings(max_length=6, seed=3)
    first = captioner(EXAMPLES[0], n=2, settings=settings).captions[1]
    one = captioner.vary(first, keep="context", n=3, seed=5)[-1]
    two = captioner.vary(one, keep="context", n=3, seed=6)[-1]
    three = captioner.vary(two, keep="objects", n=3, seed=7)
    assert three and all(other.text != two.text for other in three)

    batch = RegionArrays.stack([first.regions])

    def read(caption: PhotoCaption) -> LatentValues:
        return read_latents(
            captioner.model, batch, caption.found, captioner.vocabulary, caption.settings, caption.kept
        )

    words = min(len(first.words), len(one.words), len(two.words)) + 1
    contexts = [read(caption).context[0, :words] for caption in (first, one, two)]
    objects = [read(caption).objects[0, :words] for caption in (first, one, two)]
    assert np.array_equal(contexts[0], contexts[1]) and np.array_equal(contexts[0], contexts[2])
    assert not np.allclose(objects[0], objects[1]) and not np.allclose(objects[1], objects[2])
    longer = min(len(two.words), len(three[0].words)) + 1
    assert np.array_equal(read(two).objects[0, :longer], read(three[0]).objects[0, :longer])


def test_captions_of_a_beam_can_be_varied(captioner: Captioner) -> None:
    first = captioner(EXAMPLES[0], n=2, settings=SearchSettings(search="beam", max_length=6)).captions[0]
    assert len(captioner.vary(first, keep="context", n=3)) > 1


def told(text: str, log_probability: float) -> Caption:
    return Caption(tuple(text.split()), log_probability, 0, np.zeros((1, 1), np.float32))


def test_select_goes_from_likely_to_different() -> None:
    pool = [told("a dog on grass", -4.0), told("a dog on the grass", -5.4), told("two cats asleep", -9.0)]
    pool.append(told("a dog on grass", -6.0))
    assert [c.text for c in select(pool, 2, 0.0)] == ["a dog on grass", "a dog on the grass"]
    assert [c.text for c in select(pool, 2, 1.0)] == ["a dog on grass", "two cats asleep"]
    assert len(select(pool, 9, 0.5)) == 3
    assert select(pool, 1, 0.5)[0].log_probability == -4.0
    assert select([], 3, 0.5) == []


def test_what_is_said_in_other_words_only_is_shown_last() -> None:
    """Articles and "that is" make no other caption, unless the best are asked for whatever they say."""
    texts = (
        "a dog on grass",
        "a dog that is on the grass",
        "there is a dog on grass",
        "a dog asleep",
        "two cats",
    )
    pool = [told(text, -len(text.split()) - 1.0) for text in texts]  # all equally likely a token
    assert {c.text for c in select(pool, 3, 0.5)} == {texts[0], texts[3], texts[4]}
    assert [c.text for c in select(pool, 5, 0.5)][3:] == [texts[1], texts[2]]
    worth = [1.0, 0.9, 0.8, 0.2, 0.1]
    assert [c.text for c in select(pool, 3, 0.0, worth)] == list(texts[:3])
    assert [c.text for c in select(pool, 3, 0.1, worth)] == [texts[0], *texts[3:]]
    # What is true comes before what is not, even if it was said already.
    assert [c.text for c in select(pool, 4, 0.5, worth, [0, 0, 0, 1, 0])] == [
        texts[0],
        texts[4],
        texts[1],
        texts[2],
    ]


def test_select_knows_what_all_captions_taken_have_said() -> None:
    """A caption put together from two that are shown says less that is new than one that is like one of them."""
    first, second = told("a dog on grass", -1.0), told("two cats asleep", -2.0)
    both, one = told("a dog on two cats asleep", -9.0), told("a dog on sand", -9.0)
    assert select([first, second, both, one], 3, 0.9) == [first, second, one]


def test_rescore_equals_the_greedy_search_without_noise(captioner: Captioner) -> None:
    """A greedy caption at latent_temperature 0 was written under the means: reading it again gives the same figure."""
    pictures = [as_picture(path) for path in EXAMPLES[:2]]
    batch = region_batch(captioner.detector.regions(pictures))
    settings = SearchSettings(latent_temperature=0.0, max_length=6)
    greedy = generate(captioner.model, batch, captioner.vocabulary, 1, settings)
    again = rescore(captioner.model, batch, greedy, captioner.vocabulary)
    drawn = generate(captioner.model, batch, captioner.vocabulary, 3, SearchSettings(max_length=6))
    reread = rescore(captioner.model, batch, drawn, captioner.vocabulary)
    for one, other in zip(greedy, again, strict=True):
        assert other[0].log_probability == pytest.approx(one[0].log_probability, abs=1e-4)
    pairs = [
        (a, b) for one, other in zip(drawn, reread, strict=True) for a, b in zip(one, other, strict=True)
    ]
    assert all(a.tokens == b.tokens for a, b in pairs)
    assert any(abs(a.log_probability - b.log_probability) > 1e-3 for a, b in pairs)


def test_a_list_with_a_bad_file_gives_the_others(captioner: Captioner, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(EXAMPLES[0].read_bytes()[:300])
    found = captioner([EXAMPLES[0], broken, np.zeros((4, 4, 3)), EXAMPLES[1]], n=1, max_length=6)  # type: ignore[list-item]
    assert [isinstance(each, PhotoError) for each in found] == [False, True, True, False]
    assert found[1].to_json() == {"photo": str(broken), "error": found[1].error}  # type: ignore[union-attr]
    assert "broken.jpg" in found[1].error and "uint8" in found[2].error  # type: ignore[union-attr]
    assert [len(each.captions) for each in found] == [1, 0, 0, 1]
    assert found[3].captions[0].text == captioner(EXAMPLES[1], n=1, max_length=6).captions[0].text
    with pytest.raises(UserError, match=r"broken\.jpg"):
        captioner(broken)


def test_options_are_those_of_the_search(captioner: Captioner) -> None:
    found = captioner(EXAMPLES[0], n=2, must=["zebra"], num_beams=2, max_length=6)
    assert all({"zebra", "zebras"} & {word.word for word in caption.words} for caption in found.captions)
    given = SearchSettings(seed=9, max_length=6)
    both = captioner(EXAMPLES[0], n=2, settings=given, latent_temperature=0.3).captions[0].settings
    assert (both.seed, both.max_length, both.latent_temperature) == (9, 6, 0.3)
    with pytest.raises(UserError, match="there is no beams"):
        captioner(EXAMPLES[0], beams=3)
    with pytest.raises(UserError, match="latent_temperature"):
        captioner(EXAMPLES[0], temperature=0.4)


def test_captions_that_must_contain_a_word_differ(folder: Path) -> None:
    """At a temperature at which draws are alike, further ones are drawn until they differ."""
    captioner = Captioner.from_pretrained(folder)
    options = {"must": ["zebra"], "num_beams": 2, "max_length": 6, "latent_temperature": 0.05}
    plain = captioner(EXAMPLES[0], n=4, distinct=False, **options).captions
    shown = captioner(EXAMPLES[0], n=4, **options).captions
    assert len({each.text for each in plain}) < 4
    assert len({each.text for each in shown}) == len(shown) > len({each.text for each in plain})


@pytest.mark.parametrize(
    ("options", "variety", "temperature", "shown"),
    [
        ({}, None, ACCURATE[0], 0.1),
        ({"latent_temperature": 0.8}, None, 0.8, 0.1),
        ({"latent_temperature": 0.8}, 0.7, 0.8, 0.7),
        ({"search": "beam"}, None, 0.0, 0.1),
        ({"search": "beam", "draws": 2}, None, ACCURATE[0], 0.1),
        ({"search": "constrained", "must": ("dog",)}, None, ACCURATE[0], 0.1),
    ],
)
def test_accurate_sets_only_what_was_not_given(
    options: dict[str, object], variety: float | None, temperature: float, shown: float
) -> None:
    settings, found = manner(SearchSettings(**options), variety, accurate=True, diverse=False)  # type: ignore[arg-type]
    assert (settings.latent_temperature, found) == (temperature, shown)


def test_accurate_chooses_among_draws_and_a_beam(captioner: Captioner) -> None:
    found = captioner(EXAMPLES[0], n=9, accurate=True, latent_temperature=0.0, max_length=6).captions
    by = {caption.settings.search for caption in found}
    assert by == {"latent", "beam"}  # draws at the means are one caption; the others are of the beam
    of_beam = next(caption for caption in found if caption.settings.search == "beam")
    assert of_beam.settings.no_repeat_ngram_size == 2
    assert len(captioner.vary(of_beam, keep="context", n=3)) > 1
    again = captioner(EXAMPLES[0], n=9, variety=0.5, latent_temperature=0.0, max_length=6).captions
    assert {caption.settings.search for caption in again} == {"latent"}


def test_variations_contain_what_the_caption_had_to(captioner: Captioner) -> None:
    first = captioner(EXAMPLES[0], n=1, must=["zebra"], num_beams=2, max_length=6).captions[0]
    for keep in ("context", "objects"):
        others = captioner.vary(first, keep=keep, n=2)
        assert others
        for other in others:
            named = bool({"zebra", "zebras"} & {word.word for word in other.words})
            assert named == other.found.satisfied and named
    with pytest.raises(UserError, match="vary needs a caption"):
        captioner.vary("a dog")  # type: ignore[arg-type]


def test_a_model_without_latents_draws_words_or_says_so(tmp_path: Path) -> None:
    captioner = Captioner.from_pretrained(save_tiny_model(tmp_path / "updown", kind="updown"))
    found = captioner(EXAMPLES[0], n=5, max_length=8)
    assert len({caption.text for caption in found.captions}) == 5
    assert found.captions[0].settings.do_sample
    assert len(captioner(EXAMPLES[0], n=1, max_length=8).captions) == 1
    assert len(captioner(EXAMPLES[0], n=3, search="beam", max_length=8).captions) == 3
    with pytest.raises(UserError, match=r"no latents.*--do-sample"):
        captioner(EXAMPLES[0], n=5, search="latent")


def test_a_check_ends_the_work(captioner: Captioner) -> None:
    steps = []

    def check() -> None:
        steps.append(1)
        if len(steps) == 4:
            raise TimeoutError

    for options in ({}, {"search": "beam"}, {"search": "diverse"}, {"must": ["zebra"], "num_beams": 2}):
        steps.clear()
        with pytest.raises(TimeoutError):
            captioner(EXAMPLES[0], n=2, check=check, **options)
        assert len(steps) == 4
    first = captioner(EXAMPLES[0], n=1).captions[0]
    steps.clear()
    with pytest.raises(TimeoutError):
        captioner.vary(first, check=check)


def test_every_way_in_decodes_alike(captioner: Captioner) -> None:
    """A large JPEG is decoded smaller, from a path, from bytes and from an open file."""
    photo = Image.open(EXAMPLES[0]).resize((2400, 1600))
    content = io.BytesIO()
    photo.save(content, "JPEG")
    sizes = {
        each.picture.size for each in captioner.open([content.getvalue(), io.BytesIO(content.getvalue())])
    }  # type: ignore[union-attr]
    assert len(sizes) == 1 and sizes.pop()[0] < 2400


def test_stacked_regions_are_those_of_a_batch(captioner: Captioner) -> None:
    regions = captioner.detector.regions([as_picture(path) for path in EXAMPLES[:3]])
    for half in (False, True):
        if half:
            regions = [replace(each, features=each.features.astype(np.float16)) for each in regions]
        stacked, batch = RegionArrays.stack(regions), RegionArrays.of(region_batch(regions))
        for name, values in vars(stacked).items():
            other = getattr(batch, name)
            assert values.dtype == other.dtype and np.array_equal(values, other), name


def test_the_detector_follows_from_the_recipe(captioner: Captioner, folder: Path) -> None:
    recipe = captioner.detector.recipe
    assert detector_name(recipe, "m") == detector_name(None, "m") == "builtin"
    other = replace(recipe, name="torchvision:fasterrcnn_resnet50_fpn@COCO_V1/1")
    assert detector_name(other, "m") == "torchvision:fasterrcnn_resnet50_fpn"
    assert (
        detector_name(replace(recipe, name="hf:facebook/detr-resnet-50@abc/1"), "m")
        == "hf:facebook/detr-resnet-50"
    )
    for name in ("bottom-up/2048", "hf:folder@0123/1"):
        with pytest.raises(
            UserError, match=f"runs/x was trained on regions of the recipe {name}.*--detector"
        ):
            detector_name(replace(recipe, name=name), "runs/x")
    with pytest.raises(UserError, match="not a detector"):
        Captioner.from_pretrained(folder, detector="nothing").detector  # noqa: B018


def test_a_search_knows_no_torch() -> None:
    """Nor does a captioner, before it loads a model."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import coscap.search.generate, coscap.search.variations, coscap.search.select, coscap.captioner"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a man 's dog is n't here", {}, "A man's dog isn't here."),
        ("a picture of a cat", {}, "A cat."),
        ("a black and white photo of two dogs", {}, "Two dogs."),
        ("a close up view of a plate", {}, "A plate."),
        ("a view of a city", {}, "A view of a city."),
        ("a photo of", {}, "A photo of."),
        ("a dog sitting on top of a table with a cup", {"max_chars": 40}, "A dog sitting on top of a table."),
        (
            "a dog next to a cat",
            {"prefix": "Photo: ", "suffix": " (auto)"},
            "Photo: A dog next to a cat. (auto)",
        ),
    ],
)
def test_alternative_texts(text: str, options: dict[str, object], expected: str) -> None:
    assert alt_text(text, **options) == expected  # type: ignore[arg-type]


def test_alternative_texts_are_short_and_whole() -> None:
    words = "a man riding a wave on top of a surfboard next to a very small boat in the ocean near the beach".split()
    for limit in range(20, 130):
        alt = alt_text(" ".join(words), limit)
        assert len(alt) <= limit and alt.endswith(".")
        assert alt[:-1].lower().split() == words[: len(alt.split())]
    with pytest.raises(UserError, match="leave at least 20"):
        alt_text("a dog", 30, prefix="x" * 20)


def test_a_photograph_that_bears_out_too_few_captions_is_drawn_again(folder: Path) -> None:
    """With a floor that nothing reaches, what is shown is chosen from three turns of draws; with none, from one."""
    settings = SearchSettings(max_length=6, latent_temperature=0.5)
    for floor, turns in ((0.0, 1), (1.1, 3)):
        captioner = Captioner.from_pretrained(folder)
        assert captioner.judge is not None
        weights = captioner.judge.weights
        weights = replace(weights, shown=replace(weights.shown, floors=(floor, 0.0)), enough=(floor, 0.0))
        captioner.judge.weights = weights
        opened = captioner.open(EXAMPLES[:2])
        shown = captioner.caption(opened, 3, settings=settings)
        regions, evidence = captioner.see([each.picture for each in opened if isinstance(each, OpenedPhoto)])
        for photo, seen, known in zip(shown, regions, evidence or [], strict=True):
            assert isinstance(photo, PhotoCaptions) and captioner.loaded.recipe is not None
            pool = [
                caption
                for turn in range(turns)
                for caption in captioner.generate([seen], 20, settings, turn=turn)[0]
            ]
            assert len({caption.draw for caption in pool}) == len(pool) == turns * 20
            pool = rescore(captioner.model, RegionArrays.stack([seen]), [pool], captioner.vocabulary)[0]
            tokens, found = [each.tokens for each in pool], detected_scores(seen, captioner.loaded.recipe)
            judged = captioner.judge.judge(tokens, known, captioner.objects, found)
            best = select(pool, 3, VARIETY, *rank(pool, judged, weights.shown))
            assert [each.text for each in photo.captions] == [each.text for each in best]


def test_one_text_of_two_token_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of several words is one token, and its words may be written one by one, too."""
    captioner = Captioner.from_pretrained()
    opened = captioner.open([EXAMPLES[0]])[0]
    assert isinstance(opened, OpenedPhoto)
    regions, evidence = captioner.see([opened.picture])
    columns = regions[0].features.shape[0]
    found = [
        Caption(tokens, -5.0, draw, np.full((len(tokens), columns), 1 / columns, np.float32))
        for draw, tokens in enumerate([("a", "stop sign"), ("a", "stop", "sign"), ("a", "cat")])
    ]
    monkeypatch.setattr(captioner, "generate", lambda *arguments, **options: [found])
    for _ in range(2):
        found.reverse()
        (result,) = captioner.describe(["photo"], regions, 3, evidence=evidence)
        assert {caption.text for caption in result.captions} == {"a stop sign", "a cat"}


def test_the_one_caption_of_a_photograph_is_the_first_of_five(folder: Path) -> None:
    """So `--alt` and the first of the captions that `--xmp` writes are the same sentence."""
    captioner = Captioner.from_pretrained(folder)
    for photo in EXAMPLES[:3]:
        five, one = (captioner(photo, n=n, max_length=6).captions for n in (5, 1))
        assert one[0].text == five[0].text


def test_captions_that_read_alike_are_shown_once() -> None:
    """ "a airplane" is mended to "an airplane" when it is shown."""
    texts = ("a airplane on a runway", "an airplane on a runway", "a cat")
    made = [
        Caption(tuple(text.split()), -5.0, draw, np.zeros((1, 1), np.float32))
        for draw, text in enumerate(texts)
    ]
    assert len(select(made, 3, 0.5)) == 2
