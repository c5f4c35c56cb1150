"""Images in files: read and written with depth, alpha, EXIF and ICC profile as they came in.

PNG, JPEG, TIFF, WebP, BMP and NumPy's .npy. What each can hold:

| format | samples | alpha | EXIF, ICC |
|---|---|---|---|
| PNG | uint8, uint16 | yes | both |
| JPEG | uint8 | no | both |
| TIFF | uint8, uint16, float32, float64 | yes | both (see below) |
| WebP | uint8, without loss | yes | both |
| BMP | uint8 | no | none |
| NPY | uint8, uint16, float32, float64 | yes | none |

Pixels per inch are kept by all but WebP and NPY. A TIFF keeps the EXIF and GPS directories, and of
the other tags description, camera, software, date, artist and copyright; a BigTIFF (above 4 GB)
keeps the ICC profile only. A WebP has no gray: it comes back as RGB, and an alpha that is opaque
everywhere as none. A CMYK JPEG becomes RGB without its profile. XMP, PNG text and the EXIF
thumbnail are never kept.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from nlrn import atomic
from nlrn.images import formats as imageformats
from nlrn.images.formats import Array, Decoded, FormatError
from nlrn.images.metadata import Dpi

SUFFIXES = tuple(imageformats.SUFFIXES)
"""Suffixes, in lower case and with the dot, of the files that `read` and `write` know."""

MAX_PIXELS = 2**28
"""Largest image read unless asked otherwise: 16384 x 16384, 3 GB as float32 RGB."""

_DTYPES = ("uint8", "uint16", "float32", "float64")
_CHANNELS = ((), (1,), (2,), (3,), (4,))  # what may follow H and W in a shape


class ImageError(ValueError):
    """A file that cannot be read or written; one line that begins with its path."""


@dataclass(frozen=True, eq=False)
class Image:
    """A picture, upright, and what its file said about it.

    Attributes:
        pixels: gray [H, W] or RGB [H, W, 3]; uint8, uint16, float32 or float64.
        alpha: opacity [H, W] of the same type, or None.
        exif: EXIF block without the "Exif" prefix of JPEG, its orientation 1; or None.
        icc: colour profile, or None.
        dpi: pixels per inch across and down, or None.
    """

    pixels: Array
    alpha: Array | None = None
    exif: bytes | None = None
    icc: bytes | None = None
    dpi: Dpi | None = None

    def __post_init__(self) -> None:
        shape, dtype = self.pixels.shape, self.pixels.dtype
        if dtype.name not in _DTYPES:
            raise ValueError(f"pixels must be one of {', '.join(_DTYPES)}, got {dtype}")
        if len(shape) not in (2, 3) or shape[2:] not in ((), (3,)) or 0 in shape:
            raise ValueError(f"pixels must be [H, W] or [H, W, 3], got {list(shape)}")
        if self.alpha is not None and (self.alpha.shape, self.alpha.dtype) != (shape[:2], dtype):
            got = f"{self.alpha.dtype} {list(self.alpha.shape)}"
            raise ValueError(f"alpha must be {dtype} {list(shape[:2])} like the pixels, got {got}")

    @property
    def height(self) -> int:
        """H, rows."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """W, columns."""
        return int(self.pixels.shape[1])

    def with_pixels(self, pixels: Array, alpha: Array | None = None) -> "Image":
        """A copy with other pixels of the same type and number of dimensions.

        Args:
            pixels: [H', W'] or [H', W', 3].
            alpha: [H', W']; None keeps the present one, which then has to fit.
        """
        if (pixels.dtype, pixels.ndim) != (self.pixels.dtype, self.pixels.ndim):
            was = f"{self.pixels.dtype} with {self.pixels.ndim} dimensions"
            raise ValueError(f"pixels must be {was}, got {pixels.dtype} with {pixels.ndim}")
        return replace(self, pixels=pixels, alpha=self.alpha if alpha is None else alpha)


def read(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> Image:
    """The image in a file, turned upright as its EXIF or TIFF orientation asks.

    The suffix must be one of `SUFFIXES`, but the content decides the format: a JPEG named .png
    is read as what it is. A palette becomes RGB, 1-bit becomes 8-bit, float16 becomes float32,
    colour that was multiplied with its alpha (TIFF) is divided by it.

    Args:
        path: the file.
        max_pixels: larger images are refused after a look at the header, before decoding.
            (WebP has a second limit, Pillow's own, of 178 million pixels.)

    Raises:
        ImageError: if there is no such file, or it is no image, broken, too large, of several
            pages or frames, of a sample type without meaning here, or has NaN or inf in it.
    """
    path = Path(path)
    with _errors_name(path), path.open("rb") as file:
        _format_name(path)
        return _as_image(imageformats.decode(file, max_pixels))


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
        ImageError: if the file exists, the format cannot hold the image, or the folder is
            missing or not writable.
    """
    path = Path(path)
    if not 1 <= quality <= 100:
        raise ValueError(f"quality must be in 1..100, got {quality}")
    check_writable(path, image, overwrite=overwrite)
    with _errors_name(path):
        encoded = imageformats.encode(_format_name(path), _as_decoded(image), quality)
        atomic.write_bytes(path, encoded, overwrite=overwrite)


def check_writable(path: str | os.PathLike[str], image: Image, *, overwrite: bool = False) -> None:
    """Raises the ImageError that `write` would raise, before an hour of work is put into it."""
    path = Path(path)
    check_holds(path, image)
    with _errors_name(path):
        if not path.parent.is_dir():
            raise FormatError(f"folder {path.parent} does not exist")
        if not os.access(path.parent, os.W_OK):
            raise FormatError(f"folder {path.parent} is not writable")
        if path.exists() and not overwrite:
            raise FileExistsError


def check_holds(path: str | os.PathLike[str], image: Image) -> None:
    """Raises an ImageError if the format of the path's suffix cannot hold the image."""
    path = Path(path)
    with _errors_name(path):
        imageformats.check_holds(_format_name(path), _as_decoded(image).samples)


def to_float(array: Array) -> Array:
    """A float32 copy in [0, 1]: uint8 / 255, uint16 / 65535, float values as they are."""
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"array must be one of {', '.join(_DTYPES)}, got {array.dtype}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, for callers to refuse
        return array.astype(np.float32) / np.float32(imageformats.white(array.dtype))


def from_float(array: Array, dtype: DTypeLike) -> Array:
    """The inverse of `to_float`: clipped and rounded for integers, only cast for floats."""
    dtype = np.dtype(dtype)
    if dtype.name not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype}")
    if dtype.kind == "f":
        return array.astype(dtype)
    if np.isnan(array).any():
        raise ValueError(f"NaN cannot become {dtype}")
    white = np.float32(imageformats.white(dtype))
    return np.rint(np.clip(array, 0, 1) * white).astype(dtype)


