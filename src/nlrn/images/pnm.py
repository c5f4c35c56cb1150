"""PGM and PPM, read and written here: Pillow would cut 16-bit color to 8."""

import re
from typing import IO

import numpy as np

from nlrn.images.samples import Array, Decoded, check_size, stretched

MAGIC = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")
_HEAD = 2**16  # bytes in which the header, comments included, has to end
_TOKEN = rb"(?:\s|#[^\n]*\n)*(\d+)"


def decode(file: IO[bytes], max_pixels: int) -> Decoded:
    magic = file.read(2)
    kind = int(magic[1:])
    numbers = 2 if kind in (1, 4) else 3  # bits have no brightest value
    header = re.match(_TOKEN * numbers + rb"\s", file.read(_HEAD))
    if header is None:
        raise ValueError("no size in its header")
    width, height = int(header[1]), int(header[2])
    brightest = 1 if numbers == 2 else int(header[3])
    check_size(width, height, max_pixels)
    if not 1 <= brightest <= 65535:
        raise ValueError(f"brightest value {brightest}")
    file.seek(2 + header.end())
    shape = (height, width, 3) if kind in (3, 6) else (height, width)
    read = _bits if kind == 4 else _binary if kind > 4 else _text
    samples = read(file, shape, brightest)
    if kind in (1, 4):  # 1 is black
        samples = 1 - samples
    return Decoded(stretched(samples, brightest))


def _binary(file: IO[bytes], shape: tuple[int, ...], brightest: int) -> Array:
    dtype = np.dtype(">u2" if brightest > 255 else np.uint8)
    count = int(np.prod(shape))
    data = file.read(count * dtype.itemsize)
    return np.frombuffer(data, dtype, count).reshape(shape).copy()


def _bits(file: IO[bytes], shape: tuple[int, ...], brightest: int) -> Array:
    height, width = shape
    row = -(-width // 8)
    packed = np.frombuffer(file.read(height * row), np.uint8, height * row).reshape(height, row)
    return np.unpackbits(packed, axis=1)[:, :width]


def _text(file: IO[bytes], shape: tuple[int, ...], brightest: int) -> Array:
    text = re.sub(rb"#[^\n]*", b"", file.read())
    # Bits need no space between them.
    words = re.findall(rb"[01]", text) if brightest == 1 else text.split()
    count = int(np.prod(shape))
    if len(words) < count:
        raise ValueError(f"{len(words)} values where {count} are needed")
    return np.array(words[:count], dtype=np.uint16).reshape(shape)


def encode(image: Decoded, quality: int) -> bytes:
    samples = image.samples
    letter = b"P6" if samples.ndim == 3 else b"P5"
    height, width = samples.shape[:2]
    brightest = np.iinfo(samples.dtype).max
    stored = samples.astype(">u2") if samples.dtype == np.uint16 else samples
    return letter + f"\n{width} {height}\n{brightest}\n".encode() + stored.tobytes()


def encode_color(image: Decoded, quality: int) -> bytes:
    """A PPM, gray as color."""
    samples = image.samples
    return encode(image._replace(samples=np.dstack([samples] * 3)) if samples.ndim == 2 else image,
                  quality)  # fmt: skip
