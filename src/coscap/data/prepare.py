"""Make the prepared folder: every caption split into context and objects, in flat arrays.

See `coscap.data.prepared` for what the folder holds.
"""

import platform
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coscap import __version__
from coscap.data.encode import Encoded, encode
from coscap.data.prepared import ARRAYS, FORMAT, MANIFEST, OBJECTS, VOCABULARY, files_of, subset_file
from coscap.data.records import SPLITS, TRAIN, UNPAIRED, Picture, Source, Troubles
from coscap.data.splits import Choice, assign
from coscap.errors import UserError
from coscap.files import check_output, sha256, whole_folder, write_json
from coscap.text.objects import load_classes
from coscap.text.vocabulary import SLOT, SLOTS, SPECIAL, UNK, Vocabulary

LONGEST = 200  # words; a longer "caption" is a page of text, not a caption


@dataclass(frozen=True)
class Options:
    """The options of `coscap data` about captions."""

    objects: str = "coco"  # the list of object classes: "coco" or a file
    minimum: int = 4  # a word is in the vocabulary if training captions use it this often
    max_length: int = 20  # captions with more units are not trained on as they are
    long: str = "drop"  # what training does with those: "drop" leaves them out, "cut" takes their beginning
    vocabulary: str | None = None  # an existing vocabulary to use instead of building one
    workers: int = 1


def prepare(
    source: Source, choice: Choice, out: str | Path, options: Options, troubles: Troubles
) -> dict[str, Any]:
    """Write the prepared folder `out` and give back its manifest."""
    _check(options)
    check_out(out)
    if not source.pictures:
        raise UserError(f"{source.name} holds no pictures; check that it is the right file.")
    if options.vocabulary is None and not any(one.captions for one in source.pictures):
        raise UserError(
            f"{source.name}: none of its {len(source.pictures):,} pictures has a caption (a folder keeps those of "
            'cat.jpg in cat.txt, JSON lines under "captions"); add them, or pass --vocabulary for pictures without.'
        )
    pictures = _without_pages(assign(source.pictures, choice), source.name, troubles)
    captions = [caption for one in pictures for caption in one.captions]
    encoded = encode(captions, options.objects, options.workers)
    pictures, captions, encoded = _without_empty(pictures, captions, encoded, source.name, troubles)
    counts = np.array([len(one.captions) for one in pictures], dtype=np.int64)
    caption_image = np.repeat(np.arange(len(pictures), dtype=np.int32), counts)
    image_split = np.array([SPLITS.index(one.split or TRAIN) for one in pictures], dtype=np.uint8)
    vocabulary = _vocabulary(encoded, image_split[caption_image] == SPLITS.index(TRAIN), options)
    arrays = _arrays(pictures, captions, encoded, vocabulary)
    arrays |= {"caption_image": caption_image, "image_split": image_split, "image_captions": _offsets(counts)}
    subsets = _subsets(pictures)
    with whole_folder(out) as folder:
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", arrays[name], allow_pickle=False)
        for number, members in enumerate(subsets.values()):
            np.save(folder / subset_file(number), members, allow_pickle=False)
        vocabulary.save(folder / VOCABULARY)
        load_classes(options.objects).save(folder / OBJECTS)
        manifest = _manifest(source, choice, options, troubles, vocabulary, arrays, list(subsets))
        manifest["objects"] |= {"sha256": sha256(folder / OBJECTS)}
        manifest["files"] = {name: sha256(folder / name) for name in files_of(len(subsets))}
        write_json(folder / MANIFEST, manifest, indent=1)
    return manifest


def _check(options: Options) -> None:
    if options.max_length < 1:
        raise UserError(f"--max-length {options.max_length} leaves no words; give a number such as 20.")
    if options.long not in ("drop", "cut"):
        raise UserError(f"--long {options.long} is not known; use drop or cut.")
    load_classes(options.objects)  # a bad file is refused before the long work
    if options.vocabulary is not None:
        Vocabulary.load(options.vocabulary)


def check_out(out: str | Path) -> None:
    """Only an older prepared data set is ever replaced, never a folder of something else."""
    check_output(out, folder=True)
    out = Path(out)
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise UserError(f"{out} holds other files than a prepared data set; choose a new folder for --out.")


def _without_pages(pictures: tuple[Picture, ...], source: str, troubles: Troubles) -> tuple[Picture, ...]:
    """A caption of hundreds of words is bad input; skipped, it stays a reference and is never trained on."""
    for one in pictures:
        for caption in one.captions:
            if len(caption) > LONGEST and caption.count(" ") >= LONGEST:  # cheap test first
                troubles.report(
                    "page-long caption",
                    f"{source}: a caption of image {one.id} ({one.name}) has {len(caption.split())} words, "
                    f"and at most {LONGEST} were expected",
                )
    return pictures


