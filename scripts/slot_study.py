"""Which rule fills the slots of pseudo captions best: how often the objects that it fills in are named by people who
captioned the picture, and how often classes come back that the rule was not fitted on.

python scripts/slot_study.py MODEL --data coco --regions regions.h5 --contexts coco/contexts --pictures 400
python scripts/slot_study.py MODEL ... --hold-out cup,train,bed,oven,cake,skateboard,backpack,giraffe

Known classes stand in for novel ones: captions that name a class of --hold-out are neither neighbours nor read by a
rule, so that its slots can only come back from what is detected. No label of a test picture is used. A model that
learnt from captions of these classes attends to them better than to novel ones; rules are compared on one model.
Every other picture is one in which people name a class of --hold-out.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from coscap.contexts.examples import neighbour_batch
from coscap.contexts.folder import open_neighbours
from coscap.contexts.pseudo import slot_tokens
from coscap.contexts.slots import Rule, slot_rule
from coscap.data import Prepared, open_prepared
from coscap.data.batch import Batch
from coscap.errors import UserError
from coscap.models import CosCvae, load_pretrained
from coscap.models.pseudo import SlotFiller, SlotRule, SlotTokens
from coscap.text.vocabulary import SLOT, SLOTS
from coscap.vision.published import Store, open_regions

EACH = 5  # pseudo captions a picture
RESAMPLED = 300
HELD_OUT = "cup,train,bed,oven,cake,skateboard,backpack,giraffe"
ALONE = "attention alone"  # without the detector's score
HOW: tuple[Rule, ...] = ("attention", "inverse", "fitting", "balanced")


@dataclass
class Counts:
    """What one rule filled in."""

    objects: int = 0
    right: int = 0  # of them, named by people
    pictures: list[dict[int, str]] = field(
        default_factory=list
    )  # of each: class -> came back, did not (missed), or was filled in though nobody names it (wrong)

    def add(self, filled: list[int | None], named: set[int], detected: set[int], held_out: set[int]) -> None:
        """filled: the class of each slot, None for another word; named by people; detected in the picture"""
        self.objects += len(filled)
        self.right += sum(one in named for one in filled)
        found = {one: "back" if one in filled else "missed" for one in held_out & named & detected}
        self.pictures.append(found | dict.fromkeys(held_out & set(filled) - named, "wrong"))

    def f1(self, one: int, chosen: Iterable[int] | None = None) -> float | None:
        """In %, of a class coming back in pictures where it is detected and named; None where it never is.

        chosen: which pictures, one may be there several times; None: all
        """
        pictures = self.pictures if chosen is None else [self.pictures[k] for k in chosen]
        seen = Counter(each[one] for each in pictures if one in each)
        if not seen["back"] + seen["missed"]:
            return None
        return 200.0 * seen["back"] / (2 * seen["back"] + seen["missed"] + seen["wrong"])

    def average(self, classes: list[int], chosen: Iterable[int] | None = None) -> float | None:
        scores = [score for one in classes if (score := self.f1(one, chosen)) is not None]
        return sum(scores) / len(scores) if scores else None


def intervals(counts: dict[str, Counts], classes: list[int]) -> dict[str, tuple[float, float]]:
    """95 % of the average F1 of each rule minus that of the first, the same pictures drawn for both."""
    first, *others = counts
    chance = np.random.default_rng(0)
    pictures = len(counts[first].pictures)
    gains: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(RESAMPLED):
        chosen = chance.integers(0, pictures, pictures).tolist()
        least = counts[first].average(classes, chosen) or 0.0
        for name in others:
            gains[name].append((counts[name].average(classes, chosen) or 0.0) - least)
    return {
        name: (float(np.quantile(each, 0.025)), float(np.quantile(each, 0.975)))
        for name, each in gains.items()
    }


def fill(
    model: CosCvae, batch: Batch, names: SlotTokens, rules: dict[str, SlotRule | None]
) -> dict[str, torch.Tensor]:
    """The filled captions (B, T) by each rule, from the same attention; the neighbours' words are read."""
    forced = model.teacher_force(batch, None, torch.arange(len(batch.rows)) + batch.image_ids[0])
    latents, regions = model.infer(forced, "prior"), model.decoder.encode(forced.regions)
    words = model.decoder_words(forced.previous)
    _, attention = model.decoder(words, latents.z, latents.objects, regions, batch.rows, forced.packing)
    found = {}
    alike = replace(batch, pictures=replace(batch.pictures, scores=torch.ones_like(batch.pictures.scores)))
    for name, rule in {ALONE: None, **rules}.items():
        here = replace(forced, batch=alike) if name == ALONE else forced
        filler = SlotFiller(here, names, attention.shape[1], rule)
        blocks = enumerate(forced.packing.blocks)
        filled = torch.cat([filler.fill(t, attention[start:end]) for t, (start, end) in blocks])
        found[name] = forced.packing.unpack(filled)
    return found


