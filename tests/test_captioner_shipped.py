"""The captioner inside the package, on the example photographs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coscap import Captioner
from coscap.photos import photo_caption
from coscap.pool import FALLEN
from coscap.seam import Caption
from coscap.search.config import SearchSettings
from coscap.text.faults import faults
from coscap.vision.regions import Regions

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.jpg"))
RECORDED = json.loads((Path(__file__).parent / "data" / "captions_recorded.json").read_text())


@pytest.fixture(scope="module")
def shipped() -> tuple[Captioner, list[Regions]]:
    captioner = Captioner.from_pretrained(precision="float32")
    assert [path.name for path in EXAMPLES] == RECORDED["photos"]
    opened = captioner.open(EXAMPLES)
    return captioner, captioner.detector.regions([each.picture for each in opened])  # type: ignore[union-attr]


@pytest.mark.parametrize("recorded", RECORDED["searches"], ids=lambda each: str(each["settings"]))
def test_the_shipped_model_gives_the_captions_that_it_gave(
    recorded: dict[str, Any], shipped: tuple[Captioner, list[Regions]]
) -> None:
    """Ten captions of each example, recorded with torch; here they come from onnxruntime. (Another processor rounds
    otherwise, and where two words are equally likely to the last digits, a caption may differ.)"""
    captioner, regions = shipped
    found = captioner.generate(regions, 10, SearchSettings(**recorded["settings"]))
    same = [
        now.text == text and abs(now.log_probability - log_probability) < 1e-2
        for captions, before in zip(found, recorded["captions"], strict=True)
        for now, (text, log_probability) in zip(captions, before, strict=True)
    ]
    assert sum(same) >= 0.97 * len(same)


def test_words_are_those_of_the_text(shipped: tuple[Captioner, list[Regions]]) -> None:
    """An ending belongs to the word before it, with the region of that word."""
    tokens = ("a", "cat", "with", "a", "collar", "on", "it", "'s", "head")
    attention = np.eye(len(tokens), 20, dtype=np.float32)
    regions = next(each for each in shipped[1] if len(each) >= len(tokens))
    made = photo_caption(Caption(tokens, -5.0, 0, attention), regions, SearchSettings())
    assert made.text == " ".join(word.word for word in made.words) == "a cat with a collar on its head"
    assert made.words[6].box == tuple(round(float(side), 5) for side in regions.boxes[6])
    assert made.words[7].box == tuple(round(float(side), 5) for side in regions.boxes[8])


def test_variations_do_not_fall_apart() -> None:
    """Of the shipped captioner: none is much less likely a token than its caption, and none has a fault."""
    captioner, seen = Captioner.from_pretrained(), 0
    for path in EXAMPLES[2:4]:  # the cat and the coffee
        for caption in captioner(path, n=2).captions:
            least = caption.log_probability / (len(caption.found.tokens) + 1) - FALLEN
            for keep in ("context", "objects"):
                for other in captioner.vary(caption, keep, 4):  # type: ignore[arg-type]
                    assert other.log_probability / (len(other.found.tokens) + 1) >= least - 1e-4
                    assert not faults(other.found.tokens, captioner.objects) and other.text != caption.text
                    seen += 1
    assert seen > 8
