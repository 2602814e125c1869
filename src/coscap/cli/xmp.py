"""XMP: alternative texts where photo software keeps them, in a file of their own or inside of a JPEG or PNG picture.

JPEG   SOI, segments (JFIF, Exif, XMP, ...), scan
PNG    IHDR, chunks (iTXt XML:com.adobe.xmp, ...), IEND

What is inside of a picture stays there: of all its bytes only those of the packet change, and of a packet that is
there only the properties that are written.
"""

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal
from xml.dom import XMLNS_NAMESPACE, minidom
from xml.parsers.expat import ExpatError
from xml.sax.saxutils import escape

from coscap.errors import UserError

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DC = "http://purl.org/dc/elements/1.1/"
IPTC = "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"
PROPERTIES = ((DC, "description"), (IPTC, "AltTextAccessibility"), (IPTC, "ExtDescrAccessibility"))

_JPEG, _PNG = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
_JPEG_NAME = b"http://ns.adobe.com/xap/1.0/\0"
_PNG_NAME = b"XML:com.adobe.xmp\0"
_JPEG_MOST = 65_535 - 2 - len(_JPEG_NAME)  # bytes of a packet in one segment
_MOST = 10_000_000  # bytes of a packet that is read
_DEEPEST = 100  # elements inside of elements
_BEGIN = '<?xpacket begin="\N{ZERO WIDTH NO-BREAK SPACE}" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
_END = '\n<?xpacket end="w"?>'


class BadPacket(ValueError):
    """A picture or its packet cannot be understood, so nothing is written into it. The message says why."""


def packet(alt: str, captions: Sequence[str] = (), language: str = "en") -> str:
    """An XMP packet with the alternative text as AltTextAccessibility and as description.

    `captions`, if given, are joined for the extended description (ExtDescrAccessibility).
    """
    return (
        f'{_BEGIN}<x:xmpmeta xmlns:x="adobe:ns:meta/">\n <rdf:RDF xmlns:rdf="{RDF}">\n'
        f"{_description(alt, captions, language)} </rdf:RDF>\n</x:xmpmeta>{_END}\n"
    )


def described(picture: BinaryIO) -> bool:
    """Whether a JPEG or PNG picture has a description or alternative text inside."""
    place = _find(picture)
    return place.content is not None and _has_ours(_parse(place.content))


def embed(picture: bytes, alt: str, captions: Sequence[str] = (), language: str = "en") -> bytes:
    """A JPEG or PNG picture with the alternative text inside. Other properties of a packet that is there stay."""
    place = _find(io.BytesIO(picture))
    if place.content is None:
        content = packet(alt, captions, language).encode()
    else:
        content = _merged(place.content, _description(alt, captions, language))
    made = picture[: place.start] + _wrapped(content, place.kind) + picture[place.end :]
    after = _find(io.BytesIO(made))  # what was written is what is read, and all else is as it was
    if (after.start, after.content) != (place.start, content) or made[after.end :] != picture[place.end :]:
        raise BadPacket("its structure is unusual")
    return made


# ---- the packet -----------------------------------------------------------------------------------------------------


def _description(alt: str, captions: Sequence[str], language: str) -> str:
    def alternatives(name: str, value: str) -> str:
        return (
            f'   <{name}>\n    <rdf:Alt>\n     <rdf:li xml:lang="x-default">{_xml(value)}</rdf:li>\n'
            f'     <rdf:li xml:lang="{_xml(language)}">{_xml(value)}</rdf:li>\n    </rdf:Alt>\n   </{name}>\n'
        )

    body = alternatives("dc:description", alt) + alternatives("Iptc4xmpCore:AltTextAccessibility", alt)
    if len(captions) > 1:
        body += alternatives("Iptc4xmpCore:ExtDescrAccessibility", " ".join(captions))
    return (
        f'  <rdf:Description rdf:about=""\n    xmlns:dc="{DC}"\n    xmlns:Iptc4xmpCore="{IPTC}">\n'
        f"{body}  </rdf:Description>\n"
    )


