import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from picture_files import (
    HEIGHT,
    WIDTH,
    exif_block,
    fitting,
    icc_profile,
    image,
    npy_bytes,
    pillow_bytes,
    png,
    png_chunk,
    read_bytes,
    refused,
    refused_bytes,
    samples,
    tiff_bytes,
)

from nlrn import images
from nlrn.images import ImageError

# What else files hold


def test_palette_png_becomes_rgb(tmp_path: Path) -> None:
    palette = png_chunk(b"PLTE", bytes([1, 2, 3, 40, 50, 60, 7, 7, 7]))
    rows = b"\0\0\1\2"
    after = read_bytes(tmp_path, ".png", png(3, 1, 8, 3, rows, palette))
    assert after.pixels.tolist() == [[[1, 2, 3], [40, 50, 60], [7, 7, 7]]]
    assert after.alpha is None
    transparency = png_chunk(b"tRNS", bytes([9, 128]))
    after = read_bytes(tmp_path, ".png", png(3, 1, 8, 3, rows, palette, transparency))
    assert after.pixels.tolist() == [[[1, 2, 3], [40, 50, 60], [7, 7, 7]]]
    assert after.alpha is not None
    assert after.alpha.tolist() == [[9, 128, 255]]


@pytest.mark.parametrize(
    ("depth", "row", "expected"),
    [(1, 0b01100000, [0, 255, 255, 0]), (2, 0b00011011, [0, 85, 170, 255])],
)
def test_png_of_few_bits_becomes_8_bit_gray(
    tmp_path: Path, depth: int, row: int, expected: list[int]
) -> None:
    after = read_bytes(tmp_path, ".png", png(4, 1, depth, 0, bytes([0, row])))
    assert after.pixels.dtype == np.uint8
    assert after.pixels.tolist() == [expected]


def test_16_bit_transparent_color_becomes_alpha(tmp_path: Path) -> None:
    rows = b"\0" + struct.pack(">3H", 1, 300, 65535)
    key = png_chunk(b"tRNS", struct.pack(">H", 300))
    after = read_bytes(tmp_path, ".png", png(3, 1, 16, 0, rows, key))
    assert after.pixels.tolist() == [[1, 300, 65535]]
    assert after.alpha is not None
    assert after.alpha.tolist() == [[65535, 0, 65535]]


@pytest.mark.parametrize("name", ["BMP", "TIFF", "PNG"])
def test_bilevel_becomes_8_bit_gray(tmp_path: Path, name: str) -> None:
    bits = samples("uint8", 1) > 127
    suffix = {"BMP": ".bmp", "TIFF": ".tif", "PNG": ".png"}[name]
    after = read_bytes(tmp_path, suffix, pillow_bytes(bits, name))
    assert after.pixels.dtype == np.uint8
    np.testing.assert_array_equal(after.pixels, np.where(bits, 255, 0))


def test_palette_bmp_becomes_rgb(tmp_path: Path) -> None:
    picture = PIL.Image.new("P", (3, 1))
    picture.putpalette([1, 2, 3, 40, 50, 60])
    picture.putpixel((1, 0), 1)
    out = io.BytesIO()
    picture.save(out, "BMP")
    after = read_bytes(tmp_path, ".bmp", out.getvalue())
    assert after.pixels.tolist() == [[[1, 2, 3], [40, 50, 60], [1, 2, 3]]]


def test_cmyk_jpeg_becomes_rgb_without_its_profile(tmp_path: Path) -> None:
    picture = PIL.Image.new("CMYK", (WIDTH, HEIGHT), (0, 255, 255, 0))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=100, icc_profile=icc_profile())
    after = read_bytes(tmp_path, ".jpg", out.getvalue())
    assert np.abs(after.pixels.astype(int) - [255, 0, 0]).max() <= 2
    assert after.icc is None


