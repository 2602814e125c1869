"""Readers of captions: what they give, and the one sentence for each kind of bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from coscap.data.records import Source, Troubles, join
from coscap.data.sources.coco import read_coco, read_karpathy
from coscap.data.sources.flickr import read_flickr
from coscap.data.sources.folder import read_folder
from coscap.data.sources.jsonl import read_jsonl
from coscap.errors import UserError
from coscap.vision.ids import image_id_of
from data_made import coco_document, write


def by_id(source: Source) -> dict[int, tuple[str, ...]]:
    return {one.id: one.captions for one in source.pictures}


def test_coco_gives_pictures_by_id_with_their_captions_in_order(tmp_path: Path) -> None:
    source = read_coco(write(tmp_path / "c.json", coco_document()), Troubles())
    assert by_id(source) == {3: ("Two cars.",), 5: (), 7: ("A dog near a fire hydrant.", "The dog sits.")}
    assert [one.id for one in source.pictures] == [3, 5, 7]
    assert len(source.hashes["c.json"]) == 64


def test_coco_2014_is_read_from_the_installed_package() -> None:
    source = read_coco("coco:val2014", Troubles())
    sizes = [len(one.captions) for one in source.pictures]
    assert (len(sizes), sum(sizes)) == (40504, 202654)
    assert (sizes.count(5), sizes.count(6), sizes.count(7)) == (40373, 128, 3)


def test_an_unknown_built_in_name_says_what_there_is() -> None:
    with pytest.raises(UserError, match=r"coco:train2014 or coco:val2014"):
        read_coco("coco:test2015", Troubles())


def change(document: dict[str, Any], what: str) -> str:
    images, annotations = document["images"], document["annotations"]
    match what:
        case "broken":
            return json.dumps(document)[:-20]
        case "no images":
            return json.dumps({"annotations": []})
        case "no annotations":
            del document["annotations"]
        case "image without id":
            del images[1]["id"]
            annotations.pop(1)
        case "true for an id":
            images[1]["id"] = True
            annotations.pop(1)
        case "id of 70 bits":
            images[1]["id"] = 2**70
            annotations.pop(1)
        case "same image id":
            images.append({"id": 5, "file_name": "other.jpg"})
        case "no caption":
            del annotations[1]["caption"]
        case "unknown image":
            annotations[1]["image_id"] = 99
        case "same annotation id":
            annotations[1]["id"] = 1
        case "empty":
            annotations[1]["caption"] = "  \n"
    return json.dumps(document)


CASES = {
    "no annotations": ('"annotations"', "missing field"),
    "image without id": (r"images\[1\]", "missing field"),
    "true for an id": (r"images\[1\].*whole number", "missing field"),
    "id of 70 bits": (r"images\[1\].*64 bits", "missing field"),
    "same image id": (r"images\[3\].* 5 .*'COCO_val2014_000000000005.jpg'", "duplicate id"),
    "no caption": (r'annotations\[1\].*"caption"', "missing field"),
    "unknown image": (r"annotations\[1\].*99", "unknown image"),
    "same annotation id": (r"annotations\[1\].*id 1", "duplicate id"),
    "empty": (r"annotations\[1\].*empty", "empty caption"),
}


@pytest.mark.parametrize("what", CASES)
def test_a_bad_item_of_coco_stops_with_a_sentence_or_is_counted(tmp_path: Path, what: str) -> None:
    file = write(tmp_path / "bad.json", change(coco_document(), what))
    pattern, kind = CASES[what]
    with pytest.raises(UserError, match=pattern) as caught:
        read_coco(file, Troubles())
    assert "bad.json" in str(caught.value) and "--skip-bad" in str(caught.value)
    troubles = Troubles(skip=True)
    source = read_coco(file, troubles)
    assert troubles.counts == {kind: 1}
    assert len(by_id(source)) == (2 if what in ("image without id", "true for an id", "id of 70 bits") else 3)


@pytest.mark.parametrize(("what", "pattern"), [("broken", "line 1, column"), ("no images", '"images"')])
def test_a_file_that_is_no_coco_file_stops_also_with_skip(tmp_path: Path, what: str, pattern: str) -> None:
    file = write(tmp_path / "bad.json", change(coco_document(), what))
    with pytest.raises(UserError, match=pattern):
        read_coco(file, Troubles(skip=True))


def test_brackets_without_end_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"deep\.json.*nested too deeply"):
        read_coco(write(tmp_path / "deep.json", "[" * 100_000), Troubles())


def test_nocaps_domains_become_subsets(tmp_path: Path) -> None:
    document = coco_document()
    document["images"][0]["domain"] = "out-domain"
    source = read_coco(write(tmp_path / "nocaps.json", document), Troubles())
    assert {one.id: one.subsets for one in source.pictures} == {3: (), 5: (), 7: ("out-domain",)}


def test_karpathy_keeps_its_splits_and_trains_on_restval(tmp_path: Path) -> None:
    rows = [
        {
            "filename": f"COCO_val2014_{i:012d}.jpg",
            "cocoid": i,
            "split": split,
            "sentences": [{"raw": f"a cat {i}"}],
        }
        for i, split in enumerate(("train", "restval", "val", "test"), start=1)
    ]
    file = write(tmp_path / "dataset_coco.json", {"images": rows, "dataset": "coco"})
    source = read_karpathy(file, Troubles())
    assert [one.split for one in source.pictures] == ["train", "train", "validation", "test"]
    assert by_id(read_coco(file, Troubles())) == by_id(source)  # recognised by its content too
    del rows[1]["sentences"]
    with pytest.raises(UserError, match=r"images\[1\]"):
        read_karpathy(write(file, {"images": rows}), Troubles())
    with pytest.raises(UserError, match="Karpathy"):
        read_karpathy(write(file, coco_document()), Troubles())


FLICKR = {
    "Flickr8k.token.txt": "10_a.jpg#0\tA dog , running .\n10_a.jpg#1\tA dog .\n20_b.jpg#0\tTwo men .\n",
    "captions.txt": 'image,caption\n10_a.jpg,"A dog , running ."\n10_a.jpg,A dog .\n20_b.jpg,Two men .\n',
    "results.csv": "image_name| comment_number| comment\n10_a.jpg| 0| A dog , running .\n"
    "10_a.jpg| 1| A dog .\n20_b.jpg| 0| Two men .\n",
}


@pytest.mark.parametrize("name", FLICKR)
def test_flickr_in_its_three_layouts(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, FLICKR[name])
    source = read_flickr(tmp_path, Troubles())
    assert {one.name: [text.strip() for text in one.captions] for one in source.pictures} == {
        "10_a.jpg": ["A dog , running .", "A dog ."],
        "20_b.jpg": ["Two men ."],
    }
    assert source.pictures[0].id in (image_id_of("10_a.jpg"), image_id_of("20_b.jpg"))


def test_flickr_uses_the_official_lists(tmp_path: Path) -> None:
    write(tmp_path / "Flickr8k.token.txt", FLICKR["Flickr8k.token.txt"])
    write(tmp_path / "Flickr_8k.trainImages.txt", "10_a.jpg\n")
    write(tmp_path / "Flickr_8k.testImages.txt", "20_b.jpg\n")
    source = read_flickr(tmp_path, Troubles())
    assert {one.name: one.split for one in source.pictures} == {"10_a.jpg": "train", "20_b.jpg": "test"}
    assert set(source.hashes) == {
        "Flickr8k.token.txt",
        "Flickr_8k.trainImages.txt",
        "Flickr_8k.testImages.txt",
    }


def test_flickr_names_the_line_without_a_caption(tmp_path: Path) -> None:
    file = write(tmp_path / "x.txt", "10_a.jpg#0\tA dog .\n20_b.jpg#0 no tab\n")
    with pytest.raises(UserError, match=r"x\.txt, line 2"):
        read_flickr(file, Troubles())


def test_folder_takes_captions_from_text_files_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.jpg", "sub/b.PNG", "c.webp"):
        (tmp_path / name).write_bytes(b"a picture")
    write(tmp_path / "a.txt", "a cat\n\na dog\n")
    write(tmp_path / "sub" / "b.txt", "a bus")
    source = read_folder(tmp_path, Troubles())
    assert {one.name: one.captions for one in source.pictures} == {
        "a.jpg": ("a cat", "a dog"),
        "sub/b.PNG": ("a bus",),
        "c.webp": (),
    }
    write(tmp_path / "lonely.txt", "nothing to see")
    with pytest.raises(UserError, match=r"lonely\.txt"):
        read_folder(tmp_path, Troubles())
    troubles = Troubles(skip=True)
    assert len(read_folder(tmp_path, troubles).pictures) == 3 and troubles.counts == {"unknown image": 1}


def test_folder_refuses_two_pictures_of_one_name_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pictures"):
        read_folder(tmp_path, Troubles())
    for name in ("a.jpg", "a.png"):
        (tmp_path / name).write_bytes(b"a picture")
    with pytest.raises(UserError, match=r"a\.png.*already taken by 'a\.jpg'"):
        read_folder(tmp_path, Troubles())


def test_jsonl_adds_up_the_lines_of_a_picture(tmp_path: Path) -> None:
    rows = [
        {"image": "x.jpg", "captions": ["a cat", "a dog"], "split": "val"},
        {"file_name": "y.jpg", "text": "a bus"},
        {"image": "x.jpg", "caption": "a cow"},
        {"image_id": 4},
    ]
    file = write(tmp_path / "d.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    source = read_jsonl(file, Troubles())
    assert {one.name: (one.captions, one.split) for one in source.pictures} == {
        "x.jpg": (("a cat", "a dog", "a cow"), "validation"),
        "y.jpg": (("a bus",), None),
        "4.jpg": ((), None),
    }


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("{", r"line 2 is not valid JSON"),
        ('{"captions": ["a"]}', "line 2 names no picture"),
        ('{"image": "y.jpg", "caption": ""}', "line 2.*empty"),
        ('{"image": "y.jpg", "split": "toast"}', "'toast'"),
        ('{"image": "z.jpg", "image_id": 1, "caption": "a"}', "already taken"),
        ("[1]", "line 2 is not an object"),
        ("[" * 100_000, "line 2 is not valid JSON"),
        ('{"image_id": 1180591620717411303424, "caption": "a"}', "line 2 names no picture"),
        ('{"image": "1.jpg", "caption": "a", "split": "test"}', "line 2.*'1.jpg'.*'test'.*'none'"),
    ],
)
def test_jsonl_names_the_bad_line(tmp_path: Path, line: str, pattern: str) -> None:
    file = write(tmp_path / "d.jsonl", '{"image": "1.jpg", "caption": "a cat"}\n' + line + "\n")
    with pytest.raises(UserError, match=pattern):
        read_jsonl(file, Troubles())
    troubles = Troubles(skip=True)
    read_jsonl(file, troubles)
    assert sum(troubles.counts.values()) == 1


def test_files_that_share_a_picture_are_not_joined_silently(tmp_path: Path) -> None:
    one = read_coco(write(tmp_path / "a.json", coco_document()), Troubles())
    two = read_coco(write(tmp_path / "b.json", coco_document()), Troubles())
    with pytest.raises(UserError, match=r"b\.json.*also in another file"):
        join([one, two], Troubles())


def test_ids_of_file_names() -> None:
    assert image_id_of("COCO_train2014_000000057870.jpg") == image_id_of("train/000000057870.png") == 57870
    assert image_id_of("cat.jpg") == image_id_of("elsewhere/cat.png") != image_id_of("dog.jpg")
    assert 0 <= image_id_of("1000268201_693b08cb0e.jpg") < 2**63