def _xml(text: str) -> str:
    """Text as XML may hold it: markup escaped, control characters left out."""
    return escape("".join(sign for sign in text if sign >= " " or sign in "\t\n"), {'"': "&quot;"})


def _parse(content: bytes) -> minidom.Element:
    """The outermost element of a packet, which has one rdf:RDF in it."""
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise BadPacket("its XMP has a document type, which none should have")
    try:
        root = minidom.parseString(content.strip(b"\0 \r\n\t")).documentElement
    except (ExpatError, ValueError, LookupError):
        raise BadPacket("its XMP is not valid XML") from None
    level = [root]
    for _ in range(_DEEPEST):
        level = [child for each in level if each is not None for child in _elements(each)]
    if root is None or level or len(_named(root, "RDF")) != 1:
        raise BadPacket("its XMP is not as XMP should be")
    return root


def _named(root: minidom.Element, name: str) -> list[minidom.Element]:
    inside = list(root.getElementsByTagNameNS(RDF, name))
    return [root, *inside] if (root.namespaceURI, root.localName) == (RDF, name) else inside


def _elements(owner: minidom.Element) -> list[minidom.Element]:
    return [each for each in owner.childNodes if isinstance(each, minidom.Element)]


def _owners(root: minidom.Element) -> list[minidom.Element]:
    """The descriptions of a packet; those that are the value of a property are none."""
    (rdf,) = _named(root, "RDF")
    return [each for each in _elements(rdf) if (each.namespaceURI, each.localName) == (RDF, "Description")]


def _has_ours(root: minidom.Element) -> bool:
    return any(
        any((each.namespaceURI, each.localName) in PROPERTIES for each in _elements(owner))
        or any(owner.hasAttributeNS(*name) for name in PROPERTIES)
        for owner in _owners(root)
    )


def _merged(content: bytes, description: str) -> bytes:
    """A packet with our properties in place of those that it has; its other properties stay."""
    root = _parse(content)
    (rdf,) = _named(root, "RDF")
    (ours,) = _elements(_parse(f'<rdf:RDF xmlns:rdf="{RDF}">{description}</rdf:RDF>'.encode()))
    ours.setAttribute("xmlns:rdf", RDF)
    for owner in _owners(root):
        for each in _elements(owner):
            if (each.namespaceURI, each.localName) in PROPERTIES:
                owner.removeChild(each)
        for name in PROPERTIES:
            if owner.hasAttributeNS(*name):
                owner.removeAttributeNS(*name)
        if owner.hasAttributeNS(RDF, "about"):  # all descriptions of a packet are about the same thing
            ours.setAttributeNS(RDF, "rdf:about", owner.getAttributeNS(RDF, "about"))
        names = {space for space, name in owner.attributes.keysNS()} - {XMLNS_NAMESPACE}
        if not _elements(owner) and names <= {RDF}:  # nothing is left of it
            rdf.removeChild(owner)
    rdf.appendChild(ours)
    return f"{_BEGIN}{_as_text(root)}{_END}".encode()


def _as_text(root: minidom.Element) -> str:
    """XML in which the line ends of attributes are still line ends when it is read again."""
    signs = {ord(sign): 0xF8F0 + ord(sign) for sign in "\t\n\r"}  # of the private area, while minidom writes
    level = [root]
    while level:
        for owner in level:
            for name, value in owner.attributes.items():
                owner.setAttribute(name, value.translate(signs))
        level = [child for owner in level for child in _elements(owner)]
    text = root.toxml()
    for sign, stand_in in signs.items():
        text = text.replace(chr(stand_in), f"&#{sign};")
    return text


# ---- where pictures keep it -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """The bytes [start, end) of a picture that hold its packet; where one would go, if it has none."""

    kind: Literal["JPEG", "PNG"]
    start: int
    end: int
    content: bytes | None