def test_jpeg_with_a_second_picture_inside_is_read(tmp_path: Path) -> None:
    first, second = (PIL.Image.new("RGB", (WIDTH, HEIGHT), c) for c in ("red", "blue"))
    out = io.BytesIO()
    first.save(out, "MPO", save_all=True, append_images=[second])
    pixels = read_bytes(tmp_path, ".jpg", out.getvalue()).pixels
    assert pixels[0, 0, 0] > 200 > 50 > pixels[0, 0, 2]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_tiff_planes_and_white_is_zero(tmp_path: Path, dtype: str) -> None:
    rgb = samples(dtype, 3)
    planes = np.ascontiguousarray(np.moveaxis(rgb, -1, 0))
    data = tiff_bytes(planes, photometric="rgb", planarconfig="separate")
    np.testing.assert_array_equal(read_bytes(tmp_path, ".tif", data).pixels, rgb)
    gray = samples(dtype, 1)
    inverted = read_bytes(tmp_path, ".tif", tiff_bytes(gray, photometric="miniswhite"))
    white = 1 if dtype == "float32" else np.iinfo(dtype).max
    assert inverted.pixels.dtype == dtype
    np.testing.assert_array_equal(inverted.pixels, white - gray)


@pytest.mark.parametrize(
    "options",
    [
        {"tile": (16, 16), "compression": "lzw", "predictor": True},
        {"rowsperstrip": 3, "compression": "zstd"},
        {"byteorder": ">"},
        {"bigtiff": True},
    ],
    ids=str,
)
def test_tiff_layouts(tmp_path: Path, options: dict[str, Any]) -> None:
    rgb = samples("uint16", 3)
    data = tiff_bytes(rgb, photometric="rgb", **options)
    np.testing.assert_array_equal(read_bytes(tmp_path, ".tiff", data).pixels, rgb)


def test_tiff_with_jpeg_inside_and_with_palette(tmp_path: Path) -> None:
    flat = np.full((HEIGHT, WIDTH, 3), (200, 100, 50), np.uint8)
    jpeg = read_bytes(tmp_path, ".tif", pillow_bytes(flat, "TIFF", compression="jpeg"))
    assert np.abs(jpeg.pixels.astype(int) - flat).max() <= 4
    colors = samples("uint16", 3, 1, 256)[0].T & 0xFF00  # [3, 256]
    data = tiff_bytes(samples("uint8", 1), photometric="palette", colormap=colors)
    after = read_bytes(tmp_path, ".tif", data)
    np.testing.assert_array_equal(after.pixels, (colors.T >> 8)[samples("uint8", 1)])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_premultiplied_tiff_is_divided_by_its_alpha(tmp_path: Path, dtype: str) -> None:
    white = 1 if dtype == "float32" else np.iinfo(dtype).max
    stored = np.zeros((1, 2, 4), dtype)
    stored[0, 0] = [white * 0.2, white * 0.4, 0, white * 0.4]
    data = tiff_bytes(stored, photometric="rgb", extrasamples=["assocalpha"])
    after = read_bytes(tmp_path, ".tif", data)
    np.testing.assert_allclose(after.pixels[0, 0], [white * 0.5, white, 0], atol=white / 250)
    assert after.pixels[0, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((5, 7), (5, 7)),
        ((5, 7, 1), (5, 7)),
        ((5, 7, 2), (5, 7)),
        ((5, 7, 3), (5, 7, 3)),
        ((5, 7, 4), (5, 7, 3)),
    ],
)
def test_npy_shapes(tmp_path: Path, shape: tuple[int, ...], kept: tuple[int, ...]) -> None:
    after = read_bytes(tmp_path, ".npy", npy_bytes(np.ones(shape, np.float32)))
    assert after.pixels.shape == kept
    assert (after.alpha is not None) == (shape[2:] in ((2,), (4,)))


@pytest.mark.parametrize(
    ("stored", "kept"),
    [("uint8", "uint8"), (">u2", "uint16"), ("float16", "float32"), ("float64", "float64")],
)
def test_npy_types(tmp_path: Path, stored: str, kept: str) -> None:
    array = np.arange(35).reshape(5, 7)
    after = read_bytes(tmp_path, ".npy", npy_bytes(np.asfortranarray(array.astype(stored))))
    assert after.pixels.dtype == np.dtype(kept)
    np.testing.assert_array_equal(after.pixels, array)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy", ".webp"])
def test_content_decides_the_format(tmp_path: Path, suffix: str) -> None:
    data = pillow_bytes(samples("uint8", 3), "JPEG")
    assert read_bytes(tmp_path, suffix, data).pixels.shape == (HEIGHT, WIDTH, 3)


# Refusals


TGA_FOOTER = bytes(8) + b"TRUEVISION-XFILE.\0"


