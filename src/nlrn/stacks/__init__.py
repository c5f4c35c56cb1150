"""Stacks: files of many pages, read page by page and written the same way.

| file | pages | kept |
|---|---|---|
| TIFF, BigTIFF | as they come, also of different sizes | tags, resolution and profile of each |
| OME-TIFF | by its axes | OME-XML: channel names, pixel sizes and all else |
| TIFF of ImageJ | by its axes | its lines, labels, lookup tables, resolution |
| Zarr 2 and 3, OME-Zarr | by its axes | attributes, names of the axes, compression |
| GIF, WebP, PNG that move | frames (T) | durations, number of loops |

    with open_stack("cells.ome.tif") as stack, stack.writer("clean.ome.tif") as out:
        for i in range(len(stack)):
            out.add(work_on(stack.page(i)))
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from nlrn.errors import one_line
from nlrn.images.files import MAX_PIXELS, ImageError, errors_name
from nlrn.images.samples import FormatError
from nlrn.stacks import frames, tiff_pages, zarr_pages
from nlrn.stacks.stack import PageWriter, Source, Stack, make_stack, page_numbers

__all__ = [
    "SUFFIXES",
    "PageWriter",
    "Stack",
    "is_stack",
    "is_whole",
    "is_zarr",
    "open_stack",
    "page_numbers",
]

SUFFIXES = (".gif",)
"""Suffixes of files that only `open_stack` can read; `nlrn.images.SUFFIXES` may be stacks too."""

is_zarr = zarr_pages.is_zarr

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_stack(path: str | os.PathLike[str]) -> bool:
    """Whether a file has more than one page or frame, by its content; GIF and Zarr count always."""
    path = Path(path)
    try:
        if path.is_dir():
            return is_zarr(path)
        with path.open("rb") as file:
            head = file.read(4)
        if head in _TIFF:
            return tiff_pages.has_pages(path)
        return frames.is_animation(path)
    except FormatError:
        return True  # says what is wrong when it is opened
    except Exception:  # broken: whoever reads it as one image says how
        return False


def is_whole(file: IO[bytes]) -> bool:
    """Whether a file of one of `SUFFIXES` begins and ends as it must."""
    head = file.read(4)
    file.seek(-1, os.SEEK_END)
    return head == b"GIF8" and file.read() == b";"


def open_stack(
    path: str | os.PathLike[str],
    *,
    axes: str | None = None,
    white: float | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Stack:
    """The stack in a file, of which only what is needed is read.

    Args:
        path: a TIFF, a GIF, WebP or PNG that moves, or the folder of a Zarr array or image.
        axes: a letter for each axis, such as ZCYX, where the file does not say them or is wrong.
        white: the value of white, where that is not the type's: 4095 (see `nlrn.images.read`).
        max_pixels: larger pages are refused before they are decoded; their number has no limit.

    Raises:
        ImageError: if there is no such file, or it is broken or of another kind.
    """
    path = Path(path)
    with errors_name(path):
        try:
            source = _source(path, axes, white, max_pixels)
        except (FormatError, OSError, ImageError, MemoryError):
            raise
        except Exception as error:  # on broken files the libraries raise anything
            raise FormatError(f"not a stack nlrn can read ({one_line(error)})") from error
        # Zarr has asked for the axes already: it says by them what a page is.
        return make_stack(path, source, None if path.is_dir() else axes)


def _source(path: Path, axes: str | None, white: float | None, max_pixels: int) -> Source:
    if path.is_dir():
        return zarr_pages.ZarrPages(path, axes, white, max_pixels)
    with path.open("rb") as file:
        head = file.read(4)
    if head in _TIFF:
        return tiff_pages.TiffPages(path, white, max_pixels)
    return frames.Frames(path, white, max_pixels)
