"""Arrays of samples as files store them: their types, white, alpha and float values."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from nlrn.images.metadata import Dpi

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = ("uint8", "uint16", "float32", "float64")
OPEN_DTYPES = ("int16", "int32", "int64", "uint32")  # nobody knows where white is in these
FLOAT_RANGE_LIMIT = 16.0  # an image with float values beyond it is not on the [0, 1] scale
TWO_CHANNELS = "the second of two channels is taken for alpha, not restored"
CHANNELS = ((), (1,), (2,), (3,), (4,))  # what may follow H and W in a shape


class FormatError(ValueError):
    """A file that cannot be decoded or encoded; the reason in one line, without the path."""


class Decoded(NamedTuple):
    """What a file holds.

    Attributes:
        samples: [H, W] or [H, W, C], not yet turned upright.
        orientation: 1 to 8, as in EXIF.
        exif: EXIF block whose own orientation is 1.
        icc: colour profile of the samples.
        dpi: pixels per inch across and down.
        color: chunks of a PNG that say what color its values mean.
        notes: what of the file is not in here, or may be wrong, in words.
    """

    samples: Array
    orientation: int = 1
    exif: bytes | None = None
    icc: bytes | None = None
    dpi: Dpi | None = None
    color: bytes | None = None
    notes: tuple[str, ...] = ()


class Stored(NamedTuple):
    """How a file stores samples that are not on the scale of their type."""

    dtype: str
    white: float


def white(dtype: np.dtype[Any]) -> int:
    """The value of white in samples of this type."""
    return int(np.iinfo(dtype).max) if dtype.kind == "u" else 1


def likely_white(samples: Array) -> int:
    """The white of whole numbers whose type does not say it: the next of the usual depths."""
    depths = (8, 10, 12, 14, 15, 16, 31, 32, 63)
    return next(2**bits - 1 for bits in depths if samples.max() < 2**bits)


def has_alpha(samples: Array) -> bool:
    """Whether the last of the channels [H, W, C] is alpha."""
    return samples.ndim == 3 and samples.shape[2] in (2, 4)


def split_alpha(samples: Array) -> tuple[Array, Array | None]:
    """Pixels [H, W] or [H, W, 3] and alpha [H, W], or None, of samples with 1 to 4 channels."""
    alpha = samples[..., -1] if has_alpha(samples) else None
    colors = samples if alpha is None else samples[..., :-1]
    return (colors[..., 0] if colors.shape[2:] == (1,) else colors), alpha


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raises a FormatError if an image has no pixels or too many."""
    if width <= 0 or height <= 0:
        raise FormatError(f"has no pixels ({width}x{height})")
    if width * height > max_pixels:
        pixels = width * height
        raise FormatError(f"{width}x{height} is {pixels} pixels, the limit is {max_pixels}")


def stretched(samples: Array, brightest: int) -> Array:
    """Whole numbers of which `brightest` is white, on the range of 8 or 16 bits; none collide."""
    dtype = np.dtype(np.uint8 if brightest <= 255 else np.uint16)
    if brightest == white(dtype):
        return samples.astype(dtype, copy=False)
    values = np.minimum(samples, brightest).astype(np.uint64)
    return ((values * white(dtype) + brightest // 2) // brightest).astype(dtype)


def not_kept(*what: str, by: str = "") -> tuple[str, ...]:
    """The note that these things of a file are not kept; none for nothing."""
    names = ", ".join(name for name in what if name)
    return (f"not kept{by}: {names}",) if names else ()


def either(names: list[str]) -> str:
    """Names in one phrase: "a, b or c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def check_single(count: int, what: str) -> None:
    """Raises unless a file holds one page or frame."""
    if count == 0:
        raise ValueError(f"no {what}")
    if count > 1:
        how = "only files with one are read here, nlrn.stacks reads all of a path"
        raise FormatError(f"has {count} {what}; {how}")


def to_float(array: Array) -> Array:
    """A float32 copy in [0, 1]: uint8 / 255, uint16 / 65535, float values as they are.

    Raises:
        ValueError: if the type is another one, or a value is not finite, if only as float32.
    """
    if array.dtype.name not in DTYPES:
        raise ValueError(f"array must be one of {', '.join(DTYPES)}, got {array.dtype}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf
        result: Array = array.astype(np.float32) / np.float32(white(array.dtype))
    if array.dtype.kind == "f" and not np.isfinite(result).all():
        check_finite(array)
        raise ValueError("image has values that float32 cannot hold")
    return result


def check_finite(array: Array) -> None:
    """Raises if there is NaN or infinity among the values."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("image has NaN or infinite values")


def check_scale(array: Array) -> None:
    """Raises if the values of a float array cannot be on the [0, 1] scale."""
    most = np.abs(array).max(initial=0) if array.dtype.kind == "f" else 0
    if most > FLOAT_RANGE_LIMIT:
        how = "divide them by their white, or say which it is in the file (white=255)"
        raise ValueError(f"float values are to be in [0, 1], these reach {most:g}: {how}")


def plain_array(array: Array) -> Array:
    """The array without the extras of a subclass; raises where some of its values are masked."""
    if isinstance(array, np.ma.MaskedArray) and array.mask.any():
        raise ValueError("image has masked values: give them some first (image.filled(0))")
    return np.asarray(array)


def from_float(array: Array, dtype: DTypeLike) -> Array:
    """The inverse of `to_float`: clipped and rounded for integers, only cast for floats."""
    dtype = np.dtype(dtype)
    if dtype.name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    if dtype.kind == "f":
        return array.astype(dtype)
    array = array.astype(np.result_type(array.dtype, np.float32), copy=False)
    if np.isnan(array.min(initial=1)):
        raise ValueError(f"NaN cannot become {dtype}")
    values = np.clip(array, 0, 1)
    values *= np.float32(white(dtype))  # in place: a large photo is hundreds of megabytes
    return np.rint(values, out=values).astype(dtype)
