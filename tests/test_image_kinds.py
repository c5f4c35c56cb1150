"""Kinds of files that people have: PGM, JPEG 2000, AVIF, TGA, CMYK, Lab, odd types of samples."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile
from picture_files import (
    HEIGHT,
    WIDTH,
    exif_block,
    exif_values,
    fitting,
    icc_profile,
    image,
    npy_bytes,
    pillow_bytes,
    read_bytes,
    refused_bytes,
    samples,
    tiff_bytes,
)

from nlrn import images
from nlrn.images import Image

imagecodecs = pytest.importorskip("imagecodecs")  # GPU machines may lack it

# PGM and PPM


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"P2\n# a comment\n3 1\n255\n0 7\n255", [[0, 7, 255]]),
        (b"P5 3 1 255\n\x00\x07\xff", [[0, 7, 255]]),
        (b"P5 2 1 15\n\x00\x0f", [[0, 255]]),
        (b"P1 3 2\n010\n1 1 0", [[255, 0, 255], [0, 0, 255]]),
        (b"P4 3 1\n\x40", [[255, 0, 255]]),
        (b"P3 1 1 255 1 2 3", [[[1, 2, 3]]]),
        (b"P6 1 1 #x\n 255\n\x01\x02\x03", [[[1, 2, 3]]]),
    ],
    ids=lambda value: str(value[:2]) if isinstance(value, bytes) else "",
)
def test_pnm_of_all_kinds(tmp_path: Path, content: bytes, expected: list) -> None:
    after = read_bytes(tmp_path, ".pgm", content)
    assert after.pixels.dtype == np.uint8 and after.pixels.tolist() == expected


def test_twelve_bits_of_a_pgm_become_sixteen(tmp_path: Path) -> None:
    values = np.array([[0, 1, 2000, 4095]], ">u2")
    after = read_bytes(tmp_path, ".pgm", b"P5 4 1 4095\n" + values.tobytes())
    assert after.pixels.dtype == np.uint16
    np.testing.assert_allclose(after.pixels, values / 4095 * 65535, atol=0.5)


def test_sixteen_bits_of_a_ppm_are_seen_by_other_readers(tmp_path: Path) -> None:
    before = image("uint16", 3)
    images.write(tmp_path / "a.ppm", before)
    with PIL.Image.open(tmp_path / "a.ppm") as picture:  # Pillow cuts them to 8
        np.testing.assert_allclose(np.array(picture), before.pixels / 257, atol=0.51)


@pytest.mark.parametrize("content", [b"P5 3 1 255\n\0", b"P2 3 1 255 1", b"P5 3 1 0\n\0", b"P5 x"])
def test_broken_pgm(tmp_path: Path, content: bytes) -> None:
    assert "broken or truncated PGM" in refused_bytes(tmp_path, ".pgm", content)


def test_gray_as_ppm_is_color(tmp_path: Path) -> None:
    before = image("uint8", 1)
    images.write(tmp_path / "a.ppm", before)
    after = images.read(tmp_path / "a.ppm").pixels
    np.testing.assert_array_equal(after, np.dstack([before.pixels] * 3))


# JPEG 2000 and AVIF


@pytest.mark.parametrize("suffix", [".jp2", ".avif"])
def test_new_formats_keep_their_metadata(tmp_path: Path, suffix: str) -> None:
    before = image("uint8", 4, exif_block(), icc_profile())
    images.write(tmp_path / f"a{suffix}", before)
    after = images.read(tmp_path / f"a{suffix}")
    assert after.icc == icc_profile()
    kept, given = exif_values(after.exif), exif_values(exif_block())
    kept["first"].pop(274, None)  # Pillow adds an orientation of 1
    assert kept == given
    assert after.notes == ()
    assert after.alpha is not None and before.alpha is not None
    np.testing.assert_array_equal(after.alpha, before.alpha)


@pytest.mark.parametrize("suffix", [".jp2", ".avif"])
def test_orientation_of_new_formats(tmp_path: Path, suffix: str) -> None:
    flat = np.zeros((20, 30, 3), np.uint8)
    flat[:, 15:] = 255
    images.write(tmp_path / f"a{suffix}", Image(flat, exif=exif_block(6)))
    after = images.read(tmp_path / f"a{suffix}").pixels  # turned by a quarter
    assert after.shape == (30, 20, 3)
    assert after[:10].max() < 5 and after[20:].min() > 250


@pytest.mark.parametrize("dpi", [(300.0, 150.0), (2400.0, 4800.0)])
def test_pixels_per_inch_of_jpeg_2000(tmp_path: Path, dpi: tuple[float, float]) -> None:
    images.write(tmp_path / "a.jp2", Image(samples("uint8", 3), dpi=dpi))
    after = images.read(tmp_path / "a.jp2").dpi
    assert after is not None and np.allclose(after, dpi, rtol=1e-4)
    with PIL.Image.open(tmp_path / "a.jp2") as picture:
        assert np.allclose(picture.info["dpi"], dpi, rtol=1e-4)


def test_twelve_bits_of_jpeg_2000_become_sixteen(tmp_path: Path) -> None:
    values = samples("uint16", 1) >> 4
    data = imagecodecs.jpeg2k_encode(values, level=0, bitspersample=12, reversible=True)
    after = read_bytes(tmp_path, ".jp2", bytes(data))
    np.testing.assert_allclose(after.pixels, values / 4095 * 65535, atol=0.5)


def test_alpha_of_jpeg_2000_is_seen_by_other_readers(tmp_path: Path) -> None:
    before = image("uint8", 4)
    images.write(tmp_path / "a.jp2", before)
    with PIL.Image.open(tmp_path / "a.jp2") as picture:
        assert picture.mode == "RGBA"
        np.testing.assert_array_equal(np.array(picture), before.samples)


def huge_jpeg_2000() -> bytes:
    data = bytearray(imagecodecs.jpeg2k_encode(samples("uint8", 1), codecformat="j2k"))
    struct.pack_into(">II", data, 8, 60000, 60000)
    return bytes(data)


def test_jpeg_2000_that_cannot_be_an_image(tmp_path: Path) -> None:
    assert "60000x60000" in refused_bytes(tmp_path, ".j2k", huge_jpeg_2000())
    five = imagecodecs.jpeg2k_encode(samples("uint8", 5), codecformat="j2k", mct=False)
    assert "5 components" in refused_bytes(tmp_path, ".j2k", bytes(five))
    signed = imagecodecs.jpeg2k_encode(samples("uint8", 1).astype(np.int16), codecformat="j2k")
    assert "signed" in refused_bytes(tmp_path, ".j2k", bytes(signed))


@pytest.mark.parametrize("bits", [10, 12])
def test_deep_avif_keeps_its_depth(tmp_path: Path, bits: int) -> None:
    values = samples("uint16", 3) >> (16 - bits)
    data = bytes(imagecodecs.avif_encode(values, bitspersample=bits))
    after = read_bytes(tmp_path, ".avif", data)
    np.testing.assert_allclose(after.pixels, values / (2**bits - 1) * 65535, atol=0.5)


def test_avif_is_written_nearly_without_loss(tmp_path: Path) -> None:
    before = image("uint8", 3)
    images.write(tmp_path / "a.avif", before)
    after = images.read(tmp_path / "a.avif").pixels
    assert np.abs(after.astype(int) - before.pixels).max() <= 3


# Colors of printing and of measuring


def ink_profile(light: Any) -> bytes:
    """A profile of inks; `light(c, m, y, k)` is Lab where each ink is 0 or 1."""
    corners = [light(c, m, y, k) for c in (0, 1) for m in (0, 1) for y in (0, 1) for k in (0, 1)]
    table = b"".join(bytes([round(x * 2.55), a + 128, b + 128]) for x, a, b in corners)
    unit = struct.pack(">9i", *(65536 * (i % 4 == 0) for i in range(9)))
    ramp = bytes(range(256))
    look_up = b"mft1" + bytes([0, 0, 0, 0, 4, 3, 2, 0]) + unit + ramp * 4 + table + ramp * 3
    day = struct.pack(">3i", 63190, 65536, 54061)
    tags = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", 5) + b"inks\0" + bytes(78),
        b"cprt": b"text" + bytes(4) + b"none\0",
        b"wtpt": b"XYZ " + bytes(4) + day,
        b"A2B0": look_up,
    }
    directory, body = struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        directory += name + struct.pack(">II", 180 + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    head = struct.pack(
        ">I4sI4s4s4s", 180 + len(body), b"lcms", 0x02400000, b"prtr", b"CMYK", b"Lab "
    )
    head = (head + bytes(12) + b"acsp" + bytes(28) + day).ljust(128, b"\0")
    return head + directory + body


PURPLE = ink_profile(lambda c, m, y, k: (100 - 25 * (c + m + y + k), 60 * m, -60 * c))


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_cmyk_tiff_becomes_rgb(tmp_path: Path, dtype: str) -> None:
    white = np.iinfo(dtype).max
    ink = np.zeros((HEIGHT, WIDTH, 4), dtype)
    ink[:, 5:, 0] = ink[:, 10:, 3] = white
    plain = read_bytes(tmp_path, ".tif", tiff_bytes(ink, photometric="separated"))
    assert plain.pixels[0, [0, 7, 12]].tolist() == [[white] * 3, [0, white, white], [0, 0, 0]]
    assert plain.icc is None and "without a color profile" in plain.notes[0]
    data = tiff_bytes(ink, photometric="separated", iccprofile=PURPLE)
    exact = read_bytes(tmp_path, ".tif", data)
    assert exact.pixels.dtype == dtype and exact.notes == ("CMYK becomes RGB",)
    assert exact.icc is not None and exact.icc[16:20] == b"RGB "
    np.testing.assert_allclose(exact.pixels[0, 0] / white, 1, atol=0.01)
    red, green, blue = exact.pixels[0, 7] / white  # the first ink is blue here, not cyan
    assert blue > green > red


def test_cmyk_jpeg_becomes_rgb_by_its_profile(tmp_path: Path) -> None:
    picture = PIL.Image.new("CMYK", (WIDTH, HEIGHT), (255, 0, 0, 0))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=100, icc_profile=PURPLE)
    after = read_bytes(tmp_path, ".jpg", out.getvalue())
    red, green, blue = after.pixels[3, 4].astype(int)
    assert blue > green > red
    assert after.icc is not None and after.icc[16:20] == b"RGB "
    assert after.notes == ("CMYK becomes RGB",)


@pytest.mark.parametrize("photometric", ["cielab", "icclab"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_lab_tiff_becomes_srgb(tmp_path: Path, photometric: str, dtype: str) -> None:
    white = np.iinfo(dtype).max
    measured = [(100, 0, 0), (54.29, 80.81, 69.89), (29.57, 68.3, -112.03), (0, 0, 0)]  # by D50
    stored = np.zeros((1, 4, 3), dtype)
    for place, (light, a, b) in enumerate(measured):
        top = white if photometric == "cielab" or dtype == "uint8" else 65280
        step = 256 if dtype == "uint16" else 1
        shift = 0 if photometric == "cielab" else 128
        axes = [round((x + shift) * step) % (white + 1) for x in (a, b)]
        stored[0, place] = [round(light / 100 * top), *axes]
    after = read_bytes(tmp_path, ".tif", tiff_bytes(stored, photometric=photometric))
    assert after.pixels.dtype == dtype and after.notes == ("Lab becomes sRGB",)
    expected = [[1, 1, 1], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(after.pixels[0] / white, expected, atol=0.05)


# Types of samples whose white nobody knows


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint32"])
@pytest.mark.parametrize("suffix", [".tif", ".npy"])
def test_white_is_given_for_open_types(tmp_path: Path, dtype: str, suffix: str) -> None:
    values = np.arange(35).reshape(5, 7).astype(dtype) * 100
    values[0, 0] = 5000  # brighter than white
    if dtype != "uint32":
        values[0, 1] = -3
    data = npy_bytes(values) if suffix == ".npy" else tiff_bytes(values)
    assert "say which value is white (white=16383)" in refused_bytes(tmp_path, suffix, data)
    path = tmp_path / f"in{suffix}"
    found = images.read(path, white=4095)
    np.testing.assert_allclose(found.pixels, values / 4095, rtol=1e-6)
    images.write(tmp_path / f"out{suffix}", found)
    back = np.load(tmp_path / "out.npy") if suffix == ".npy" else tifffile.imread(
        tmp_path / "out.tif"
    )  # fmt: skip
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, values)


def test_white_of_twelve_bits_in_sixteen_and_of_floats(tmp_path: Path) -> None:
    deep = Image(samples("uint16", 3) >> 4, samples("uint16", 1) >> 4)
    images.write(tmp_path / "a.png", deep)
    found = images.read(tmp_path / "a.png", white=4095)
    assert found.pixels.dtype == np.float32 and found.pixels.max() <= 1
    images.write(tmp_path / "b.png", found.with_pixels(found.pixels))
    again = images.read(tmp_path / "b.png")
    np.testing.assert_array_equal(again.samples, deep.samples)
    values = samples("float32", 1) * 1000
    np.save(tmp_path / "a.npy", values)
    found = images.read(tmp_path / "a.npy", white=1000)
    images.write(tmp_path / "b.npy", found)
    np.testing.assert_allclose(np.load(tmp_path / "b.npy"), values, rtol=1e-5)


@pytest.mark.parametrize("white", [0, -1, np.nan, np.inf])
def test_white_that_makes_no_sense(tmp_path: Path, white: float) -> None:
    images.write(tmp_path / "a.png", image())
    with pytest.raises(ValueError, match="white must be a number above 0"):
        images.read(tmp_path / "a.png", white=white)


def test_a_format_has_to_hold_the_type_of_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(35, dtype=np.int16).reshape(5, 7))
    found = images.read(tmp_path / "a.npy", white=100)
    with pytest.raises(images.ImageError, match="PNG cannot hold int16 samples; TIFF or NPY can"):
        images.check_holds(tmp_path / "a.png", found)


# What has to be converted by other programs


@pytest.mark.parametrize("name", ["a.heic", "a.HEIF", "b.jpg"])
def test_heic_gets_a_line_on_how_to_convert_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(60))
    with pytest.raises(images.ImageError, match=r"HEIC: convert it first \(heif-convert"):
        images.read(path)


@pytest.mark.parametrize("suffix", [".dng", ".nef", ".CR2", ".arw"])
def test_camera_raw_gets_a_line_on_how_to_convert_it(tmp_path: Path, suffix: str) -> None:
    content = tiff_bytes(samples("uint16", 1))
    assert "camera raw: develop it first" in refused_bytes(tmp_path, suffix, content)


# Files that take more memory than they should


def tiff_of_parts(compression: int, content: bytes, tile: int = 0) -> bytes:
    """A gray TIFF of 16 x 16 pixels whose only strip or tile is this."""
    place = ((322, tile), (323, tile), (324, 8), (325, len(content))) if tile else (
        (273, 8), (278, 16), (279, len(content)))  # fmt: skip
    tags = sorted([(256, 16), (257, 16), (258, 8), (259, compression), (262, 1), (277, 1), *place])
    directory = 8 + len(content) + len(content) % 2
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<I", directory) + content + bytes(len(content) % 2)
    return head + struct.pack("<H", len(tags)) + entries + bytes(4)


LARGE = np.zeros((600, 500), np.uint8)
TIFFS = {
    "tile": lambda: tiff_of_parts(8, zlib.compress(bytes(512 * 512)), tile=512),
    "JPEG": lambda: tiff_of_parts(7, bytes(imagecodecs.jpeg8_encode(LARGE))),
    "JPEG 2000": lambda: tiff_of_parts(34712, bytes(imagecodecs.jpeg2k_encode(LARGE))),
    "PNG": lambda: tiff_of_parts(34933, bytes(imagecodecs.png_encode(LARGE))),
}


@pytest.mark.parametrize("name", TIFFS)
def test_a_small_tiff_with_large_parts_is_refused(tmp_path: Path, name: str) -> None:
    reason = refused_bytes(tmp_path, ".tif", TIFFS[name](), max_pixels=100_000)
    assert reason.endswith("pixels, the limit is 100000")


def test_pictures_inside_a_tiff_are_read(tmp_path: Path) -> None:
    small = np.full((16, 16), 77, np.uint8)
    for compression, encode in (
        (7, imagecodecs.jpeg8_encode),
        (34712, imagecodecs.jpeg2k_encode),
        (34933, imagecodecs.png_encode),
    ):
        data = tiff_of_parts(compression, bytes(encode(small)))
        np.testing.assert_array_equal(read_bytes(tmp_path, ".tif", data).pixels, small)


def test_files_in_memory_are_read_like_files(tmp_path: Path) -> None:
    for suffix in (".png", ".tif", ".npy", ".jp2", ".avif", ".jpg"):
        before = fitting(suffix)
        images.write(tmp_path / f"a{suffix}", before)
        data = (tmp_path / f"a{suffix}").read_bytes()
        found, name = images.read_file(io.BytesIO(data))
        np.testing.assert_array_equal(found.pixels, images.read(tmp_path / f"a{suffix}").pixels)
        assert images.encode(name, found)
    assert pillow_bytes(found.pixels, "PNG")
