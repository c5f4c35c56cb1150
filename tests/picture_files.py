"""Pictures, and the bytes of files made from them, for the tests of images."""

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageCms
import pytest
import tifffile

from nlrn import images
from nlrn.images import Image, ImageError

HEIGHT, WIDTH = 11, 17


def samples(dtype: str, channels: int, height: int = HEIGHT, width: int = WIDTH) -> Any:
    """Random [H, W] or [H, W, channels] that use the whole range of the type."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    rng = np.random.default_rng(channels)
    if dtype.startswith("float"):
        return rng.uniform(-0.5, 1.5, shape).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def image(
    dtype: str = "uint8", channels: int = 3, exif: bytes | None = None, icc: bytes | None = None
) -> Image:
    array = samples(dtype, channels)
    if channels in (1, 3):
        return Image(array, None, exif, icc)
    pixels = array[..., 0] if channels == 2 else array[..., :3]
    return Image(pixels.copy(), array[..., -1].copy(), exif, icc)


def fitting(suffix: str, **metadata: Any) -> Image:
    """An 8-bit image that a file of this suffix can hold: in color, but for PGM."""
    return image("uint8", 1 if suffix == ".pgm" else 3, **metadata)


def exif_block(orientation: int | None = None, order: str = "<") -> bytes:
    """An EXIF block with tags in all three directories."""
    exif = PIL.Image.Exif()
    exif.endian = order
    if orientation is not None:
        exif[274] = orientation
    exif[271] = "Camera"
    exif[282] = exif[283] = 300.0
    exif[296] = 2
    exif[306] = "2018:12:03 10:20:30"
    exif.get_ifd(0x8769).update({33434: 0.008, 36867: "2018:12:03 10:20:30", 37500: b"maker!"})
    exif.get_ifd(0x8825).update({1: "N", 2: (45.0, 30.0, 15.0)})
    return exif.tobytes().removeprefix(b"Exif\0\0")


def exif_values(block: bytes | None) -> dict[str, Any]:
    assert block is not None
    exif = PIL.Image.Exif()
    exif.load(block)
    return {
        "first": {k: v for k, v in exif.items() if k not in (0x8769, 0x8825)},
        "exif": dict(exif.get_ifd(0x8769)),
        "gps": dict(exif.get_ifd(0x8825)),
    }


@cache  # the profile holds the second in which it was made
def icc_profile() -> bytes:
    return PIL.ImageCms.ImageCmsProfile(PIL.ImageCms.createProfile("sRGB")).tobytes()


def png_chunk(name: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(name + payload)
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", crc)


def png(width: int, height: int, depth: int, color: int, rows: bytes, *extra: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    body = [png_chunk(b"IHDR", header), *extra, png_chunk(b"IDAT", zlib.compress(rows))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body) + png_chunk(b"IEND", b"")


def pillow_bytes(array: Any, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    PIL.Image.fromarray(array).save(out, name, **options)
    return out.getvalue()


def tiff_bytes(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, array, **options)
    return out.getvalue()


def npy_bytes(array: Any, allow_pickle: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=allow_pickle)
    return out.getvalue()


def read_bytes(folder: Path, suffix: str, data: bytes, **options: Any) -> Image:
    path = folder / f"in{suffix}"
    path.write_bytes(data)
    return images.read(path, **options)


def assert_same(a: Image, b: Image) -> None:
    assert a.pixels.dtype == b.pixels.dtype
    np.testing.assert_array_equal(a.pixels, b.pixels)
    assert (a.alpha is None) == (b.alpha is None)
    if a.alpha is not None and b.alpha is not None:
        assert a.alpha.dtype == b.alpha.dtype
        np.testing.assert_array_equal(a.alpha, b.alpha)


def refused(path: Path, **options: Any) -> str:
    """The reason why reading is refused, after the checks that hold for every refusal."""
    with pytest.raises(ImageError) as caught:
        images.read(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def refused_bytes(folder: Path, suffix: str, data: bytes, **options: Any) -> str:
    path = folder / f"in{suffix}"
    path.write_bytes(data)
    return refused(path, **options)