def as_image(given: Array | str | Path) -> Image:
    """The picture in an array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], or in a file."""
    if isinstance(given, str | Path):
        return read(given)
    if not isinstance(given, np.ndarray):
        kind = type(given).__name__
        raise ValueError(
            f"image must be a NumPy array (np.asarray makes one) or a path, got {kind}"
        )
    if given.ndim < 2 or given.shape[2:] not in ((), (1,), (3,), (4,)) or 0 in given.shape:
        raise ValueError(f"image must be [H, W] or [H, W, 1, 3 or 4], got {given.shape}")
    if given.dtype.name not in (*_DTYPES, "float16"):
        raise ValueError(f"image must be one of {', '.join(_DTYPES)}, got {given.dtype}")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise ValueError("image has NaN or infinite values")
    array = given.astype(np.float32) if given.dtype.name == "float16" else given
    if array.shape[2:] == (4,):
        return Image(array[..., :3], array[..., 3])
    return Image(array[..., 0] if array.shape[2:] == (1,) else array)


def as_array(result: Image, given: Array | str | Path) -> Array:
    """The result with the axes and the type of the array that was given, or as its file has it."""
    if result.alpha is not None:
        pixels: Array = np.dstack([result.pixels, result.alpha])
    elif isinstance(given, np.ndarray) and given.ndim == 3 and result.pixels.ndim == 2:
        pixels = result.pixels[..., None]
    else:
        pixels = result.pixels
    return pixels.astype(given.dtype, copy=False) if isinstance(given, np.ndarray) else pixels


@contextlib.contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Turns the errors of files and formats into an ImageError that names the path."""
    try:
        yield
    except FileExistsError as error:
        raise ImageError(f"{path}: exists already; it is replaced only with --overwrite") from error
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror or error}") from error
    except FormatError as error:
        raise ImageError(f"{path}: {error}") from error


def _format_name(path: Path) -> str:
    name = imageformats.SUFFIXES.get(path.suffix.lower())
    if name is None:
        raise FormatError(f"unknown suffix {path.suffix!r}; known are {' '.join(SUFFIXES)}")
    return name


def _as_image(decoded: Decoded) -> Image:
    samples = _checked(decoded.samples)
    samples = _upright(samples, decoded.orientation)
    alpha = None
    if imageformats.has_alpha(samples):
        alpha = np.ascontiguousarray(samples[..., -1])
        samples = samples[..., :-1]
    if samples.ndim == 3 and samples.shape[2] == 1:
        samples = samples[..., 0]
    dpi = decoded.dpi
    if dpi is not None and not all(1 <= density < 2**16 for density in dpi):
        dpi = None  # no picture has that, and JPEG could not hold it
    elif dpi is not None and decoded.orientation in (5, 6, 7, 8):  # these swap width and height
        dpi = dpi[::-1]
    return Image(np.ascontiguousarray(samples), alpha, decoded.exif, decoded.icc, dpi)


def _as_decoded(image: Image) -> Decoded:
    samples = image.pixels
    if image.alpha is not None:
        samples = np.dstack([samples, image.alpha])
    return Decoded(samples, 1, image.exif, image.icc, image.dpi)


def _checked(samples: Array) -> Array:
    """The samples in native byte order, if they can be an image."""
    if samples.ndim not in (2, 3) or samples.shape[2:] not in _CHANNELS:
        raise FormatError(f"array of shape {samples.shape} is not [H, W] or [H, W, 1 to 4]")
    name = "float32" if samples.dtype.name == "float16" else samples.dtype.name
    if name not in _DTYPES:
        raise FormatError(f"{name} samples are not supported; {', '.join(_DTYPES)} are")
    bad = samples.size - np.count_nonzero(np.isfinite(samples)) if name[0] == "f" else 0
    if bad:
        raise FormatError(f"{bad} of {samples.size} samples are NaN or inf")
    return samples.astype(name, copy=False)


def _upright(samples: Array, orientation: int) -> Array:
    """The samples as an EXIF orientation asks."""
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
