"""Files that move, put together from one-frame files, so that one frame is in memory at a time.

Pillow would collect all of them first. Frames are whole pictures that replace the one before.
"""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import IO, NamedTuple

import numpy as np

from nlrn.images import by_pillow, formats
from nlrn.images.metadata import into_png, png_chunk, png_chunks
from nlrn.images.samples import Decoded, split_alpha

TRANSPARENT = 255  # color of a GIF that shows what is behind


class Animation(NamedTuple):
    """What is to be known of all frames.

    Attributes:
        durations: of each, in milliseconds.
        plays: how often the whole is shown; 0 is for ever.
        alpha: whether frames are transparent somewhere.
    """

    durations: tuple[float, ...]
    plays: int
    alpha: bool


class PngFrames:
    """Writes an animated PNG: chunks acTL, then fcTL and fdAT for each frame, the first in IDAT."""

    def __init__(self, file: IO[bytes], animation: Animation) -> None:
        self._file, self._animation = file, animation
        self._frames = self._numbered = 0

    def add(self, frame: Decoded) -> None:
        """Writes the next frame."""
        png = formats.encode("PNG", Decoded(frame.samples), 100)
        chunks = list(png_chunks(png))
        if self._frames == 0:
            header = png[:8] + b"".join(chunk for name, chunk in chunks if name == b"IHDR")
            self._file.write(into_png(header, frame.exif, frame.icc, None, None))
            count = len(self._animation.durations)
            self._write(b"acTL", struct.pack(">II", count, self._animation.plays))
        height, width = frame.samples.shape[:2]
        ratio = Fraction(self._animation.durations[self._frames] / 1000).limit_denominator(1000)
        delay = min(ratio.numerator, 2**16 - 1), ratio.denominator
        self._write(b"fcTL", struct.pack(">IIIIIHHBB", self._next(), width, height, 0, 0, *delay,
                                         0, 0))  # fmt: skip
        for name, chunk in chunks:
            if name != b"IDAT":
                continue
            if self._frames == 0:
                self._file.write(chunk)
            else:
                self._write(b"fdAT", struct.pack(">I", self._next()) + bytes(chunk[8:-4]))
        self._frames += 1

    def _next(self) -> int:
        """Number of the next chunk of those that have one."""
        self._numbered += 1
        return self._numbered - 1

    def _write(self, name: bytes, payload: bytes) -> None:
        self._file.write(png_chunk(name, payload))

    def finish(self) -> None:
        """Writes what comes behind the last frame."""
        self._write(b"IEND", b"")


class WebPFrames:
    """Writes an animated WebP without loss: chunks VP8X, ANIM, then ANMF for each frame."""

    def __init__(self, file: IO[bytes], animation: Animation) -> None:
        self._file, self._animation = file, animation
        self._frames = 0
        self._exif: bytes | None = None

    def add(self, frame: Decoded) -> None:
        """Writes the next frame."""
        height, width = frame.samples.shape[:2]
        if self._frames == 0:
            self._begin(frame, width, height)
        webp = by_pillow.encode_webp(Decoded(frame.samples), 100)
        name, data = next(c for c in _riff_chunks(webp) if c[0] == b"VP8L")
        duration = min(round(self._animation.durations[self._frames]), 2**24 - 1)
        place = bytes(6) + _three(width - 1) + _three(height - 1) + _three(duration)
        replaces = b"\x02"  # neither mixed with the frame before, nor cleared after
        self._write(b"ANMF", place + replaces + _riff_chunk(name, data))
        self._frames += 1

    def _begin(self, frame: Decoded, width: int, height: int) -> None:
        has = {0x20: frame.icc, 0x10: self._animation.alpha, 0x08: frame.exif, 0x02: True}
        flags = sum(bit for bit, there in has.items() if there)
        self._exif = frame.exif
        self._file.write(b"RIFF\0\0\0\0WEBP")
        self._write(b"VP8X", bytes([flags, 0, 0, 0]) + _three(width - 1) + _three(height - 1))
        if frame.icc:
            self._write(b"ICCP", frame.icc)
        background = bytes(4)
        self._write(b"ANIM", background + struct.pack("<H", min(self._animation.plays, 2**16 - 1)))

    def _write(self, name: bytes, payload: bytes) -> None:
        self._file.write(_riff_chunk(name, payload))

    def finish(self) -> None:
        """Writes what comes behind the last frame, and the length."""
        if self._exif:
            self._write(b"EXIF", self._exif)
        size = self._file.tell()
        self._file.seek(4)
        self._file.write(struct.pack("<I", size - 8))


