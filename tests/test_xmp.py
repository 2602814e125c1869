"""Alternative texts inside of pictures: read by others, and nothing else of the picture is touched."""

import io
import json
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from coscap.cli.xmp import BadPacket, described, embed, embed_in_file
from coscap.errors import UserError

NAME = b"http://ns.adobe.com/xap/1.0/\0"
ALT = 'A dog & a <cat> say "hallo" – ätsch.'
THEIRS = """<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="uuid:1" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"
 xmlns:mine="http://example.org/mine/" mine:note="one&#10;two&#9;&amp;"
 xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag><rdf:li>holiday</rdf:li></rdf:Bag></dc:subject>
 %s</rdf:Description></rdf:RDF></x:xmpmeta>
<?xpacket end="w"?>"""
DESCRIBED = (
    '<dc:description><rdf:Alt><rdf:li xml:lang="x-default">my words</rdf:li></rdf:Alt></dc:description>'
)


def jpeg(xmp: str | None = None) -> bytes:
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    buffer = io.BytesIO()
    noise = Image.frombytes("RGB", (40, 30), random.Random(1).randbytes(3600))
    noise.save(buffer, "JPEG", exif=exif, comment=b"hello", icc_profile=b"p" * 100)
    content = buffer.getvalue()
    if xmp is None:
        return content
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(NAME) + len(xmp.encode())) + NAME + xmp.encode()
    return content[:2] + segment + content[2:]


def png(xmp: str | None = None, compressed: bool = False) -> bytes:
    info = PngInfo()
    info.add_text("Author", "me")
    if xmp is not None:
        info.add_itxt("XML:com.adobe.xmp", xmp, zip=compressed)
    buffer = io.BytesIO()
    Image.frombytes("RGB", (40, 30), random.Random(1).randbytes(3600)).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def read(content: bytes) -> dict[str, Any]:
    """What Pillow finds in the packet, by property."""
    with Image.open(io.BytesIO(content)) as picture:
        described = picture.getxmp()["xmpmeta"]["RDF"]["Description"]
        many = described if isinstance(described, list) else [described]
        return {name: value for each in many for name, value in each.items()}


