"""Captions of the same photographs by several captioners, or by one in several precisions: is a faster one as good?

    python scripts/compare_precision.py photos.txt shipped:float32 shipped:int8 --skip 881 --limit 640 --out out/both
    coscap evaluate out/both/0-draws.json out/both/1-draws.json -r data/coco:validation --metrics cider
    coscap evaluate out/both/0-shown.json out/both/1-shown.json -r data/coco:validation --metrics cider

photos.txt has a path in each line, and the image's id is the number at the end of the file's name. Each photograph is
looked at once for all captioners. N-draws.json has the 20 captions that captioner N draws of each, N-shown.json the
five that it shows. The share of captions that are the same as the first captioner's is printed.
"""

import argparse
import re
import time
from pathlib import Path
from typing import Any

from coscap import Captioner
from coscap.files import write_json
from coscap.seam import Caption

AT_ONCE = 16


class Recorded:
    """A captioner that keeps the captions which it draws before it chooses among them."""

    def __init__(self, name: str) -> None:
        model, _, precision = name.partition(":")
        self.captioner = Captioner.from_pretrained(model, precision=precision or None)
        self.rows: dict[str, list[dict[str, Any]]] = {"draws": [], "shown": []}
        self.seconds = 0.0

    def describe(self, names: list[str], regions: Any, evidence: Any) -> None:
        drawn: list[list[Caption]] = []
        generate = self.captioner.generate

        def kept(*arguments: Any, **options: Any) -> list[list[Caption]]:
            found = generate(*arguments, **options)
            if not drawn:  # further turns are of some of the photographs only
                drawn.extend(found)
            return found

        self.captioner.generate = kept  # type: ignore[method-assign]
        began = time.process_time()
        shown = self.captioner.describe(names, regions, 5, evidence=evidence)
        self.seconds += time.process_time() - began
        self.captioner.generate = generate  # type: ignore[method-assign]
        for name, draws, chosen in zip(names, drawn, shown, strict=True):
            self.rows["draws"] += [{"image_id": image_id(name), "caption": each.text} for each in draws]
            self.rows["shown"] += [
                {"image_id": image_id(name), "caption": each.text} for each in chosen.captions
            ]


def image_id(name: str) -> int:
    return int(re.findall(r"\d+", Path(name).stem)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("captioners", nargs="+", metavar="MODEL[:PRECISION]")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("out/precision"))
    options = parser.parse_args()
    last = None if options.limit is None else options.skip + options.limit
    photos = options.photos.read_text().split("\n")[options.skip : last]
    photos = [photo for photo in photos if photo]
    compared = [Recorded(name) for name in options.captioners]
    first = compared[0].captioner
    for start in range(0, len(photos), AT_ONCE):
        names = photos[start : start + AT_ONCE]
        regions, evidence = first.see([each.picture for each in first.open(names)])  # type: ignore[union-attr]
        for each in compared:
            each.describe(names, regions, evidence)
    options.out.mkdir(parents=True, exist_ok=True)
    for number, (name, each) in enumerate(zip(options.captioners, compared, strict=True)):
        report = [f"{number} {name}: {1000 * each.seconds / len(photos):.0f} CPU-ms a photograph"]
        for kind, rows in each.rows.items():
            write_json(options.out / f"{number}-{kind}.json", rows)
            pairs = zip(rows, compared[0].rows[kind], strict=True)
            report.append(f"{sum(one == other for one, other in pairs) / len(rows):.1%} of {kind} the same")
        print(", ".join(report))


if __name__ == "__main__":
    main()