def every_rule(prepared: Prepared, store: Store, held_out: list[str]) -> dict[str, SlotRule | None]:
    """Each rule with the detector's scores and with calibrated ones."""
    calibrated = slot_rule("attention", True, prepared, store, held_out)
    assert calibrated is not None
    found: dict[str, SlotRule | None] = {}
    for how in HOW:
        rule = slot_rule(how, False, prepared, store, held_out)
        found[how] = rule
        found[f"{how}, calibrated"] = replace(rule or SlotRule(), calibration=calibrated.calibration)
    return found


def in_turn(prepared: Prepared, images: list[int], novel: set[int]) -> list[int]:
    """Shuffled: a picture in which people name one of these classes, then one of the others, and so on."""
    shuffled = np.random.default_rng(0).permutation(images).tolist()
    classes = {
        i: {int(k) for c in prepared.captions_of(i) for k in prepared.object_classes(c)} for i in shuffled
    }
    parts = [i for i in shuffled if classes[i] & novel], [i for i in shuffled if not classes[i] & novel]
    both = [image for pair in zip(*parts, strict=False) for image in pair]
    return both + [image for part in parts for image in part[len(both) // 2 :]]


def study(
    model: CosCvae, prepared: Prepared, store: Store, contexts: str, held_out: list[str], pictures: int
) -> dict[str, Counts]:
    neighbours = open_neighbours(contexts, prepared)
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    classes = prepared.classes.classes
    numbers = {each.name: k for k, each in enumerate(classes)}
    unknown = [name for name in held_out if name not in numbers]
    if unknown:
        raise UserError(
            f"--hold-out {unknown[0]} is no class of {prepared.path}; its classes are in objects.json."
        )
    novel = {numbers[name] for name in held_out}
    class_of = {
        token: k
        for k, each in enumerate(classes)
        for token in prepared.vocabulary.encode([*each.words, *each.plurals])
    }
    rules = every_rule(prepared, store, held_out)
    counts = {name: Counts() for name in (ALONE, *rules)}
    images = [i for i in prepared.images("train").tolist() if int(prepared.image_ids[i]) in store]
    used = 0
    for image in in_turn(prepared, images, novel):
        near = [
            c for c in neighbours.of(image).tolist() if not novel & set(prepared.object_classes(c).tolist())
        ]
        if not near:
            continue
        named = {int(k) for caption in prepared.captions_of(image) for k in prepared.object_classes(caption)}
        batch = neighbour_batch(prepared, store, image, np.array(near[:EACH], np.int64), model)
        labels = batch.pictures.labels[0].tolist()
        known = {
            numbers.get(store.recipe.classes[k], -1) for k in labels if 0 <= k < len(store.recipe.classes)
        }
        slots = (batch.context == SLOT) | (batch.context == SLOTS)
        for name, filled in fill(model, batch, names, rules).items():
            counts[name].add([class_of.get(token) for token in filled[slots].tolist()], named, known, novel)
        used += 1
        if used == pictures:
            break
    if not used:
        raise UserError(f"{contexts} has no neighbours of pictures that are in {store.path}; check both.")
    return counts


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--regions", required=True)
    parser.add_argument("--contexts", required=True)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--hold-out", default=HELD_OUT, help="known classes that stand in for novel ones")
    asked = parser.parse_args()
    model = load_pretrained(asked.model).model
    assert isinstance(model, CosCvae)
    prepared, store = open_prepared(asked.data), open_regions(asked.regions)
    held_out = [name.strip() for name in asked.hold_out.split(",") if name.strip()]
    counts = study(model, prepared, store, asked.contexts, held_out, asked.pictures)
    numbers = [prepared.classes.index(one) for one in held_out]
    sure = intervals(counts, numbers)
    table = Table(
        "slots filled by", "objects", "named by people", *held_out, "average F1", f"more than {ALONE}, 95 %"
    )
    for name, each in counts.items():
        cells = [_percent(score) for score in (*map(each.f1, numbers), each.average(numbers))]
        gain = "{:+.1f} to {:+.1f}".format(*sure[name]) if name in sure else ""
        share = f"{100 * each.right / max(1, each.objects):.1f} %"
        table.add_row(name, str(each.objects), share, *cells, gain)
    Console(width=200).print(table)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
