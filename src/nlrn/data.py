"""Image sets by name from a data root, decoded to gray once.

The root has one folder per set (`bsds500/train`, `t91`, ...); see the data's own README for the
sources. Only images are read here: patches and noise are made where the network runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Gray = npt.NDArray[np.uint8]  # [H, W]
_In = TypeVar("_In")
_Out = TypeVar("_Out")

# The 32 images of BSDS500 val that are not in BSD68 (`same_as` in the data's MANIFEST.json), so
# that choices about bsd400 models can be made on them without looking at a test set.
VAL_NOT_IN_BSD68 = (
    "156065", "361010", "37073", "376043", "38082", "38092", "385039", "41033",
    "41069", "42012", "42049", "43074", "45096", "54082", "55073", "58060",
    "62096", "65033", "66053", "69015", "69020", "69040", "76053", "78004",
    "8023", "85048", "86000", "86016", "86068", "87046", "89072", "97033",
)  # fmt: skip

# name -> folders under the root whose images it holds
SETS: dict[str, tuple[str, ...]] = {
    "bsd400": ("bsds500/train", "bsds500/test"),
    "bsd300": ("bsds500/train", "bsds500/val"),
    "bsd400-validation": ("bsds500/val",),
    "bsd300-validation": ("t91",),
    "bsds500/train": ("bsds500/train",),
    "bsds500/test": ("bsds500/test",),
    "bsds500/val": ("bsds500/val",),
    "bsd68": ("bsd68",),
    "set12": ("set12",),
    "t91": ("t91",),
}
_SUBSETS = {"bsd400-validation": frozenset(VAL_NOT_IN_BSD68)}
# Test sets, and what may not choose or train a model, are refused by the training configs.
TRAINING_SETS = ("bsd400", "bsd300", "bsds500/train", "t91")
VALIDATION_SETS = ("bsd400-validation", "bsd300-validation", "bsds500/test", "t91")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


class DataError(ValueError):
    """Images that are missing or cannot be read; the message is one line."""


def find_root(given: str | Path | None = None) -> Path:
    """The folder of the image sets: the one given, or that of the variable NLRN_DATA."""
    name = given or os.environ.get("NLRN_DATA")
    if not name:
        raise DataError("no data root: name one with --data, or set NLRN_DATA")
    root = Path(name)
    if not root.is_dir():
        raise DataError(f"{root}: the data root is not a folder")
    return root


def image_files(name: str, root: str | Path) -> list[Path]:
    """The image files of a set, sorted by folder and name."""
    if name not in SETS:
        raise DataError(f"unknown image set {name!r}; known sets: {', '.join(SETS)}")
    found: list[Path] = []
    for folder in SETS[name]:
        path = Path(root) / folder
        if not path.is_dir():
            raise DataError(f"{path}: no such folder, needed for the image set {name!r}")
        found += sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
    if name in _SUBSETS:
        found = [file for file in found if file.stem in _SUBSETS[name]]
    if not found:
        raise DataError(f"{Path(root)}: no images of the set {name!r}")
    return found


def read_gray(path: str | Path) -> Gray:
    """The image as uint8 gray [H, W]; colour by MATLAB's rgb2gray, rounded.

    Pillow alone, not `nlrn.images`: the sets are 8-bit, and a machine that only trains then needs
    no other image library.
    """
    import PIL.Image

    try:
        with PIL.Image.open(path) as picture:
            if picture.mode == "L":
                return np.array(picture)
            colour = np.asarray(picture.convert("RGB"), dtype=np.float64)
    except OSError as error:  # includes Pillow's UnidentifiedImageError
        raise DataError(f"{path}: not an image Pillow can read ({_one_line(error)})") from error
    gray = colour @ np.array([0.2989, 0.5870, 0.1140])
    return np.floor(gray + 0.5).clip(0, 255).astype(np.uint8)


def read_all(files: Iterable[Path]) -> list[Gray]:
    """All images as gray, decoded by several threads."""
    return _in_threads(read_gray, list(files))


def rescaled(images: Sequence[Gray], scales: Sequence[float]) -> list[Gray]:
    """Every image at every scale: all at the first, then all at the second, and so on."""
    return [
        image for scale in scales for image in _in_threads(partial(_resized, scale=scale), images)
    ]


def _resized(image: Gray, scale: float) -> Gray:
    import PIL.Image

    if scale == 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape)
    size = (width, height)
    return np.asarray(PIL.Image.fromarray(image).resize(size, PIL.Image.Resampling.BICUBIC))


def centre_crop(image: Gray, size: int) -> Gray | None:
    """The size x size centre of the image, or None when the image is smaller."""
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return image[top : top + size, left : left + size] if top >= 0 and left >= 0 else None


def fixed_noise(seed: int, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Standard normal noise that belongs to an image's name, the same on every machine."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    return generator.standard_normal(shape).astype(np.float32)


def _in_threads(function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    workers = min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
