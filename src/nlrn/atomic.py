"""Files written whole or not at all: under a temporary name beside the target, then renamed."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def write_bytes(
    path: Path, data: bytes, *, overwrite: bool = True, previous: Path | None = None
) -> None:
    """Writes the file; after an error nothing of it is left behind.

    Args:
        path: the file, in a folder that exists; it gets the permissions of any new file.
        data: its content.
        overwrite: whether an existing file is replaced.
        previous: name in the same folder that an existing file is kept under.

    Raises:
        FileExistsError: if the file exists and may not be replaced; of two writers at the same
            time one gets it.
        OSError: if the folder is missing, full or not writable.
    """
    temporary = _temporary(path)
    try:
        with _errors_named(path):
            with temporary.open("xb") as file:
                file.write(data)
                _sync(file)
            _rename(temporary, path, overwrite, previous)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Writes the text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode(), overwrite=overwrite)


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """A file open for reading and writing, which has its name once the block ends without error.

    Where the system can (Linux), it has no name before: even a killed process leaves nothing.
    Arguments and errors as those of `write_bytes`.
    """
    temporary = _temporary(path)
    with _errors_named(path):
        unnamed = _unnamed(path)
        opened = unnamed or temporary.open("x+b")
    with opened as file:
        try:
            yield file
            with _errors_named(path):
                _sync(file)
                if unnamed:  # linkat follows /proc's link to the file only if a folder is given too
                    number = file.fileno()
                    os.link(f"/proc/self/fd/{number}", temporary, src_dir_fd=number)
                file.close()
                _rename(temporary, path, overwrite)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A new folder, which has its name once the block ends without error, and else is gone.

    A killed process leaves the temporary one, hidden.
    """
    temporary, old = _temporary(path), _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists() and not overwrite:
            raise FileExistsError(17, "File exists", str(path))
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    """Names errors after the file that was asked for, not the temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _temporary(path: Path) -> Path:
    """A new name beside a path; not by tempfile, whose files only their owner may ever read."""
    return path.parent / f".nlrn-{secrets.token_hex(8)}.tmp"


def _unnamed(path: Path) -> IO[bytes] | None:
    """A new file without a name on the disk where the path is; None where there is no such thing.

    It believes that its name is the path: libraries look at that.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)

    try:
        return open(path, "w+b", opener=opener)
    except (AttributeError, OSError):
        return None


def _sync(file: IO[bytes]) -> None:
    """Writes a file down to the disk."""
    file.flush()
    os.fsync(file.fileno())


def _rename(
    temporary: Path, path: Path, overwrite: bool = True, previous: Path | None = None
) -> None:
    claimed = False
    try:
        if not overwrite:
            path.open("xb").close()  # fails if there is one; not every disk has hard links
            claimed = True
        elif previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
        claimed = False
    finally:
        if claimed:
            path.unlink(missing_ok=True)