@pytest.mark.parametrize("suffix", images.SUFFIXES)
@pytest.mark.parametrize("part", [0.04, 0.5, 0.97])
def test_truncated_files(
    tmp_path: Path, suffix: str, part: float, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / f"whole{suffix}"
    images.write(whole, fitting(suffix))
    data = whole.read_bytes().removesuffix(TGA_FOOTER)
    reason = refused_bytes(tmp_path, suffix, data[: int(part * len(data))])
    assert reason.startswith("not an image nlrn can read (broken or truncated ")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", images.SUFFIXES)
def test_damaged_files_give_an_image_or_one_line(
    tmp_path: Path,
    suffix: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / f"a{suffix}"
    images.write(path, fitting(suffix, exif=exif_block(3), icc=icc_profile()[:50]))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(30):
        data = bytearray(whole)
        for position in rng.integers(0, min(len(data), 400), 3):
            data[position] = rng.integers(256)
        path.write_bytes(data)
        try:
            images.read(path, max_pixels=2**20)
        except ImageError as error:
            assert "\n" not in str(error)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.parametrize("suffix", images.SUFFIXES)
def test_empty_and_text_files(tmp_path: Path, suffix: str) -> None:
    assert refused_bytes(tmp_path, suffix, b"") == "empty file"
    assert "content is not PNG, JPEG" in refused_bytes(tmp_path, suffix, b"Dear diary,\n" * 9)


def test_missing_file_directory_and_unknown_suffix(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.png") == "No such file or directory"
    (tmp_path / "folder.png").mkdir()
    assert refused(tmp_path / "folder.png") == "Is a directory"
    assert refused(tmp_path) == "Is a directory"
    png_file = pillow_bytes(samples("uint8", 3), "PNG")
    assert "unknown suffix '.dat'; known are .png" in refused_bytes(tmp_path, ".dat", png_file)
    assert "unknown suffix ''" in refused_bytes(tmp_path, "", png_file)


def huge_tiff() -> bytes:
    data = bytearray(tiff_bytes(samples("uint8", 1), metadata=None, software=False))
    entries = struct.unpack_from("<H", data, 8)[0]
    for entry in range(10, 10 + 12 * entries, 12):
        tag = struct.unpack_from("<H", data, entry)[0]
        if tag in (256, 257):
            struct.pack_into("<HI I", data, entry + 2, 4, 1, 60000)
    return bytes(data)


def huge_webp() -> bytes:
    data = bytearray(pillow_bytes(samples("uint8", 3), "WEBP", lossless=True))
    struct.pack_into("<I", data, 21, 16382 | 16382 << 14)
    return bytes(data)


def huge_bmp() -> bytes:
    data = bytearray(pillow_bytes(samples("uint8", 3), "BMP"))
    struct.pack_into("<ii", data, 18, 60000, 60000)
    return bytes(data)


def huge_jpeg() -> bytes:
    data = bytearray(pillow_bytes(samples("uint8", 3), "JPEG"))
    struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, 60000, 60000)
    return bytes(data)


@pytest.mark.parametrize(
    ("suffix", "make"),
    [
        (".png", lambda: png(60000, 60000, 16, 6, b"")),
        (".tif", huge_tiff),
        (".bmp", huge_bmp),
        (".jpg", huge_jpeg),
    ],
)
def test_too_many_pixels_by_the_header(
    tmp_path: Path, suffix: str, make: Callable[[], bytes]
) -> None:
    reason = refused_bytes(tmp_path, suffix, make())
    assert reason == f"60000x60000 is 3600000000 pixels, the limit is {2**28}"


def test_too_many_pixels_in_webp_and_npy(tmp_path: Path) -> None:
    assert refused_bytes(tmp_path, ".webp", huge_webp()).startswith("too large (")
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (60000, 60000)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 60000 * 60000)  # sparse: takes no room on the disk
    assert refused(path).startswith("60000x60000 is 3600000000 pixels")


@pytest.mark.parametrize("suffix", images.SUFFIXES)
def test_limit_is_an_argument(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    images.write(path, fitting(suffix))
    pixels = HEIGHT * WIDTH
    assert refused(path, max_pixels=pixels - 1).endswith(f"the limit is {pixels - 1}")
    assert images.read(path, max_pixels=pixels).width == WIDTH


def test_large_images_do_not_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 100)  # Pillow warns above it
    for suffix in (".png", ".jpg", ".bmp", ".tif", ".webp"):
        images.write(tmp_path / f"a{suffix}", image())
        assert images.read(tmp_path / f"a{suffix}").width == WIDTH


def test_no_pixels(tmp_path: Path) -> None:
    for shape in [(0, 5), (5, 0), (5, 0, 3)]:
        reason = refused_bytes(tmp_path, ".npy", npy_bytes(np.zeros(shape, np.uint8)))
        assert reason.startswith("has no pixels")
    tiff = huge_tiff().replace(struct.pack("<I", 60000), bytes(4))
    assert refused_bytes(tmp_path, ".tif", tiff) == "has no pixels (0x0)"
    assert "no pixels" in refused_bytes(tmp_path, ".png", png(0, 3, 8, 0, b""))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((5, 7), bool), "bool samples are not supported"),
        (np.zeros((5, 7), np.int8), "int8 samples are not supported"),
        (np.full((5, 7), 300), "int64 samples up to 300: say which value is white (white=1023)"),
        (np.zeros((5, 7), np.complex64), "complex64 samples are not supported"),
        (np.zeros((3, 5, 7), np.uint8), "array of shape (3, 5, 7) is not [H, W]"),
        (np.zeros((5, 7, 0), np.uint8), "array of shape (5, 7, 0) is not [H, W]"),
        (np.zeros(5, np.uint8), "array of shape (5,) is not [H, W]"),
        (np.zeros((1, 5, 7, 3), np.uint8), "array of shape (1, 5, 7, 3) is not [H, W]"),
    ],
)
def test_npy_that_is_no_image(tmp_path: Path, array: Any, reason: str) -> None:
    assert refused_bytes(tmp_path, ".npy", npy_bytes(array)).startswith(reason)


