"""The prepared folder: what goes in comes out, aligned; bad captions; damaged folders."""

import json
from pathlib import Path

import numpy as np
import pytest

from coscap.data.prepare import Options, prepare
from coscap.data.prepared import ARRAYS, Prepared, open_prepared, ranges
from coscap.data.records import Picture, Source, Troubles
from coscap.data.splits import Choice
from coscap.errors import UserError
from coscap.text import Vocabulary, split, tokenise
from coscap.text.vocabulary import SLOT, SLOTS, UNK
from data_made import made_prepared, made_source, write

ALL = Choice("random", 0, 0)


def prepared(
    folder: Path, pictures: list[Picture], skip: bool = False, choice: Choice = ALL, **options: object
) -> Prepared:
    told = Options(**({"minimum": 1} | options))  # type: ignore[arg-type]
    prepare(Source("s", tuple(pictures), {"s": "0" * 64}), choice, folder, told, Troubles(skip=skip))
    return open_prepared(folder)


def test_every_caption_comes_back_as_text_units_context_and_objects(tmp_path: Path) -> None:
    data = made_prepared(tmp_path / "d")
    source = made_source(40)
    assert len(data) == 40 and data.captions == sum(len(one.captions) for one in source.pictures)
    names = data.vocabulary.units
    for image, picture in enumerate(source.pictures):
        assert int(data.image_ids[image]) == picture.id and data.name(image) == picture.name
        assert data.index(picture.id) == image
        captions = data.captions_of(image)
        assert [data.text(caption) for caption in captions] == list(picture.captions)
        for caption in captions:
            parts = split(tokenise(data.text(caption)))
            assert data.image_of(caption) == image
            context = tuple(names[number] for number in data.context(caption).tolist())
            assert context == tuple(word if word in data.vocabulary else "<unk>" for word in parts.context)
            assert tuple(names[number] for number in data.objects(caption).tolist()) == parts.objects
            assert tuple(data.object_classes(caption).tolist()) == parts.classes
            where = np.isin(data.context(caption), (SLOT, SLOTS))
            assert data.words(caption)[where].tolist() == data.objects(caption).tolist()
            assert (data.words(caption)[~where] == data.context(caption)[~where]).all()
    with pytest.raises(KeyError):
        data.index(99)


def test_the_vocabulary_knows_training_captions_and_object_words_only(tmp_path: Path) -> None:
    pictures = [Picture(1, "1", ("a purple cat",) * 3, "train"), Picture(2, "2", ("a striped cat",), "test")]
    data = prepared(tmp_path / "d", pictures, choice=Choice("source"), minimum=2)
    assert "purple" in data.vocabulary and "striped" not in data.vocabulary
    assert "fire hydrants" in data.vocabulary and "zebra" in data.vocabulary
    caption = data.captions_of(1)[0]
    assert data.units(caption) == ["a", "<unk>", "cat"] and data.words(caption)[1] == UNK
    assert data.text(caption) == "a striped cat"
    assert data.manifest["counts"]["unknown words"] == 1


def test_an_existing_vocabulary_is_used_as_it_is(tmp_path: Path) -> None:
    first = made_prepared(tmp_path / "a")
    second = prepared(
        tmp_path / "b",
        [Picture(1, "1", ("a dog flies",))],
        vocabulary=str(tmp_path / "a" / "vocabulary.json"),
    )
    assert second.vocabulary == first.vocabulary
    assert str(tmp_path) not in (tmp_path / "b" / "manifest.json").read_text()  # no machine's folders
    assert second.manifest["vocabulary"]["sha256"] == first.vocabulary.digest