def _without_empty(
    pictures: tuple[Picture, ...], captions: list[str], encoded: Encoded, source: str, troubles: Troubles
) -> tuple[tuple[Picture, ...], list[str], Encoded]:
    """Drop captions in which the tokeniser finds no word ("...")."""
    empty = np.flatnonzero(encoded.lengths == 0)
    if not len(empty):
        return pictures, captions, encoded
    positions = set(empty.tolist())
    kept = []
    at = 0
    for one in pictures:
        whole = []
        for caption in one.captions:
            if at in positions:
                troubles.report(
                    "empty caption", f"{source}: the caption {caption[:40]!r} of image {one.id} has no words"
                )
            else:
                whole.append(caption)
            at += 1
        bare = one.split == TRAIN and not whole
        kept.append(replace(one, captions=tuple(whole), split=UNPAIRED if bare else one.split))
    captions = [caption for index, caption in enumerate(captions) if index not in positions]
    return tuple(kept), captions, replace(encoded, lengths=np.delete(encoded.lengths, empty))


def _vocabulary(encoded: Encoded, training: NDArray[np.bool_], options: Options) -> Vocabulary:
    """Built on the training captions only; the words of all object classes are always in it."""
    if options.vocabulary is not None:
        return Vocabulary.load(options.vocabulary)
    used = encoded.words[np.repeat(training, encoded.lengths)]
    return Vocabulary.build(
        [[encoded.table[i] for i in used.tolist()]], options.minimum, load_classes(options.objects)
    )


def _arrays(
    pictures: tuple[Picture, ...], captions: list[str], encoded: Encoded, vocabulary: Vocabulary
) -> dict[str, NDArray[Any]]:
    known = [
        UNK if unit in SPECIAL else vocabulary.id(unit) for unit in encoded.table
    ]  # "<end>" typed by a person
    numbers = np.array(known, dtype=_small(len(vocabulary)))
    words = numbers[encoded.words]
    contexts = words.copy()
    contexts[encoded.slots == 1] = SLOT
    contexts[encoded.slots == 2] = SLOTS
    word_offsets = _offsets(encoded.lengths)
    slots_before = _offsets((encoded.slots > 0).astype(np.int64))  # (W + 1,)
    texts, text_offsets = _flat_text(captions)
    names, name_offsets = _flat_text([one.name for one in pictures])
    return {
        "words": words,
        "contexts": contexts,
        "word_offsets": word_offsets,
        "objects": words[encoded.slots > 0],
        "object_classes": encoded.classes,
        "object_offsets": slots_before[word_offsets],
        "texts": texts,
        "text_offsets": text_offsets,
        "image_ids": np.array([one.id for one in pictures], dtype=np.int64),
        "names": names,
        "name_offsets": name_offsets,
    }


def _small(size: int) -> type[np.uint16] | type[np.int32]:
    return np.uint16 if size <= 1 << 16 else np.int32


def _offsets(lengths: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _flat_text(texts: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array([len(text) for text in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), _offsets(lengths)


def _subsets(pictures: tuple[Picture, ...]) -> dict[str, NDArray[np.int64]]:
    members: dict[str, list[int]] = {}
    for index, one in enumerate(pictures):
        for name in one.subsets:
            members.setdefault(name, []).append(index)
    return {name: np.array(members[name], dtype=np.int64) for name in sorted(members)}


def _manifest(
    source: Source,
    choice: Choice,
    options: Options,
    troubles: Troubles,
    vocabulary: Vocabulary,
    arrays: dict[str, NDArray[Any]],
    subsets: list[str],
) -> dict[str, Any]:
    lengths = np.diff(arrays["word_offsets"])
    by_split = Counter(arrays["image_split"].tolist())
    captions_by_split = Counter(arrays["image_split"][arrays["caption_image"]].tolist())
    chosen = {key: _plain(value) for key, value in asdict(choice).items()}
    described = asdict(options) | {
        "objects": Path(options.objects).name,
        "vocabulary": Path(options.vocabulary).name if options.vocabulary else None,
    }
    return {
        "format": FORMAT,
        "coscap": __version__,
        "python": platform.python_version(),
        "source": source.name,
        "sha256": source.hashes,
        "split": chosen,
        "options": {key: value for key, value in described.items() if key != "workers"},
        "splits": list(SPLITS),
        "subsets": subsets,
        "counts": {
            "pictures": len(arrays["image_ids"]),
            "captions": len(lengths),
            "words": len(arrays["words"]),
            "objects": len(arrays["objects"]),
            "unknown words": int((arrays["words"] == UNK).sum()),
            "longer than max_length": int((lengths > options.max_length).sum()),
            "longest caption": int(lengths.max(initial=0)),
            "pictures by split": {name: by_split[number] for number, name in enumerate(SPLITS)},
            "captions by split": {name: captions_by_split[number] for number, name in enumerate(SPLITS)},
        },
        "vocabulary": {"units": len(vocabulary), "sha256": vocabulary.digest},
        "objects": {"name": load_classes(options.objects).name, "file": OBJECTS},
        "skipped": {
            kind: {"items": n, "first": troubles.examples[kind]} for kind, n in troubles.counts.items()
        },
    }


def _plain(value: Any) -> Any:
    """Options for the manifest: paths by their file name only, so that no machine's folders get into it."""
    if isinstance(value, Path):
        return value.name
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
