"""The public API and the command, from real photographs to captions, with a small model of random weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from coscap import Captioner
from coscap.captioner import PhotoCaption, as_picture
from coscap.cli.main import app
from coscap.data.collate import region_batch
from coscap.errors import UserError
from coscap.models.latents import Latents
from coscap.search import Caption, SearchSettings, search
from coscap.search.rescore import rescore
from coscap.search.select import select
from coscap.search.vary import read_latents, split
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
    first = captioner(EXAMPLES[0], n=2).captions[0]
    for keep in ("context", "objects"):
        others = captioner.vary(first, keep=keep, n=3)
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

    batch = region_batch([first.regions])

    def read(caption: PhotoCaption) -> Latents:
        return read_latents(
            split(captioner.model), batch, caption.found, captioner.vocabulary, caption.settings, caption.kept
        )

    words = min(len(first.words), len(one.words), len(two.words)) + 1
    contexts = [read(caption).context[0, :words] for caption in (first, one, two)]
    objects = [read(caption).objects[0, :words] for caption in (first, one, two)]
    assert torch.equal(contexts[0], contexts[1]) and torch.equal(contexts[0], contexts[2])
    assert not torch.allclose(objects[0], objects[1]) and not torch.allclose(objects[1], objects[2])
    longer = min(len(two.words), len(three[0].words)) + 1
    assert torch.equal(read(two).objects[0, :longer], read(three[0]).objects[0, :longer])


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


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["caption", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, UserError), done.exception
        return 2, str(done.exception)
    return done.exit_code, done.stdout


def test_command_writes_json_and_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out = run(*map(str, EXAMPLES[:2]), "-n", "2", "--model", str(folder), "--json", "--html", str(page))
    assert code == 0
    results = json.loads(out[: out.rindex("]") + 1])
    assert [result["photo"] for result in results] == [str(path) for path in EXAMPLES[:2]]
    for result in results:
        for caption in result["captions"]:
            assert set(caption) == {"text", "log_probability", "words"}
            assert all(set(word) == {"word", "box", "weight"} for word in caption["words"])
    text = page.read_text()
    assert text.count("<figure>") == 2
    assert "{{" not in text
    assert 'src="http' not in text


def test_command_goes_on_after_a_bad_photograph(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(EXAMPLES[0].read_bytes()[:300])
    page = tmp_path / "page.html"
    code, message = run(str(broken), str(EXAMPLES[0]), "--model", str(folder), "-n", "1", "--html", str(page))
    assert code == 2
    assert "1 of 2" in message and "broken.jpg" in message
    assert page.read_text().count("<figure>") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing-here.jpg"], "nothing-here.jpg does not exist"),
        (["http://127.0.0.1:9/x.jpg"], "--urls"),
        (["x.jpg", "--accurate", "--diverse"], "exclude each other"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: list[str], expected: str) -> None:
    code, message = run(*arguments)
    assert code == 2
    assert expected in message


def test_must_and_without(folder: Path) -> None:
    code, out = run(str(EXAMPLES[0]), "--model", str(folder), "--must", "zebra", "-n", "2", "--json")
    assert code == 0
    texts = [caption["text"] for caption in json.loads(out)[0]["captions"]]
    assert texts and all("zebra" in text for text in texts)
    code, out = run(str(EXAMPLES[0]), "--model", str(folder), "--without", "person", "-n", "4", "--json")
    words = {w["word"] for c in json.loads(out)[0]["captions"] for w in c["words"]}
    assert not words & {"man", "woman", "person", "people"}


def test_rescore_equals_the_greedy_search_without_noise(captioner: Captioner) -> None:
    """A greedy caption at temperature 0 was written under the means: reading it again gives the same figure."""
    pictures = [as_picture(path) for path in EXAMPLES[:2]]
    batch = region_batch(captioner.detector.regions(pictures))
    settings = SearchSettings(temperature=0.0, max_length=6)
    greedy = search(captioner.model, batch, captioner.vocabulary, 1, settings)
    again = rescore(captioner.model, batch, greedy, captioner.vocabulary)
    drawn = search(captioner.model, batch, captioner.vocabulary, 3, SearchSettings(max_length=6))
    reread = rescore(captioner.model, batch, drawn, captioner.vocabulary)
    for one, other in zip(greedy, again, strict=True):
        assert other[0].log_probability == pytest.approx(one[0].log_probability, abs=1e-4)
    pairs = [
        (a, b) for one, other in zip(drawn, reread, strict=True) for a, b in zip(one, other, strict=True)
    ]
    assert all(a.units == b.units for a, b in pairs)
    assert any(abs(a.log_probability - b.log_probability) > 1e-3 for a, b in pairs)
