import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageOps
import pytest
from picture_files import (
    assert_same,
    exif_block,
    exif_values,
    icc_profile,
    image,
    pillow_bytes,
    png,
    png_chunk,
    read_bytes,
    samples,
    tiff_bytes,
)

from nlrn import images

# Metadata

WITH_METADATA = [
    (".png", "uint8"),
    (".png", "uint16"),
    (".jpg", "uint8"),
    (".webp", "uint8"),
    (".tif", "uint8"),
    (".tif", "uint16"),
]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("suffix", "dtype"), WITH_METADATA)
def test_exif_and_icc_are_kept(tmp_path: Path, suffix: str, dtype: str, order: str) -> None:
    before = image(dtype, 3, exif=exif_block(order=order), icc=icc_profile())
    images.write(tmp_path / f"a{suffix}", before)
    after = images.read(tmp_path / f"a{suffix}")
    assert after.icc == before.icc
    assert exif_values(after.exif) == exif_values(before.exif)
    if suffix != ".tif":
        assert after.exif == before.exif
    else:
        assert_same(before, after)  # the directories were rewritten: the pixels must not move


@pytest.mark.parametrize(("suffix", "dtype"), WITH_METADATA)
def test_pillow_finds_the_exif_and_icc(tmp_path: Path, suffix: str, dtype: str) -> None:
    images.write(tmp_path / f"a{suffix}", image(dtype, 3, exif=exif_block(), icc=icc_profile()))
    with PIL.Image.open(tmp_path / f"a{suffix}") as picture:
        assert picture.info["icc_profile"] == icc_profile()
        exif = picture.getexif()
        assert exif[271] == "Camera"
        assert exif.get_ifd(0x8769)[36867] == "2018:12:03 10:20:30"
        assert exif.get_ifd(0x8825)[1] == "N"
        picture.load()


def test_metadata_moves_between_formats(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    images.write(path, image(exif=exif_block(), icc=icc_profile()))
    for suffix in (".tif", ".webp", ".png", ".jpeg"):
        current = images.read(path)
        path = tmp_path / f"b{suffix}"
        images.write(path, current)
    assert exif_values(images.read(path).exif) == exif_values(exif_block())
    assert images.read(path).icc == icc_profile()


def test_bmp_and_npy_leave_metadata_out(tmp_path: Path) -> None:
    before = image(exif=exif_block(), icc=icc_profile())
    for suffix in (".bmp", ".npy"):
        images.write(tmp_path / f"a{suffix}", before)
        after = images.read(tmp_path / f"a{suffix}")
        assert after.exif is None
        assert after.icc is None


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".bmp"])
@pytest.mark.parametrize("source", [".png", ".jpg", ".tif", ".bmp"])
def test_pixels_per_inch_move_between_formats(tmp_path: Path, source: str, suffix: str) -> None:
    """As written by Pillow, kept here, and read by Pillow again."""
    first, second = tmp_path / f"a{source}", tmp_path / f"b{suffix}"
    PIL.Image.fromarray(samples("uint8", 3)).save(first, dpi=(300, 150))
    image = images.read(first)
    assert image.dpi == pytest.approx((300, 150), abs=0.02)
    images.write(second, image)
    with PIL.Image.open(second) as picture:
        assert tuple(map(float, picture.info["dpi"])) == pytest.approx((300, 150), abs=0.02)
    assert image.with_pixels(image.pixels[:1]).dpi == image.dpi


def test_pixels_per_inch_turn_with_the_picture_and_must_make_sense(tmp_path: Path) -> None:
    def stored(orientation: int, **options: Any) -> images.Image:
        exif = b"Exif\0\0" + exif_block(orientation)
        return read_bytes(
            tmp_path, ".jpg", pillow_bytes(samples("uint8", 3), "JPEG", exif=exif, **options)
        )

    assert stored(6, dpi=(300, 150)).dpi == (150, 300)
    assert stored(3, dpi=(300, 150)).dpi == (300, 150)
    assert stored(1).dpi is None
    row = b"\0\x05\x06"
    for size in ((0, 0, 1), (2**31, 2**31, 1), (7, 7, 0)):
        chunk = png_chunk(b"pHYs", struct.pack(">IIB", *size))
        assert read_bytes(tmp_path, ".png", png(2, 1, 8, 0, row, chunk)).dpi is None
    inches = {"resolution": (300, 150), "resolutionunit": "inch"}
    for count, value in ((2, (6, 6)), (1, 9)):  # orientations that TIFF does not know
        tags = [(274, 3, count, value, True)]
        odd = tiff_bytes(samples("uint8", 3), extratags=tags, **inches)
        assert read_bytes(tmp_path, ".tif", odd).dpi == (300, 150)
    both = [(274, 3, 1, 6, True), (271, 2, 0, "Camera", True)]
    turned = tiff_bytes(samples("uint8", 3), extratags=both, **inches)
    images.write(tmp_path / "turned.tif", read_bytes(tmp_path, ".tif", turned))
    assert images.read(tmp_path / "turned.tif").dpi == (150, 300)
    images.write(tmp_path / "none.bmp", images.Image(samples("uint8", 3)))
    assert images.read(tmp_path / "none.bmp").dpi is None
    broken = png_chunk(b"pHYs", b"\0\0")
    assert read_bytes(tmp_path, ".png", png(2, 1, 8, 0, row, broken)).dpi is None


