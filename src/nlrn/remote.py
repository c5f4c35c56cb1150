"""Files behind URLs (s3://, gs://, memory:// and the like), by fsspec and the packages it names."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nlrn.errors import one_line


@dataclass(frozen=True)
class RemotePath:
    """The URL of a file or folder; of pathlib's members those that a batch of files needs."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, relative: object) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{relative}")

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return PurePosixPath(self.url).name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.url).stem

    @property
    def suffix(self) -> str:
        """What follows the last dot of the name, with the dot."""
        return PurePosixPath(self.url).suffix

    def with_name(self, name: str) -> RemotePath:
        """Another file in the same folder."""
        return RemotePath(f"{self.url.rpartition('/')[0]}/{name}")

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        with self._storage() as (storage, path):
            return bool(storage.exists(path))

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        with self._storage() as (storage, path):
            return bool(storage.isdir(path))

    def read_bytes(self) -> bytes:
        """The content of the file."""
        with self._storage() as (storage, path):
            return bytes(storage.cat_file(path))

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The file for reading at any place."""
        with self._storage() as (storage, path), storage.open(path, "rb") as file:
            yield file

    def write_bytes(self, data: bytes, *, overwrite: bool) -> None:
        """Writes the file under a temporary name, then renames it.

        Raises:
            FileExistsError: if the file exists and may not be replaced.
            OSError: if the storage refuses.
        """
        with self._storage() as (storage, path):
            if not overwrite and storage.exists(path):
                raise FileExistsError(self.url)
            folder = path.rpartition("/")[0]
            storage.makedirs(folder, exist_ok=True)  # where folders are but names: nothing
            temporary = f"{folder}/.nlrn-{secrets.token_hex(8)}.tmp"
            storage.pipe_file(temporary, data)
            storage.mv(temporary, path)

    def files(self, *, recursive: bool) -> list[tuple[RemotePath, PurePosixPath]]:
        """Each file below this folder with its path below it, in order."""
        with self._storage() as (storage, path):
            return self._named(path, storage.find(path, maxdepth=None if recursive else 1))

    def matches(self) -> list[tuple[RemotePath, PurePosixPath]]:
        """Each file that matches this pattern with its path below the part without wildcards."""
        with self._storage() as (storage, path):
            folder, base = (re.split(r"[*?\[]", p)[0].rpartition("/")[0] for p in (self.url, path))
            found = [name for name in storage.glob(path) if storage.isfile(name)]
            return RemotePath(folder)._named(base, found)

    def _named(self, base: str, found: list[str]) -> list[tuple[RemotePath, PurePosixPath]]:
        """Names that a storage gives for files below this folder, its `base`, in our words."""
        start = len(base.rstrip("/"))
        below = [PurePosixPath(name[start:].lstrip("/")) for name in sorted(found)]
        return [(self / relative, relative) for relative in below]

    @contextlib.contextmanager
    def _storage(self) -> Iterator[tuple[Any, str]]:
        """The file system of the URL and the path in it; every error is an OSError."""
        from fsspec.core import url_to_fs  # it comes with torch

        try:
            yield url_to_fs(self.url)
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.url}: no such file") from error
        except Exception as error:  # of any class, by the package behind the scheme
            raise OSError(f"{self.url}: {one_line(error)}") from error


AnyPath = Path | RemotePath


def as_path(text: str) -> AnyPath:
    """A path on this machine, or a remote one if the text begins with a scheme."""
    return RemotePath(text) if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) else Path(text)
