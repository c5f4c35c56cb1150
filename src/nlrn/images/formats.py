"""One decoder and one encoder per file format: bytes on one side, samples on the other.

Samples are arrays [H, W] or [H, W, C] as the file stores them, alpha last. What they mean to the
rest of the package (orientation, alpha, allowed types) is decided in `nlrn.images.files`.
"""

import contextlib
import io
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from nlrn.errors import one_line
from nlrn.images import metadata, tiff
from nlrn.images.metadata import Dpi
from nlrn.images.samples import Array, Decoded, FormatError, check_single, check_size, has_alpha

_warnings_lock = threading.Lock()


@dataclass(frozen=True)
class Format:
    """A file format, and what it can hold."""

    decode: Callable[[IO[bytes], int], Decoded]
    encode: Callable[[Decoded, int], bytes]
    dtypes: tuple[str, ...]
    alpha: bool


def decode(file: IO[bytes], max_pixels: int) -> Decoded:
    """What an open file holds; its content, not its name, decides the format."""
    name = _sniff(file)
    try:
        return FORMATS[name].decode(file, max_pixels)
    except FormatError:
        raise
    except Exception as error:  # on broken files the libraries raise anything, even SyntaxError
        reason = f"broken or truncated {name}: {one_line(error)}"
        raise FormatError(f"not an image nlrn can read ({reason})") from error


def encode(name: str, image: Decoded, quality: int) -> bytes:
    """The bytes of a file of the named format; `quality` is for JPEG."""
    check_holds(name, image.samples)
    try:
        return FORMATS[name].encode(image, quality)
    except Exception as error:  # sizes and metadata beyond a format's limits
        raise FormatError(f"cannot be written as {name} ({one_line(error)})") from error


