"""Files written whole or not at all: under a temporary name beside the target, then renamed."""

import os
import secrets
from pathlib import Path


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
    # Not tempfile: its files are readable by the owner alone, and the name would keep that.
    temporary = path.parent / f".nlrn-{secrets.token_hex(8)}.tmp"
    claimed = False
    try:
        _write_through(temporary, data)
        if not overwrite:
            path.open("xb").close()  # fails if there is one; not every disk has hard links
            claimed = True
        elif previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
        claimed = False
    except OSError as error:  # named after the file that was asked for, not the temporary one
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
        if claimed:
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Writes the text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode(), overwrite=overwrite)


def _write_through(path: Path, data: bytes) -> None:
    """Writes a new file down to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
