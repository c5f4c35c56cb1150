"""One decoder and one encoder per file format: bytes on one side, samples on the other.

Samples are arrays [H, W] or [H, W, C] as the file stores them, alpha last. What they mean to the
rest of the package (orientation, alpha, allowed types) is decided in `nlrn.images.files`.
"""

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

import numpy as np

from nlrn.errors import no_warnings, one_line
from nlrn.images import by_pillow, jpeg2000, metadata, pnm, tiff
from nlrn.images.samples import (
    DTYPES,
    OPEN_DTYPES,
    TWO_CHANNELS,
    Decoded,
    FormatError,
    check_single,
    check_size,
    either,
    not_kept,
)


@dataclass(frozen=True)
class Format:
    """A file format, and what it can hold.

    Attributes:
        decode: (open file, most pixels) -> what it holds.
        encode: (what to write, quality for JPEG) -> the bytes of a file.
        dtypes: of the samples.
        alpha: whether it has a place for opacity.
        color: whether it has a place for more than gray.
        keeps: which metadata it has a place for, as fields of `Decoded`.
    """

    decode: Callable[[IO[bytes], int], Decoded]
    encode: Callable[[Decoded, int], bytes]
    dtypes: tuple[str, ...] = ("uint8",)
    alpha: bool = True
    color: bool = True
    keeps: tuple[str, ...] = ()


def decode(file: IO[bytes], max_pixels: int, suffix: str = "") -> tuple[Decoded, str]:
    """What an open file holds, and the name of its format: content decides, not the suffix.

    The suffix is for TGA alone, which cannot be told by its content.
    """
    name = sniff(file, suffix)
    try:
        return FORMATS[name].decode(file, max_pixels), name
    except FormatError:
        raise
    except Exception as error:  # on broken files the libraries raise anything, even SyntaxError
        reason = f"broken or truncated {name}: {one_line(error)}"
        raise FormatError(f"not an image nlrn can read ({reason})") from error


def encode(name: str, image: Decoded, quality: int) -> bytes:
    """The bytes of a file of the named format; `quality` is for JPEG."""
    try:
        return FORMATS[name].encode(image, quality)
    except Exception as error:  # sizes and metadata beyond a format's limits
        raise FormatError(f"cannot be written as {name} ({one_line(error)})") from error


def sniff(file: IO[bytes], suffix: str) -> str:
    """The name of an open file's format by its first bytes; the suffix is for TGA alone."""
    head = file.read(64)
    file.seek(0)
    if not head:
        raise FormatError("empty file")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        brands = head[8 : min(len(head), int.from_bytes(head[:4], "big"))]
        if b"avif" in brands or b"avis" in brands:
            return "AVIF"
        if any(brand in brands for brand in (b"heic", b"heix", b"hevc", b"heim", b"mif1")):
            raise FormatError(HOW_TO_CONVERT[".heic"])
    if head[:2] in pnm.MAGIC and head[2:3] in (b" ", b"\t", b"\n", b"\r", b"#"):
        return {b"P3": "PPM", b"P6": "PPM"}.get(head[:2], "PGM")
    for start, name in _SIGNATURES.items():
        if head.startswith(start):
            return name
    # color map or none, kind of picture, bits
    if suffix == ".tga" and len(head) > 17 and head[1] < 2 and head[2] in (1, 2, 3, 9, 10, 11):
        return "TGA"
    raise FormatError(f"not an image nlrn can read (content is not {either(list(FORMATS))})")


def check_holds(name: str, dtype: str, *, alpha: bool, color: bool) -> None:
    """Raises a FormatError if the format cannot hold such samples, naming those that can."""
    format_ = FORMATS[name]
    if alpha and not format_.alpha:
        what = "an alpha channel"
    elif dtype not in format_.dtypes:
        what = f"{dtype} samples"
    elif color and not format_.color:
        what = "color"
    else:
        return
    able = [
        name
        for name, other in FORMATS.items()
        if dtype in other.dtypes and (other.alpha or not alpha) and (other.color or not color)
    ]
    raise FormatError(f"{name} cannot hold {what}; {either(able)} can")


def lost(name: str, exif: bytes | None, icc: bytes | None, color: bytes | None) -> tuple[str, ...]:
    """The notes that a file of the named format has no place for some of an image's metadata."""
    is_usual = color is not None and b"sRGB" in color  # what everybody assumes
    has = {
        "exif": exif and "EXIF",
        "icc": icc and "the color profile",
        "color": color and not is_usual and "gAMA, cHRM or cICP",
    }
    gone = [what for place, what in has.items() if what and place not in FORMATS[name].keeps]
    return not_kept(*gone, by=f" by {name}")


# PNG: samples through imagecodecs, because Pillow turns 16-bit RGB into 8-bit without a word;
# metadata from the chunks, because imagecodecs has none.