def _three(value: int) -> bytes:
    return value.to_bytes(3, "little")


def _riff_chunk(name: bytes, payload: bytes) -> bytes:
    return name + struct.pack("<I", len(payload)) + payload + bytes(len(payload) % 2)


def _riff_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, position = [], 12
    while position < len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        found.append((name, data[position + 8 : position + 8 + size]))
        position += 8 + size + size % 2
    return found


class GifFrames:
    """Writes an animated GIF, each frame with a table of 256 colors of its own."""

    def __init__(self, file: IO[bytes], animation: Animation) -> None:
        self._file, self._animation = file, animation
        self._frames = 0

    def add(self, frame: Decoded) -> None:
        """Writes the next frame."""
        height, width = frame.samples.shape[:2]
        if self._frames == 0:
            self._begin(width, height)
        table_flags, table, pixels = _gif_parts(frame.samples)
        # A frame that is transparent somewhere would else show the one before there.
        disposal = 2 if self._animation.alpha else 1
        flags = disposal << 2 | self._animation.alpha
        delay = min(round(self._animation.durations[self._frames] / 10), 2**16 - 1)
        self._file.write(b"\x21\xf9\x04" + struct.pack("<BHBB", flags, delay, TRANSPARENT, 0))
        self._file.write(b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, table_flags))
        self._file.write(table + pixels)
        self._frames += 1

    def _begin(self, width: int, height: int) -> None:
        self._file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0x70, 0, 0))
        plays = self._animation.plays
        if plays != 1:
            loop = struct.pack("<H", min(max(plays - 1, 0), 2**16 - 1))
            self._file.write(b"\x21\xff\x0bNETSCAPE2.0\x03\x01" + loop + b"\0")

    def finish(self) -> None:
        """Writes what comes behind the last frame."""
        self._file.write(b"\x3b")


def _gif_parts(samples: np.ndarray) -> tuple[int, bytes, bytes]:
    """Flags and bytes of the color table of a picture, and its packed pixels.

    Colors are the nearest: dithering would be new noise. Color 255 shows what is behind.
    """
    import PIL.Image

    pixels, alpha = split_alpha(samples)
    picture = PIL.Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
    small = picture.quantize(256 if alpha is None else 255, dither=PIL.Image.Dither.NONE)
    indices = np.array(small)
    if alpha is not None:
        indices[alpha < 128] = TRANSPARENT
    indexed = PIL.Image.frombytes("P", small.size, indices.tobytes())
    indexed.putpalette(bytes(small.getpalette() or []).ljust(3 * 256, b"\0"))
    out = io.BytesIO()
    indexed.save(out, "GIF", optimize=False, interlace=False)
    gif = out.getvalue()
    table_end = 13 + 3 * 2 ** ((gif[10] & 7) + 1)
    return gif[10] & 0x87, gif[13:table_end], gif[_gif_pixels(gif, table_end) : -1]


def _gif_pixels(gif: bytes, position: int) -> int:
    """Where the packed pixels begin, behind the extensions from a position on."""
    while gif[position] == 0x21:
        position += 2
        while gif[position]:
            position += 1 + gif[position]
        position += 1
    return position + 10


WRITERS = {".gif": GifFrames, ".webp": WebPFrames, ".png": PngFrames}
"""Suffix -> what writes such a file, frame by frame."""