def test_npy_never_unpickles(tmp_path: Path) -> None:
    data = npy_bytes(np.array([[object]]), allow_pickle=True)
    assert "not an image nlrn can read" in refused_bytes(tmp_path, ".npy", data)


@pytest.mark.parametrize("suffix", [".npy", ".tif"])
def test_nan_and_inf_are_counted(tmp_path: Path, suffix: str) -> None:
    pixels = samples("float32", 3)
    pixels[0, 0, 0], pixels[2, 3, 1], pixels[4, 4, 2] = np.nan, np.inf, -np.inf
    data = npy_bytes(pixels) if suffix == ".npy" else tiff_bytes(pixels, photometric="rgb")
    reason = refused_bytes(tmp_path, suffix, data)
    assert reason == f"3 of {HEIGHT * WIDTH * 3} samples are NaN or inf"


def test_several_pages_or_frames(tmp_path: Path) -> None:
    stack = samples("uint8", 3).transpose(2, 0, 1)
    tiff = tiff_bytes(stack, photometric="minisblack")
    assert refused_bytes(tmp_path, ".tif", tiff).startswith("has 3 pages; only files with one")
    frames = [PIL.Image.fromarray(plane) for plane in stack]
    for suffix, name in [(".webp", "WEBP"), (".png", "PNG")]:
        out = io.BytesIO()
        frames[0].save(out, name, save_all=True, append_images=frames[1:], lossless=True)
        assert refused_bytes(tmp_path, suffix, out.getvalue()).startswith("has 3 frames; only")


@pytest.mark.parametrize(
    ("array", "options", "reason"),
    [
        (np.zeros((5, 7), np.int32), {}, "int32 samples up to 0: say which value is white"),
        (np.zeros((5, 7, 4), np.uint8), {"photometric": "logluv"}, "color model LOGLUV"),
        (np.zeros((5, 7), np.uint16), {"photometric": "cfa"}, "camera raw data: develop it"),
        (np.zeros((5, 7), np.float32), {"compression": "lerc"}, "compression LERC"),
        (np.zeros((5, 7, 6), np.uint8), {"photometric": "rgb"}, "samples YXS (5, 7, 6)"),
        (np.zeros((5, 7), np.uint16), {"bitspersample": 12}, "12 bits per sample"),
    ],
    ids=["int32", "LogLuv", "raw", "LERC", "channels", "12 bits"],
)
def test_tiff_without_meaning_here(
    tmp_path: Path, array: Any, options: dict[str, Any], reason: str
) -> None:
    options = {"photometric": "minisblack", "planarconfig": "contig"} | options
    if array.ndim == 2:
        del options["planarconfig"]
    assert reason in refused_bytes(tmp_path, ".tif", tiff_bytes(array, **options))
