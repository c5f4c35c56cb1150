"""Whether a file is all there, by its header and its size; nothing compressed is decoded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

from nlrn.images import formats
from nlrn.images.samples import FormatError

_ENDS = {
    "PNG": b"IEND\xaeB`\x82",
    "JPEG": b"\xff\xd9",
    "JPEG 2000": b"\xff\xd9",
    "J2K": b"\xff\xd9",
    "TGA": b"TRUEVISION-XFILE.\0",
}


def is_whole(file: IO[bytes], suffix: str = "") -> bool:
    """Whether a file has the header of an image, and all the bytes that it speaks of.

    Args:
        file: open for reading, at its beginning.
        suffix: of its name, in lower case; TGA cannot be told by its content.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        name = formats.sniff(file, suffix)
        if name in _ENDS:
            file.seek(max(0, size - len(_ENDS[name])))
            return file.read() == _ENDS[name]
        return _CHECKS.get(name, _is_readable)(file, size)
    except Exception:  # on broken files the libraries raise anything
        return False


def _is_riff(file: IO[bytes], size: int) -> bool:
    return 8 + int.from_bytes(file.read(8)[4:], "little") == size


def _is_bmp(file: IO[bytes], size: int) -> bool:
    return int.from_bytes(file.read(6)[2:], "little") == size


def _is_boxes(file: IO[bytes], size: int) -> bool:
    """Whether the boxes of an ISO file, each with its length in front, fill it."""
    place = 0
    while place < size:
        file.seek(place)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:  # the length follows, in 8 bytes
            length = int.from_bytes(head[8:16], "big")
        place += length or size - place  # 0: to the end
        if 0 < length < 8:
            return False
    return place == size


def _is_tiff(file: IO[bytes], size: int) -> bool:
    import tifffile

    with tifffile.TiffFile(file) as tiff:
        ends = [
            offset + count
            for page in tiff.pages
            for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True)
        ]
    return bool(ends) and max(ends) <= size


def _is_readable(file: IO[bytes], size: int) -> bool:
    """Whether a file that is not compressed, and no larger than its samples, can be decoded."""
    try:
        formats.decode(file, size)
    except FormatError:
        return False
    return True


_CHECKS: dict[str, Callable[[IO[bytes], int], bool]] = {
    "WebP": _is_riff,
    "BMP": _is_bmp,
    "AVIF": _is_boxes,
    "TIFF": _is_tiff,
}
