"""Record what the official METEOR 1.5 says, so that tests need no Java.

    python scripts/record_meteor.py tests/data/metrics_demo.json.gz tests/data/meteor.json.gz

Needs Java and pycocoevalcap. Besides the demo's captions it records hard lines (several captions joined, words that
repeat, paraphrases that overlap, odd marks) and what the official normaliser makes of lines full of marks.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

from coscap.files import whole_file
from coscap.metrics.meteor.java import find_java, official_scores, official_statistics
from coscap.metrics.meteor.tables import package_folder

WORDS = (
    "a a a the the on in of with and man men woman 's is are was two three people person standing stands stood sitting "
    "sits next to near in front of large big small little dogs dog cat cats ride riding rides on top of a group of "
    "a lot of there is t-shirt u.s. 10:30 st. kids children automobile cars car buses bus"
)
MARKS = "aabbsstté12905.,''--`\"/:&!?;()$#%_+=*@~^<>\\[]{}“”‘’–—…½£ñ\u00a0日жABS²"
Pair = tuple[str, list[str]]


def hard_lines(demo: list[Pair], rng: random.Random) -> list[Pair]:
    lines: list[Pair] = []
    for _ in range(250):
        some = rng.sample(demo, rng.choice([2, 3, 4]))
        caption = " ".join(rng.choice(references) for _, references in some)
        lines.append((caption, [_shuffled(some, rng) for _ in range(rng.choice([1, 2, 5]))]))
    for _ in range(250):
        lines.append((_bag(rng), [_bag(rng) for _ in range(rng.choice([1, 2, 5]))]))
    for caption, references in rng.sample(demo, 50):
        lines.append((references[0], [caption, *references]))
    return [
        *lines,
        ("", ["a dog"]),
        ("a dog", [""]),
        ("zzz", ["a dog", "two"]),
        ("a", ["a"]),
        ("...", ["a ... b"]),
    ]


def _shuffled(some: list[Pair], rng: random.Random) -> str:
    return " ".join(rng.choice(references) for _, references in rng.sample(some, len(some)))


def _bag(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS.split()) for _ in range(rng.choice([1, 2, 3, 5, 8, 12, 20, 30, 80])))


def marked_lines(rng: random.Random) -> list[str]:
    def word() -> str:
        return "".join(
            rng.choice(rng.choice([MARKS, "abst.'-,9"])) for _ in range(rng.choice([1, 1, 2, 3, 4, 5]))
        )

    plain = [
        "the u.s. flag",
        "no. 5",
        "No. 5",
        "no. five",
        "mr. smith",
        "dog 's",
        "rock'n'roll",
        "e-o-l",
        "x.com.",
    ]
    return plain + [" ".join(word() for _ in range(rng.randint(1, 6))) for _ in range(800)]


def official_tokens(lines: list[str]) -> list[str]:
    """What the jar's normaliser makes of lines: it prints them when it writes alignments."""
    java, folder = find_java(), package_folder()
    assert java and folder
    with tempfile.TemporaryDirectory() as place:
        Path(place, "lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [
            java,
            "-Xmx2G",
            "-jar",
            str(folder / "meteor-1.5.jar"),
            "lines.txt",
            "lines.txt",
            "-l",
            "en",
            "-norm",
        ]
        command += ["-m", "exact", "-w", "1.0", "-writeAlignments", "-f", "out"]
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)
        blocks = Path(place, "out-align.out").read_text(encoding="utf-8").split("Alignment\t")[1:]
    return [block.split("\n")[1] for block in blocks]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(15)
    with gzip.open(arguments.demo, "rt", encoding="utf-8") as file:
        images = json.load(file)["images"]
    demo = [(image["tokens"], [tokens for _, tokens in image["references"]]) for image in images]
    hard = hard_lines(demo, rng)
    marked = marked_lines(rng)
    statistics = official_statistics(demo + hard)
    demo_corpus, demo_scores = official_scores(statistics[: len(demo)])
    hard_corpus, hard_scores = official_scores(statistics[len(demo) :])
    record = {
        "demo": {"corpus": demo_corpus, "scores": demo_scores},
        "hard": {
            "lines": hard,
            "statistics": statistics[len(demo) :].tolist(),
            "corpus": hard_corpus,
            "scores": hard_scores,
        },
        "normalised": list(zip(marked, official_tokens(marked), strict=True)),
    }
    with whole_file(arguments.out) as partial, gzip.GzipFile(partial, "wb", mtime=0) as file:
        file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode())
    print(f"{len(demo)} demo captions: {demo_corpus}; {len(hard)} hard lines; {len(marked)} lines of marks")


if __name__ == "__main__":
    main()