def test_a_list_of_classes_of_ones_own_is_used_and_kept(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.txt", "lamp\nrubber duck\n")
    data = prepared(tmp_path / "d", [Picture(1, "1", ("two rubber ducks and a dog",))], objects=str(mine))
    mine.unlink()
    assert [each.name for each in data.classes.classes] == ["lamp", "rubber duck"]
    assert data.units(0) == ["two", "rubber ducks", "and", "a", "dog"]
    assert data.object_classes(0).tolist() == [1] and "rubber duck" in data.vocabulary
    assert split(tokenise(data.text(0)), data.classes).objects == ("rubber ducks",)


def test_special_units_that_a_person_typed_are_not_special(tmp_path: Path) -> None:
    data = prepared(tmp_path / "d", [Picture(1, "1", ("press <end> <s> <pad> now",))])
    numbers = data.words(0).tolist()
    assert not set(numbers) & {Vocabulary.PAD, Vocabulary.START, Vocabulary.END, SLOT, SLOTS}
    assert len(data.objects(0)) == 0


def test_pictures_without_captions_are_kept(tmp_path: Path) -> None:
    data = made_prepared(tmp_path / "d", pictures=20, captionless=4, choice=Choice("random", 2, 2))
    unpaired = data.images("unpaired")
    assert len(unpaired) == 4 and all(len(data.captions_of(int(image))) == 0 for image in unpaired)
    assert set(data.references("all")) == {
        int(data.image_ids[i]) for i in range(len(data)) if i not in set(unpaired)
    }
    assert len(data.captions_in("unpaired")) == 0
    with pytest.raises(UserError, match="none of its 2 pictures has a caption"):
        prepared(tmp_path / "e", [Picture(1, "a.jpg"), Picture(2, "b.jpg")])


def test_splits_subsets_and_references(tmp_path: Path) -> None:
    pictures = [
        Picture(1, "1", ("a cat",), "train"),
        Picture(2, "2", ("a dog", "a cow"), "test", ("out-domain",)),
        Picture(3, "3", ("a bus",), "validation"),
    ]
    data = prepared(tmp_path / "d", pictures, choice=Choice("source"))
    assert data.images("train").tolist() == [0] and data.images("val").tolist() == [2]
    assert data.images("out-domain").tolist() == [1] and data.split_of(1) == "test"
    assert data.references("test") == {2: ["a dog", "a cow"]}
    with pytest.raises(UserError, match=r"no split 'toast'; it has train, .*out-domain, all"):
        data.images("toast")


@pytest.mark.parametrize("long", ["drop", "cut"])
def test_captions_above_max_length_are_left_out_or_cut(tmp_path: Path, long: str) -> None:
    pictures = [Picture(1, "1", ("a dog and a cat and a cow", "a dog"))]
    data = prepared(tmp_path / "d", pictures, max_length=4, long=long)
    assert data.trainable("train").tolist() == ([1] if long == "drop" else [0, 1])
    assert len(data.words(0)) == 8 and data.text(0) == "a dog and a cat and a cow"  # whole in any case
    assert data.manifest["counts"]["longer than max_length"] == 1


def test_a_page_of_text_is_bad_input_and_stays_a_reference_if_skipped(tmp_path: Path) -> None:
    page = " ".join(["word"] * 500)
    pictures = [Picture(1, "1.jpg", (page, "a dog"))]
    with pytest.raises(UserError, match=r"image 1 \(1.jpg\) has 500 words"):
        prepared(tmp_path / "d", pictures)
    assert not (tmp_path / "d").exists()
    data = prepared(tmp_path / "d", pictures, skip=True)
    assert data.text(0) == page and data.trainable("train").tolist() == [1]
    assert data.manifest["skipped"]["page-long caption"]["items"] == 1


def test_a_caption_without_words_is_bad_input(tmp_path: Path) -> None:
    pictures = [
        Picture(1, "1", ("a dog", "...", "a cat")),
        Picture(2, "2", ("!",)),
        Picture(3, "3", ("a cow",)),
    ]
    with pytest.raises(UserError, match=r"'\.\.\.' of image 1 has no words"):
        prepared(tmp_path / "d", pictures)
    data = prepared(tmp_path / "d", pictures, skip=True)
    assert data.references("all") == {1: ["a dog", "a cat"], 3: ["a cow"]}
    assert [data.units(caption) for caption in range(3)] == [["a", "dog"], ["a", "cat"], ["a", "cow"]]
    assert data.manifest["skipped"]["empty caption"]["items"] == 2
    assert data.split_of(1) == "unpaired"


def test_the_same_input_gives_the_same_bytes_whatever_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coscap.data.encode.CHUNK", 40)
    source = Source(
        "s", tuple(Picture(i, str(i), (f"a dog {i % 50}", "two cats")) for i in range(300)), {"s": "0"}
    )
    for name, workers in (("a", 1), ("b", 2)):
        prepare(source, ALL, tmp_path / name, Options(workers=workers), Troubles())
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert len(files) == 17
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    assert open_prepared(tmp_path / "a").digest == open_prepared(tmp_path / "b").digest


def test_only_a_prepared_folder_is_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "photos"
    mine.mkdir()
    write(mine / "precious.txt", "mine")
    with pytest.raises(UserError, match="other files"):
        made_prepared(mine)
    assert (mine / "precious.txt").exists()
    first = made_prepared(tmp_path / "d").digest
    assert made_prepared(tmp_path / "d", pictures=30).digest != first
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d", "photos"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coscap.data.prepare.np.save", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        made_prepared(tmp_path / "d")
    assert not list(tmp_path.iterdir())


def test_damaged_folders_say_which_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a prepared data set"):
        open_prepared(tmp_path / "nothing")
    made_prepared(tmp_path / "d")
    words = tmp_path / "d" / "words.npy"
    whole = words.read_bytes()
    words.write_bytes(whole[:200])
    with pytest.raises(UserError, match=r"words\.npy is damaged"):
        open_prepared(tmp_path / "d")
    np.save(words, np.zeros(3, dtype=np.uint16))
    with pytest.raises(UserError, match=r"words\.npy is damaged \(its hash"):
        open_prepared(tmp_path / "d")
    words.unlink()
    with pytest.raises(UserError, match=r"words\.npy is missing"):
        open_prepared(tmp_path / "d")
    manifest = tmp_path / "d" / "manifest.json"
    write(manifest, json.loads(manifest.read_text()) | {"format": "other"})
    with pytest.raises(UserError, match="'other'"):
        open_prepared(tmp_path / "d")


def test_a_few_overwritten_words_are_seen(tmp_path: Path) -> None:
    made_prepared(tmp_path / "d")
    words = tmp_path / "d" / "words.npy"
    whole = bytearray(words.read_bytes())
    whole[-20:] = bytes(
        7 if index % 2 == 0 else 0 for index in range(20)
    )  # ten known words: nothing but a hash can tell
    words.write_bytes(whole)
    with pytest.raises(
        UserError, match=r"words\.npy is damaged \(its hash is not the one in manifest\.json\)"
    ):
        open_prepared(tmp_path / "d")


def without_hashes(folder: Path) -> dict:
    """A folder as earlier versions wrote it, and as somebody may have changed it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]
    write(folder / "manifest.json", manifest | {"format": "coscap prepared 1"})
    return manifest


def test_folders_of_earlier_versions_are_read(tmp_path: Path) -> None:
    new = made_prepared(tmp_path / "d")
    texts = [new.text(caption) for caption in range(new.captions)]
    without_hashes(tmp_path / "d")
    old = open_prepared(tmp_path / "d")
    assert [old.text(caption) for caption in range(old.captions)] == texts
    assert old.digest == new.digest  # so that contexts and runs still know their data


@pytest.mark.parametrize("name", ARRAYS)
def test_values_out_of_range_are_refused_without_hashes(tmp_path: Path, name: str) -> None:
    made_prepared(tmp_path / "d")
    without_hashes(tmp_path / "d")
    file = tmp_path / "d" / f"{name}.npy"
    array = np.load(file)
    if name in ("names", "texts"):
        array = array[:-1]
    else:
        array[len(array) // 2] = (
            120 if name == "image_split" else 30_000 if array.dtype.kind == "i" else 60_000
        )
    np.save(file, array)
    with pytest.raises(UserError, match="does not fit the rest of the data set"):
        open_prepared(tmp_path / "d")


@pytest.mark.parametrize(("field", "value"), [
    ("counts", {}), ("counts", None), ("options", {"max_length": "x", "long": "drop"}), ("subsets", [1]),
    ("splits", ["train"]), ("files", {}), ("files", {"../../etc/passwd": "0"}), ("vocabulary", 3),
])  # fmt: skip
def test_a_changed_manifest_is_one_sentence(tmp_path: Path, field: str, value: object) -> None:
    made_prepared(tmp_path / "d")
    manifest = tmp_path / "d" / "manifest.json"
    write(manifest, json.loads(manifest.read_text()) | {field: value})
    with pytest.raises(UserError, match=rf"manifest\.json.*{field}") as caught:
        open_prepared(tmp_path / "d")
    assert "\n" not in str(caught.value)


def test_ranges_joins_ranges() -> None:
    starts, stops = np.array([5, 2, 9, 0]), np.array([7, 2, 10, 3])
    assert ranges(starts, stops).tolist() == [5, 6, 9, 0, 1, 2]
    assert ranges(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).tolist() == []
