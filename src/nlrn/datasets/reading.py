"""Decoding of images, and what is cut from or made of them before training."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nlrn.errors import one_line

Pixels = npt.NDArray[np.uint8]  # [H, W] or [H, W, 3]
Gray = npt.NDArray[np.uint8]  # [H, W]
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class DataError(ValueError):
    """Images that are missing, damaged or cannot be read; the message is one line."""


def decode(content: bytes, path: Path) -> Pixels:
    """The image in the bytes of a file as uint8, [H, W] when it is gray and [H, W, 3] otherwise.

    Pillow alone, not `nlrn.images`: the sets are 8-bit, and a machine that only trains then needs
    no other image library.
    """
    import PIL.Image

    with _pillow_errors(path), PIL.Image.open(io.BytesIO(content)) as image:
        if image.mode == "I" or image.mode.startswith("I;16"):
            return _from_16_bits(np.array(image))
        if image.mode == "F":
            raise ValueError("floating-point values, whose range is not known")
        return np.array(image if image.mode == "L" else image.convert("RGB"))


def pixel_count(path: Path) -> int:
    """Height times width of the image in a file, of which only the beginning is read."""
    import PIL.Image

    with _pillow_errors(path), PIL.Image.open(path) as image:
        return image.width * image.height


@contextlib.contextmanager
def _pillow_errors(path: Path) -> Iterator[None]:
    """Within it, what Pillow raises on broken files becomes one line with the file's name."""
    import PIL.Image

    try:
        yield
    except PIL.UnidentifiedImageError as error:  # its message names the buffer, not the file
        raise DataError(f"{path}: not an image Pillow can read (unknown format)") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: not an image Pillow can read ({one_line(error)})") from error


def _from_16_bits(values: np.ndarray) -> Gray:
    """The nearest of 256 levels; Pillow's own conversion would make everything above 255 white."""
    return ((values.clip(0, 65535).astype(np.uint32) + 128) // 257).astype(np.uint8)


def rescaled(images: Sequence[Pixels], scales: Sequence[float]) -> list[Pixels]:
    """Every image at every scale: all at the first, then all at the second, and so on."""
    return [
        image for scale in scales for image in in_threads(partial(_resized, scale=scale), images)
    ]


def _resized(image: Pixels, scale: float) -> Pixels:
    import PIL.Image

    if scale == 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    size = (width, height)
    return np.asarray(PIL.Image.fromarray(image).resize(size, PIL.Image.Resampling.BICUBIC))


def center_crop(image: Pixels, size: int) -> Pixels | None:
    """The size x size center of the image, or None when the image is smaller."""
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return image[top : top + size, left : left + size] if top >= 0 and left >= 0 else None


def in_threads(function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """The function's results for all items, in their order."""
    workers = min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))
