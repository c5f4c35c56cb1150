"""JPEG, WebP, BMP, TGA and AVIF through Pillow.

The plugin classes are called directly: Image.open would warn about sizes below our own limit, and
would take a phone's JPEG with a second picture inside (a gain map, a preview) for a file of several
frames.
"""

import io
import struct
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from nlrn.errors import no_warnings, one_line
from nlrn.images import color, metadata
from nlrn.images.metadata import Dpi
from nlrn.images.samples import (
    Decoded,
    FormatError,
    check_single,
    check_size,
    not_kept,
    stretched,
)

# What Pillow finds in a file and we have no place for -> its name.
_LOST = {"xmp": "XMP", "photoshop": "IPTC", "comment": "a comment", "mp": "the second picture"}
_SPARE = 4  # bytes after the last of a JPEG's data that some cameras add


def decode_jpeg(file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.JpegImagePlugin import JpegImageFile

    decoded = _decoded(_opened(JpegImageFile, file, max_pixels))
    file.seek(0)
    if _is_damaged(file.read()):
        damaged = "damaged: its data do not end where the picture does, parts of it may be wrong"
        return decoded._replace(notes=(*decoded.notes, damaged))
    return decoded


def _is_damaged(data: bytes) -> bool:
    """Whether the data of a JPEG are too many or too few for its picture.

    It has no checksum, and the decoder goes on after damage, but then it mostly finds another
    number of blocks. Only for files of one scan.
    """
    scan = _first_scan(data)
    end = data.find(b"\xff\xd9", scan)
    if end < 0 or data.find(b"\xff\xda", scan + 2, end) >= 0:
        return False
    return _is_whole(data[: end - _SPARE]) or not _is_whole(data[:end] + bytes(16))


def _is_whole(data: bytes) -> bool:
    """Whether these data of a JPEG are enough for its picture."""
    from PIL.JpegImagePlugin import JpegImageFile

    try:
        with no_warnings():
            picture = JpegImageFile(io.BytesIO(data))
            picture.draft(None, (1, 1))  # the quickest: one pixel of a block
        picture.load()
    except OSError:
        return False
    return True


def _first_scan(data: bytes) -> int:
    """Where the first scan begins, behind all thumbnails."""
    position = 2
    while data[position : position + 2] != b"\xff\xda":
        if data[position] != 0xFF:
            raise ValueError("no scan")
        fill = data[position + 1] == 0xFF
        position += 1 if fill else 2 + struct.unpack_from(">H", data, position + 2)[0]
    return position


def decode_webp(file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.WebPImagePlugin import WebPImageFile

    return _decoded(_opened(WebPImageFile, file, max_pixels))


def decode_bmp(file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.BmpImagePlugin import BmpImageFile

    return _decoded(_opened(BmpImageFile, file, max_pixels))


def decode_tga(file: IO[bytes], max_pixels: int) -> Decoded:
    from PIL.TgaImagePlugin import TgaImageFile

    return _decoded(_opened(TgaImageFile, file, max_pixels))


def decode_avif(file: IO[bytes], max_pixels: int) -> Decoded:
    """Header and metadata by Pillow; samples by imagecodecs, which keeps 10 and 12 bits."""
    import imagecodecs
    from PIL.AvifImagePlugin import AvifImageFile

    picture = _opened(AvifImageFile, file, max_pixels)
    file.seek(0)
    data = file.read()
    flags = data[data.index(b"av1C") + 6]
    bits = 8 if not flags & 0x40 else 12 if flags & 0x20 else 10
    if bits == 8:
        return _decoded(picture)
    samples = stretched(np.asarray(imagecodecs.avif_decode(data)), 2**bits - 1)
    return _decoded(picture, samples)


def _opened(plugin: Callable[[IO[bytes]], Any], file: IO[bytes], max_pixels: int) -> Any:
    """The picture in a file of which only the header has been read, if it can be decoded."""
    from PIL.Image import DecompressionBombError

    try:
        with no_warnings():
            picture = plugin(file)
    except DecompressionBombError as error:  # WebP's plugin has its own limit
        raise FormatError(f"too large ({one_line(error)})") from error
    check_size(picture.width, picture.height, max_pixels)
    check_single(getattr(picture, "n_frames", 1), "frames")
    return picture


def _decoded(picture: Any, samples: np.ndarray | None = None) -> Decoded:
    """Samples, which Pillow gives unless they are given, and metadata."""
    notes = not_kept(*(name for key, name in _LOST.items() if picture.info.get(key)))
    icc = picture.info.get("icc_profile") or None
    if samples is None:
        # everything else is color: P, RGB
        modes = {"1": "L", "L": "L", "LA": "LA", "RGBA": "RGBA", "CMYK": "CMYK"}
        mode = modes.get(picture.mode, "RGB")
        samples = np.array(picture.convert(mode))
        if mode == "CMYK":
            samples, icc, note = color.from_cmyk(samples, icc)
            notes += (note,)
    orientation, exif = metadata.take_orientation(picture.info.get("exif", b""))
    return Decoded(samples, orientation, exif, icc, _dpi(picture), None, notes)


def _dpi(picture: Any) -> Dpi | None:
    """Pixels per inch in a JPEG's own header or a BMP's; what EXIF says of them stays there."""
    if picture.format == "BMP":
        return picture.info.get("dpi")
    inches = {1: 1.0, 2: 2.54}.get(picture.info.get("jfif_unit"))  # 0 is a ratio without a unit
    if inches is None:
        return None
    across, down = picture.info["jfif_density"]
    return inches * across, inches * down


def encode_jpeg(image: Decoded, quality: int) -> bytes:
    return _encoded(image, "JPEG", dpi=True, quality=quality, subsampling=0)


def encode_webp(image: Decoded, quality: int) -> bytes:
    # exact: without it the color under transparent pixels is lost
    return _encoded(_as_color(image), "WEBP", lossless=True, exact=True)


def encode_avif(image: Decoded, quality: int) -> bytes:
    """As good as its color model allows: a level of 255 is lost here and there."""
    return _encoded(_as_color(image), "AVIF", quality=100, subsampling="4:4:4")


def encode_bmp(image: Decoded, quality: int) -> bytes:
    # Pillow would make up 96 pixels per inch.
    plain = image._replace(exif=None, icc=None, dpi=image.dpi or (0, 0))
    return _encoded(plain, "BMP", dpi=True)


def encode_tga(image: Decoded, quality: int) -> bytes:
    return _encoded(image._replace(exif=None, icc=None), "TGA", compression="tga_rle")


def _as_color(image: Decoded) -> Decoded:
    """Gray as RGB, for formats that have none; a profile of gray says nothing about that."""
    samples = image.samples
    if samples.ndim == 2:
        samples = np.dstack([samples] * 3)
    elif samples.shape[2] == 2:
        samples = samples[..., [0, 0, 0, 1]]
    is_gray_profile = image.icc is not None and image.icc[16:20] == b"GRAY"
    return image._replace(samples=samples, icc=None if is_gray_profile else image.icc)


def _encoded(image: Decoded, name: str, *, dpi: bool = False, **options: Any) -> bytes:
    import PIL.Image

    if dpi and image.dpi:
        options["dpi"] = image.dpi
    if image.exif:
        options["exif"] = b"Exif\0\0" + image.exif
    out = io.BytesIO()
    picture = PIL.Image.fromarray(np.ascontiguousarray(image.samples))
    picture.save(out, name, icc_profile=image.icc, **options)
    return out.getvalue()
