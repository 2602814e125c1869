"""Compare our scores with pycocoevalcap's on many real captions, side by side.

    python scripts/compare_metrics.py --captions 20000 [--exclude ids.json]

Each picture's first human caption of val2014 is scored against its other captions. Takes minutes: the peer is slow.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from coscap.metrics.overlap import overlap
from coscap.metrics.references import coco_captions
from coscap.metrics.words import token_groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captions", type=int, default=20_000)
    parser.add_argument("--exclude", type=Path, help="a JSON list of image ids to leave out")
    arguments = parser.parse_args()
    without = set(json.loads(arguments.exclude.read_text())) if arguments.exclude else set()
    everything = coco_captions("coco:val2014")
    groups = [captions for image, captions in everything.items() if image not in without][
        : arguments.captions
    ]
    tokens = token_groups(groups)
    captions, references = [group[0] for group in tokens], [group[1:] for group in tokens]

    parts = overlap([[caption] for caption in captions], references)
    wanted = dict(enumerate(references))
    given = {number: [caption] for number, caption in enumerate(captions)}
    bleu, each_bleu = Bleu(4).compute_score(wanted, given, verbose=0)
    rouge, each_rouge = Rouge().compute_score(wanted, given)
    cider, each_cider = Cider().compute_score(wanted, given)
    for name, ours, theirs, each, official in (
        (
            "BLEU-1..4",
            np.array([parts.corpus_bleu(np.arange(len(captions)), n).value() for n in (1, 2, 3, 4)]),
            np.array(bleu),
            parts.bleu(),
            np.array(each_bleu).T,
        ),
        ("ROUGE-L", parts.rouge_l.mean(), rouge, parts.rouge_l, each_rouge),
        ("CIDEr-D", parts.cider_d.mean(), cider, parts.cider_d, each_cider),
    ):
        print(
            f"{name}: {np.round(ours, 6)}; largest difference of the whole {np.abs(ours - theirs).max():.1e}, "
            f"of {len(captions):,} captions {np.abs(each - official).max():.1e}"
        )


if __name__ == "__main__":
    main()
