"""The pages in a real Chromium: by mouse, by keyboard, on a phone, in the dark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chromium import Browser, find_chromium
from coscap import Captioner
from coscap.cli.page import figure, render
from coscap.photos import as_picture
from coscap.search.config import SearchSettings
from coscap.search.manner import ACCURATE, DIVERSE, USUAL
from coscap.serve.app import create_app
from coscap.serve.study.answers import Answers
from coscap.serve.study.app import create_study_app
from coscap.serve.study.material import read_study
from serving import serving as on_loopback
from test_study_parts import METHODS, write_samples
from tiny_captioner import save_tiny_model

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (or name one in CHROMIUM)")
EXAMPLES = Path(__file__).parents[1] / "examples"

# The contrast of every text that is shown, by the formula of WCAG 2; what is below 4.5 is told.
CONTRAST = """(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(part => part / 255).map(part =>
    part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const shown = element.getClientRects().length && !element.closest("script, style, .unseen, :disabled");
    if (!walker.currentNode.textContent.trim() || !shown) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(ratio.toFixed(2) + " " + walker.currentNode.textContent.trim());
  }
  return poor;
})()"""
FITS = "document.documentElement.scrollWidth <= innerWidth"
SMALL = """[...document.querySelectorAll("button, select, .button, .steps label")].filter(one => one.offsetParent &&
  (one.offsetHeight < 24 || one.offsetWidth < 24)).map(one => one.textContent)"""
CAPTIONED = "$('captions').children.length > 0 && $('captions').getAttribute('aria-busy') === 'false'"


@contextmanager
def serving(app: Any) -> Iterator[str]:
    with on_loopback(app) as (port, _):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    return Captioner.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def address(captioner: Captioner) -> Iterator[str]:
    with serving(create_app(captioner)) as address:
        yield address


@pytest.fixture(scope="module")
def one_browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    browser = Browser(CHROMIUM)
    yield browser
    browser.close()


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    """As it was when it was new."""
    one_browser.open("about:blank")
    one_browser.resize(1200, 800)
    one_browser.prefer()
    one_browser.forget()
    return one_browser


def named(browser: Browser) -> list[str]:
    """Controls without a name for a screen reader."""
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "slider", "combobox", "radio", "link", "img", "progressbar", "radiogroup"}
    return [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node.get("role", {}).get("value") in roles
        and not node.get("name", {}).get("value")
    ]


def healthy(browser: Browser, address: str) -> None:
    """No complaint, no outside resource, readable, every control with a name."""
    assert browser.complaints == []
    outside = [url for url in browser.asked if not url.startswith((address, "data:", "blob:"))]
    assert outside == []
    assert named(browser) == []
    for scheme in ("light", "dark"):
        browser.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        assert browser.run(CONTRAST) == []
    browser.prefer(prefers_color_scheme="light")


def test_a_mouse_takes_an_example_and_all_that_follows(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.until("!$('examples').hidden")
    healthy(browser, address)
    browser.point("#examples button", click=True)
    browser.until(CAPTIONED)
    assert browser.run("$('box').hidden")
    browser.point("#captions .word")
    browser.until("!$('box').hidden")
    # The region that is shown is the word's own.
    left, top, right, bottom = browser.run("document.querySelector('#captions .word').word.box")
    shown = browser.run(
        "(p => (b => [b.left - p.left, b.top - p.top, b.right - p.left, b.bottom - p.top].map((side, i) => "
        "side / (i % 2 ? p.height : p.width)))($('box').getBoundingClientRect()))($('photo').getBoundingClientRect())"
    )
    assert shown == pytest.approx([left, top, right, bottom], abs=0.01)
    browser.point("header")
    browser.until("$('box').hidden")

    browser.point("#captions [data-keep=context]", click=True)
    browser.until("document.querySelector('#captions > li .variations li .caption')")
    browser.point("#captions .variations [data-keep=objects]", click=True)  # and a variation varies
    browser.until(
        "document.querySelector('.variations .variations li, .variations .variations p:not(:empty)')"
    )
    healthy(browser, address)

    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.point("#captions [data-copy]", click=True)
    browser.until("document.querySelector('#captions [data-copy]').textContent === 'Copied'")
    text = browser.run("document.querySelector('#captions .caption').textContent")
    copied = browser.run("navigator.clipboard.readText()")  # of a long caption as much as alt text may have
    assert copied.endswith(".") and len(copied) > 20 and (text[0].upper() + text[1:]).startswith(copied[:-1])


def test_a_photograph_can_be_dropped_and_the_slider_asks_again(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.drop("#stage", EXAMPLES / "coffee.jpg")
    browser.until(CAPTIONED)
    assert browser.run("$('image').naturalWidth") > 100
    before = sum(url.endswith("/captions") for url in browser.asked)
    browser.run("$('variety').focus()")
    browser.press("ArrowRight")
    browser.until("$('variety').getAttribute('aria-valuetext') === 'rather diverse'")
    browser.until(CAPTIONED)
    assert sum(url.endswith("/captions") for url in browser.asked) == before + 1
    browser.drop("#stage", Path(__file__))
    browser.until("$('status').classList.contains('bad')")
    assert "not a picture" in browser.run("$('status').textContent")
    assert browser.complaints == []


def test_two_photographs_are_both_captioned(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.drop("#stage", EXAMPLES / "coffee.jpg", EXAMPLES / "cat.jpg", Path(__file__))
    browser.until("state.photos.length === 2 && state.photos.every(photo => photo.captions)")
    browser.until(CAPTIONED)
    status = browser.run("$('status').textContent")
    assert "photograph 1 of 2" in status and "2 of the 3 files are taken" in status
    first = browser.run("$('captions').textContent")
    browser.point("#strip button:nth-child(2)", click=True)
    browser.until("$('status').textContent.includes('photograph 2 of 2')")
    assert browser.run("$('captions').textContent") != first
    assert browser.run("$('image').src === state.photos[1].address")
    assert (
        browser.run("document.querySelector('#strip [aria-pressed=true] img').alt") == "Photograph 2: cat.jpg"
    )
    healthy(browser, address)
    browser.drop("#stage", EXAMPLES / "coffee.jpg")
    browser.until("state.photos.length === 1 && state.photos[0].captions")
    assert browser.run("$('strip').hidden")


def test_the_page_asks_for_what_the_command_gives_by_default(
    browser: Browser, address: str, captioner: Captioner
) -> None:
    browser.open(address)
    browser.drop("#stage", EXAMPLES / "coffee.jpg")
    browser.until(CAPTIONED)
    expected = [caption.text for caption in captioner(EXAMPLES / "coffee.jpg", n=5).captions]
    assert browser.run("state.photos[0].captions.map(caption => caption.text)") == expected
    sent = {}
    for slide in (0, 50, 100):
        fields = browser.run(
            f"$('variety').value = {slide}, Object.fromEntries([...form(state.photos[0])].slice(1))"
        )
        sent[slide] = (float(fields["latent_temperature"]), float(fields["variety"]))
    assert sent == {0: ACCURATE, 50: USUAL, 100: DIVERSE}


def test_alt_text_of_the_captioner_is_copied_as_it_is(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.drop("#stage", EXAMPLES / "coffee.jpg")
    browser.until(CAPTIONED)
    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.run("state.photos[0].captions[0].alt = 'The alt text, as it came.'")
    browser.point("#captions [data-copy]", click=True)
    browser.until("document.querySelector('#captions [data-copy]').textContent === 'Copied'")
    assert browser.run("navigator.clipboard.readText()") == "The alt text, as it came."


def test_the_keyboard_alone_is_enough(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.until("!$('examples').hidden")

    def tab_to(selector: str) -> None:
        for _ in range(80):
            browser.press("Tab")
            if browser.run(f"document.activeElement.matches('{selector}')"):
                return
        raise AssertionError(f"Tab does not lead to {selector}")

    tab_to("#examples button")
    browser.press("Enter")
    browser.until(CAPTIONED)
    tab_to("#captions .caption")
    outline = browser.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # where the keyboard is can be seen
    browser.press("ArrowRight")
    browser.until("!$('box').hidden")
    assert "percent of the photograph" in browser.run("$('announcer').textContent")
    browser.press("Escape")
    assert browser.run("$('box').hidden")
    tab_to("[data-keep=objects]")
    browser.press(" ")
    browser.until("document.querySelector('.variations li .caption, .variations p:not(:empty)')")
    assert browser.complaints == []


def test_on_a_phone(browser: Browser, address: str) -> None:
    browser.resize(360, 740, phone=True)
    browser.prefer(prefers_reduced_motion="reduce")
    browser.open(address)
    browser.until("!$('examples').hidden")
    assert browser.run(FITS)
    browser.run("document.querySelector('#examples button').click()")
    browser.until(CAPTIONED)
    assert browser.run("getComputedStyle($('captions').firstElementChild).animationName") == "none"
    browser.run("document.querySelector('[data-keep=context]').click()")
    browser.until("document.querySelector('.variations li .caption')")
    browser.run("document.querySelector('.variations [data-keep=context]').click()")
    browser.until(
        "document.querySelector('.variations .variations li, .variations .variations p:not(:empty)')"
    )
    assert browser.run(FITS)
    assert browser.run(SMALL) == []
    healthy(browser, address)


def test_the_page_of_the_command(browser: Browser, captioner: Captioner, tmp_path: Path) -> None:
    photos = [EXAMPLES / "cat.jpg", EXAMPLES / "coffee.jpg"]
    found = captioner(photos, n=3, settings=SearchSettings(max_length=8))
    page = tmp_path / "captions.html"
    figures = [(each.photo, figure(each.to_json(), as_picture(each.photo))) for each in found]
    page.write_text(render(figures), encoding="utf-8")
    browser.open(page.as_uri())
    word, box = "document.querySelector('.caption span')", "document.querySelector('.box')"
    assert browser.run(f"{box}.hidden")
    browser.point(".caption span")
    browser.until(f"!{box}.hidden")
    browser.run(f"{word}.blur()")
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.until(f"{box}.hidden")
    browser.press("Tab")
    browser.until(f"!{box}.hidden")
    healthy(browser, page.as_uri())
    browser.resize(360, 740, phone=True)
    assert browser.run(FITS)


def test_an_annotator_rates_by_keys_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    study = read_study(write_samples(tmp_path / "material", pictures=3))
    answers = Answers(tmp_path / "study.sqlite", study)
    assert CHROMIUM is not None
    with serving(create_study_app(study, answers, tokens=["secret"])) as address:
        browser.open(address)
        healthy(browser, address)
        _join(browser, "Ann")
        browser.until("!$('item').hidden")
        for place, keys in enumerate(("38", "70")):
            browser.until(f"$('place').textContent === 'Photograph {place + 1} of 6'")
            browser.press(keys[0])
            browser.press(keys[1])
            browser.press("Enter")
        browser.until("$('place').textContent === 'Photograph 3 of 6'")
        browser.complaints.clear()  # the refusal before the token was given
        healthy(browser, address)
        browser.press("Backspace")
        browser.until("$('place').textContent === 'Photograph 2 of 6'")
        assert browser.run("[value('accuracy'), value('diversity')]") == [7, 10]
        browser.press("1")  # changed
        browser.until("desk.rated === 2 && value('accuracy') === 1")
        browser.run("desk.saving.then(() => 1)")
        browser.resize(360, 740, phone=True)
        assert browser.run(FITS) and browser.run(SMALL) == []
        page = browser.run("document.documentElement.outerHTML")
        assert not any(method in page for method in METHODS)
        second = Browser(CHROMIUM)
        try:
            second.open(address)
            _join(second, "ann")
            second.until("$('place').textContent === 'Photograph 3 of 6'")
            assert second.run("$('count').textContent") == "2 of 6 rated"
            second.open(address + "results")
            second.until("!$('results').hidden")  # the tab remembers the token
            second.complaints.clear()
            healthy(second, address)
            second.resize(360, 740, phone=True)
            assert second.run(FITS)
            assert second.run("$('figure').naturalWidth") > 300
        finally:
            second.close()
        given = {(one.accuracy, one.diversity) for one in answers.ratings()}
        assert given == {(3, 8), (1, 10)}


def _join(browser: Browser, name: str) -> None:
    browser.run("$('annotator').focus()")
    browser.write(name)
    browser.press("Enter")
    browser.until("!$('token').hidden")
    browser.write("secret")  # the field has the focus
    browser.press("Enter")
