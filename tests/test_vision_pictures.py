"""Pictures as they come from cameras, phones, the web and attackers."""

import io
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from coscap.errors import UserError
from coscap.vision.pictures import open_picture, picture_suffixes

WIDTH, HEIGHT = 40, 24


def scene() -> Image.Image:
    """Left half red, right half green, so that turning it can be seen."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:, : WIDTH // 2, 0] = 220
    pixels[:, WIDTH // 2 :, 1] = 200
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def is_red(image: Image.Image, x: int, y: int) -> bool:
    red, green, blue = image.getpixel((x, y))
    return red > 150 and green < 90 and blue < 90


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "JPEG2000"])
def test_formats(kind: str) -> None:
    picture = open_picture(encoded(scene(), kind))
    assert (picture.mode, picture.size) == ("RGB", (WIDTH, HEIGHT))
    assert is_red(picture, 5, 12) and not is_red(picture, 35, 12)


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "PNG"), ("P", "PNG"), ("CMYK", "JPEG"), ("1", "PNG"), ("LA", "PNG")]
)
def test_modes(mode: str, kind: str) -> None:
    picture = open_picture(encoded(scene().convert("L" if mode == "LA" else "RGB").convert(mode), kind))
    assert (picture.mode, picture.size) == ("RGB", (WIDTH, HEIGHT))
    if mode in {"P", "CMYK"}:
        assert is_red(picture, 5, 12)


def test_transparent_is_white() -> None:
    image = scene().convert("RGBA")
    image.putalpha(
        Image.fromarray(np.repeat([[255], [0]], HEIGHT // 2, axis=0).astype(np.uint8).repeat(WIDTH, 1))
    )
    picture = open_picture(encoded(image, "PNG"))
    assert is_red(picture, 5, 2)
    assert picture.getpixel((5, HEIGHT - 2)) == (255, 255, 255)
    palette = scene().quantize(4)
    palette.info["transparency"] = palette.getpixel((5, 5))
    assert open_picture(encoded(palette, "PNG")).getpixel((5, 5)) == (255, 255, 255)


def test_sixteen_bit_grey_keeps_its_range() -> None:
    values = np.linspace(0, 65535, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16)
    picture = np.asarray(open_picture(encoded(Image.fromarray(values), "PNG")))
    assert picture[0, 0, 0] == 0 and picture[-1, -1, 0] == 255
    assert abs(int(picture[HEIGHT // 2, 0, 0]) - 128) <= 2
    floats = Image.fromarray((values / 1000).astype(np.float32))
    assert np.asarray(open_picture(encoded(floats, "TIFF")))[-1, -1, 0] == 255


def test_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn by 90 degrees clockwise
    picture = open_picture(encoded(scene(), "JPEG", exif=exif))
    assert picture.size == (HEIGHT, WIDTH)
    assert is_red(picture, 12, 5) and not is_red(picture, 12, 35)


def test_first_frame_of_an_animation() -> None:
    frames = encoded(scene(), "GIF", save_all=True, append_images=[Image.new("RGB", (WIDTH, HEIGHT), "blue")])
    assert is_red(open_picture(frames), 5, 12)


def test_a_large_jpeg_is_decoded_smaller() -> None:
    data = encoded(scene().resize((1600, 960)), "JPEG")
    assert open_picture(data).size == (1600, 960)
    assert open_picture(data, least_side=400).size == (800, 480)


def test_other_large_pictures_are_made_smaller_by_as_much() -> None:
    for mode, kind in (
        ("RGB", "PNG"),
        ("L", "PNG"),
        ("RGBA", "PNG"),
        ("P", "PNG"),
        ("1", "PNG"),
        ("CMYK", "TIFF"),
    ):
        data = encoded(scene().resize((1600, 960)).convert(mode), kind)
        picture = open_picture(data, least_side=50)
        assert (picture.mode, picture.size) == ("RGB", (200, 120)), mode  # an eighth, no more
        assert open_picture(data, least_side=400).size == (800, 480)
        assert open_picture(data, least_side=500).size == (1600, 960)
        if mode in ("RGB", "RGBA", "CMYK"):
            assert is_red(picture, 20, 60) and not is_red(picture, 180, 60)
    deep = np.linspace(0, 65535, 1600 * 960).reshape(960, 1600).astype(np.uint16)
    small = np.asarray(open_picture(encoded(Image.fromarray(deep), "PNG"), least_side=100))
    assert small.shape == (120, 200, 3) and small[0, 0, 0] < 3 and small[-1, -1, 0] > 252


@pytest.mark.parametrize("values", [
    np.linspace(-5, 9, 300 * 1000).reshape(300, 1000).astype(np.float32),
    np.where(np.arange(3000).reshape(30, 100) % 7, np.float32("inf"), np.float32(3)),
    np.arange(-2000, 1000).reshape(30, 100).astype(np.int32),
    np.arange(3000).reshape(30, 100).astype(np.uint16) * 20,
])  # fmt: skip
def test_deep_pictures_in_strips_are_what_they_are_at_once(values) -> None:
    whole = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    stretched = (whole - whole.min()) * (255 / max(whole.max() - whole.min(), 1e-12))
    expected = np.round(whole / 257 if values.dtype == np.uint16 else stretched).clip(0, 255)
    picture = np.asarray(open_picture(encoded(Image.fromarray(values), "TIFF")))
    assert np.array_equal(picture[..., 0], expected.astype(np.uint8))


MEMORY = """
import io, resource, sys
import numpy as np
from PIL import Image
from coscap.vision.pictures import open_picture
buffer = io.BytesIO()
if sys.argv[1] == "float":
    Image.fromarray(np.zeros((5000, 5000), np.float32)).save(buffer, "TIFF", compression="tiff_deflate")