def _decode_png(file: IO[bytes], max_pixels: int) -> Decoded:
    import imagecodecs

    width, height = struct.unpack(">II", file.read(24)[16:])
    check_size(width, height, max_pixels)
    file.seek(0)
    found = metadata.from_png(file.read())
    check_single(found.frames, "frames")
    orientation, exif = metadata.take_orientation(found.exif)
    try:
        samples = imagecodecs.png_decode(found.pixels)
    except Exception as error:  # its message is at times a piece of freed memory
        raise ValueError("damaged pixel data") from error
    notes = not_kept(*found.texts)
    return Decoded(samples, orientation, exif, found.icc, found.dpi, found.color or None, notes)


def _encode_png(image: Decoded, quality: int) -> bytes:
    import imagecodecs

    samples = np.ascontiguousarray(image.samples)
    # One byte more for each row, and the deflated data may grow: the codec's own guess is too low
    # for narrow images.
    room = samples.nbytes + len(samples)
    encoded = bytes(imagecodecs.png_encode(samples, out=room + room // 32 + 4096))
    return metadata.into_png(encoded, image.exif, image.icc, image.dpi, image.color)


def _decode_npy(file: IO[bytes], max_pixels: int) -> Decoded:
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"version {version}")
    with no_warnings():  # about files of Python 2
        shape = read_header(file)[0]
    if len(shape) not in (2, 3):
        raise FormatError(f"array of shape {shape} is not [H, W] or [H, W, channels]")
    check_size(shape[1], shape[0], max_pixels)
    file.seek(0)
    with no_warnings():
        samples = np.lib.format.read_array(file, allow_pickle=False)
    return Decoded(samples, notes=(TWO_CHANNELS,) if shape[2:] == (2,) else ())


def _encode_npy(image: Decoded, quality: int) -> bytes:
    out = io.BytesIO()
    np.save(out, image.samples, allow_pickle=False)
    return out.getvalue()


_DEEP = ("uint8", "uint16")
_ALL = (*DTYPES, *OPEN_DTYPES)

FORMATS = {
    "PNG": Format(_decode_png, _encode_png, _DEEP, keeps=("exif", "icc", "color")),
    "JPEG": Format(
        by_pillow.decode_jpeg, by_pillow.encode_jpeg, alpha=False, keeps=("exif", "icc")
    ),
    "TIFF": Format(
        tiff.decode, tiff.encode, tuple(d for d in _ALL if d != "int64"), keeps=("exif", "icc")
    ),
    "WebP": Format(by_pillow.decode_webp, by_pillow.encode_webp, keeps=("exif", "icc")),
    "AVIF": Format(by_pillow.decode_avif, by_pillow.encode_avif, keeps=("exif", "icc")),
    "JPEG 2000": Format(jpeg2000.decode, jpeg2000.encode, _DEEP, keeps=("exif", "icc")),
    "J2K": Format(jpeg2000.decode, jpeg2000.encode_stream, _DEEP),
    "BMP": Format(by_pillow.decode_bmp, by_pillow.encode_bmp, alpha=False),
    "TGA": Format(by_pillow.decode_tga, by_pillow.encode_tga),
    "PGM": Format(pnm.decode, pnm.encode, _DEEP, alpha=False, color=False),
    "PPM": Format(pnm.decode, pnm.encode_color, _DEEP, alpha=False),
    "PNM": Format(pnm.decode, pnm.encode, _DEEP, alpha=False),
    "NPY": Format(_decode_npy, _encode_npy, _ALL),
}

SUFFIXES = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WebP",
    ".avif": "AVIF",
    ".jp2": "JPEG 2000",
    ".j2k": "J2K",
    ".bmp": "BMP",
    ".tga": "TGA",
    ".pgm": "PGM",
    ".ppm": "PPM",
    ".pnm": "PNM",
    ".npy": "NPY",
}

_RAW = "camera raw: develop it first (darktable-cli photo.nef photo.tif, or by its own program)"
_HEIC = "HEIC: convert it first (heif-convert photo.heic photo.png, or export it as JPEG)"
_RAW_SUFFIXES = (".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".raf", ".orf",
                 ".rw2", ".pef", ".srw", ".x3f", ".3fr", ".iiq", ".raw")  # fmt: skip
HOW_TO_CONVERT = dict.fromkeys((".heic", ".heif", ".hif"), _HEIC) | dict.fromkeys(
    _RAW_SUFFIXES, _RAW
)
"""Suffixes of files that people have and that cannot be read here -> what to do about it."""

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
    jpeg2000.SIGNATURE: "JPEG 2000",
    jpeg2000.CODESTREAM: "J2K",
    b"BM": "BMP",
    b"\x93NUMPY": "NPY",
}
