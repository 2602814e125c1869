"""Compare the tokeniser with the official Java one: tokens of every COCO caption, of generated lines, and speed.

    python scripts/check_tokeniser.py                         all 616,767 captions and 20,000 generated lines
    python scripts/check_tokeniser.py --record tests/data/text_tokens.jsonl.gz     and keep the hardest lines

Needs Java and `pip install coscap[coco]`. Both sides read the same captions; the Java time includes the start
of its process, ours the import. Processor time is what counts on a machine that does other work too.
"""

import argparse
import gzip
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

MAIN = "edu.stanford.nlp.process.PTBTokenizer"
NEUTRAL = "qq"  # a line between two lines, so that the end of one does not see the start of the next

PIECES = (
    "a the The dog dogs' man's O'Brien o'clock don't can't cannot gonna I'm he'll they've it's y'all 'tis 'em rock 'n' "
    "ma'am s'mores d'oeuvre T-shirt well-known mother-in-law U.S. U.S.A. a.m. p.m. e.g. i.e. etc. Mr. Dr. St. no. No. "
    "vs. Inc. Jr. Jan. Ave. J. K. x. A. Ph.D. word.word www.foo.com foo.com/bar/x http://foo.com/a?b=c me@foo.com "
    "@user #tag #1 $5 $5.00 5% 1,000 3.5 .5 9:00 9:00pm 9:30a.m. 10am 5 12 1990s '90s '80 90's 1/2 3/4 25 5-1/2 "
    "12/25/05 555-1234 (415) 1st 2nd 6'2\" 4x4 24/7 and/or he/she w/o a/b/c A&W AT&T R&B m&ms c++ C# :) :-( ;) :D <3 "
    "^_^ -- --- ----- ... . .. ! !! ?! ?? , ; : - – — … “ ” ‘ ’ \" ' `` '' ` ( ) [ ] { } < > <b> </b> <br/> "
    "&amp; & &lt; * ** _ __ ~ ^ | \\ / = + % # @ $ £5 €10 5¢ ½ ¼ é café naïve 日本 😀 ☀ ° 20° © ™ • In It's John F. "
    'Kennedy Smith, York. Bob\'s. "Hi," (yes) [no] stop. Go sign; car: red, blue-green 3-D 7-11 no.5 etc., a.b. '
    "it’s don’t ’90s “hi” non-U.S. 5ft. 100ft 3lbs. ft. in. oz. wanna gimme Lemme ain't y' ol' nor'easter n't 's 'S "
    "'ll cats' 5' v. Hello"
)
CHARACTERS = "aAbtsnTd'’`\".,;:!?-_/\\&@#$%*+=<>()[]0159 \u00a0é½|~^"


def main() -> int:
    options = _options()
    package = Path(_package())
    captions = _captions(package)
    with tempfile.TemporaryDirectory() as name:
        java = Java(package / "tokenizer" / "stanford-corenlp-3.4.1.jar", Path(name))
        wrong = _check_coco(java, captions, options.rounds)
        lines = _generated(options.generated, options.seed)
        alone = _check_lines(java, lines, "generated lines")
        hard = _hard(captions)
        wrong += _check_lines(java, hard, "hardest captions, each by itself")
        if options.record:
            _record(java, hard[: options.keep] + lines[: options.keep], options.record)
    return 1 if wrong or alone > options.generated // 1000 else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generated", type=int, default=20_000, help="generated lines to compare")
    parser.add_argument("--seed", type=int, default=1, help="of the generated lines")
    parser.add_argument("--rounds", type=int, default=2, help="of the timing; the best counts")
    parser.add_argument(
        "--record", type=Path, help="write the hardest lines with official tokens here (.jsonl.gz)"
    )
    parser.add_argument("--keep", type=int, default=2_500, help="lines of each kind to record")
    return parser.parse_args()


class Java:
    """The official tokeniser, run as the COCO evaluation runs it."""

    def __init__(self, jar: Path, folder: Path) -> None:
        self.jar, self.folder = jar, folder

    def lines(self, texts: list[str]) -> list[str]:
        source = self.folder / "lines.txt"
        source.write_text("\n".join(texts), encoding="utf-8", newline="\n")
        command = ["java", "-cp", str(self.jar), MAIN, "-preserveLines", "-lowerCase", str(source)]
        output = subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8")
        found = output.split("\n")[: len(texts)]
        assert len(found) == len(texts), "a line of Java's output is missing"
        return found

    def alone(self, texts: list[str]) -> list[list[str]]:
        both = [line for text in texts for line in (text, NEUTRAL)]
        return [_official(line) for line in self.lines(both)[::2]]


def _official(line: str) -> list[str]:
    """What the official wrapper makes of a line: split at spaces, without its list of punctuation."""
    from coscap.text.ptb import PUNCTUATION

    return [word for word in line.rstrip().split(" ") if word and word not in PUNCTUATION]


