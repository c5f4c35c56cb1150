"""Which files are meant: names, folders, patterns, lists of names, URLs."""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePath

from nlrn import images, stacks
from nlrn.remote import AnyPath, RemotePath, as_path

SUFFIXES = (*images.SUFFIXES, *stacks.SUFFIXES)
LIST = "@"  # before the name of a text file that has one path in each line


class InputError(ValueError):
    """Nothing sensible to do with the given paths; the message is one line."""


def find(
    inputs: list[str], recursive: bool, made_by_us: str | None, output: str | None
) -> Iterator[tuple[AnyPath, PurePath]]:
    """Each file with its path below the given folder; results of an earlier run are left out.

    Args:
        inputs: names of files, folders, patterns and URLs; `@NAME` is a list of files.
        recursive: whether everything below a folder is meant.
        made_by_us: the ending of names of results that lie beside their sources.
        output: where results go, which are no sources.
    """
    results = real(as_path(output)) if output is not None else None
    above = results.parents if isinstance(results, Path) else ()
    for text in inputs:
        path = as_path(text)
        if isinstance(path, RemotePath):
            yield from _remote(path, recursive, made_by_us, output)
            continue
        if text.startswith(LIST) and not path.exists():
            yield from _listed(Path(text.removeprefix(LIST)))
            continue
        if path.is_dir() and not stacks.is_zarr(path):
            found, base = _walk(path, recursive), path
        elif path.exists() or not glob.has_magic(text):
            yield path, Path(path.name)
            continue
        else:
            matches = map(Path, glob.glob(text, recursive=True))  # noqa: PTH207
            found, base = sorted(filter(_is_input, matches)), _fixed_part(path)
            if not found:
                raise InputError(f"{text}: no file matches")
        inside = real(base) in above
        for file in found:
            is_result = bool(made_by_us) and split(file)[0].endswith(str(made_by_us))
            if not (is_result or (inside and results in Path(os.path.realpath(file)).parents)):
                yield file, file.relative_to(base)


def unknown_files(inputs: list[str], *, recursive: bool) -> list[Path]:
    """What lies in the given folders and is of no known kind, hidden files left out."""
    folders = [path for path in map(Path, inputs) if path.is_dir() and not stacks.is_zarr(path)]
    files = (file for folder in folders for file in _visible(folder, recursive))
    return sorted(file for file in files if not _is_known(file))


def split(path: AnyPath) -> tuple[str, str]:
    """A name without its ending, and that, which is .ome.tif where it is."""
    stem, ending = path.stem, path.suffix
    if stem.lower().endswith(".ome"):
        return stem[:-4], stem[-4:] + ending
    return stem, ending


def real(path: AnyPath) -> AnyPath:
    """The path without links; one that leads to itself stays, where Path.resolve would raise."""
    if isinstance(path, RemotePath) and not path.url.startswith("file://"):
        return path
    return Path(os.path.realpath(str(path).removeprefix("file://")))


def _remote(
    path: RemotePath, recursive: bool, made_by_us: str | None, output: str | None
) -> Iterator[tuple[AnyPath, PurePath]]:
    if glob.has_magic(path.url):
        found = path.matches()
        if not found:
            raise InputError(f"{path}: no file matches")
    elif not path.is_dir():
        yield path, PurePath(path.name)
        return
    else:
        found = [f for f in path.files(recursive=recursive) if _is_visible_image(f[1])]
    results = f"{output.rstrip('/')}/" if output is not None else None
    for file, relative in found:
        is_result = bool(made_by_us) and split(file)[0].endswith(str(made_by_us))
        if not (is_result or (results is not None and file.url.startswith(results))):
            yield file, relative


def _listed(names: Path) -> list[tuple[AnyPath, PurePath]]:
    """The files of a list with their paths below the folder that they have in common."""
    try:
        lines = names.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InputError(f"{names}: no list of files ({error})") from error
    texts = [line.strip() for line in lines if line.strip()]
    try:
        base = posixpath.commonpath([posixpath.dirname(text) for text in texts]) if texts else ""
    except ValueError as error:
        raise InputError(f"{names}: paths with and without a beginning at / in one list") from error
    return [(as_path(text), PurePath(posixpath.relpath(text, base or "."))) for text in texts]


def _fixed_part(pattern: Path) -> Path:
    """The folders of a pattern before its first wildcard."""
    parts = pattern.parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:first])


def _walk(folder: Path, recursive: bool) -> list[Path]:
    """Images below a folder in order, hidden files left out."""
    return sorted(file for file in _visible(folder, recursive) if _is_known(file))


def _is_known(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES or stacks.is_zarr(path)


def _is_input(path: Path) -> bool:
    return path.is_file() or stacks.is_zarr(path)


def _visible(folder: Path, recursive: bool) -> Iterator[Path]:
    """Files and Zarr folders below a folder, hidden ones left out."""
    for where, folders, files in os.walk(folder):
        shown = [name for name in folders if not name.startswith(".")]
        arrays = {name for name in shown if stacks.is_zarr(Path(where, name))}
        folders[:] = sorted(set(shown) - arrays) if recursive else []
        for name in (*files, *arrays):
            if not name.startswith(".") and _is_input(Path(where, name)):
                yield Path(where, name)


def _is_visible_image(relative: PurePath) -> bool:
    return relative.suffix.lower() in images.SUFFIXES and not _is_hidden(relative)


def _is_hidden(relative: PurePath) -> bool:
    return any(part.startswith(".") for part in relative.parts)
