"""TIFF through tifffile: Pillow reads 16-bit RGB as 8-bit and cannot open float RGB."""

import contextlib
import io
import logging
import mmap
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from nlrn.images import metadata
from nlrn.images.metadata import Dpi
from nlrn.images.samples import (
    Array,
    Decoded,
    FormatError,
    check_single,
    check_size,
    has_alpha,
    white,
)

# Photometric interpretation -> stored samples per pixel without alpha: white is zero,
# black is zero, RGB, palette, YCbCr (which JPEG compression turns into RGB).
_COLORS = {0: 1, 1: 1, 2: 3, 3: 1, 6: 3}


def decode(file: IO[bytes], max_pixels: int) -> Decoded:
    import tifffile

    with _silent("tifffile"), tifffile.TiffFile(file) as tiff:
        check_single(len(tiff.pages), "pages")
        page: Any = tiff.pages[0]
        check_size(page.imagewidth, page.imagelength, max_pixels)
        _check(page)
        samples = _samples(page)
        orientation = page.tags.valueof(274, default=1)
        orientation = orientation if orientation in range(1, 9) else 1
        icc = page.tags.valueof(34675)
        dpi = _dpi(page)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        exif = metadata.from_tiff(data)
    return Decoded(samples, orientation, exif, bytes(icc) if icc else None, dpi)


def _dpi(page: Any) -> Dpi | None:
    inches = {2: 1.0, 3: 2.54}.get(page.tags.valueof(296, default=2), 0.0)
    across, down = (page.tags.valueof(tag, default=(0, 1)) for tag in (282, 283))
    if not all(len(ratio) == 2 and min(ratio) > 0 for ratio in (across, down)) or not inches:
        return None
    return inches * across[0] / across[1], inches * down[0] / down[1]


@contextlib.contextmanager
def _silent(logger_name: str) -> Iterator[None]:
    """Drops what a library logs; a filter of its own for each call keeps threads apart."""

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger(logger_name)
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _check(page: Any) -> None:
    colors = _COLORS.get(page.photometric)
    is_jpeg = page.compression in (6, 7)
    if colors is None or (page.photometric == 6 and not is_jpeg):
        model = getattr(page.photometric, "name", page.photometric)
        raise FormatError(f"TIFF with colour model {model} is not supported")
    if page.samplesperpixel not in (colors, colors + 1) or "Z" in page.axes:
        raise FormatError(f"TIFF with samples {page.axes} {page.shape} is not supported")
    if page.dtype is None or page.bitspersample not in (1, 8 * page.dtype.itemsize):
        raise FormatError(f"TIFF with {page.bitspersample} bits per sample is not supported")


def _samples(page: Any) -> Array:
    samples = np.asarray(page.asarray())
    if page.axes == "SYX":  # planes stored one after the other
        samples = np.moveaxis(samples, 0, -1)
    if samples.dtype == np.bool_:
        samples = samples.astype(np.uint8) * np.uint8(255)
    if page.photometric == 0:  # white is zero
        samples = _inverted(samples)
    if page.photometric == 3:  # [3, 256] table of 16-bit values
        samples = np.moveaxis((page.colormap >> 8).astype(np.uint8)[:, samples], 0, -1)
    if 1 in page.extrasamples:
        samples = _unpremultiplied(samples)
    return samples


def _inverted(samples: Array) -> Array:
    """Black and white exchanged; alpha, if any, stays."""
    out = np.array(samples)
    gray = out[..., 0] if out.ndim == 3 else out
    np.subtract(white(out.dtype), gray, out=gray, casting="unsafe")
    return out


def _unpremultiplied(samples: Array) -> Array:
    """Colour [H, W, C] divided by its alpha, which other programs had multiplied in."""
    top = white(samples.dtype)
    alpha = samples[..., -1:].astype(np.float64) / top
    with np.errstate(all="ignore"):  # what becomes inf or NaN is counted later
        color = samples[..., :-1] / np.where(alpha == 0, 1, alpha)
    if samples.dtype.kind == "u":
        color = np.rint(np.minimum(color, top))
    return np.dstack([color.astype(samples.dtype), samples[..., -1]])


def encode(image: Decoded, quality: int) -> bytes:
    import tifffile

    color = image.samples.ndim == 3 and image.samples.shape[2] >= 3
    out = io.BytesIO()
    tifffile.imwrite(
        out,
        image.samples,
        byteorder=">" if image.exif and image.exif.startswith(b"MM") else "<",
        photometric="rgb" if color else "minisblack",
        planarconfig="contig" if image.samples.ndim == 3 else None,
        extrasamples=["unassalpha"] if has_alpha(image.samples) else None,
        compression="zlib",
        predictor=True,
        iccprofile=image.icc,
        resolution=image.dpi,
        resolutionunit="inch" if image.dpi else None,
        metadata=None,
        software=False,
    )
    encoded = out.getvalue()
    if not image.exif:
        return encoded
    return metadata.into_tiff(encoded, image.exif, keep_resolution=image.dpi is not None)
