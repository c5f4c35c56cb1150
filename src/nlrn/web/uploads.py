"""Uploaded images: kept in a temporary folder, the oldest forgotten first."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nlrn import images
from nlrn.degrade import add_noise
from nlrn.images import Image, ImageError
from nlrn.noise import NoiseEstimate
from nlrn.restoration.base import noise_of

MAX_UPLOADS = 20
MAX_UPLOAD_BYTES = 2**30  # of all of them, with what is made for the page
MAX_PREVIEWS = 2  # of each upload: as it came, and with noise, for one
MAX_NOISES = 50  # estimates that are remembered of each, by the noise added
MAX_DECODED = 2  # of them, or of their noisy versions, that stay in memory
GONE = "this picture is not here any more; send it again"
# One decoder at a time: that bounds memory, and jobs.py says what else it is for.
DECODING = threading.Lock()


@dataclass(frozen=True, eq=False)
class Upload:
    """An uploaded file; `noises` is the noise found in it, by the level that was added."""

    id: str
    stem: str
    path: Path
    width: int
    height: int
    channels: int
    dtype: str
    alpha: bool
    notes: tuple[str, ...] = ()
    noises: dict[float, NoiseEstimate] = field(default_factory=dict)

    @property
    def suffix(self) -> str:
        """Of the file, with the dot."""
        return self.path.suffix

    @property
    def size(self) -> int:
        """Pixels."""
        return self.width * self.height


class Uploads:
    """The uploads that can be worked on.

    Args:
        folder: where all files live; nothing is read or written elsewhere.
        max_pixels: larger images are refused after a look at the header.
        on_forget: called with the id of an upload that is dropped.
    """

    def __init__(self, folder: Path, max_pixels: int, on_forget: Callable[[str], None]) -> None:
        self._folder, self._max_pixels, self._on_forget = folder, max_pixels, on_forget
        self._known: dict[str, Upload] = {}
        self._decoded: dict[tuple[str, float], Image] = {}
        self._lock = threading.Lock()
        self._previewing = threading.Lock()

    def new_file(self, name: str) -> Path:
        """A path for an upload, in a folder of its own; only the suffix is the sender's."""
        suffix = Path(name).suffix.lower()
        if suffix not in images.SUFFIXES:
            known = " ".join(images.SUFFIXES)
            raise ValueError(f"unknown kind of file {suffix[:12]!r}; known are {known}")
        folder = self._folder / secrets.token_urlsafe(12)
        folder.mkdir()
        return folder / f"picture{suffix}"

    def add(self, path: Path, name: str) -> Upload:
        """Takes in an upload, or raises a ValueError."""
        upload = self._describe(path, name)
        with self._lock:
            self._known[upload.id] = upload
        self._forget_old()
        return upload

    def discard_unless_known(self, path: Path) -> None:
        """Removes the folder of an upload that came to nothing."""
        if path.parent.name not in self._known:
            shutil.rmtree(path.parent, ignore_errors=True)

    def _describe(self, path: Path, name: str) -> Upload:
        try:
            with DECODING:
                image = images.read(path, self._max_pixels)
            images.check_holds(path, image)  # for the result: a name may promise too little
        except ImageError as error:  # without the path, which is none of the sender's business
            raise ImageError(str(error).removeprefix(f"{path}: ")) from error
        return Upload(
            id=path.parent.name,
            stem=safe_stem(name),
            path=path,
            width=image.width,
            height=image.height,
            channels=1 if image.pixels.ndim == 2 else 3,
            dtype=image.pixels.dtype.name,
            alpha=image.alpha is not None,
            notes=image.notes,
            noises={0.0: noise_of(image, None)},
        )

    def find(self, identifier: str) -> Upload | None:
        """The upload of this id, which thereby becomes the newest."""
        with self._lock:
            upload = self._known.pop(identifier, None)
            if upload is not None:
                self._known[identifier] = upload
            return upload

    def forget(self, identifier: str) -> None:
        """Drops an upload and all its files."""
        with self._lock:
            upload = self._known.pop(identifier, None)
            self._decoded = {k: v for k, v in self._decoded.items() if k[0] != identifier}
        if upload is not None:
            shutil.rmtree(upload.path.parent, ignore_errors=True)
            self._on_forget(identifier)

    def _forget_old(self) -> None:
        known = list(self._known.copy().values())
        sizes = [stored_bytes(upload.path.parent) for upload in known]
        for place, upload in enumerate(known[:-1]):
            if len(known) - place > MAX_UPLOADS or sum(sizes[place:]) > MAX_UPLOAD_BYTES:
                self.forget(upload.id)

    def load(self, upload: Upload, noise: float = 0.0) -> Image:
        """The image, or a float32 version with white noise of level `noise` (0..255) added."""
        key = (upload.id, noise)
        with self._lock:
            found = self._decoded.pop(key, None)
        if found is None:
            try:
                with DECODING:
                    found = images.read(upload.path, self._max_pixels)
            except ImageError as error:  # it could be read when it came
                raise ValueError(GONE) from error
            found = found if noise == 0 else with_noise(found, noise)
        with self._lock:
            if upload.id in self._known:
                self._decoded[key] = found
            for old in list(self._decoded)[:-MAX_DECODED]:
                del self._decoded[old]
        return found

    def noise_in(self, upload: Upload, noise: float = 0.0) -> NoiseEstimate:
        """The noise found in the image, or in the version with noise added."""
        if noise not in upload.noises:
            found = noise_of(self.load(upload, noise), None)
            with self._lock:
                for old in list(upload.noises)[1 : -MAX_NOISES + 2]:  # the first is the image's own
                    del upload.noises[old]
                upload.noises[noise] = found
            return found
        return upload.noises[noise]

    def preview(self, upload: Upload, noise: float = 0.0) -> bytes:
        """An 8-bit PNG of the image, or of the version with noise added, for browsers."""
        path = upload.path.with_name(f"preview-{noise!r}.png")
        try:
            with self._previewing:
                if not path.exists():
                    others = [file for file in path.parent.glob("preview-*.png") if file != path]
                    for old in sorted(others, key=lambda file: file.stat().st_mtime_ns):
                        if len(others) >= MAX_PREVIEWS:
                            old.unlink()
                            others.remove(old)
                    write_preview(path, self.load(upload, noise))
                    self._forget_old()
                return path.read_bytes()
        except (ImageError, OSError) as error:
            raise ValueError(GONE) from error


def stored_bytes(folder: Path) -> int:
    """Size of all files in a folder; of one that is being removed, of what is left."""
    total = 0
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            total += file.stat().st_size
    return total


def with_noise(image: Image, sigma: float) -> Image:
    """A float32 version with white Gaussian noise, the same every time; alpha has none."""
    noisy = add_noise(images.to_float(image.pixels), sigma, seed=0, name="web")
    alpha = None if image.alpha is None else images.to_float(image.alpha)
    return Image(noisy.astype(np.float32), alpha, image.exif, image.icc, image.dpi)


def write_preview(path: Path, image: Image) -> None:
    """Writes an 8-bit PNG; of two writers at once the last one wins."""
    pixels = images.from_float(images.to_float(image.pixels), np.uint8)
    alpha = image.alpha
    if alpha is not None:
        alpha = images.from_float(images.to_float(alpha), np.uint8)
    images.write(path, replace(image, pixels=pixels, alpha=alpha, exif=None), overwrite=True)


def safe_stem(name: str) -> str:
    """The name of a file without folders, suffix and characters that mean something somewhere."""
    stem = Path(name.replace("\\", "/")).stem
    return re.sub(r"[^\w. -]", "_", stem).strip(". ")[:80] or "picture"
