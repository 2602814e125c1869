"""Pictures as they are: any file that a camera, a phone or the web makes, as one upright RGB image."""

import io
import os
import stat
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from coscap.errors import UserError, reason

# Formats that Pillow decodes by itself. EPS is not among them: it starts another program.
FORMATS = "JPEG PNG WEBP GIF TIFF BMP PPM JPEG2000 AVIF ICO TGA"
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"hevc", b"hevx", b"mif1", b"msf1"}
PIXEL_LIMIT = 80_000_000  # a picture of 10,000 x 8,000; below the size at which Pillow itself begins to warn

# Pillow warns of damaged metadata and goes on; here a picture is good, or refused with one sentence.
warnings.filterwarnings("ignore", module=r"PIL\.")

Source = str | Path | bytes | BinaryIO


def open_picture(
    source: Source, *, least_side: int = 0, pixel_limit: int = PIXEL_LIMIT, name: str | None = None
) -> Image.Image:
    """The first frame of a picture file as upright RGB.

    `least_side` lets a picture be made smaller by a half, a quarter or an eighth, where both sides stay at least
    that long: a JPEG while it is decoded, which is most of the time of a large photograph, others right after, so
    that pictures that wait for a detector take little memory. `name` stands for the picture in error messages. A
    file that is not a whole picture, or larger than `pixel_limit`, raises a UserError.
    """
    name = name or (str(source) if isinstance(source, str | Path) else "the picture")
    file = _open_file(source, name)
    try:
        with _identify(file, name) as image:
            _check_size(image, name, pixel_limit)
            if least_side:
                image.draft("RGB", (least_side, least_side))
            return _to_rgb(_upright(image), least_side)
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"{name} needs more memory than there is; make it smaller.") from None
    except Exception as error:
        # Pillow's decoders meet hostile bytes with whatever exception comes: OSError, SyntaxError, ValueError,
        # struct.error, KeyError and more. All of them mean the same to the user.
        raise UserError(
            f"{name} is damaged and cannot be decoded ({reason(error)}); get a whole copy of it."
        ) from None
    finally:
        if file is not source:
            file.close()


def picture_size(source: Source, *, name: str | None = None) -> tuple[int, int]:
    """Width and height of a picture that stands upright, from its header: no pixel is decoded."""
    name = name or (str(source) if isinstance(source, str | Path) else "the picture")
    file = _open_file(source, name)
    try:
        with _identify(file, name) as image:
            width, height = image.size
            return (height, width) if _orientation(image) >= 5 else (width, height)
    finally:
        if file is not source:
            file.close()


def pixel_count(source: Source, *, name: str) -> int:
    """Width times height from the header, without the orientation, for which a PNG would have to be decoded."""
    file = _open_file(source, name)
    try:
        with _identify(file, name) as image:
            return image.width * image.height
    finally:
        if file is not source:
            file.close()


def picture_suffixes() -> frozenset[str]:
    """How the names of picture files end, in lower case."""
    known = Image.registered_extensions().items()
    kinds = {*FORMATS.split(), "MPO"}  # MPO: the JPEG of a camera with two lenses
    return frozenset(suffix for suffix, kind in known if kind in kinds) | {".heic", ".heif"}


def _open_file(source: Source, name: str) -> BinaryIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, str | Path):
        return source
    try:
        # Not to wait for ever: opening a pipe that is called cat.jpg would, until somebody writes to it.
        file = os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        raise UserError(f"{name} does not exist; check the path.") from None
    except IsADirectoryError:
        raise UserError(f"{name} is a folder, and a picture was expected.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{name} cannot be read ({reason(error)}).") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{name} is a pipe or a device, and a picture file was expected.")
    return file


def _identify(file: BinaryIO, name: str) -> Image.Image:
    """Read the header, no pixels yet."""
    head = file.read(12)
    file.seek(0)
    if not head:
        raise UserError(f"{name} is empty; get a whole copy of it.")
    Image.init()  # a Pillow without some format's library does not know its name
    formats = [kind for kind in FORMATS.split() if kind in Image.OPEN]
    if head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS:
        _learn_heic(name)
        formats = ["HEIF"]
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        raise UserError(
            f"{name} is not a picture in a known format; JPEG, PNG, WebP, GIF or TIFF will do."
        ) from None
    except Image.DecompressionBombError:
        raise UserError(f"{name} says it has far more pixels than any photograph; make it smaller.") from None


def _learn_heic(name: str) -> None:
    try:
        import pillow_heif
    except ImportError:
        raise UserError(
            f"{name} is a HEIC picture, which needs an extra package; run: pip install 'coscap[heic]'."
        ) from None
    pillow_heif.register_heif_opener()


def _check_size(image: Image.Image, name: str, limit: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise UserError(f"{name} has no pixels; get a whole copy of it.")
    if width * height > limit:
        raise UserError(
            f"{name} has {width} x {height} pixels, more than the limit of {limit:,}; make it smaller."
        )


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says; a picture whose EXIF is damaged stays as it is."""
    image.load()
    return ImageOps.exif_transpose(image) if _orientation(image) > 1 else image


def _orientation(image: Image.Image) -> int:
    """1 to 8 as EXIF counts, 5 and above lie on their side; 1 where there is none or it is damaged."""
    try:
        orientation = image.getexif().get(0x0112, 1)
    except Exception:
        return 1
    return orientation if orientation in range(2, 9) else 1


def _to_rgb(image: Image.Image, least_side: int) -> Image.Image:
    if image.mode in {"RGB", "L", "RGBA", "LA", "CMYK", "F", "I"} and "transparency" not in image.info:
        return _as_rgb(_smaller(image, least_side))  # before other copies of all its pixels are made
    return _smaller(_as_rgb(image), least_side)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_to_grey(image).convert("RGB")
    if image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info:
        # White is what a page shows behind a transparent picture.
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")


def _smaller(image: Image.Image, least_side: int) -> Image.Image:
    """By as much as a JPEG's decoder would."""
    for factor in (8, 4, 2) if least_side else ():
        if min(image.size) // factor >= least_side:
            return image.reduce(factor)
    return image


def _deep_to_grey(image: Image.Image) -> Image.Image:
    """16-bit values by their high byte; other integers and floats stretched between their extremes.

    Some rows at a time: whole pictures in 64 bits would be eight bytes a pixel, several times.
    """
    values = np.asarray(image)  # (H, W)
    rows = max(1, (1 << 18) // values.shape[1])
    strips = [values[start : start + rows] for start in range(0, len(values), rows)]
    low, high = np.inf, -np.inf
    for strip in strips:
        finite = _finite(strip)
        low, high = min(low, finite.min()), max(high, finite.max())
    sixteen_bit = image.mode != "F" and low >= 0 and high < 65536
    grey = np.empty(values.shape, np.uint8)
    for start, strip in zip(range(0, len(values), rows), strips, strict=True):
        finite = _finite(strip)
        level = finite / 257 if sixteen_bit else (finite - low) * (255 / max(high - low, 1e-12))
        grey[start : start + rows] = np.round(level).clip(0, 255)
    return Image.fromarray(grey)


def _finite(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.nan_to_num(values.astype(np.float64), copy=False, nan=0.0, posinf=0.0, neginf=0.0)
