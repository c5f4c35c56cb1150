"""EXIF blocks and ICC profiles on their way into and out of files: bytes in, bytes out.

An EXIF block is a small TIFF file of its own: byte order, then directories of tags whose values
lie at offsets from the start. A TIFF image keeps the same directories among its own. Copying them
as raw bytes keeps every value and type exactly, which a parse into Python values would not.
"""

import mmap
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

Directory = dict[int, tuple[int, int, bytes]]  # tag -> (type, count, raw value)
Dpi = tuple[float, float]  # pixels per inch across and down

_PREFIX = b"Exif\0\0"  # JPEG puts it before the block, some WebP writers too
_ORIENTATION = 274
_IMAGE_DESCRIPTION = 270
_RESOLUTION = _X_RESOLUTION, _Y_RESOLUTION, _RESOLUTION_UNIT = 282, 283, 296
_EXIF_DIRECTORY, _GPS_DIRECTORY, _INTEROP_DIRECTORY = 34665, 34853, 40965
# What describes the picture and not its storage: DocumentName, ImageDescription, Make, Model,
# PageName, resolution, TransferFunction, Software, DateTime, Artist, HostComputer, WhitePoint,
# PrimaryChromaticities, Copyright.
_DESCRIPTIVE = {269, 270, 271, 272, 282, 283, 285, 296, 301, 305, 306, 315, 316, 318, 319, 33432}
_PNG_METADATA = (b"acTL", b"eXIf", b"iCCP", b"pHYs")
_PNG_COLOR = (b"cHRM", b"gAMA", b"sRGB", b"cICP", b"mDCV", b"cLLI")
_PNG_TEXT = (b"tEXt", b"zTXt", b"iTXt")
_PNG_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_INCH = 0.0254  # metres
_MAX_ICC_BYTES = 2**24  # a deflated profile may claim to be gigabytes
_TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}


def take_orientation(block: bytes) -> tuple[int, bytes | None]:
    """The orientation (1 to 8) and the block with orientation 1 and its thumbnail unlinked.

    The block is patched in place, so that maker notes, whose offsets nobody knows, stay valid.
    The thumbnail goes because it shows the picture as it was. A broken block gives (1, None).
    """
    while block.startswith(_PREFIX):
        block = block.removeprefix(_PREFIX)
    patched = bytearray(block)
    orientation = 1
    try:
        order = _order(block)
        (start,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, start)
        end = start + 2 + 12 * count
        for entry in range(start + 2, end, 12):
            tag, kind = struct.unpack_from(order + "HH", block, entry)
            if tag == _ORIENTATION and kind in (3, 4):
                value = order + ("H" if kind == 3 else "I")
                (orientation,) = struct.unpack_from(value, block, entry + 8)
                struct.pack_into(value, patched, entry + 8, 1)
    except (struct.error, ValueError):
        return 1, None
    patched[end : end + 4] = bytes(len(patched[end : end + 4]))
    return orientation if orientation in range(1, 9) else 1, bytes(patched)


class PngParts(NamedTuple):
    """What a PNG file is made of.

    Attributes:
        pixels: the file without metadata, about which libpng would print warnings.
        frames: more than one in an animation.
        exif: EXIF block, empty if there is none.
        icc: colour profile.
        dpi: pixels per inch.
        color: the chunks that say what color the values mean, whole.
        texts: what kinds of text there are: "XMP", "text".
    """

    pixels: bytes
    frames: int
    exif: bytes
    icc: bytes | None
    dpi: Dpi | None
    color: bytes
    texts: tuple[str, ...]


def from_png(data: bytes) -> PngParts:
    """The parts of a PNG file; ValueError if it ends early."""
    chunks = list(png_chunks(data))
    pixels = data[:8] + b"".join(chunk for name, chunk in chunks if name in _PNG_PIXELS)
    payload = {name: bytes(chunk[8:-4]) for name, chunk in chunks if name in _PNG_METADATA}
    frames = int.from_bytes(payload.get(b"acTL", b"\0\0\0\1")[:4], "big")
    icc = _inflated_icc(payload.get(b"iCCP", b""))
    dpi = None
    if len(size := payload.get(b"pHYs", b"")) == 9 and size[8] == 1:  # pixels per metre
        across, down = struct.unpack(">II", size[:8])
        dpi = (across * _INCH, down * _INCH) if across and down else None
    color = b"".join(chunk for name, chunk in chunks if name in _PNG_COLOR)
    texts = [bytes(chunk[8:29]) for name, chunk in chunks if name in _PNG_TEXT]
    kinds = {"XMP" if text.startswith(b"XML:com.adobe.xmp\0") else "text" for text in texts}
    exif = payload.get(b"eXIf", b"")
    return PngParts(pixels, frames, exif, icc, dpi, color, tuple(sorted(kinds)))


def into_png(
    png: bytes, exif: bytes | None, icc: bytes | None, dpi: Dpi | None, color: bytes | None
) -> bytes:
    """The PNG file with the metadata in chunks behind its header."""
    extra = color or b""
    if dpi:
        extra += png_chunk(b"pHYs", struct.pack(">IIB", *(round(d / _INCH) for d in dpi), 1))
    if icc:
        extra += png_chunk(b"iCCP", b"ICC Profile\0\0" + zlib.compress(icc))
    if exif:
        extra += png_chunk(b"eXIf", exif)
    header_end = 8 + 12 + 13  # signature, then the IHDR chunk
    return png[:header_end] + extra + png[header_end:]