def test_png_exif_behind_the_pixels_is_found(tmp_path: Path) -> None:
    data = png(2, 1, 8, 0, b"\0\x05\x06")
    late = data[:-12] + png_chunk(b"eXIf", exif_block(2)) + data[-12:]
    after = read_bytes(tmp_path, ".png", late)
    assert after.pixels.tolist() == [[6, 5]]
    assert exif_values(after.exif)["first"][271] == "Camera"


def test_broken_metadata_does_not_stop_the_pixels(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad_icc, bad_exif = png_chunk(b"iCCP", b"x\0\0junk"), png_chunk(b"eXIf", b"II*\0junk")
    after = read_bytes(tmp_path, ".png", png(2, 1, 8, 0, b"\0\x05\x06", bad_icc, bad_exif))
    assert (after.exif, after.icc) == (None, None)
    jpeg = pillow_bytes(samples("uint8", 3), "JPEG", exif=b"Exif\0\0" + exif_block()[:60])
    jfif = jpeg.index(b"\xff\xe0")  # without it Pillow looks for the resolution in the EXIF
    jpeg = jpeg[:jfif] + jpeg[jfif + 18 :]
    assert read_bytes(tmp_path, ".jpg", jpeg).exif is None
    assert capfd.readouterr() == ("", "")


def test_thumbnail_is_unlinked(tmp_path: Path) -> None:
    block = exif_block(6)
    entries = struct.unpack_from("<H", block, 8)[0]
    next_directory = 10 + 12 * entries
    thumbnail = block + struct.pack("<HHHII", 1, 256, 4, 1, 160) + bytes(4)
    linked = bytearray(thumbnail)
    struct.pack_into("<I", linked, next_directory, len(block))
    exif = PIL.Image.Exif()
    exif.load(bytes(linked))
    assert exif.get_ifd(PIL.ExifTags.IFD.IFD1) == {256: 160}  # the test's own block is sound
    data = pillow_bytes(samples("uint8", 3), "JPEG", exif=b"Exif\0\0" + bytes(linked))
    exif.load(read_bytes(tmp_path, ".jpg", data).exif or b"")
    assert exif.get_ifd(PIL.ExifTags.IFD.IFD1) == {}


# Orientation


def oriented(suffix: str, dtype: str, orientation: int, array: Any) -> bytes:
    """The array [H, W, C] stored as it is, with the orientation beside it."""
    exif = exif_block(orientation)
    if suffix == ".tif":
        return tiff_bytes(
            array,
            photometric="rgb",
            extrasamples=["unassalpha"] if array.shape[2] == 4 else None,
            extratags=[(274, 3, 1, orientation, True)],
        )
    if dtype == "uint16":
        rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
        color = 6 if array.shape[2] == 4 else 2
        size = array.shape[1], array.shape[0]
        return png(*size, 16, color, rows, png_chunk(b"eXIf", exif))
    options: dict[str, Any] = {"lossless": True, "exact": True} if suffix == ".webp" else {}
    name = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG"}[suffix]
    return pillow_bytes(array, name, exif=b"Exif\0\0" + exif, **options)


UPRIGHT: dict[int, Callable[[Any], Any]] = {  # independent of the code: NumPy's rotations
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.rot90(np.fliplr(a), 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(np.fliplr(a), -1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("suffix", "dtype", "channels"),
    [
        (".jpg", "uint8", 3),
        (".png", "uint8", 4),
        (".png", "uint16", 3),
        (".png", "uint16", 4),
        (".webp", "uint8", 4),
        (".tif", "uint8", 3),
        (".tif", "uint16", 4),
    ],
)
def test_orientation_is_applied_once(
    tmp_path: Path, suffix: str, dtype: str, channels: int, orientation: int
) -> None:
    stored = samples(dtype, channels)
    data = oriented(suffix, dtype, orientation, stored)
    if suffix == ".jpg":
        stored = np.array(PIL.Image.open(io.BytesIO(data)))
    first = read_bytes(tmp_path, suffix, data)
    expected = UPRIGHT[orientation](stored)
    np.testing.assert_array_equal(first.pixels, expected[..., :3])
    if channels == 4:
        np.testing.assert_array_equal(first.alpha, expected[..., 3])
    if suffix != ".tif":
        assert exif_values(first.exif)["first"][274] == 1
    images.write(tmp_path / f"again{suffix}", first)
    again = images.read(tmp_path / f"again{suffix}")
    assert again.pixels.shape == first.pixels.shape
    if suffix != ".jpg":
        assert_same(first, again)


def test_orientation_agrees_with_pillow(tmp_path: Path) -> None:
    for orientation in range(1, 9):
        data = oriented(".png", "uint8", orientation, samples("uint8", 3))
        with PIL.Image.open(io.BytesIO(data)) as picture:
            expected = np.array(PIL.ImageOps.exif_transpose(picture))
        np.testing.assert_array_equal(read_bytes(tmp_path, ".png", data).pixels, expected)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientation_without_meaning_is_ignored(tmp_path: Path, orientation: int) -> None:
    after = read_bytes(
        tmp_path, ".png", oriented(".png", "uint8", orientation, samples("uint8", 3))
    )
    np.testing.assert_array_equal(after.pixels, samples("uint8", 3))
