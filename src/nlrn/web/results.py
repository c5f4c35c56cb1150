"""Results of jobs: kept on disk at full strength, given in any strength and file format."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nlrn import images
from nlrn.images import FormatError, Image
from nlrn.images.samples import split_alpha
from nlrn.restoration import Restored
from nlrn.restoration.base import at_strength
from nlrn.web import scores
from nlrn.web.uploads import Upload, Uploads, stored_bytes, write_preview

MAX_RESULT_BYTES = 2 * 2**30
OFFERED = (".png", ".jpg", ".webp", ".tif")  # beside the format in which a picture came


class GoneError(ValueError):
    """A result that is not kept any more."""


@dataclass(frozen=True, eq=False)
class Result:
    """Where a result lies, and what it was made of."""

    folder: Path
    upload: Upload
    noise: float
    name: str


class Results:
    """The results that can still be asked for; the oldest are forgotten first.

    Args:
        folder: in which each result gets a folder of its own.
        uploads: what they were made of: a result goes when its upload does.
    """

    def __init__(self, folder: Path, uploads: Uploads) -> None:
        self._folder, self._uploads = folder, uploads
        self._known: dict[str, Result] = {}
        self._lock = threading.Lock()
        self._rendering = threading.Lock()  # one at a time: that bounds memory

    def keep(self, job: str, upload: Upload, noise: float, name: str, restored: Restored) -> None:
        """Keeps what a job has made; `name` is that of its file, without suffix."""
        result = Result(self._folder / f"job-{job}", upload, noise, name)
        result.folder.mkdir()
        image = restored.image
        if restored.full is not None:
            np.save(result.folder / "full.npy", restored.full)
        elif (image.height, image.width) != (upload.height, upload.width):
            np.save(result.folder / "enlarged.npy", image.samples)
        write_preview(result.folder / "preview.png", image)
        with self._lock:
            self._known[job] = result
        self._forget_old()
        if self._uploads.find(upload.id) is None:  # it went meanwhile
            self.forget(job)

    def name(self, job: str) -> str:
        """The name of a result's file, without suffix."""
        return self._find(job).name

    def preview(self, job: str) -> bytes:
        """An 8-bit PNG of a result at full strength."""
        try:
            return (self._find(job).folder / "preview.png").read_bytes()
        except OSError as error:
            raise GoneError(_GONE) from error

    def file(self, job: str, suffix: str | None = None, strength: float = 1.0) -> tuple[str, bytes]:
        """Name and content of a result's file, of its picture's suffix or of another one."""
        result = self._find(job)
        offered = formats_for(result.upload)
        suffix = offered[0] if suffix is None else f".{suffix.lower().removeprefix('.')}"
        if suffix not in offered:
            known = ", ".join(each[1:] for each in offered)
            raise ValueError(f"format must be one of {known}, got {suffix[1:20]!r}")
        with self._rendering:
            clean = self._uploads.load(result.upload)
            image = self._image(result, strength)
            if result.noise:  # in float until here, as nothing was rounded
                pixels = images.from_float(image.pixels, clean.pixels.dtype)
                image = clean.with_pixels(pixels)
            content = images.encode(images.format_of(f"x{suffix}"), fitting(image, suffix))
        return f"{result.name}{suffix}", content

    def scores(self, job: str, strength: float = 1.0) -> scores.Comparison | None:
        """How close a picture with noise added and its result are to the original."""
        result = self._find(job)
        if not result.noise:
            return None
        with self._rendering:
            given = self._uploads.load(result.upload, result.noise)
            image = self._image(result, strength)
            return scores.compare(image, given, self._uploads.load(result.upload))

    def forget(self, job: str) -> None:
        """Drops a result and its files."""
        with self._lock:
            result = self._known.pop(job, None)
        if result is not None:
            shutil.rmtree(result.folder, ignore_errors=True)

    def forget_upload(self, upload: str) -> None:
        """Drops all results of an upload."""
        for job in [
            job for job, result in self._known.copy().items() if result.upload.id == upload
        ]:
            self.forget(job)

    def _find(self, job: str) -> Result:
        if (result := self._known.get(job)) is None:
            raise GoneError(_GONE)
        return result

    def _image(self, result: Result, strength: float) -> Image:
        """The result as it was computed: float where noise was added."""
        given = self._uploads.load(result.upload, result.noise)
        try:
            for file in result.folder.glob("enlarged.npy"):
                pixels, alpha = split_alpha(np.load(file, allow_pickle=False))
                return given.with_pixels(pixels, alpha)
            full = None
            for file in result.folder.glob("full.npy"):
                full = np.load(file, allow_pickle=False)
        except OSError as error:
            raise GoneError(_GONE) from error
        return at_strength(given, full, strength)

    def _forget_old(self) -> None:
        sizes = {job: stored_bytes(r.folder) for job, r in self._known.copy().items()}
        total = sum(sizes.values())
        for job, size in list(sizes.items())[:-1]:
            if total > MAX_RESULT_BYTES:
                self.forget(job)
                total -= size


_GONE = "this result is not here any more; run it again"


def formats_for(upload: Upload) -> list[str]:
    """Suffixes of the files that a result can be had as, that of the upload first."""
    others = [s for s in OFFERED if images.format_of(f"x{s}") != images.format_of(upload.path)]
    shape = (1, 1) if upload.channels == 1 else (1, 1, 3)
    dtype = np.dtype(upload.dtype)
    probe = Image(np.zeros(shape, dtype), np.zeros((1, 1), dtype) if upload.alpha else None)
    return [upload.suffix, *_that_hold(probe, others)]


def _that_hold(image: Image, suffixes: Iterable[str]) -> list[str]:
    held = []
    for suffix in suffixes:
        with contextlib.suppress(FormatError):
            fitting(image, suffix)
            held.append(suffix)
    return held


def fitting(image: Image, suffix: str) -> Image:
    """The image in its own type, or in the deepest that a file of this suffix can hold."""
    name = images.format_of(f"x{suffix}")
    types = [image.pixels.dtype, np.dtype(np.uint16), np.dtype(np.uint8)]
    for dtype in types[:-1]:
        with contextlib.suppress(FormatError):
            return _checked(name, as_type(image, dtype))
    return _checked(name, as_type(image, types[-1]))


def _checked(name: str, image: Image) -> Image:
    images.check_format(name, image)
    return image


def as_type(image: Image, dtype: np.dtype[np.generic]) -> Image:
    """The image with samples of another type."""
    if image.pixels.dtype == dtype:
        return image

    def convert(samples: np.ndarray) -> np.ndarray:
        return images.from_float(images.to_float(samples), dtype)

    alpha = None if image.alpha is None else convert(image.alpha)
    return replace(image, pixels=convert(image.pixels), alpha=alpha)
