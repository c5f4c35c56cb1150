"""GIF, WebP and PNG that move: every frame as it is shown, its duration, the number of loops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nlrn import atomic
from nlrn.errors import no_warnings
from nlrn.images import Image
from nlrn.images.files import decoded_of, image_of
from nlrn.images.metadata import take_orientation
from nlrn.images.samples import Decoded, FormatError, check_size, not_kept
from nlrn.stacks.frame_files import WRITERS, Animation
from nlrn.stacks.stack import Block, Stack

_GIF, _PNG = b"GIF8", b"\x89PNG"
_LOST = {"comment": "a comment", "xmp": "XMP"}  # of what Pillow finds


def is_animation(path: Path) -> bool:
    """Whether a file is a GIF, or a WebP or PNG of several frames."""
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] == _GIF:
            return True
        is_webp = head[:4] == b"RIFF" and head[8:] == b"WEBP"
        if not is_webp and head[:4] != _PNG:
            return False
        return _count(_opened(file, head)) > 1


def _opened(file: Any, head: bytes) -> Any:
    """The picture in a file whose first bytes are these; not by Image.open, which has limits."""
    from PIL.GifImagePlugin import GifImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    plugins: dict[bytes, Any] = {_GIF: GifImageFile, _PNG: PngImageFile, b"RIFF": WebPImageFile}
    if head[:4] not in plugins:
        raise FormatError("not a stack nlrn can read (content is not TIFF, GIF, WebP, PNG or Zarr)")
    file.seek(0)
    with no_warnings():
        return plugins[head[:4]](file)


def _count(picture: Any) -> int:
    """Number of frames, without a still picture for programs that know no others."""
    return int(picture.n_frames) - bool(getattr(picture, "default_image", False))


class Frames:
    """An open animation; its attributes are those of `Source`."""

    suffixes: tuple[str, ...] = tuple(WRITERS)

    def __init__(self, path: Path, white: float | None, max_pixels: int) -> None:
        self._white = white
        self._file = path.open("rb")
        try:
            head = self._file.read(25)
            self._picture = _opened(self._file, head)
            check_size(self._picture.width, self._picture.height, max_pixels)
            if head[:4] == _PNG and head[24] == 16:
                raise FormatError("PNG that moves with 16 bits is not supported")
            self.kind = str(self._picture.format)
            still = int(getattr(self._picture, "default_image", False))
            self._first, self.count = still, _count(self._picture)
            self.animation = self._scanned()
        except BaseException:
            self._file.close()
            raise
        self.blocks: tuple[Block, ...] = (Block("T", (self.count,)),)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def notes(self, stack: Stack, path: Path) -> tuple[str, ...]:
        """What is not kept, in words."""
        names = [name for key, name in _LOST.items() if self._picture.info.get(key)]
        found = not_kept(*names, "the still picture of a PNG that moves" if self._first else "")
        if path.suffix.lower() == ".gif":
            found += ("a GIF has 256 colors in each frame; .webp and .png keep all",)
        return found

    def read(self, number: int) -> Image:
        """The frame of this number, from 0, as it is shown."""
        picture = self._seek(number)
        samples = np.array(picture.convert(self._mode()))
        orientation, exif = take_orientation(picture.info.get("exif", b""))
        icc = picture.info.get("icc_profile") or None
        return image_of(Decoded(samples, orientation, exif, icc), self._white)

    def _seek(self, number: int) -> Any:
        self._picture.seek(self._first + number)
        self._picture.load()
        return self._picture

    def _mode(self) -> str:
        gray = self.kind == "PNG" and self._picture.mode in ("1", "L", "LA")
        return ("L" if gray else "RGB") + ("A" if self.animation.alpha else "")

    def _scanned(self) -> Animation:
        """Durations of all frames, and whether any of them shows what is behind it."""
        durations, alpha = [], False
        for number in range(self.count):
            try:
                picture = self._seek(number)
            except Exception as error:
                raise FormatError(f"page {number + 1}: broken: {error}") from error
            durations.append(float(picture.info.get("duration", 0)))
            alpha = alpha or _shows_behind(picture)
        # GIF counts repetitions, the others how often the whole is shown; 0 is for ever.
        loop = self._picture.info.get("loop", None if self.kind == "GIF" else 0)
        plays = 1 if loop is None else loop + 1 if self.kind == "GIF" and loop else loop
        return Animation(tuple(durations), int(plays), alpha)

    @contextlib.contextmanager
    def write(self, stack: Stack, path: Path, overwrite: bool) -> Iterator[_FrameWriter]:
        """A context of a writer for a result of the stack's frames at the path."""
        durations = tuple(self.animation.durations[n] for n in stack.numbers)
        animation = self.animation._replace(durations=durations)
        with atomic.new_file(path, overwrite=overwrite) as file:
            writer = _FrameWriter(WRITERS[path.suffix.lower()](file, animation))
            yield writer
            writer.finish()


def _shows_behind(picture: Any) -> bool:
    if not picture.has_transparency_data:
        return False
    return bool(picture.convert("RGBA").getextrema()[3][0] < 255)


class _FrameWriter:
    """Hands frames to the writer of a format."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, image: Image) -> None:
        """Writes the next frame."""
        decoded = decoded_of(image)
        if decoded.samples.dtype != np.uint8:
            raise FormatError(f"frames must be uint8, got {decoded.samples.dtype}")
        self._writer.add(decoded)

    def finish(self) -> None:
        """Writes what comes behind the last frame."""
        self._writer.finish()
