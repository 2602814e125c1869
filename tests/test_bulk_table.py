"""`coscap bulk` without Ray: which pictures a collection has, and a table that is whole at every moment."""

from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from coscap.bulk.entries import list_address, list_parquet, local_entry, readable
from coscap.bulk.table import BAD, CAPTIONS, Out
from coscap.bulk.worker import _content, planned, read_group
from coscap.cli.bulk import _entries
from coscap.errors import UserError
from coscap.vision.pictures import picture_size

MADE = {"format": 1, "n": 2, "seed": 0}


def rows(*photos: str) -> pa.Table:
    captions = [{"text": "a cat", "log_probability": -1.5}]
    return pa.Table.from_pylist(
        [{"photo": photo, "width": 4, "height": 3, "captions": captions} for photo in photos], schema=CAPTIONS
    )


def photos_in(folder: Path) -> list[str]:
    return sorted(parquet.read_table(folder)["photo"].to_pylist())


def test_parts_appear_whole_and_are_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "captions.parquet"
    with Out(out, MADE, part=2) as table:
        table.add(rows("a"), {})
        assert not list(out.glob("*.parquet"))
        table.add(rows("b"), {"x": "x is empty."})
        assert [path.name for path in out.glob("*.parquet")] == ["part-000000.parquet"]
        table.add(rows("c"), {})
    (out / ".part-000009.parquet.abc.part").write_bytes(b"what a kill left behind")
    with Out(out, MADE, part=2) as table:
        assert table.done == {"a", "b", "c"}
        assert table.bad == {"x": "x is empty."}
        table.add(rows("x"), {})
    assert photos_in(out) == ["a", "b", "c", "x"]
    assert not list(out.glob(".*.part"))
    assert parquet.read_table(out).schema.remove_metadata() == CAPTIONS
    bad = parquet.read_table(tmp_path / "captions.bad.parquet")
    assert bad.schema.remove_metadata() == BAD and len(bad) == 0


def test_a_kill_between_the_tables_leaves_no_picture_in_both(tmp_path: Path) -> None:
    out = tmp_path / "captions.parquet"
    with Out(out, MADE) as table:
        table.add(rows(), {"a": "a is empty."})
    with Out(out, MADE) as table:
        table.add(rows("a"), {})
        table._dirty = False  # the process dies after the part and before the other file
    with Out(out, MADE) as table:
        assert table.done == {"a"} and table.bad == {}


def test_what_was_made_otherwise_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "captions.parquet"
    with Out(out, MADE) as table:
        table.add(rows("a"), {})
    with pytest.raises(UserError, match=r"was made with n 2, and this run has 3"):
        Out(out, {**MADE, "n": 3})
    with Out(out, MADE), pytest.raises(UserError, match="another run"):
        Out(out, MADE)
    parquet.write_table(pa.table({"photo": ["z"]}), out / "mine.parquet")
    with pytest.raises(UserError, match=r"mine.parquet is no part"):
        Out(out, MADE)
    with pytest.raises(UserError, match="is a file"):
        Out(out / "mine.parquet", MADE)
    with pytest.raises(UserError, match="cannot be written"):
        Out(out / "mine.parquet" / "below", MADE)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for name in ("a.jpg", "b.png", "more/c d.jpg"):
        Image.new("RGB", (6, 4), "red").save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


def read(entries: list) -> list[bytes]:
    return [_content(row) for row in planned(entries).to_pylist()]


def test_addresses_are_listed_and_read_through_arrow(pictures: Path) -> None:
    found = list_address(f"file://{pictures}")
    assert [entry.photo for entry in found] == [
        f"file://{pictures}/{name}" for name in ("a.jpg", "b.png", "more/c d.jpg")
    ]
    assert read(found)[0] == (pictures / "a.jpg").read_bytes()
    assert [entry.photo[-5:] for entry in list_address(f"file://{pictures}/*.jpg")] == ["a.jpg"]
    assert len(list_address(f"file://{pictures}/**.jpg")) == 2
    with pytest.raises(UserError, match="does not exist"):
        list_address(f"file://{pictures}/nothing")
    with pytest.raises(UserError, match="no pictures"):
        list_address(f"file://{pictures}/*.gif")
    with pytest.raises(UserError, match="no address that Arrow can open"):
        list_address("nowhere://bucket/photos")