else:
    Image.new("RGB", (5000, 5000)).save(buffer, "PNG")
data = buffer.getvalue()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kept = [open_picture(data, least_side=int(sys.argv[3])) for _ in range(int(sys.argv[2]))]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_of_large_pictures() -> None:
    """25 megapixels: a float TIFF needs less than three 32-bit copies, and pictures that wait are small."""

    def megabytes(*arguments: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    assert megabytes("float", "1", "0") < 350  # in 64 bits it was 700
    assert megabytes("png", "8", "640") < 200  # kept whole, 8 of them take 600


def test_pipes_and_devices_are_refused_at_once(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", "/dev/zero"):
        with pytest.raises(UserError, match="a pipe or a device, and a picture file was expected"):
            open_picture(path)


def test_heic() -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    picture = open_picture(encoded(scene().resize((160, 96)), "HEIF"))
    assert picture.size == (160, 96) and is_red(picture, 20, 48)
    assert ".heic" in picture_suffixes()


def test_sources(tmp_path) -> None:
    data = encoded(scene(), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    stream = io.BytesIO(data)
    same = [np.asarray(open_picture(each)) for each in (path, str(path), data, stream)]
    assert all(np.array_equal(same[0], each) for each in same)
    assert not stream.closed  # it belongs to the caller


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"not a picture at all", "not a picture in a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not a picture in a known format"),
        (encoded(scene(), "JPEG")[:-200], "is damaged"),
        (encoded(scene(), "PNG")[:60], "is damaged"),
    ],
)
def test_bad_files_give_one_sentence(data: bytes, words: str, tmp_path) -> None:
    path = tmp_path / "bad.jpg"
    path.write_bytes(data)
    with pytest.raises(UserError, match=words) as caught:
        open_picture(path)
    sentence = str(caught.value)
    assert str(path) in sentence and sentence.endswith(".") and "\n" not in sentence


def test_missing_file_and_folder(tmp_path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_picture(tmp_path / "none.jpg")
    with pytest.raises(UserError, match="is a folder"):
        open_picture(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        open_picture("a\0b.jpg")


def test_pixels_are_counted_before_decoding() -> None:
    with pytest.raises(UserError, match="40 x 24 pixels, more than the limit of 900"):
        open_picture(encoded(scene(), "PNG"), pixel_limit=900)
    for side in (20_000, 60_000):  # 50 kB that would fill gigabytes
        bomb = bytearray(encoded(Image.new("1", (8, 8)), "PNG"))
        bomb[16:24] = side.to_bytes(4, "big") * 2
        bomb[29:33] = _crc(bytes(bomb[12:29]))
        before = time.process_time()
        with pytest.raises(UserError, match="pixels"):
            open_picture(bytes(bomb))
        assert time.process_time() - before < 5


def _crc(chunk: bytes) -> bytes:
    import zlib

    return zlib.crc32(chunk).to_bytes(4, "big")


@pytest.mark.filterwarnings("ignore")
def test_a_thousand_damaged_files() -> None:
    """Flip, cut, repeat and insert bytes: each file is a picture or one sentence, soon."""
    dice = random.Random(20)
    exif = Image.Exif()
    exif[0x0112] = 3
    whole = [
        encoded(scene(), "JPEG", exif=exif),
        encoded(scene(), "JPEG", progressive=True),
        encoded(scene(), "PNG"),
        encoded(scene().quantize(8), "PNG"),
        encoded(scene(), "WEBP"),
        encoded(scene(), "GIF", save_all=True, append_images=[scene().rotate(180)]),
        encoded(scene(), "TIFF", compression="tiff_lzw"),
        encoded(scene(), "BMP"),
        encoded(scene(), "PPM"),
        encoded(scene(), "JPEG2000"),
    ]
    refused = 0
    for index in range(1000):
        data = _damage(bytearray(whole[index % len(whole)]), dice)
        before = time.process_time()
        try:
            picture = open_picture(data, pixel_limit=4_000_000)
            assert picture.mode == "RGB" and np.asarray(picture).ndim == 3
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
        assert time.process_time() - before < 5
    assert 200 < refused < 1000  # the damage is neither harmless nor total


def _damage(data: bytearray, dice: random.Random) -> bytes:
    for _ in range(dice.choice([1, 1, 2, 4, 16])):
        place = dice.randrange(len(data)) if dice.random() < 0.5 else dice.randrange(min(64, len(data)))
        match dice.randrange(5):
            case 0:
                data[place] ^= 1 << dice.randrange(8)
            case 1:
                data[place] = dice.choice([0, 0x7F, 0x80, 0xFF])
            case 2 if len(data) > 32:
                del data[max(place, 16) :]
            case 3:
                data[place:place] = dice.randbytes(dice.randrange(1, 9))
            case _:
                end = min(len(data), place + dice.randrange(1, 40))
                data[place:end] = data[place:end][::-1]
    return bytes(data)
