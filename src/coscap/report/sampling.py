"""Captions of every picture for the report, kept on disk and continued where they stop.

This is the one place of the report that loads models and searches.

A set of samples is two files, named after all that decides its captions but the pictures:
    WEIGHTS-SEARCH-N-seedS-HASH.json     weights and search settings
    WEIGHTS-SEARCH-N-seedS-HASH.jsonl    a line a picture, {"image_id", "regions", "captions": [...]}, which
                                      `coscap evaluate` reads; "regions" is a checksum of the picture's features
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coscap.captioner import Captioner
from coscap.data.collate import region_batch
from coscap.files import write_json
from coscap.progress import bar
from coscap.report.runs import Run
from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.shipped import load_model
from coscap.vision.stores import Stores

PICTURES_AT_ONCE = 32
ROWS_AT_ONCE = 2048  # captions in work at once; no effect on the result

SHOWN = 5  # captions of each run on the page of random pictures
POOL = 20  # draws that these are chosen from, as `coscap caption` does
VARIETY = 0.5

Samples = dict[int, list[str]]


def latent_settings(seed: int, temperature: float, distinct: bool = False) -> SearchSettings:
    """Draws of latents."""
    return SearchSettings(seed=seed, latent_temperature=temperature, distinct=distinct)


def beam_settings(search: str) -> SearchSettings:
    """A beam ("beam") or a diverse beam ("diverse")."""
    return SearchSettings(search=search)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Constraints:
    """Of the constrained searches: up to so many detected classes that the plain caption leaves out."""

    detected: int = 0  # 0: no such search
    num_beams: int = 5  # in each state of the constraints
    score: float = 0.5  # from which a class is detected

    def settings(self, seed: int, temperature: float) -> SearchSettings:
        """A constrained beam under each draw."""
        return SearchSettings(
            search="constrained",
            detected=self.detected,
            detected_score=self.score,
            seed=seed,
            latent_temperature=temperature,
            num_beams=self.num_beams,
        )


UNCONSTRAINED = Constraints()


def word_settings(seed: int, temperature: float, top_p: float, distinct: bool = False) -> SearchSettings:
    """Words drawn one by one from a model without latents."""
    return SearchSettings(seed=seed, do_sample=True, temperature=temperature, top_p=top_p, distinct=distinct)


@dataclass(frozen=True)
class SampleSet:
    """One set of samples of one run."""

    run: Run
    settings: SearchSettings
    n: int

    def describe(self) -> dict[str, Any]:
        """All that decides the captions of a picture. `max_rows` does not, so it is left out."""
        settings = self.settings.model_dump(mode="json", exclude={"max_rows"})
        return {"weights": self.run.weights, "n": self.n, "settings": settings}

    def file(self, work: Path) -> Path:
        content = json.dumps(self.describe(), sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        model = self.run.weights[:10]  # not the run's name: it may be called otherwise the next time
        return work / f"{model}-{self.settings.search}-{self.n}-seed{self.settings.seed}-{digest}.jsonl"


class Sampler:
    """Draws what is wanted, or reads it if it was drawn before."""

    def __init__(self, run: Run, stores: Stores, work: Path, device: str = "cpu") -> None:
        self.run, self.stores, self.work, self.device = run, stores, work, device

    @property
    def has_latents(self) -> bool:
        """Whether two draws can differ."""
        return bool(self.captioner.model.latent_names)

    @cached_property
    def captioner(self) -> Captioner:
        """Loaded when a caption is missing, not before; in onnxruntime where the run has graphs, in float32."""
        loaded, model = load_model(self.run.folder, self.device, precision="float32")
        loaded.check_recipe(self.stores.recipe)
        return Captioner(loaded, model, device=self.device)

    def samples(self, wanted: SampleSet, pictures: Sequence[int]) -> Samples:
        path = wanted.file(self.work)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path.with_suffix(".json"), wanted.describe(), indent=1)
        sums = {image: self.stores.checksum(image) for image in pictures}
        kept = read_lines(path)
        found = {image: kept[image, sums[image]] for image in pictures if (image, sums[image]) in kept}
        left = [image for image in pictures if image not in found]
        if left:
            label = f"{self.run.name}: {wanted.settings.search}, seed {wanted.settings.seed}"
            with bar(label, len(left), "pictures") as advance, path.open("a", encoding="utf-8") as file:
                for start in range(0, len(left), PICTURES_AT_ONCE):
                    here = left[start : start + PICTURES_AT_ONCE]
                    for image, captions in zip(here, self._search(wanted, here), strict=True):
                        found[image] = captions
                        row = {"image_id": image, "regions": sums[image], "captions": captions}
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    file.flush()
                    advance(len(here))
        return {image: found[image] for image in pictures}

    def _search(self, wanted: SampleSet, pictures: Sequence[int]) -> list[list[str]]:
        batch = region_batch([self.stores.get(image) for image in pictures])
        found = generate(
            self.captioner.model,
            batch,
            self.captioner.vocabulary,
            wanted.n,
            wanted.settings.model_copy(update={"max_rows": ROWS_AT_ONCE}),
            objects=self.captioner.objects,
            classes=self.stores.recipe.classes,
        )
        return [[caption.text for caption in captions] for captions in found]

    def shown(self, ids: Sequence[int]) -> list[list[str]]:
        """What `coscap caption` would show of each picture; the best of a beam for a run without latents."""
        settings = SearchSettings() if self.has_latents else beam_settings("beam")
        regions = [self.stores.get(image) for image in ids]
        found = self.captioner.describe([str(image) for image in ids], regions, SHOWN, settings=settings)
        return [[caption.text for caption in each.captions] for each in found]


def read_lines(path: Path) -> dict[tuple[int, int], list[str]]:
    """Captions by picture and checksum, of a file that may end in the middle of a line; that end is cut off."""
    if not path.is_file():
        return {}
    found: dict[tuple[int, int], list[str]] = {}
    good = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                place = int(row["image_id"]), int(row["regions"])
                found[place] = [str(caption) for caption in row["captions"]]
            except (ValueError, KeyError, TypeError):
                break
            good += len(line)
    if good < path.stat().st_size:
        with path.open("rb+") as file:
            file.truncate(good)
    return found