PICTURES = {
    "jpeg": jpeg(),
    "png": png(),
    "jpeg with xmp": jpeg(THEIRS % ""),
    "jpeg with a description": jpeg(THEIRS % DESCRIBED),
    "jpeg with a description as attribute": jpeg(
        (THEIRS % "").replace("mine:note", 'dc:description="x" mine:note')
    ),
    "png with xmp": png(THEIRS % ""),
    "png with a description, compressed": png(THEIRS % DESCRIBED, compressed=True),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_text_is_inside_and_all_else_is_as_it_was(name: str) -> None:
    before = PICTURES[name]
    assert described(io.BytesIO(before)) == ("description" in name)
    after = embed(before, ALT, ["One.", "Two."])
    assert described(io.BytesIO(after))
    with Image.open(io.BytesIO(before)) as old, Image.open(io.BytesIO(after)) as new:
        assert old.tobytes() == new.tobytes() and dict(old.getexif()) == dict(new.getexif())
        for key in ("icc_profile", "comment", "Author"):
            assert old.info.get(key) == new.info.get(key)
    found = read(after)
    assert found["AltTextAccessibility"]["Alt"]["li"][0]["text"] == ALT
    assert found["description"]["Alt"]["li"][0]["text"] == ALT
    assert found["ExtDescrAccessibility"]["Alt"]["li"][0]["text"] == "One. Two."
    if "xmp" in name or "description" in name:
        assert found["Rating"] == "4" and found["note"] == "one\ntwo\t&" and "subject" in found
        assert b"my words" not in after and after.count(b"uuid:1") == 2
    again = embed(after, ALT, ["One.", "Two."])
    assert read(again) == found and embed(again, ALT, ["One.", "Two."]) == again  # it does not grow


def test_exiftool_reads_it_and_finds_no_fault(tmp_path: Path) -> None:
    exiftool = shutil.which("exiftool")
    if exiftool is None:
        pytest.skip("exiftool (Debian: libimage-exiftool-perl) is not installed")
    for number, (name, before) in enumerate(PICTURES.items()):
        path = tmp_path / f"{number}.{name[:4].strip()}"
        path.write_bytes(embed(before, ALT))
        command = [exiftool, "-j", "-validate", "-warning", "-XMP:all", "-EXIF:Make", str(path)]
        (found,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert found["AltTextAccessibility"] == found["Description"] == ALT
        assert "Error" not in found and "XMP" not in found.get("Warning", ""), found
        if name.startswith("jpeg"):
            assert found["Make"] == "Maker"
        if "xmp" in name or "description" in name:
            assert found["Rating"] == 4 and found["Subject"] == "holiday"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg())
    path.chmod(0o640)
    link = tmp_path / "link.jpg"
    link.symlink_to(path)
    embed_in_file(str(link), ALT)
    assert link.is_symlink() and described(path.open("rb")) and path.stat().st_mode & 0o777 == 0o640

    def full(file: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"a\.jpg cannot be written|link\.jpg cannot be written"):
        embed_in_file(str(link), "Another.")
    assert path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["a.jpg", "link.jpg"]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'


def several(xmp_first: bool) -> bytes:
    """Two pictures in one file, as telephones make them, with XMP before or after their index."""
    buffer = io.BytesIO()
    one, two = (Image.new("RGB", (40, 30), colour) for colour in ("red", "blue"))
    one.save(buffer, "MPO", save_all=True, append_images=[two])
    content = buffer.getvalue()
    end = content.index(b"MPF\0") - 4
    length = struct.unpack(">H", content[end + 2 : end + 4])[0]
    place = end if xmp_first else end + 2 + length
    packet = (THEIRS % "").encode()
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(NAME) + len(packet)) + NAME + packet
    return content[:place] + segment + content[place:]


def test_a_second_picture_stays_where_its_index_says() -> None:
    with Image.open(io.BytesIO(embed(several(xmp_first=True), ALT))) as picture:
        assert picture.n_frames == 2
        picture.seek(1)
        assert picture.convert("RGB").getpixel((5, 5))[2] > 200
    with pytest.raises(BadPacket, match="several pictures"):
        embed(several(xmp_first=False), ALT)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"GIF89a", "neither JPEG nor PNG"),
        (b"", "neither JPEG nor PNG"),
        (jpeg()[:30], "too early"),
        (jpeg()[:2] + b"\x00" + jpeg()[2:], "segments are damaged"),
        (png()[:40], "too early"),
        (jpeg("<x:xmpmeta>"), "not valid XML"),
        (jpeg("<a/>"), "not as XMP should be"),
        (jpeg(BOMB + THEIRS % ""), "document type"),
        (jpeg("<a>" * 9000 + "</a>" * 9000), "not as XMP should be"),
        (jpeg(THEIRS % f"<dc:rights>{'x' * 64600}</dc:rights>"), "larger than"),
    ],
)
def test_what_is_not_understood_is_left_alone(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.jpg"
    path.write_bytes(content)
    with pytest.raises(BadPacket, match=why):
        embed(content, ALT)
    with pytest.raises(UserError, match=r"odd\.jpg is left as it is, because .*; use --xmp"):
        embed_in_file(str(path), ALT)
    assert path.read_bytes() == content


def test_mutated_pictures_are_written_right_or_refused() -> None:
    chance = random.Random(5)
    written = 0
    for _ in range(3000):
        content = bytearray(chance.choice(list(PICTURES.values())))
        for _ in range(chance.randint(1, 8)):
            content[chance.randrange(min(len(content), 1500))] = chance.randrange(256)
        try:
            made = embed(bytes(content), ALT)
        except BadPacket:
            continue
        written += 1
        assert described(io.BytesIO(made)) and len(made) > 100
    assert written > 300