def test_parquet_holds_bytes_or_paths(pictures: Path, tmp_path: Path) -> None:
    content = [path.read_bytes() for path in sorted(pictures.glob("*.*g"))] + [None]
    held, hub, named = (tmp_path / f"{name}.parquet" for name in ("held", "hub", "named"))
    ids = ["one", "two", "three"]
    parquet.write_table(pa.table({"id": ids, "picture": content}), held, row_group_size=2)
    parquet.write_table(pa.table({"image": [{"bytes": content[0], "path": "a.jpg"}]}), hub)
    parquet.write_table(
        pa.table({"path": ["photos/a.jpg", str(pictures / "b.png"), None, "photos/gone"]}), named
    )

    plain = list_parquet(str(held))
    assert [entry.photo for entry in plain] == [f"{held}#{row}" for row in range(3)]
    told = list_parquet(f"file://{held}", names="id")
    assert [(entry.photo, entry.group, entry.row) for entry in told] == [
        ("one", 0, 0),
        ("two", 0, 1),
        ("three", 1, 0),
    ]
    plan = {
        "root": "",
        "path": str(held).encode(),
        "column": "picture",
        "group": 0,
        "rows": [1],
        "photos": ["two"],
    }
    (table,) = read_group(pa.Table.from_pylist([plan]))
    assert table.to_pylist() == [{"photo": "two", "root": None, "path": None, "data": content[1]}]
    assert [entry.column for entry in list_parquet(str(hub))] == ["image"]

    listed = list_parquet(str(named))
    assert [entry.photo for entry in listed] == [
        str(pictures / "a.jpg"),
        str(pictures / "b.png"),
        str(pictures / "gone"),
    ]
    a, b, gone = read(listed)
    assert (a, b) == (content[0], content[1])
    assert isinstance(gone, UserError) and "does not exist" in str(gone)


def test_addresses_of_a_parquet_file_are_read_only_when_allowed(pictures: Path, tmp_path: Path) -> None:
    named = tmp_path / "named.parquet"
    address = f"file://{pictures}/a.jpg"
    parquet.write_table(pa.table({"path": ["photos/b.png", address]}), named)
    with pytest.raises(UserError, match=r"named\.parquet names the address file://.*; pass --urls"):
        list_parquet(str(named))
    assert [entry.photo for entry in list_parquet(str(named), urls=True)][1] == address
    with pytest.raises(UserError, match="pass --urls"):  # an address of its own gives no leave for others
        list_parquet(f"file://{named}")


def test_parquet_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"size": [1], "left": [b"x"], "right": [b"y"]}), table)
    for options, expected in [
        ({}, "--column left"),
        ({"column": "size"}, "holds int64"),
        ({"column": "gone"}, "has no column gone; it has size, left, right"),
        ({"column": "left", "names": "gone"}, "has no column gone"),
    ]:
        with pytest.raises(UserError, match=expected):
            list_parquet(str(table), **options)
    table.write_bytes(b"PAR1 but no more")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        list_parquet(str(table))
    with pytest.raises(UserError, match="does not exist"):
        list_parquet(str(tmp_path / "gone.parquet"))


def test_arguments_of_all_kinds(pictures: Path) -> None:
    both = _entries([str(pictures), f"file://{pictures}/a.jpg"], "", "")
    assert [entry.photo.rpartition("/")[2] for entry in both] == ["a.jpg", "b.png", "c d.jpg", "a.jpg"]
    for argument, expected in [
        ("https://example.org/a.jpg", "no place for a collection"),
        (str(pictures / "gone"), "does not exist"),
    ]:
        with pytest.raises(UserError, match=expected):
            _entries([argument], "", "")


def test_names_that_are_no_text_can_be_written() -> None:
    path = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    assert local_entry(path).photo == readable(path) == "caf\\xe9.jpg"
    assert planned([local_entry(path)]).to_pylist()[0]["path"] == b"caf\xe9.jpg"


def test_picture_size_is_that_of_the_upright_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("RGB", (60, 40)).save(tmp_path / "plain.jpg")
    assert picture_size(tmp_path / "turned.jpg") == (40, 60)
    assert picture_size((tmp_path / "plain.jpg").read_bytes()) == (60, 40)
