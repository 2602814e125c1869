"""Record official scores for the tests: COCO's demo results, tokenised and scored by pycocoevalcap.

    python scripts/record_metrics.py captions_val2014_fakecap_results.json tests/data/metrics_demo.json.gz

Run once, where Java is installed (for the official tokeniser; scores need none). The file holds the captions and
references as written and as officially tokenised, and the official scores of the whole and of each caption.
"""

import argparse
import gzip
import json
from pathlib import Path

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from coscap.metrics.references import coco_captions, read_samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()

    captions = {row.image_id: [row.caption] for row in read_samples(arguments.results)}
    everything = coco_captions("coco:val2014")
    references = {image: everything[image] for image in captions}
    tokens, reference_tokens = tokenised(captions), tokenised(references)

    bleu, each_bleu = Bleu(4).compute_score(reference_tokens, tokens, verbose=0)
    rouge, each_rouge = Rouge().compute_score(reference_tokens, tokens)
    cider, each_cider = Cider().compute_score(reference_tokens, tokens)
    recorded = {
        "images": [
            {
                "image_id": image,
                "caption": captions[image][0],
                "tokens": tokens[image][0],
                "references": [
                    list(pair) for pair in zip(references[image], reference_tokens[image], strict=True)
                ],
            }
            for image in captions
        ],
        "BLEU": [float(value) for value in bleu],
        "ROUGE-L": float(rouge),
        "CIDEr": float(cider),
        "each": {
            "BLEU": [[float(value) for value in row] for row in zip(*each_bleu, strict=True)],
            "ROUGE-L": [float(value) for value in each_rouge],
            "CIDEr": [float(value) for value in each_cider],
        },
    }
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    arguments.out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")


def tokenised(captions: dict[int, list[str]]) -> dict[int, list[str]]:
    rows = {image: [{"caption": caption} for caption in group] for image, group in captions.items()}
    return dict(PTBTokenizer().tokenize(rows))


if __name__ == "__main__":
    main()
