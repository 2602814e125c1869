"""Split every COCO caption and put it together again; count what was found and measure the rules' precision.

    python scripts/check_split.py            all 616,767 captions, and the 300 that were read by hand

Needs `pip install coscap[coco]` for the captions. The bar: nothing is lost, in less than a minute.
"""

import json
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

from coscap.text import ObjectClasses, Split, load_classes, split, tokenise_all

READ = Path(__file__).parent.parent / "tests" / "data" / "text_objects_300.jsonl"
SECONDS = 60


def main() -> int:
    classes = load_classes("coco")
    captions = _captions()
    tokens = tokenise_all(captions)
    wall, processor = time.perf_counter(), time.process_time()
    splits = [split(each, classes) for each in tokens]
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    lost = sum(each.join() != before for each, before in zip(splits, tokens, strict=True))
    print(f"{len(splits):,} captions: {lost} lost a word; {wall:.1f} s wall, {processor:.1f} s processor")
    _show(splits, classes)
    correct, found, true = score(READ, classes)
    print(
        f"300 captions read by hand: precision {correct / found:.3f} ({correct} of {found}), "
        f"recall {correct / true:.3f} ({correct} of {true})"
    )
    return 1 if lost or processor > SECONDS else 0


def score(path: Path, classes: ObjectClasses) -> tuple[int, int, int]:
    """Objects that were found rightly, all found, all true ones. Right: the same last word and the same class."""
    correct = found = true = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        mine = set(_places(split(row["tokens"], classes), classes))
        theirs = {(each["end"], each["class"]) for each in row["objects"]}
        correct, found, true = correct + len(mine & theirs), found + len(mine), true + len(theirs)
    return correct, found, true


def _places(one: Split, classes: ObjectClasses) -> list[tuple[int, str]]:
    """For each object the number of tokens up to its end, and the name of its class."""
    names = iter(one.classes)
    places, end = [], 0
    for unit, word in zip(one.units, one.context, strict=True):
        is_slot = word in ("<s>", "<s+>")
        end += len(unit.split(" ")) if is_slot else 1
        if is_slot:
            places.append((end, classes.classes[next(names)].name))
    return places


def _show(splits: list[Split], classes: ObjectClasses) -> None:
    counts = Counter(index for each in splits for index in each.classes)
    without = sum(not each.objects for each in splits)
    plural = sum(each.context.count("<s+>") for each in splits)
    total = counts.total()
    print(
        f"{total:,} objects ({plural / total:.1%} plural), {without / len(splits):.1%} of captions name none"
    )
    print(
        f"{len({each.context for each in splits}):,} different contexts, {len(counts)} of {len(classes)} classes"
    )
    common = ", ".join(f"{classes.classes[index].name} {count:,}" for index, count in counts.most_common(5))
    rare = ", ".join(f"{classes.classes[index].name} {count:,}" for index, count in counts.most_common()[-5:])
    print(f"most: {common}; least: {rare}")
    for each in splits[:3]:
        print(f"  {' '.join(each.units)}\n    {' '.join(each.context)}  |  {', '.join(each.objects)}")


def _captions() -> list[str]:
    """All captions of COCO 2014, which the evaluation package carries."""
    import pycocoevalcap

    captions: list[str] = []
    with zipfile.ZipFile(Path(next(iter(pycocoevalcap.__path__))) / "spice" / "spice-1.0.jar") as jar:
        for part in ("train", "val"):
            content = json.loads(jar.read(f"coco/annotations/captions_{part}2014.json"))
            captions += [each["caption"] for each in content["annotations"]]
    return captions


if __name__ == "__main__":
    sys.exit(main())
