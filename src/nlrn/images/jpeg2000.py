"""JPEG 2000: samples through imagecodecs, which keeps 16 bits; metadata from the file's boxes."""

import struct
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np

from nlrn.images import color, metadata
from nlrn.images.metadata import Dpi
from nlrn.images.samples import (
    Decoded,
    FormatError,
    check_size,
    has_alpha,
    not_kept,
    stretched,
)

SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
CODESTREAM = b"\xff\x4f\xff\x51"
_EXIF = b"JpgTiffExif->JP2"
_XMP = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")
_CMYK, _SRGB, _GRAY = 12, 16, 17  # enumerated color spaces
_INCH = 0.0254  # metres


class _Boxes(NamedTuple):
    """What the boxes of a file say; see the fields of `Decoded`."""

    stream: bytes
    space: int = 0
    icc: bytes | None = None
    dpi: Dpi | None = None
    exif: bytes = b""
    has_xmp: bool = False


def decode(file: IO[bytes], max_pixels: int) -> Decoded:
    import imagecodecs

    data = file.read()
    found = _Boxes(data) if data.startswith(CODESTREAM) else _read_boxes(data)
    bits = _check_stream(found.stream, max_pixels)
    samples = np.asarray(imagecodecs.jpeg2k_decode(data))
    samples = stretched(samples, 2**bits - 1)
    icc, notes = found.icc, not_kept("XMP" if found.has_xmp else "")
    if found.space == _CMYK and samples.shape[2:] == (4,):
        samples, icc, note = color.from_cmyk(samples, icc)
        notes += (note,)
    orientation, exif = metadata.take_orientation(found.exif)
    return Decoded(samples, orientation, exif, icc, found.dpi, None, notes)


def _check_stream(stream: bytes, max_pixels: int) -> int:
    """Bits of the samples; raises for what cannot be an image here, before anything is decoded."""
    if not stream.startswith(CODESTREAM):
        raise ValueError("no codestream")
    right, bottom, left, top = struct.unpack_from(">4I", stream, 8)
    check_size(right - left, bottom - top, max_pixels)
    (components,) = struct.unpack_from(">H", stream, 40)
    if not 1 <= components <= 4:
        raise FormatError(f"JPEG 2000 with {components} components is not supported")
    kinds = {stream[42 + 3 * i : 45 + 3 * i] for i in range(components)}  # depth, steps
    (kind, *others) = kinds
    if others or kind[1:] != b"\1\1" or kind[0] > 15:  # above: signed, or more than 16 bits
        raise FormatError("JPEG 2000 with signed, deep or unequal components is not supported")
    return kind[0] + 1


def _read_boxes(data: bytes) -> _Boxes:
    found = _Boxes(b"")
    for name, content in _boxes(data):
        if name == b"jp2c" and not found.stream:
            found = found._replace(stream=content)
        elif name == b"uuid" and content.startswith(_EXIF):
            found = found._replace(exif=content[16:])
        elif name == b"uuid" and content.startswith(_XMP):
            found = found._replace(has_xmp=True)
        elif name == b"jp2h":
            found = _read_header(content, found)
    return found


def _read_header(header: bytes, found: _Boxes) -> _Boxes:
    for name, content in _boxes(header):
        if name == b"colr" and content[:1] == b"\1" and not found.space:
            found = found._replace(space=struct.unpack_from(">I", content, 3)[0])
        elif name == b"colr" and content[:1] in (b"\2", b"\3") and found.icc is None:
            space = _CMYK if content[19:23] == b"CMYK" else found.space
            found = found._replace(icc=content[3:], space=space)
        elif name == b"res ":
            for kind, values in _boxes(content):
                if kind in (b"resc", b"resd") and len(values) == 10:
                    found = found._replace(dpi=_dpi(values))
    return found


def _dpi(values: bytes) -> Dpi | None:
    top, bottom, across, of, exponent, other = struct.unpack(">4H2b", values)
    if not (bottom and of and top and across):
        return None
    return (across / of * 10.0**other * _INCH, top / bottom * 10.0**exponent * _INCH)


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of each box; a length of 0 reaches to the end, of 1 is in 8 bytes more."""
    position = 0
    while position + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        start = position + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start)
            start += 8
        end = position + length if length else len(data)
        if end < start:
            raise ValueError("a box of no length")
        yield name, data[start:end]
        position = end


def encode(image: Decoded, quality: int) -> bytes:
    """A JP2 file, without loss."""
    stream = encode_stream(image, quality)
    samples = image.samples
    height, width = samples.shape[:2]
    count = samples.shape[2] if samples.ndim == 3 else 1
    depth = 8 * samples.dtype.itemsize - 1
    parts = _box(b"ihdr", struct.pack(">IIHBBBB", height, width, count, depth, 7, 0, 0))
    space = _SRGB if count >= 3 else _GRAY
    named = struct.pack(">BBBI", 1, 0, 0, space)
    parts += _box(b"colr", b"\2\0\0" + image.icc if image.icc else named)
    if has_alpha(samples):  # type 1: opacity of the whole image
        kinds = [(i, 0, i + 1) for i in range(count - 1)] + [(count - 1, 1, 0)]
        entries = b"".join(struct.pack(">3H", *kind) for kind in kinds)
        parts += _box(b"cdef", struct.pack(">H", count) + entries)
    if image.dpi:
        (across, power), (down, other) = map(_fraction, image.dpi)
        density = struct.pack(">4H2b", down, 1, across, 1, other, power)
        parts += _box(b"res ", _box(b"resc", density))
    exif = _box(b"uuid", _EXIF + image.exif) if image.exif else b""
    kind = _box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
    return SIGNATURE + kind + _box(b"jp2h", parts) + exif + _box(b"jp2c", stream)


def _fraction(density: float) -> tuple[int, int]:
    """Pixels per inch as pixels per metre: a number of 16 bits and a power of ten."""
    value, power = density / _INCH, 0
    while value >= 2**16 - 1:
        value, power = value / 10, power + 1
    return round(value), power


def encode_stream(image: Decoded, quality: int) -> bytes:
    """A codestream alone, without loss."""
    import imagecodecs

    samples = np.ascontiguousarray(image.samples)
    return bytes(imagecodecs.jpeg2k_encode(samples, level=0, codecformat="j2k", reversible=True))


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content
