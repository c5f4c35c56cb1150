"""Small stacks for tests, and how they are restored without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from nlrn.images import Image
from nlrn.restoration import Restored
from nlrn.stacks import Stack, open_stack

HEIGHT, WIDTH = 21, 34


class Darker:
    """Stands in for a denoiser: takes a tenth away."""

    def restore(self, image: Image, **_: Any) -> Restored:
        return Restored(image.with_pixels(darker(image.pixels)), {"sigma": 1.0})


class Twice:
    """Stands in for an upscaler: repeats every pixel."""

    def restore(self, image: Image, **_: Any) -> Restored:
        large = image.pixels.repeat(2, axis=0).repeat(2, axis=1)
        return Restored(image.with_pixels(large), {"scale": 2.0})


def darker(pixels: np.ndarray) -> np.ndarray:
    return (pixels * 0.9).astype(pixels.dtype)


def samples(*outer: int, dtype: str = "uint16", color: bool = False, seed: int = 0) -> np.ndarray:
    """Random pages [*outer, H, W] or [*outer, H, W, 3]."""
    shape = (*outer, HEIGHT, WIDTH, *((3,) if color else ()))
    values = np.random.default_rng(seed).random(shape)
    white = np.iinfo(dtype).max if dtype.startswith("u") else 1
    return (values * white).astype(dtype)


def noisy(levels: tuple[float, ...], *outer: int) -> np.ndarray:
    """Smooth 16-bit pages [*outer, C, 40, 53], with noise of a level (0..255) for each channel."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:40, :53]
    clean = 128 + 60 * np.sin(columns / 9) * np.cos(rows / 7)
    pages = np.empty((*outer, len(levels), 40, 53))
    for channel, level in enumerate(levels):
        shape = (*outer, 40, 53)
        pages[..., channel, :, :] = clean + generator.normal(0, level, shape)
    return np.rint(pages.clip(0, 255) * 257).astype(np.uint16)


OME = {
    "axes": "TZCYX",
    "Channel": {"Name": ["DAPI", "GFP"]},
    "PhysicalSizeX": 0.25,
    "PhysicalSizeXUnit": "µm",
    "PhysicalSizeY": 0.5,
    "PhysicalSizeZ": 2.0,
    "Plane": {"DeltaT": [0.5 * i for i in range(12)]},
}


def ome_file(path: Path, pages: np.ndarray | None = None, **how: Any) -> np.ndarray:
    """Writes an OME-TIFF of two channels, at three times and two depths."""
    pages = samples(3, 2, 2) if pages is None else pages
    tifffile.imwrite(path, pages, ome=True, metadata=OME, **how)
    return pages


def copied(stack: Stack, target: Path) -> None:
    """Writes the pages as they are."""
    with stack.writer(target) as out:
        for i in range(len(stack)):
            out.add(stack.page(i))


def copy(source: Path, target: Path, **how: Any) -> None:
    with open_stack(source, **how) as stack:
        copied(stack, target)
