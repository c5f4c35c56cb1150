"""What of a file is kept, what is lost and said to be, and what is damaged."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import skimage.data
import tifffile
from picture_files import (
    HEIGHT,
    WIDTH,
    exif_block,
    icc_profile,
    image,
    npy_bytes,
    pillow_bytes,
    png,
    png_chunk,
    read_bytes,
    samples,
    tiff_bytes,
)

from nlrn import images
from nlrn.images import Image

XMP = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'></x:xmpmeta>"


# PNG


def test_png_keeps_what_says_what_its_values_mean(tmp_path: Path) -> None:
    chunks = [
        png_chunk(b"cICP", bytes([9, 16, 0, 1])),
        png_chunk(b"gAMA", struct.pack(">I", 100000)),
        png_chunk(b"cHRM", struct.pack(">8I", *range(1, 9))),
    ]
    found = read_bytes(tmp_path, ".png", png(2, 1, 8, 0, b"\0\1\2", *chunks))
    images.write(tmp_path / "out.png", found.with_pixels(found.pixels[:, :1].copy()))
    content = (tmp_path / "out.png").read_bytes()
    assert content.index(chunks[0]) < content.index(b"IDAT")
    assert all(chunk in content for chunk in chunks)
    assert images.read(tmp_path / "out.png").color == b"".join(chunks)
    assert found.notes == ()
    assert images.lost("PNG", found) == ()
    assert images.lost("TIFF", found) == ("not kept by TIFF: gAMA, cHRM or cICP",)


def test_srgb_is_what_every_format_means(tmp_path: Path) -> None:
    chunk = png_chunk(b"sRGB", b"\0")
    found = read_bytes(tmp_path, ".png", png(2, 1, 8, 0, b"\0\1\2", chunk))
    assert found.color == chunk and images.lost("JPEG", found) == ()


@pytest.mark.parametrize(
    ("chunks", "note"),
    [
        ([png_chunk(b"tEXt", b"Title\0sunset")], "not kept: text"),
        ([png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP)], "not kept: XMP"),
        (
            [png_chunk(b"zTXt", b"a\0\0x"), png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x>")],
            "not kept: XMP, text",
        ),
    ],
    ids=["text", "XMP", "both"],
)
def test_texts_of_a_png_are_named(tmp_path: Path, chunks: list[bytes], note: str) -> None:
    assert read_bytes(tmp_path, ".png", png(2, 1, 8, 0, b"\0\1\2", *chunks)).notes == (note,)


@pytest.mark.parametrize(
    "shape", [(200, 3), (3, 200), (500, 1), (1, 500), (120, 1, 3), (500, 2, 4)]
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_narrow_pngs_are_written(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    white = np.iinfo(dtype).max
    values = np.random.default_rng(0).integers(0, white, shape, dtype, endpoint=True)
    before = Image(values[..., :3].copy(), values[..., 3].copy()) if shape[2:] == (4,) else (
        Image(values))  # fmt: skip
    images.write(tmp_path / "a.png", before)
    np.testing.assert_array_equal(images.read(tmp_path / "a.png").samples, values)


# Other formats


@pytest.mark.parametrize(
    ("suffix", "name"), [(".jpg", "JPEG"), (".webp", "WEBP"), (".avif", "AVIF")]
)
def test_xmp_is_named(tmp_path: Path, suffix: str, name: str) -> None:
    data = pillow_bytes(samples("uint8", 3), name, xmp=XMP)
    assert read_bytes(tmp_path, suffix, data).notes == ("not kept: XMP",)


def test_comment_iptc_and_second_picture_of_a_jpeg_are_named(tmp_path: Path) -> None:
    first, second = (PIL.Image.new("RGB", (WIDTH, HEIGHT), c) for c in ("red", "blue"))
    out = io.BytesIO()
    first.save(out, "MPO", save_all=True, append_images=[second], comment="hello")
    notes = read_bytes(tmp_path, ".jpg", out.getvalue()).notes
    assert notes == ("not kept: a comment, the second picture",)


def test_tiff_tags_and_smaller_versions_are_named(tmp_path: Path) -> None:
    tags = [(700, "B", len(XMP), XMP, True), (33550, "d", 3, (1.0, 1.0, 0.0), True)]
    out = io.BytesIO()
    with tifffile.TiffWriter(out) as writer:
        writer.write(samples("uint8", 3), photometric="rgb", subifds=2, extratags=tags)
        for _ in range(2):
            writer.write(samples("uint8", 3)[::2, ::2], photometric="rgb", subfiletype=1)
    found = read_bytes(tmp_path, ".tif", out.getvalue())
    (note,) = found.notes
    assert note == "not kept: XMP, ModelPixelScaleTag, smaller versions of the picture"


def test_a_pyramid_of_pages_is_one_picture(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tifffile.TiffWriter(out) as writer:
        writer.write(samples("uint8", 1)[::2, ::2], subfiletype=1)  # a thumbnail comes first
        writer.write(samples("uint8", 1))
    found = read_bytes(tmp_path, ".tif", out.getvalue())
    np.testing.assert_array_equal(found.pixels, samples("uint8", 1))
    assert found.notes == ("not kept: smaller versions of the picture",)


def test_what_a_tiff_says_of_color_is_kept(tmp_path: Path) -> None:
    point = (318, "2I", 2, (3127, 10000, 3290, 10000), True)
    name = (269, "s", 0, "Sunset", True)
    data = tiff_bytes(samples("uint8", 3), photometric="rgb", extratags=[point, name])
    found = read_bytes(tmp_path, ".tif", data)
    images.write(tmp_path / "out.tif", found)
    with tifffile.TiffFile(tmp_path / "out.tif") as written:
        tags: Any = written.pages[0].tags  # type: ignore[union-attr]
        assert tags.valueof(318) == (3127, 10000, 3290, 10000) and tags.valueof(269) == "Sunset"


def test_channels_of_no_meaning_and_float16_are_named(tmp_path: Path) -> None:
    two = tiff_bytes(samples("uint8", 2), photometric="minisblack", planarconfig="contig")
    (note,) = read_bytes(tmp_path, ".tif", two).notes
    assert note == "a channel of no stated meaning is taken for alpha, not restored"
    (note,) = read_bytes(tmp_path, ".npy", npy_bytes(samples("uint8", 2))).notes
    assert note == "the second of two channels is taken for alpha, not restored"
    half = samples("float32", 1).astype(np.float16)
    for suffix, data in ((".npy", npy_bytes(half)), (".tif", tiff_bytes(half))):
        assert read_bytes(tmp_path, suffix, data).notes == ("float16 becomes float32",)


def test_what_a_format_has_no_place_for() -> None:
    full = image("uint8", 3, exif_block(), icc_profile())
    assert images.lost("BMP", full) == ("not kept by BMP: EXIF, the color profile",)
    assert images.lost("JPEG", full) == images.lost("BMP", image()) == ()


# Damage


def jpeg(**options: Any) -> bytes:
    return pillow_bytes(skimage.data.astronaut()[:200, :260], "JPEG", quality=90, **options)


@pytest.mark.parametrize("color", [True, False])
def test_a_damaged_jpeg_is_told(tmp_path: Path, color: bool) -> None:
    whole = jpeg() if color else pillow_bytes(skimage.data.camera()[200:400, 100:360], "JPEG")
    assert read_bytes(tmp_path, ".jpg", whole).notes == ()
    middle = len(whole) // 2
    for wrong in (bytes(500), np.random.default_rng(0).integers(0, 255, 20, np.uint8).tobytes()):
        damaged = whole[:middle] + wrong + whole[middle + len(wrong) :]
        (note,) = read_bytes(tmp_path, ".jpg", damaged).notes
        assert note.startswith("damaged: ")


@pytest.mark.parametrize("quality", [5, 50, 75, 95, 100])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_rows": 1}], ids=str
)
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (16, 16), (33, 17), (3, 200)], ids=str)
def test_a_sound_jpeg_is_not_called_damaged(
    tmp_path: Path, quality: int, options: dict[str, Any], size: tuple[int, int]
) -> None:
    values = np.random.default_rng(quality).integers(0, 256, (*size, 3), np.uint8)
    thumbnail = exif_block() + jpeg()[:3000]
    data = pillow_bytes(values, "JPEG", quality=quality, exif=b"Exif\0\0" + thumbnail, **options)
    for end in (b"", b"\0" * 500, jpeg()):  # what cameras append
        assert read_bytes(tmp_path, ".jpg", data + end).notes == ()


def test_missing_parts_of_a_tiff_are_told(tmp_path: Path) -> None:
    data = bytearray(tiff_bytes(samples("uint8", 1), rowsperstrip=2, metadata=None))
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        counts: Any = file.pages[0].tags[279]  # type: ignore[union-attr]
    struct.pack_into("<H", data, counts.valueoffset + 2, 0)
    found = read_bytes(tmp_path, ".tif", bytes(data))
    assert found.notes == ("damaged: 1 of 6 parts are missing, and black",)
    assert not found.pixels[2:4].any()
