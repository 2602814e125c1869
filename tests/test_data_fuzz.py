"""Files from strangers: the corpus of hostile files, and a bounded number of random changes of them.

Every reader gives a result or one sentence, soon and without much memory; where a file carries hashes, what is read
from a changed one is what was written.
"""

import io
import random
import resource
import shutil
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coscap.data.prepared import Prepared, open_prepared
from coscap.data.records import Troubles
from coscap.data.show import describe
from coscap.data.sources.coco import read_coco
from coscap.data.sources.flickr import read_flickr
from coscap.data.sources.jsonl import read_jsonl
from coscap.data.splits import read_ids
from coscap.errors import UserError
from coscap.text.objects import load_classes
from coscap.text.vocabulary import Vocabulary
from coscap.training.config import read_config
from coscap.vision.pictures import open_picture
from coscap.vision.published import open_regions
from data_made import made_prepared

CORPUS = Path(__file__).parent / "data" / "fuzz"
FILES = sorted(path for path in CORPUS.iterdir() if path.suffix != ".md")
MUTATIONS = 1000
SECONDS, MEGABYTES = 3, 1500  # of the processor, for one file


def captions(read: Callable[[Path, Troubles], Any]) -> Callable[[Path], Any]:
    def both(path: Path) -> Any:
        try:
            return read(path, Troubles()).pictures
        except UserError as error:
            one_sentence(error)
            return read(path, Troubles(skip=True)).pictures

    return both


def regions(path: Path) -> list[tuple[Any, ...]]:
    store = open_regions(path)
    seen = [store.at(position) for position in range(min(len(store), 20))]
    return [(store.recipe, int(image_id)) for image_id in store.ids] + [
        (each.features.tobytes(), each.boxes.tobytes(), each.labels.tobytes(), each.scores.tobytes())
        for each in seen
    ]


def regions_in_a_folder(path: Path) -> Any:
    folder = path.with_suffix(".folder")
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / f"1{path.suffix}")
    return regions(folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "coco": captions(read_coco),
    "jsonl": captions(read_jsonl),
    "csv": captions(read_flickr),
    "ids": read_ids,
    "vocabulary": lambda path: Vocabulary.load(path).digest,
    "classes": load_classes,
    "config": read_config,
    "store": regions,
    "tsv": regions,
    "hdf5": regions,
    "npz": regions_in_a_folder,
    "npy": regions_in_a_folder,
    "picture": lambda path: open_picture(path, pixel_limit=4_000_000),
}


def one_sentence(error: UserError) -> None:
    text = str(error)
    assert text.endswith(".") and "Traceback" not in text, text
    assert sum(character == "\n" for character in text) == 0, text


def attempt(path: Path, kind: str) -> Any:
    """What the reader gives, or None for one sentence. Anything else it raises fails the test."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return READERS[kind](path)
        except UserError as error:
            one_sentence(error)
            return None
        finally:
            assert time.process_time() - began < SECONDS


@pytest.fixture(autouse=True)
def bounded_memory():
    """A file that claims terabytes must be refused before memory is asked for."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEGABYTES * 1_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_corpus(path: Path, tmp_path: Path) -> None:
    kind, _, what = path.stem.partition("-")
    copy = Path(shutil.copy(path, tmp_path / path.name))
    result = attempt(copy, kind)
    if what in ("good", "karpathy", "token"):
        assert result is not None
    elif kind in ("store", "tsv", "hdf5", "npz", "npy"):
        assert result is None


def test_archives_that_unfold_and_quotes_that_never_close(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("coscap.vision.published.LARGEST", 4_000_000)
    header = io.BytesIO()
    claim = {"descr": "<f4", "fortran_order": False, "shape": (2 * 10**6,)}
    np.lib.format.write_array_header_1_0(header, claim)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", header.getvalue() + bytes(8 * 10**6))
    with pytest.raises(UserError, match="more than regions have"):
        regions_in_a_folder(tmp_path / "bomb.npz")
    (tmp_path / "quote.csv").write_text('image,caption\na.jpg,"' + "x" * 140_000 + "\n")
    with pytest.raises(UserError, match="not a whole table"):
        read_flickr(tmp_path / "quote.csv", Troubles())


def damage(data: bytes, dice: random.Random) -> bytes:
    """Some bytes changed, cut, repeated, moved or taken from a list of those that programs trip over."""
    made = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 2, 4, 12])):
        if not made:
            break
        place = dice.randrange(len(made))
        match dice.randrange(6):
            case 0:
                made[place] ^= 1 << dice.randrange(8)
            case 1:
                made[place] = dice.choice(b'\x00\x7f\x80\xff"{}[]\\,:-9.eE\n\t ')
            case 2 if len(made) > 8 and dice.random() < 0.3:
                del made[place:]
            case 3:
                made[place:place] = dice.choice(
                    [b"9" * 30, b"-1", b"null", b"\xff" * 8, b"\x00" * 8, b"1e999", b"[["]
                )
            case 4:
                del made[place : place + dice.randrange(1, 9)]
            case _:
                end = min(len(made), place + dice.randrange(1, 30))
                made[place:end] = made[place:end][::-1]
    return bytes(made)


def test_random_changes_of_the_corpus(tmp_path: Path) -> None:
    dice = random.Random(23)
    whole = {path: path.read_bytes() for path in FILES}
    written = regions(CORPUS / "store-good.h5")
    refused = 0
    for index in range(MUTATIONS):
        path = FILES[index % len(FILES)]
        kind = path.stem.partition("-")[0]
        changed = tmp_path / path.name
        changed.write_bytes(damage(whole[path], dice))
        result = attempt(changed, kind)
        refused += result is None
        if path.name == "store-good.h5" and result is not None:
            assert result == written  # its hashes tell
    assert MUTATIONS / 4 < refused < MUTATIONS  # the changes are neither harmless nor all fatal


def everything(data: Prepared) -> list[Any]:
    """All that can be read of a prepared data set."""
    from rich.console import Console

    describe(data, Console(file=io.StringIO()))
    content: list[Any] = [data.references("all"), data.trainable("train").tolist(), data.digest]
    for caption in range(data.captions):
        content.append(
            (data.units(caption), data.context(caption).tolist(), data.object_classes(caption).tolist())
        )
    return content + [(data.name(image), data.split_of(image)) for image in range(len(data))]


@pytest.mark.parametrize("hashed", [True, False])
def test_random_changes_of_a_prepared_folder(tmp_path: Path, hashed: bool) -> None:
    from test_data_prepared import without_hashes

    dice = random.Random(7)
    folder = tmp_path / "d"
    made_prepared(folder, pictures=12)
    if not hashed:
        without_hashes(folder)
    written = everything(open_prepared(folder))
    files = sorted(folder.iterdir())
    refused = 0
    for index in range(150):
        path = files[index % len(files)]
        whole = path.read_bytes()
        path.write_bytes(damage(whole, dice))
        try:
            found = everything(open_prepared(folder))
            if hashed and path.name != "manifest.json":
                assert found == written
        except UserError as error:
            refused += 1
            one_sentence(error)
        path.write_bytes(whole)
    assert refused > (130 if hashed else 50)
