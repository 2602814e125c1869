"""The public API, and the one way from photographs to captions: `Captioner.from_pretrained()("photo.jpg", n=5)`.

photos ─▶ open ─▶ pictures ─┬▶ detector ─▶ Regions ─▶ generate ─▶ rescore ─▶ select ─▶ PhotoCaptions
            │                └▶ judge: words that are seen, captions of similar pictures ─▶ support ─┘
            └▶ PhotoError in the place of each that cannot be read
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
from PIL import Image

from coscap.contexts.judge import Judge, Selection, open_judge
from coscap.errors import UserError
from coscap.photos import (
    OpenedPhoto,
    Photo,
    PhotoCaption,
    PhotoCaptions,
    PhotoError,
    as_picture,
    open_photos,
    photo_caption,
)
from coscap.pool import Pool, sound
from coscap.runtime import Precision
from coscap.seam import Caption, Check, LatentValues, RegionArrays, SearchModel
from coscap.search.config import SearchSettings, settings_from
from coscap.search.generate import generate
from coscap.search.manner import VARIETY, beam_settings, for_model, manner
from coscap.search.select import rescore, select
from coscap.search.variations import Keep, keep_latents, vary
from coscap.shipped import SHIPPED, Runtime, detector_name, load_model
from coscap.text.objects import ObjectClasses, load_classes
from coscap.text.vocabulary import Vocabulary
from coscap.vision.builtin import BuiltinDetector
from coscap.vision.detectors import Detector, load_detector
from coscap.vision.pictures import PIXEL_LIMIT
from coscap.vision.regions import Recipe, Regions
from coscap.vision.tags import Tag, Tagger
from coscap.vision.words import Evidence

POOL, LEAST_POOL = 4, 20  # draws for each caption that is shown; and so many for a single one, too
SAFE, BEAM = 0.2, 5  # up to this variety, the captions of a beam are in the pool as well
SAFE_POOL = 120  # and so many draws
FURTHER = 2  # times that a photograph is drawn again which bears out fewer captions than are to be shown


class LoadedModel(Protocol):
    """What belongs to a model besides its steps (coscap.models.hub.Pretrained)."""

    @property
    def source(self) -> str: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def recipe(self) -> Recipe | None: ...
    @property
    def classes(self) -> ObjectClasses | None: ...
    def check_recipe(self, recipe: Recipe) -> None:
        """Refuse regions that were made in another way than the model was trained with."""
        ...


class Captioner:
    """Captions photographs.

    >>> from coscap import Captioner                                            # doctest: +SKIP
    >>> for caption in Captioner.from_pretrained()("photo.jpg", n=5).captions:  # doctest: +SKIP
    ...     print(caption.text)
    """

    def __init__(
        self,
        loaded: LoadedModel,
        model: SearchModel[Any],
        detector: Detector | str | None = None,
        device: str = "cpu",
        judge: Judge | None = None,
    ) -> None:
        """`model` is the model of `loaded` as searches use it. `detector` is one, or the name of one; without it,
        the detector that the model was trained with is loaded when the first photograph needs it. `judge` says how
        far a photograph bears captions out; without it, the likeliest are shown."""
        self.judge = judge
        self.loaded, self.model, self.device = loaded, model, device
        self.vocabulary = loaded.vocabulary
        self.objects = loaded.classes or load_classes("coco")
        self._given_detector = detector
        if detector is not None and not isinstance(detector, str):
            loaded.check_recipe(detector.recipe)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = SHIPPED,
        *,
        device: str = "cpu",
        detector: Detector | str | None = None,
        bank: str | Path | None = SHIPPED,
        runtime: Runtime | None = None,
        providers: Sequence[str] | None = None,
        precision: Precision | None = None,
    ) -> "Captioner":
        """The model inside the package, one in a folder (a run of `coscap train`), or `owner/name` on a hub.

        `bank` holds captions of other pictures to agree with (`coscap bank`); that of the package if not given, None
        for none, and then nothing judges captions either. A folder with graphs runs in onnxruntime, on its
        `providers`, any other in torch; `runtime` chooses where there is a choice. `precision` is float32 or int8; on a
        CPU, the captioner of the package runs in int8 if not told otherwise.
        """
        loaded, steps = load_model(model, device, runtime, providers, precision)
        return cls(loaded, steps, detector, device, open_judge(bank))

    @cached_property
    def detector(self) -> Detector:
        """What finds the regions of photographs."""
        given = self._given_detector
        if given is not None and not isinstance(given, str):
            return given
        name = given or detector_name(self.loaded.recipe, self.loaded.source)
        classes = self._looked_for(name)
        found = load_detector(name, classes=classes, device=self.device, recipe=self.loaded.recipe)
        self.loaded.check_recipe(found.recipe)
        return found

    @cached_property
    def tagger(self) -> Tagger:
        """What finds the words of photographs."""
        return Tagger() if self.judge is None else self.judge.tagger

    def _looked_for(self, name: str) -> Sequence[str]:
        """The classes that an open-vocabulary detector looks for: those of the model's recipe."""
        recipe = self.loaded.recipe
        return (
            recipe.classes if recipe is not None and name.startswith("hf:") and "owl" in name.lower() else ()
        )

    @overload
    def __call__(self, photos: Photo, n: int = 5, **options: Any) -> PhotoCaptions: ...
    @overload
    def __call__(
        self, photos: Sequence[Photo], n: int = 5, **options: Any
    ) -> list[PhotoCaptions | PhotoError]: ...
    def __call__(
        self, photos: Photo | Sequence[Photo], n: int = 5, **options: Any
    ) -> PhotoCaptions | list[PhotoCaptions | PhotoError]:
        """n captions for a photograph, or for each of a list: paths, bytes, PIL pictures, arrays (H, W, 3).

        Options are `accurate`, `diverse`, `variety` (as of `describe`) and all fields of SearchSettings, for example
        `captioner(photo, accurate=True, must=["dog"])`. A photograph that cannot be read raises a UserError; in a
        list, a PhotoError is in its place and the others are captioned.
        """
        if isinstance(photos, Sequence) and not isinstance(photos, str | bytes):
            return list(self.stream(photos, n, **options))
        (only,) = self.stream([photos], n, **options)
        if isinstance(only, PhotoError):
            raise UserError(only.error)
        return only

    def stream(
        self, photos: Sequence[Photo], n: int = 5, *, names: Sequence[str] | None = None, **options: Any
    ) -> Iterator[PhotoCaptions | PhotoError]:
        """The same as an iterator that works on as many photographs at once as the detector likes."""
        settings, variety = self._asked(n, **options)
        for first in range(0, len(photos), self.detector.batch):
            here = slice(first, first + self.detector.batch)
            opened = self.open(photos[here], None if names is None else names[here], first=first)
            yield from self.caption(opened, n, settings=settings, variety=variety, check=options.get("check"))

    def open(
        self,
        photos: Sequence[Photo],
        names: Sequence[str] | None = None,
        *,
        pixel_limit: int = PIXEL_LIMIT,
        first: int = 0,
    ) -> list[OpenedPhoto | PhotoError]:
        """Every photograph as an upright picture, decoded in the one way that this detector needs."""
        return open_photos(photos, names, self.detector.least_side, pixel_limit=pixel_limit, first=first)

    def caption(
        self, opened: Sequence[OpenedPhoto | PhotoError], n: int = 5, **options: Any
    ) -> list[PhotoCaptions | PhotoError]:
        """Captions of one batch of opened photographs, those that could not be opened in their places."""
        good = [each for each in opened if isinstance(each, OpenedPhoto)]
        if not good:
            return [each for each in opened if isinstance(each, PhotoError)]
        regions, evidence = self.see([each.picture for each in good])
        found = iter(self.describe([each.name for each in good], regions, n, evidence=evidence, **options))
        return [next(found) if isinstance(each, OpenedPhoto) else each for each in opened]

    def see(self, pictures: Sequence[Image.Image]) -> tuple[list[Regions], list[Evidence] | None]:
        """The regions of pictures and what a judge needs to know of them: one look where both have the same eyes."""
        detector, judge = self.detector, self.judge
        if judge is None:
            return detector.regions(pictures), None
        if isinstance(detector, BuiltinDetector) and detector.eyes_digest == judge.tagger.digest:
            return detector.see(pictures)
        return detector.regions(pictures), judge.tagger.look(pictures)

    def describe(
        self,
        names: Sequence[str],
        regions: Sequence[Regions],
        n: int = 5,
        *,
        accurate: bool = False,
        diverse: bool = False,
        variety: float | None = None,
        settings: SearchSettings | None = None,
        evidence: Sequence[Evidence] | None = None,
        check: Check | None = None,
        **options: Any,
    ) -> list[PhotoCaptions]:
        """The captions of pictures whose regions are known.

        A latent search draws four captions for each one shown, at least 20, and takes good ones that differ: `variety`
        0 takes the best, 1 the most different (0.5 if unset). Where there is `evidence` of the pictures, good is what
        people would write and the picture bears out; otherwise what is likely. A picture that bears out fewer captions
        than are shown, or than five, is drawn again, up to twice. `accurate` and `diverse` set variety and the latents'
        temperature, where they are not given; under a variety as low as that of `accurate`, the pool is larger, has
        captions of a beam and is not drawn again. Further options are fields of SearchSettings. `check` may raise.
        """
        settings, variety = self._asked(
            n, accurate=accurate, diverse=diverse, variety=variety, settings=settings, **options
        )
        pooled = settings.search == "latent" and settings.draws is None
        arrays = RegionArrays.stack(regions)
        safe = pooled and variety <= SAFE and evidence is not None
        count = max(POOL * n, SAFE_POOL if safe else LEAST_POOL) if pooled else n
        found = self.generate(arrays, count, settings, check=check)
        drawn = [len(captions) for captions in found]
        beam = beam_settings(settings)
        if safe and not settings.do_sample:
            further = self.generate(arrays, BEAM, beam, check=check)
            found = [[*captions, *more] for captions, more in zip(found, further, strict=True)]
        seen: Sequence[Evidence | None] = [None] * len(regions) if evidence is None else evidence
        pools = [Pool(*each) for each in zip(found, drawn, regions, seen, strict=True)]
        for pool in pools:
            pool.judge(self.judge, self.objects, self.loaded.recipe)
        if pooled and not safe:
            self._draw_further(pools, arrays, count, max(n, LEAST_POOL // POOL), settings, check)
        choice = self._choice(safe) if evidence is not None else None
        # Where likelihood has no say in what is shown, only what is shown need be read again.
        judged_alone = choice is not None and not choice.worth[0]
        if not judged_alone:
            all_read = rescore(self.model, arrays, [pool.captions for pool in pools], self.vocabulary, check)
            for pool, captions in zip(pools, all_read, strict=True):
                pool.rescored(captions)
        chosen = [pool.best(n, variety, choice) if pooled else pool.captions for pool in pools]
        read = rescore(self.model, arrays, chosen, self.vocabulary, check) if judged_alone else chosen
        results = []
        for name, pool, captions, scored in zip(names, pools, chosen, read, strict=True):
            of_beam = {id(each) for each in pool.beam}
            shown = [
                photo_caption(
                    each,
                    pool.regions,
                    beam if id(before) in of_beam else settings,
                    judged=pool.judged.get(each.tokens),
                )
                for before, each in zip(captions, scored, strict=True)
            ]
            results.append(PhotoCaptions(name, tuple(shown)))
        return results

    def _choice(self, safe: bool) -> Selection | None:
        """What makes a caption worth showing; None without a judge."""
        weights = None if self.judge is None else self.judge.weights
        return None if weights is None else weights.accurate if safe else weights.shown

    def _draw_further(
        self,
        pools: Sequence[Pool],
        regions: RegionArrays,
        count: int,
        wanted: int,
        settings: SearchSettings,
        check: Check | None,
    ) -> None:
        """Add as many captions again to the pools in which fewer than `wanted` are borne out."""
        if self.judge is None:
            return
        for turn in range(1, FURTHER + 1):
            short = [
                at for at, pool in enumerate(pools) if pool.judged and pool.good(self.judge.weights) < wanted
            ]
            if not short:
                return
            some = regions if len(short) == len(pools) else regions.take(np.array(short))
            more = self.generate(some, count, settings, turn=turn, check=check)
            for at, captions in zip(short, more, strict=True):
                pools[at].further += captions
                pools[at].judge(self.judge, self.objects, self.loaded.recipe)

    def generate(
        self,
        regions: RegionArrays | Sequence[Regions],
        n: int,
        settings: SearchSettings | None = None,
        *,
        classes: Sequence[str] | None = None,
        latents: LatentValues | None = None,
        turn: int = 0,
        check: Check | None = None,
    ) -> list[list[Caption]]:
        """n captions of each picture as the search finds them: not rescored, none left out.

        `classes` are the names that the regions' labels stand for, if another recipe than the detector's made them.
        """
        if not isinstance(regions, RegionArrays):
            regions = RegionArrays.stack(regions)
        recipe = self.loaded.recipe
        return generate(
            self.model,
            regions,
            self.vocabulary,
            n,
            settings,
            objects=self.objects,
            classes=classes or (recipe.classes if recipe is not None else None),
            latents=latents,
            turn=turn,
            check=check,
        )

    def tags(self, photo: Photo, n: int = 20, floor: float = 0.2) -> list[Tag]:
        """The words that people would write about a photograph, with calibrated probabilities and places."""
        return self.tagger([as_picture(photo, self.tagger.least_side)], n, floor)[0]

    def vary(
        self,
        caption: PhotoCaption,
        keep: Keep = "context",
        n: int = 5,
        seed: int = 1,
        check: Check | None = None,
    ) -> list[PhotoCaption]:
        """Up to n other captions of the same photograph, with this one's context or objects kept.

        Captions that fall apart (words much less likely than this one's, an object twice) are left out. What it returns
        can be varied again. What the caption had to contain, its variations have to contain, too."""
        if not isinstance(caption, PhotoCaption):
            raise UserError(
                f"vary needs a caption that a captioner returned, such as captioner(photo).captions[0], and "
                f"was given {caption!r}."
            )
        if keep not in ("context", "objects"):
            raise UserError(f"keep is {keep!r}, and it is context or objects.")
        regions = RegionArrays.stack([caption.regions])
        kept = keep_latents(
            self.model,
            regions,
            caption.found,
            self.vocabulary,
            keep=keep,
            settings=caption.settings,
            kept=caption.kept,
        )
        # Captions of beams were found at the latents' means, where every draw would be the same.
        drawn = {"seed": seed, "latent_temperature": caption.settings.latent_temperature or 1.0}
        settings = caption.settings.model_copy(update=drawn)
        recipe = self.loaded.recipe
        found = vary(
            self.model,
            regions,
            kept,
            self.vocabulary,
            self.objects,
            n=POOL * n,
            settings=settings,
            classes=None if recipe is None else recipe.classes,
            check=check,
        )
        found = rescore(self.model, regions, [found], self.vocabulary, check)[0]
        likely = caption.log_probability / (len(caption.found.tokens) + 1)  # a token
        fresh = [other for other in sound(found, likely, self.objects) if other.text != caption.text]
        return [photo_caption(each, caption.regions, settings, kept) for each in select(fresh, n, VARIETY)]

    def _asked(
        self,
        n: int,
        *,
        accurate: bool = False,
        diverse: bool = False,
        variety: float | None = None,
        settings: SearchSettings | None = None,
        check: Check | None = None,
        **options: Any,
    ) -> tuple[SearchSettings, float]:
        """Settings and variety as they are asked for."""
        given = {} if settings is None else settings.model_dump(exclude_unset=True)
        merged = settings_from(**{**given, **options}) if options or settings is None else settings
        if merged.search == "constrained" and "distinct" not in merged.model_fields_set:
            merged = merged.model_copy(update={"distinct": True})  # no pool to choose different ones from
        chosen, variety = manner(merged, variety, accurate, diverse)
        return for_model(chosen, self.model, n), variety