def _sniff(file: IO[bytes]) -> str:
    head = file.read(12)
    file.seek(0)
    if not head:
        raise FormatError("empty file")
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "WebP"
    for start, name in _SIGNATURES.items():
        if head.startswith(start):
            return name
    raise FormatError(f"not an image nlrn can read (content is not {_either(list(FORMATS))})")


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def check_holds(name: str, samples: Array) -> None:
    """Raises a FormatError if the format cannot hold the samples, naming those that can."""
    dtype = samples.dtype.name
    alpha = has_alpha(samples)
    if alpha and not FORMATS[name].alpha:
        what = "an alpha channel"
    elif dtype not in FORMATS[name].dtypes:
        what = f"{dtype} samples"
    else:
        return
    able = [n for n, f in FORMATS.items() if dtype in f.dtypes and (f.alpha or not alpha)]
    raise FormatError(f"{name} cannot hold {what}; {_either(able)} can")


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Drops what a library warns about a header.

    Two threads that save and restore Python's global filters at the same time would leave them
    at "ignore": hence the lock, and hence only for headers, which are quick.
    """
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
    return Decoded(samples, orientation, exif, found.icc, found.dpi)


def _encode_png(image: Decoded, quality: int) -> bytes:
    import imagecodecs

    encoded = bytes(imagecodecs.png_encode(np.ascontiguousarray(image.samples)))
    return metadata.into_png(encoded, image.exif, image.icc, image.dpi)


# JPEG, WebP and BMP through Pillow. The plugin classes are called directly: Image.open would warn
# about sizes below our own limit, and would take a phone's JPEG with a second picture inside
# (a gain map, a preview) for a file of several frames.


def _decode_jpeg(file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.JpegImagePlugin import JpegImageFile

    return _from_pillow(JpegImageFile, file, max_pixels)


def _decode_webp(file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.WebPImagePlugin import WebPImageFile

    return _from_pillow(WebPImageFile, file, max_pixels)


def _decode_bmp(file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.BmpImagePlugin import BmpImageFile

    return _from_pillow(BmpImageFile, file, max_pixels)


def _from_pillow(plugin: Callable[[IO[bytes]], Any], file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.Image import DecompressionBombError

    try:
        with _no_warnings():
            picture = plugin(file)  # the header only
    except DecompressionBombError as error:  # WebP's plugin has its own limit
        raise FormatError(f"too large ({one_line(error)})") from error
    width, height = picture.size
    check_size(width, height, max_pixels)
    check_single(getattr(picture, "n_frames", 1), "frames")
    modes = {"1": "L", "L": "L", "RGBA": "RGBA"}  # everything else is colour: P, RGB, CMYK
    samples = np.array(picture.convert(modes.get(picture.mode, "RGB")))
    orientation, exif = metadata.take_orientation(picture.info.get("exif", b""))
    # A CMYK profile says nothing about the RGB values.
    icc = None if picture.mode == "CMYK" else picture.info.get("icc_profile")
    return Decoded(samples, orientation, exif, icc or None, _pillows_dpi(picture))


def _pillows_dpi(picture: Any) -> Dpi | None:
    """Pixels per inch in a JPEG's own header or a BMP's; what EXIF says of them stays there."""
    if picture.format == "BMP":
        return picture.info.get("dpi")
    inches = {1: 1.0, 2: 2.54}.get(picture.info.get("jfif_unit"))  # 0 is a ratio without a unit
    if inches is None:
        return None
    across, down = picture.info["jfif_density"]
    return inches * across, inches * down


def _encode_jpeg(image: Decoded, quality: int) -> bytes:
    return _by_pillow(image, "JPEG", quality=quality, subsampling=0)


def _encode_webp(image: Decoded, quality: int) -> bytes:
    samples = image.samples
    if samples.ndim == 2:
        samples = np.dstack([samples] * 3)
    elif samples.shape[2] == 2:
        samples = samples[..., [0, 0, 0, 1]]
    gray_profile = image.icc is not None and image.icc[16:20] == b"GRAY"
    color = image._replace(samples=samples, icc=None if gray_profile else image.icc)
    # exact: without it the colour under transparent pixels is lost
    return _by_pillow(color, "WEBP", lossless=True, exact=True)


def _encode_bmp(image: Decoded, quality: int) -> bytes:
    # Pillow would make up 96 pixels per inch.
    return _by_pillow(image._replace(exif=None, icc=None, dpi=image.dpi or (0, 0)), "BMP")


def _by_pillow(image: Decoded, name: str, **options: Any) -> bytes:
    import PIL.Image

    if image.dpi and name != "WEBP":
        options["dpi"] = image.dpi
    if image.exif:
        options["exif"] = b"Exif\0\0" + image.exif
    out = io.BytesIO()
    picture = PIL.Image.fromarray(np.ascontiguousarray(image.samples))
    picture.save(out, name, icc_profile=image.icc, **options)
    return out.getvalue()


def _decode_npy(file: IO[bytes], max_pixels: int) -> Decoded:
    with _no_warnings():
        mapped = np.load(file.name, mmap_mode="r", allow_pickle=False)
    if mapped.ndim not in (2, 3):
        raise FormatError(f"array of shape {mapped.shape} is not [H, W] or [H, W, channels]")
    check_size(mapped.shape[1], mapped.shape[0], max_pixels)
    return Decoded(np.array(mapped))


def _encode_npy(image: Decoded, quality: int) -> bytes:
    out = io.BytesIO()
    np.save(out, image.samples, allow_pickle=False)
    return out.getvalue()


FORMATS = {
    "PNG": Format(_decode_png, _encode_png, ("uint8", "uint16"), alpha=True),
    "JPEG": Format(_decode_jpeg, _encode_jpeg, ("uint8",), alpha=False),
    "TIFF": Format(tiff.decode, tiff.encode, ("uint8", "uint16", "float32", "float64"), alpha=True),
    "WebP": Format(_decode_webp, _encode_webp, ("uint8",), alpha=True),
    "BMP": Format(_decode_bmp, _encode_bmp, ("uint8",), alpha=False),
    "NPY": Format(_decode_npy, _encode_npy, ("uint8", "uint16", "float32", "float64"), alpha=True),
}

SUFFIXES = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WebP",
    ".bmp": "BMP",
    ".npy": "NPY",
}

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
    b"BM": "BMP",
    b"\x93NUMPY": "NPY",
}