def _check_coco(java: Java, captions: list[str], rounds: int) -> int:
    texts = [caption.replace("\n", " ") for caption in captions]
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "java": []}
    for _ in range(rounds):
        before, wall = _seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
        _ours(captions)
        times["ours"].append((time.perf_counter() - wall, _seconds(resource.RUSAGE_CHILDREN) - before))
        before, wall = _seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
        official = java.lines(texts)
        times["java"].append((time.perf_counter() - wall, _seconds(resource.RUSAGE_CHILDREN) - before))
    from coscap.text import tokenise_all

    pairs = zip(captions, tokenise_all(captions), map(_official, official), strict=True)
    wrong = [(caption, mine, theirs) for caption, mine, theirs in pairs if mine != theirs]
    print(f"{len(captions):,} COCO captions: {len(wrong)} differences")
    _show(wrong)
    for name, rows in times.items():
        print(
            f"  {name}: {min(wall for wall, _ in rows):.1f} s wall, {min(cpu for _, cpu in rows):.1f} s processor"
        )
    ratio = min(cpu for _, cpu in times["java"]) / min(cpu for _, cpu in times["ours"])
    print(f"  ours is {ratio:.2f} times as fast (processor time, one process, start included)")
    return len(wrong) + (ratio < 1)


OURS = """
import json, sys
from coscap.text import tokenise_all
with open(sys.argv[1], encoding="utf-8") as file:
    captions = json.load(file)
lines = [" ".join(tokens) for tokens in tokenise_all(captions)]
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write("\\n".join(lines))
"""


def _ours(captions: list[str]) -> None:
    """Our tokeniser in a process of its own, which reads and writes files as the Java does."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "captions.json"
        source.write_text(json.dumps(captions), encoding="utf-8")
        subprocess.run([sys.executable, "-c", OURS, str(source), str(Path(name) / "tokens.txt")], check=True)


def _seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _check_lines(java: Java, lines: list[str], what: str) -> int:
    from coscap.text import tokenise

    pairs = zip(lines, map(tokenise, lines), java.alone(lines), strict=True)
    wrong = [(line, mine, theirs) for line, mine, theirs in pairs if mine != theirs]
    print(f"{len(lines):,} {what}: {len(wrong)} differences")
    _show(wrong)
    return len(wrong)


def _show(wrong: list[tuple[str, list[str], list[str]]]) -> None:
    for line, mine, theirs in wrong[:20]:
        print(f"  {line!r}\n    ours     {mine}\n    official {theirs}")


def _generated(number: int, seed: int) -> list[str]:
    """Pieces with spaces, pieces glued together, and characters at random."""
    draw = random.Random(seed)
    pieces = PIECES.split()
    lines: dict[str, None] = {}
    while len(lines) < number:
        kind = draw.random()
        if kind < 0.4:
            ends = ["", "", "", ",", ".", ";", "'s", "!"]
            line = " ".join(draw.choice(pieces) + draw.choice(ends) for _ in range(draw.randint(1, 9)))
        elif kind < 0.8:
            joints = [" ", " ", "", "-", "/", ".", ",", "'"]
            line = "".join(draw.choice(pieces) + draw.choice(joints) for _ in range(draw.randint(1, 8)))
        else:
            line = "".join(draw.choice(CHARACTERS) for _ in range(draw.randint(1, 10)))
        if line.strip():
            lines[line.strip()] = None
    return list(lines)


def _hard(captions: list[str]) -> list[str]:
    """One caption for each unusual chunk: not letters with a comma or last dot, and not a plain possessive."""
    usual = re.compile(r"[A-Za-z]+(?:'s)?[.,]?")
    found: dict[str, str] = {}
    for caption in captions:
        for chunk in caption.split():
            if not usual.fullmatch(chunk):
                found.setdefault(chunk, caption.replace("\n", " "))
    lines = list(dict.fromkeys(found.values()))
    random.Random(0).shuffle(lines)
    return lines


def _record(java: Java, lines: list[str], path: Path) -> None:
    rows = zip(lines, java.alone(lines), strict=True)
    text = "".join(json.dumps([line, tokens], ensure_ascii=False) + "\n" for line, tokens in rows)
    path.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
    print(f"{path}: {len(lines):,} lines, {path.stat().st_size / 1000:.0f} kB")


def _package() -> str:
    import pycocoevalcap

    return str(next(iter(pycocoevalcap.__path__)))


def _captions(package: Path) -> list[str]:
    """All captions of COCO 2014, which the evaluation package carries."""
    captions: list[str] = []
    with zipfile.ZipFile(package / "spice" / "spice-1.0.jar") as jar:
        for part in ("train", "val"):
            content = json.loads(jar.read(f"coco/annotations/captions_{part}2014.json"))
            captions += [each["caption"] for each in content["annotations"]]
    return captions


if __name__ == "__main__":
    sys.exit(main())
