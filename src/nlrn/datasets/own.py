"""Images of one's own: all that lie in a folder, and a part of them held out for validation."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nlrn.datasets.reading import DataError

NAME = "own images"  # in place of a set's name, where it is said what a model was trained on
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")


def files(folder: str | Path) -> list[Path]:
    """All images in a folder and in the folders in it, hidden ones left out, in order."""
    folder = Path(folder)
    found = [file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES]
    shown = [f for f in found if not any(p.startswith(".") for p in f.relative_to(folder).parts)]
    images = sorted(file for file in shown if file.is_file())
    if not images:
        raise DataError(f"{folder}: no images ({', '.join(SUFFIXES)}) in it")
    return images


def split(images: list[Path], held_out: float) -> tuple[list[Path], list[Path]]:
    """The images to train on, and those held out for validation: about that share, never none.

    The name decides, without its ending, so that an image stays on its side when others come or go
    and two formats of one picture are not parted.
    """
    if len({file.stem for file in images}) < 2:
        raise DataError(f"{images[0]}: a single image cannot be trained and validated on")
    draws = {file: _draw(file.stem) for file in images}
    limit = max(held_out, min(draws.values()))
    held = [file for file in images if draws[file] <= limit]
    if len(held) == len(images):
        raise DataError(f"{images[0].parent}: held_out {held_out:g} leaves nothing to train on")
    return [file for file in images if draws[file] > limit], held


def _draw(name: str) -> float:
    """A number in [0, 1) that belongs to the name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