def _find(picture: BinaryIO) -> _Place:
    picture.seek(0)
    head = picture.read(len(_PNG))
    try:
        if head.startswith(_JPEG):
            return _find_in_jpeg(picture)
        if head == _PNG:
            return _find_in_png(picture)
    except struct.error:
        raise BadPacket("it ends too early") from None
    raise BadPacket("it is neither JPEG nor PNG")


def _find_in_jpeg(picture: BinaryIO) -> _Place:
    """The XMP segment; a new one goes behind JFIF and Exif.

    An index of further pictures behind the first one (MPF) counts from its own place, so nothing behind it may grow.
    """
    free = len(_JPEG)
    first, index = True, False
    for marker, start, end, content in _segments(picture):
        if marker == 0xE1 and content.startswith(_JPEG_NAME):
            if index:
                raise BadPacket("it holds several pictures, whose places would change")
            return _Place("JPEG", start, end, content[len(_JPEG_NAME) :])
        index = index or (marker == 0xE2 and content.startswith(b"MPF\0"))
        first = first and (marker == 0xE0 or (marker == 0xE1 and content.startswith(b"Exif\0")))
        free = end if first else free
    return _Place("JPEG", free, free, None)


def _segments(picture: BinaryIO) -> Iterator[tuple[int, int, int, bytes]]:
    """(marker, start, end, content) of the segments before the first scan."""
    place = len(_JPEG)
    while True:
        picture.seek(place)
        sign, marker = struct.unpack("BB", picture.read(2))
        if sign != 0xFF:
            raise BadPacket("its segments are damaged")
        if marker == 0xFF:  # a byte that fills
            place += 1
            continue
        if marker == 0xDA:
            return
        (length,) = struct.unpack(">H", picture.read(2))
        content = picture.read(length - 2) if length >= 2 else b""
        if len(content) != length - 2:
            raise BadPacket("it ends too early")
        yield marker, place, place + 2 + length, content
        place += 2 + length


def _find_in_png(picture: BinaryIO) -> _Place:
    """The iTXt chunk of XMP; a new one goes behind IHDR."""
    place, free = len(_PNG), 0
    while True:
        picture.seek(place)
        length, name = struct.unpack(">I4s", picture.read(8))
        end = place + 12 + length
        if name == b"iTXt" and length <= _MOST:
            content = picture.read(length)
            if content.startswith(_PNG_NAME):
                return _Place("PNG", place, end, _international_text(content[len(_PNG_NAME) :]))
        free = free or end
        if name == b"IEND":
            return _Place("PNG", free, free, None)
        place = end


def _international_text(content: bytes) -> bytes:
    """The text of an iTXt chunk: flag, method, language, translated keyword, text."""
    try:
        compressed = content[0]
        _, _, text = content[2:].split(b"\0", 2)
        if not compressed:
            return text
        opened = zlib.decompressobj()
        text = opened.decompress(text, _MOST)
    except (IndexError, ValueError, zlib.error):
        raise BadPacket("its XMP is damaged") from None
    if not opened.eof:
        raise BadPacket("its XMP is damaged or too large")
    return text


def _wrapped(content: bytes, kind: Literal["JPEG", "PNG"]) -> bytes:
    if kind == "JPEG":
        if len(content) > _JPEG_MOST:
            raise BadPacket(
                f"its XMP would be larger than the {_JPEG_MOST:,} bytes that fit into a JPEG file"
            )
        return b"\xff\xe1" + struct.pack(">H", 2 + len(_JPEG_NAME) + len(content)) + _JPEG_NAME + content
    body = b"iTXt" + _PNG_NAME + b"\0\0\0\0" + content
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def embed_in_file(path: str, alt: str, captions: Sequence[str] = ()) -> None:
    """The same for a file, which is replaced as a whole or not at all."""
    from coscap.files import read_bytes, whole_file

    try:
        made = embed(read_bytes(path), alt, captions)
    except BadPacket as error:
        raise UserError(
            f"{path} is left as it is, because {error}; use --xmp, which writes a file beside it."
        ) from None
    with whole_file(path) as partial:
        partial.write_bytes(made)