def from_tiff(data: bytes | mmap.mmap) -> bytes | None:
    """The EXIF block of a TIFF file: descriptive tags, EXIF and GPS directories; None without.

    The orientation is not among them. None for a BigTIFF, whose directories differ.
    """
    try:
        order = _order(data)
        top, nested = _descriptive(data, order)
    except (struct.error, ValueError):
        return None
    if top.get(_RESOLUTION_UNIT, (3, 1, b""))[2] == struct.pack(order + "H", 1):
        # Without a unit it is only the filler that TIFF demands.
        for tag in _RESOLUTION:
            top.pop(tag, None)
    if not top and not nested:
        return None
    header = bytes(data[:4]) + bytes(4)
    return _append(header, order, top, nested)


def into_tiff(tiff: bytes, block: bytes, *, keep_resolution: bool = False) -> bytes:
    """The TIFF file with the descriptive tags of an EXIF block of the same byte order.

    The resolution may be the block's or the file's own.

    A file whose directories cannot be joined (BigTIFF, broken block) comes back as it was.
    """
    try:
        order = _order(tiff)
        if order != _order(block):
            return tiff
        top, nested = _descriptive(block, order)
        own = _read_directory(tiff, order, struct.unpack_from(order + "I", tiff, 4)[0])
    except (struct.error, ValueError):
        return tiff
    if keep_resolution:
        top = {tag: entry for tag, entry in top.items() if tag not in _RESOLUTION}
    return _append(tiff, order, own | top, nested)


def png_chunk(name: bytes, payload: bytes) -> bytes:
    """A whole chunk of a PNG: length, name, payload, CRC."""
    crc = zlib.crc32(name + payload)
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", crc)


def png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Name and whole chunk (length, name, payload, CRC) up to the end marker."""
    position, name = 8, b""
    while name != b"IEND":
        if position + 12 > len(data):
            raise ValueError("file ends early")
        length, name = struct.unpack_from(">I4s", data, position)
        yield name, memoryview(data)[position : position + 12 + length]
        position += 12 + length


def _inflated_icc(payload: bytes) -> bytes | None:
    """The profile of an iCCP chunk (name, zero, method, deflated profile); None if broken."""
    inflater = zlib.decompressobj()
    try:
        icc = inflater.decompress(payload.partition(b"\0")[2][1:], _MAX_ICC_BYTES)
    except zlib.error:
        return None
    return icc if inflater.eof else None


def _order(data: bytes | mmap.mmap) -> str:
    orders = {b"II*\0": "<", b"MM\0*": ">"}
    head = bytes(data[:4])
    if head not in orders:
        raise ValueError(f"no TIFF header: {head!r}")
    return orders[head]


def _descriptive(data: bytes | mmap.mmap, order: str) -> tuple[Directory, dict[int, Directory]]:
    """The descriptive tags of the first directory, and its EXIF and GPS directories by tag."""
    first = _read_directory(data, order, struct.unpack_from(order + "I", data, 4)[0])
    nested = {}
    for tag in (_EXIF_DIRECTORY, _GPS_DIRECTORY):
        if tag in first:
            offset = struct.unpack(order + "I", first[tag][2])[0]
            nested[tag] = _read_directory(data, order, offset)
            nested[tag].pop(_INTEROP_DIRECTORY, None)  # an offset that would point nowhere
    kept = {tag: entry for tag, entry in first.items() if tag in _DESCRIPTIVE}
    if kept.get(_IMAGE_DESCRIPTION, (0, 0, b""))[2].startswith(b'{"shape"'):
        del kept[_IMAGE_DESCRIPTION]  # tifffile's note of the size, which may change
    return kept, nested


def _read_directory(data: bytes | mmap.mmap, order: str, offset: int) -> Directory:
    (count,) = struct.unpack_from(order + "H", data, offset)
    entries = {}
    for start in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind, values, field = struct.unpack_from(order + "HHI4s", data, start)
        size = values * _TYPE_SIZES.get(kind, 0)
        where = struct.unpack(order + "I", field)[0]
        raw = field[:size] if size <= 4 else data[where : where + size]
        if size and len(raw) == size:  # an entry of unknown type or cut off is left out
            entries[tag] = (kind, values, bytes(raw))
    return entries


def _append(tiff: bytes, order: str, top: Directory, nested: dict[int, Directory]) -> bytes:
    """The TIFF with a new first directory behind everything else."""
    out = bytearray(tiff)
    for tag, entries in nested.items():
        out += bytes(len(out) % 2)  # directories begin on even offsets
        top = top | {tag: (4, 1, struct.pack(order + "I", len(out)))}
        out += _pack_directory(entries, order, len(out))
    out += bytes(len(out) % 2)
    struct.pack_into(order + "I", out, 4, len(out))
    out += _pack_directory(top, order, len(out))
    return bytes(out)


def _pack_directory(entries: Directory, order: str, offset: int) -> bytes:
    head = struct.pack(order + "H", len(entries))
    values = b""
    values_start = offset + 2 + 12 * len(entries) + 4
    for tag, (kind, count, raw) in sorted(entries.items()):
        field = raw
        if len(raw) > 4:
            field = struct.pack(order + "I", values_start + len(values))
            values += raw + bytes(len(raw) % 2)
        head += struct.pack(order + "HHI", tag, kind, count) + field.ljust(4, b"\0")
    return head + bytes(4) + values  # four zeros: no next directory
