"""TIFF through tifffile: Pillow reads 16-bit RGB as 8-bit and cannot open float RGB."""

import contextlib
import io
import logging
import mmap
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from nlrn.errors import no_warnings
from nlrn.images import color, metadata
from nlrn.images.metadata import Dpi
from nlrn.images.samples import (
    Array,
    Decoded,
    FormatError,
    check_single,
    check_size,
    has_alpha,
    not_kept,
    white,
)

# Photometric interpretation -> stored samples per pixel without alpha: white is zero,
# black is zero, RGB, palette, inks, YCbCr (which JPEG compression turns into RGB), Lab in two ways.
_COLORS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3, 9: 3}
PALETTE, _CMYK, _YCBCR, _CIELAB, _ICCLAB, _CFA = 3, 5, 6, 8, 9, 32803
# Compressions that never give more than is asked for: none, CCITT, LZW, deflate, PackBits, LZMA,
# zstd; and those that are a picture of their own, whose size has to be looked at first: JPEG,
# JPEG 2000, PNG, WebP.
_BOUNDED = (1, 2, 3, 4, 5, 8, 32773, 32946, 34925, 50000)
_JPEG = (6, 7)
_PICTURES = (*_JPEG, 33003, 33004, 33005, 34712, 34933, 50001)
REDUCED = 1  # bit of the subfile type: a smaller version of another page
# Tags beyond the usual ones that are kept: EXIF, ICC, GPS, copyright.
_KEPT = (33432, 34665, 34675, 34853, 40965)
_XMP, SUB_DIRECTORIES = 700, 330


def decode(file: IO[bytes], max_pixels: int) -> Decoded:
    import tifffile

    with silent("tifffile"), tifffile.TiffFile(file) as tiff:
        page = _only_page(tiff)
        check_page(page, max_pixels)
        samples, icc, notes = samples_of(page, page.asarray())
        orientation = orientation_of(page)
        dpi = _dpi(page)
        notes += _notes(page, len(tiff.pages) - 1)
    return Decoded(samples, orientation, _exif(file), icc, dpi, None, notes)


def check_page(page: Any, max_pixels: int) -> None:
    """Raises a FormatError if a page is too large, or of a kind that is not known here."""
    check_size(page.imagewidth, page.imagelength, max_pixels)
    _check(page)
    _check_segments(page, max_pixels)


def orientation_of(page: Any) -> int:
    """How a page is to be turned, 1 to 8."""
    orientation = page.tags.valueof(274, default=1)
    return orientation if orientation in range(1, 9) else 1


