"""Reading and writing image files, whole or not at all, with errors that name the path."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from nlrn import atomic
from nlrn.images import formats
from nlrn.images.image import Image
from nlrn.images.samples import (
    CHANNELS,
    DTYPES,
    OPEN_DTYPES,
    Array,
    Decoded,
    FormatError,
    Stored,
    likely_white,
    split_alpha,
)

SUFFIXES = tuple(formats.SUFFIXES)
"""Suffixes, in lower case and with the dot, of the files that `read` and `write` know."""

MAX_PIXELS = 2**28
"""Largest image read unless asked otherwise: 16384 x 16384, 3 GB as float32 RGB."""


class ImageError(ValueError):
    """A file that cannot be read or written; one line that begins with its path."""


class ExistsError(ImageError):
    """A file that exists already and may not be replaced."""


def read(
    path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS, *, white: float | None = None
) -> Image:
    """The image in a file, turned upright as its EXIF or TIFF orientation asks.

    The suffix must be one of `SUFFIXES`, but the content decides the format: a JPEG named .png
    is read as what it is. A palette becomes RGB, 1-bit becomes 8-bit, 9 to 15 bits become 16,
    float16 becomes float32, CMYK and Lab become RGB, color that was multiplied with its alpha
    (TIFF) is divided by it. What the file has besides and is not kept is in the image's `notes`.

    Args:
        path: the file.
        max_pixels: larger images are refused after a look at the header, before decoding.
            (WebP has a second limit, Pillow's own, of 178 million pixels.)
        white: the value of white, and of full opacity, where that is not the type's: 4095 for
            12 bits in 16. The pixels are then floats, and `write` puts them back on this scale.

    Raises:
        ImageError: if there is no such file, or it is no image, broken, too large, of several
            pages or frames, of a sample type without meaning here, or has NaN or inf in it.
    """
    path = Path(path)
    with errors_name(path), path.open("rb") as file:
        _format_name(path)
        return read_file(file, max_pixels, white=white, suffix=path.suffix.lower())[0]


def read_file(
    file: IO[bytes], max_pixels: int = MAX_PIXELS, *, white: float | None = None, suffix: str = ""
) -> tuple[Image, str]:
    """The image in an open file, as `read` gives it, and the name of its format.

    Raises:
        FormatError: as `read`, without the path.
    """
    if white is not None and not (white > 0 and math.isfinite(white)):
        raise ValueError(f"white must be a number above 0, got {white}")
    decoded, name = formats.decode(file, max_pixels, suffix)
    return image_of(decoded, white), name


def write(
    path: str | os.PathLike[str], image: Image, *, overwrite: bool = False, quality: int = 95
) -> None:
    """Writes the image in the format of the path's suffix, whole or not at all.

    Args:
        path: the file; its folder must exist.
        image: what to write. Metadata that the format has no place for is left out.
        overwrite: whether an existing file is replaced.
        quality: 1 to 100, for JPEG, whose colour is never subsampled.

    Raises:
        ExistsError: if the file exists and `overwrite` is False.
        ImageError: if the format cannot hold the image, or the folder is missing or not
            writable.
    """
    path = Path(path)
    if not 1 <= quality <= 100:
        raise ValueError(f"quality must be in 1..100, got {quality}")
    check_writable(path, image, overwrite=overwrite)
    with errors_name(path):
        encoded = encode(_format_name(path), image, quality)
        atomic.write_bytes(path, encoded, overwrite=overwrite)


def encode(name: str, image: Image, quality: int = 95) -> bytes:
    """The bytes of a file of the named format, of those in `formats.FORMATS`.

    Raises:
        FormatError: if the format cannot hold the image.
    """
    check_format(name, image)
    return formats.encode(name, decoded_of(image), quality)


def check_writable(path: str | os.PathLike[str], image: Image, *, overwrite: bool = False) -> None:
    """Raises the ImageError that `write` would raise, before an hour of work is put into it."""
    check_holds(path, image)
    check_place(Path(path), overwrite=overwrite)


def check_place(path: Path, *, overwrite: bool = False) -> None:
    """Raises an ImageError if no new file of this name can be written, whatever it holds."""
    with errors_name(path):
        if not path.parent.is_dir():
            problem = "is a file, not a folder" if path.parent.exists() else "does not exist"
            what = path.parent if path.parent.exists() else f"folder {path.parent}"
            raise FormatError(f"{what} {problem}")
        if not os.access(path.parent, os.W_OK):
            raise FormatError(f"folder {path.parent} is not writable")
        if not overwrite and (path.exists() or path.is_symlink()):  # a link to nothing, too
            raise FileExistsError


def check_holds(path: str | os.PathLike[str], image: Image) -> None:
    """Raises an ImageError if the format of the path's suffix cannot hold the image."""
    path = Path(path)
    with errors_name(path):
        check_format(_format_name(path), image)


def lost(name: str, image: Image) -> tuple[str, ...]:
    """What of the image's metadata a file of the named format has no place for, in words."""
    return formats.lost(name, image.exif, image.icc, image.color)


def format_of(path: str | os.PathLike[str]) -> str:
    """The name of the format that a file of this suffix is written in."""
    path = Path(path)
    with errors_name(path):
        return _format_name(path)


def check_format(name: str, image: Image) -> None:
    """Raises a FormatError if the named format cannot hold the image."""
    dtype = image.stored.dtype if image.stored else image.pixels.dtype.name
    color = image.pixels.ndim == 3
    formats.check_holds(name, dtype, alpha=image.alpha is not None, color=color)


@contextlib.contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Turns the errors of files and formats into an ImageError that names the path."""
    try:
        yield
    except FileExistsError as error:
        raise ExistsError(f"{path}: exists already; overwrite=True replaces it") from error
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror or error}") from error
    except FormatError as error:
        raise ImageError(f"{path}: {error}") from error


def _format_name(path: Path) -> str:
    suffix = path.suffix.lower()
    name = formats.SUFFIXES.get(suffix)
    if suffix in formats.HOW_TO_CONVERT:
        raise FormatError(formats.HOW_TO_CONVERT[suffix])
    if name is None:
        raise FormatError(f"unknown suffix {path.suffix!r}; known are {' '.join(SUFFIXES)}")
    return name


def image_of(decoded: Decoded, white: float | None) -> Image:
    """The upright image of what a file holds."""
    samples, stored = _checked(decoded.samples, white)
    notes = decoded.notes
    if decoded.samples.dtype == np.float16:
        notes += ("float16 becomes float32",)
    pixels, alpha = split_alpha(_upright(samples, decoded.orientation))
    if alpha is not None:
        alpha = np.ascontiguousarray(alpha)
    dpi = decoded.dpi
    if dpi is not None and not all(1 <= density < 2**16 for density in dpi):
        dpi = None  # no image has that, and JPEG could not hold it
    elif dpi is not None and decoded.orientation in (5, 6, 7, 8):  # these swap width and height
        dpi = dpi[::-1]
    upright = np.ascontiguousarray(pixels)
    return Image(upright, alpha, decoded.exif, decoded.icc, dpi, decoded.color, notes, stored)


def decoded_of(image: Image) -> Decoded:
    """What a file of the upright image holds, its samples on the scale of the file."""
    samples = image.samples
    if image.stored is not None:
        dtype = np.dtype(image.stored.dtype)
        samples = samples * image.stored.white
        if dtype.kind != "f":  # values above white are of the file too
            limits = np.iinfo(dtype)
            samples = np.rint(samples).clip(limits.min, limits.max)
        samples = samples.astype(dtype)
    return Decoded(samples, 1, image.exif, image.icc, image.dpi, image.color)


def _checked(samples: Array, white: float | None) -> tuple[Array, Stored | None]:
    """The samples in native byte order, on the scale of `white` if given, if they are an image."""
    if samples.ndim not in (2, 3) or samples.shape[2:] not in CHANNELS:
        raise FormatError(f"array of shape {samples.shape} is not [H, W] or [H, W, 1 to 4]")
    name = "float32" if samples.dtype.name == "float16" else samples.dtype.name
    if white is None and name in OPEN_DTYPES:
        advice = f"say which value is white (white={likely_white(samples)})"
        raise FormatError(f"{name} samples up to {samples.max()}: {advice}")
    if name not in (*DTYPES, *OPEN_DTYPES):
        raise FormatError(f"{name} samples are not supported; {', '.join(DTYPES)} are")
    bad = samples.size - np.count_nonzero(np.isfinite(samples)) if name[0] == "f" else 0
    if bad:
        raise FormatError(f"{bad} of {samples.size} samples are NaN or inf")
    if white is None:
        return samples.astype(name, copy=False), None
    exact = np.float32 if name in ("uint8", "uint16", "int16", "float32") else np.float64
    return (samples / white).astype(exact), Stored(name, white)


def _upright(samples: Array, orientation: int) -> Array:
    """The samples turned as an EXIF orientation asks."""
    turned = {
        2: lambda s: s[:, ::-1],
        3: lambda s: s[::-1, ::-1],
        4: lambda s: s[::-1],
        5: lambda s: s.swapaxes(0, 1),
        6: lambda s: s[::-1].swapaxes(0, 1),
        7: lambda s: s[::-1, ::-1].swapaxes(0, 1),
        8: lambda s: s[:, ::-1].swapaxes(0, 1),
    }
    return turned[orientation](samples) if orientation in turned else samples
