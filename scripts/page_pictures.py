"""Photograph the pages for the docs, with the captions that the package gives now.

    python scripts/page_pictures.py [--out docs/images]

The server's page on a screen and, dark, on a phone, and the page that `coscap caption --html` writes. It needs Chromium
(or name one in CHROMIUM) and the extra `serve`.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from chromium import Browser, find_chromium  # noqa: E402
from coscap import Captioner  # noqa: E402
from coscap.cli.main import app as command  # noqa: E402
from coscap.serve.app import create_app  # noqa: E402
from serving import serving  # noqa: E402

EXAMPLES = ROOT / "examples"
CAPTIONED = "$('captions').children.length > 0 && $('captions').getAttribute('aria-busy') === 'false'"
SCREEN, PHONE = (1100, 733), (390, 844)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    out = parser.parse_args().out.resolve()
    os.chdir(ROOT)  # the page names photographs as they were given
    program = find_chromium()
    if program is None:
        raise SystemExit("No Chromium was found; install it, or name one in CHROMIUM.")
    browser = Browser(program, *SCREEN)
    try:
        with serving(create_app(Captioner.from_pretrained())) as (port, _):
            of_server(browser, f"http://127.0.0.1:{port}/", out)
        of_command(browser, out)
    finally:
        browser.close()


def of_server(browser: Browser, address: str, out: Path) -> None:
    """A word's region and a variation on a screen; captions on a phone in the dark."""
    browser.prefer(prefers_reduced_motion="reduce")
    browser.open(address)
    browser.drop("#stage", EXAMPLES / "coffee.jpg")
    browser.until(CAPTIONED)
    browser.point("#captions > li:nth-child(2) [data-keep=context]", click=True)
    browser.until("document.querySelector('#captions .variations li .caption')")
    browser.point("#captions > li .word:nth-of-type(2)")
    browser.until("!$('box').hidden")
    browser.run("scrollTo(0, 0)")
    photograph(browser, out / "serve-page.png")
    browser.resize(*PHONE, phone=True, scale=2)
    browser.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    browser.open(address)
    browser.drop("#stage", EXAMPLES / "cat.jpg")
    browser.until(CAPTIONED)
    photograph(browser, out / "serve-phone.png")
    browser.prefer()


def of_command(browser: Browser, out: Path) -> None:
    browser.resize(*SCREEN)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "captions.html"
        photos = ["examples/coffee.jpg", "examples/cat.jpg"]
        command(["caption", *photos, "--html", str(page)], standalone_mode=False)
        browser.open(page.as_uri())
        photograph(browser, out / "caption-html.png")


def photograph(browser: Browser, path: Path) -> None:
    """A screenshot in 128 colours: a third of the size."""
    browser.screenshot(path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