def _only_page(tiff: Any) -> Any:
    """The page of a file that has one, besides thumbnails and the levels of a pyramid."""
    full = (page for page in tiff.pages if not page.subfiletype & REDUCED)
    page = next(full, None)
    if page is None or next(full, None) is not None:
        check_single(len(tiff.pages), "pages")
    page = page or tiff.pages[0]
    if len(tiff.pages) == 1 and (page.is_imagej or page.is_shaped):
        # These may have one directory for many pages.
        check_single(max(tiff.series[0].size // max(page.size, 1), 1), "pages")
    return page


def _exif(file: IO[bytes]) -> bytes | None:
    """The EXIF block; without reading the whole file where it is on a disk."""
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return metadata.from_tiff(data)
    except (io.UnsupportedOperation, OSError):
        file.seek(0)
        return metadata.from_tiff(file.read())


def _notes(page: Any, other_pages: int) -> tuple[str, ...]:
    """What of a file is not kept, or not there."""
    smaller = other_pages + np.size(page.tags.valueof(SUB_DIRECTORIES, default=()))
    names = [tag.name for tag in page.tags if tag.code == _XMP or _is_private(tag.code)]
    found = not_kept(*names, "smaller versions of the picture" if smaller else "")
    return found + warnings_of(page)


def warnings_of(page: Any) -> tuple[str, ...]:
    """What of a page is not there, or may be wrong."""
    found: tuple[str, ...] = ()
    if missing := sum(count == 0 for count in page.databytecounts):
        found += (f"damaged: {missing} of {len(page.databytecounts)} parts are missing, and black",)
    if 0 in page.extrasamples:
        found += ("a channel of no stated meaning is taken for alpha, not restored",)
    return found


def _is_private(tag: int) -> bool:
    return tag >= 2**15 and tag not in _KEPT


def _dpi(page: Any) -> Dpi | None:
    inches = {2: 1.0, 3: 2.54}.get(page.tags.valueof(296, default=2), 0.0)
    across, down = (page.tags.valueof(tag, default=(0, 1)) for tag in (282, 283))
    if not all(len(ratio) == 2 and min(ratio) > 0 for ratio in (across, down)) or not inches:
        return None
    return inches * across[0] / across[1], inches * down[0] / down[1]


@contextlib.contextmanager
def silent(logger_name: str) -> Iterator[None]:
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
    is_deep_lab = page.photometric in (_CIELAB, _ICCLAB) and page.bitspersample not in (8, 16)
    is_ycbcr = page.photometric == _YCBCR and page.compression not in _JPEG
    if page.photometric == _CFA:
        raise FormatError("TIFF of camera raw data: develop it first (darktable-cli, dcraw -T)")
    if colors is None or is_ycbcr or is_deep_lab:
        model = getattr(page.photometric, "name", page.photometric)
        raise FormatError(f"TIFF with color model {model} is not supported; save it as RGB")
    if page.samplesperpixel not in (colors, colors + 1) or "Z" in page.axes:
        how = "split it into files of one or three channels"
        raise FormatError(f"TIFF with samples {page.axes} {page.shape} is not supported; {how}")
    if page.dtype is None or page.bitspersample not in (1, 8 * page.dtype.itemsize):
        raise FormatError(f"TIFF with {page.bitspersample} bits per sample is not supported")


def _check_segments(page: Any, max_pixels: int) -> None:
    """Refuses tiles and strips that would take more memory than the picture may."""
    if page.is_tiled:
        check_size(page.tilewidth, page.tilelength, max_pixels)
    if page.compression in _BOUNDED:
        return
    if page.compression not in _PICTURES:
        name = getattr(page.compression, "name", page.compression)
        raise FormatError(f"TIFF with compression {name} is not supported; save it with deflate")
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        if count:
            page.parent.filehandle.seek(offset)
            check_size(*_picture_size(page.parent.filehandle.read(count)), max_pixels)


def _picture_size(data: bytes) -> tuple[int, int]:
    """Width and height of a picture inside a TIFF, by its header."""
    import PIL.Image

    try:
        with no_warnings(), PIL.Image.open(io.BytesIO(data)) as picture:
            return picture.size
    except PIL.Image.DecompressionBombError as error:
        raise FormatError("has far larger pictures inside") from error
    except PIL.UnidentifiedImageError:  # an old kind of JPEG, in pieces: of the page's size
        return (1, 1)


def samples_of(page: Any, stored: Array) -> tuple[Array, bytes | None, tuple[str, ...]]:
    """Samples of a page that stores these, their color profile, and notes about color."""
    samples = np.asarray(stored)
    if page.axes == "SYX":  # planes stored one after the other
        samples = np.moveaxis(samples, 0, -1)
    if samples.dtype == np.bool_:
        samples = samples.astype(np.uint8) * np.uint8(255)
    if page.photometric == 0:  # white is zero
        samples = _inverted(samples)
    if page.photometric == PALETTE:  # [3, 256] table of 16-bit values
        samples = np.moveaxis((page.colormap >> 8).astype(np.uint8)[:, samples], 0, -1)
    if 1 in page.extrasamples:
        samples = _unpremultiplied(samples)
    profile = page.tags.valueof(34675)
    icc = bytes(profile) if profile else None
    if page.photometric == _CMYK:
        return _as_rgb(samples, 4, color.from_cmyk(samples[..., :4], icc))
    if page.photometric in (_CIELAB, _ICCLAB):
        signed = page.photometric == _CIELAB
        return _as_rgb(samples, 3, color.from_lab(samples[..., :3], signed=signed))
    return samples, icc, ()


def _as_rgb(
    samples: Array, colors: int, converted: tuple[Array, bytes | None, str]
) -> tuple[Array, bytes | None, tuple[str, ...]]:
    """What was made of the colors, and behind it the alpha of the samples [H, W, C]."""
    rgb, icc, note = converted
    return np.concatenate([rgb, samples[..., colors:]], axis=2), icc, (note,)


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
