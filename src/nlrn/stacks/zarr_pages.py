"""Zarr arrays of versions 2 and 3, alone or in an OME-Zarr image; needs the extra `zarr`."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nlrn import atomic
from nlrn.errors import no_warnings
from nlrn.images import Image
from nlrn.images.files import decoded_of, image_of
from nlrn.images.samples import Array, Decoded, FormatError, check_size, not_kept
from nlrn.stacks.stack import Block, Stack

MARKS = ("zarr.json", ".zarray", ".zgroup")
LARGEST_SLAB = 2**28  # bytes of pages that are kept because their chunks hold all of them
_LETTERS = {"time": "T", "channel": "C", "channels": "C", "sample": "S", "samples": "S", "rgb": "S"}


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr array or group."""
    return any((path / name).is_file() for name in MARKS)


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise FormatError("Zarr needs a package: pip install 'nlrn[zarr]'") from error
    return zarr


class ZarrPages:
    """An open Zarr array; its attributes are those of `Source`."""

    kind = "Zarr"
    suffixes: tuple[str, ...] = (".zarr",)

    def __init__(self, path: Path, axes: str | None, white: float | None, max_pixels: int) -> None:
        self._white = white
        with no_warnings():  # about what is not yet in the specification
            node = _zarr().open(path, mode="r")
        self.group = node if hasattr(node, "members") else None
        found = _Found("") if self.group is None else _found(self.group)
        self.inside = found.name
        self.array = node if self.group is None else node[self.inside]
        self.letters, notes = _letters(self.array, axes, found.axes)
        self._notes = notes + not_kept(*found.others)
        sizes = dict(zip(self.letters, self.array.shape, strict=True))
        check_size(sizes["X"], sizes["Y"], max_pixels)
        outer = "".join(letter for letter in self.letters if letter not in "YXS")
        shape = tuple(n for a, n in zip(self.letters, self.array.shape, strict=True)
                      if a not in "YXS")  # fmt: skip
        self.blocks: tuple[Block, ...] = (Block(outer, shape, found.channels),)
        self._slab: tuple[tuple[Any, ...], Array] | None = None

    def close(self) -> None:
        """Forgets what was read."""
        self._slab = None

    def notes(self, stack: Stack, path: Path) -> tuple[str, ...]:
        """What is not kept, and what is guessed, in words."""
        return self._notes

    def place(self, number: int, shape: tuple[int, ...]) -> list[Any]:
        """The index of a page in an array with outer axes of these sizes."""
        places = iter(np.unravel_index(number, shape) if shape else ())
        return [slice(None) if a in "YXS" else int(next(places)) for a in self.letters]

    def read(self, number: int) -> Image:
        """The page of this number, from 0."""
        index = self.place(number, self.blocks[0].shape)
        samples = self._stored(index).transpose(self.order())
        if "S" in self.letters and samples.shape[2] == 1:
            samples = samples[..., 0]
        return image_of(Decoded(np.ascontiguousarray(samples)), self._white)

    def order(self) -> list[int]:
        """Where Y, X and S are among a page's own axes."""
        own = [letter for letter in self.letters if letter in "YXS"]
        return [own.index(letter) for letter in "YXS" if letter in own]

    def _stored(self, index: list[Any]) -> Array:
        """The samples at an index; of chunks that hold several pages, all are kept for the next."""
        outer = [k for k, at in enumerate(index) if not isinstance(at, slice)]
        depth = self.array.chunks[outer[-1]] if outer else 1
        page = math.prod(n for n, at in zip(self.array.shape, index, strict=True)
                         if isinstance(at, slice)) * self.array.dtype.itemsize  # fmt: skip
        if depth == 1 or depth * page > LARGEST_SLAB:
            return np.asarray(self.array[tuple(index)])
        last = outer[-1]
        start = index[last] // depth * depth
        key = (*index[:last], slice(start, start + depth), *index[last + 1 :])
        if self._slab is None or self._slab[0] != key:
            self._slab = (key, np.asarray(self.array[key]))
        axis = last - sum(1 for k in outer if k < last)
        return self._slab[1].take(index[last] - start, axis=axis)

    @contextlib.contextmanager
    def write(self, stack: Stack, path: Path, overwrite: bool) -> Iterator[_ZarrWriter]:
        """A context of a writer for a result of the stack's pages at the path."""
        with atomic.new_folder(path, overwrite=overwrite) as folder:
            yield _ZarrWriter(self, stack, folder)


class _ZarrWriter:
    """Writes each page as chunks of its own."""

    def __init__(self, source: ZarrPages, stack: Stack, folder: Path) -> None:
        self._source, self._stack, self._folder = source, stack, folder
        self._array: Any = None
        self._count = 0

    def add(self, image: Image) -> None:
        """Writes the next page."""
        samples = decoded_of(image).samples
        letters = self._source.letters
        own = [letter for letter in letters if letter in "YXS"]
        if "S" in own and samples.ndim == 2:
            samples = samples[..., None]
        if self._array is None:
            sizes = dict(zip("YXS", samples.shape, strict=False))
            self._create(sizes, samples.dtype)
        outer = self._stack.shape[: len(self._stack.outer)]
        index = self._source.place(self._count, outer)
        self._array[tuple(index)] = samples.transpose(["YXS".index(letter) for letter in own])
        self._count += 1

    def _create(self, sizes: dict[str, int], dtype: Any) -> None:
        source, old = self._source, self._source.array
        outer = iter(self._stack.shape)
        shape = tuple(sizes[a] if a in "YXS" else next(outer) for a in source.letters)
        chunks = tuple(min(chunk, n) if a in "YXS" else 1
                       for a, n, chunk in zip(source.letters, shape, old.chunks, strict=True)
                       )  # fmt: skip
        version = old.metadata.zarr_format
        how = {
            "shape": shape, "dtype": dtype, "chunks": chunks,
            "compressors": old.compressors or None,
            "filters": old.filters if dtype == old.dtype and old.filters else None,
            "fill_value": old.fill_value, "attributes": dict(old.attrs),
        }  # fmt: skip
        if version == 3:
            how["dimension_names"] = old.metadata.dimension_names
        else:
            separator = old.metadata.dimension_separator
            how["chunk_key_encoding"] = {"name": "v2", "separator": separator}
        zarr = _zarr()
        with no_warnings():
            if source.group is None:
                self._array = zarr.create_array(self._folder, zarr_format=version, **how)
                return
            scale = tuple(new / dict(zip(source.letters, old.shape, strict=True))[a]
                          for a, new in sizes.items() if a != "S")  # fmt: skip
            attributes = _ome_attributes(source.group, source, self._stack, scale)
            group = zarr.create_group(self._folder, zarr_format=version, attributes=attributes)
            self._array = group.create_array(source.inside, **how)


class _Found(NamedTuple):
    """The array in a group: its name, its axes, its channels; and what else there is."""

    name: str
    axes: list[str] | None = None
    channels: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def _found(group: Any) -> _Found:
    """The image in a group; raises where it has to be said which one."""
    attributes = dict(group.attrs)
    ome = attributes.get("ome", attributes)
    images = ome.get("multiscales")
    if not images:
        arrays = sorted(name for name, _ in group.arrays())
        others = tuple(sorted(name for name, _ in group.groups()))
        if len(arrays) != 1 or others:
            inside = ", ".join([*arrays, *others][:8]) or "nothing"
            raise FormatError(f"a Zarr group with {inside} inside: give the path of one image")
        return _Found(arrays[0])
    levels = [level["path"] for level in images[0]["datasets"]]
    axes = images[0].get("axes")
    names = [a["name"] if isinstance(a, dict) else a for a in axes] if axes else list("tczyx")
    channels = tuple(c.get("label", "") for c in ome.get("omero", {}).get("channels", ()))
    known = {level.partition("/")[0] for level in levels}
    others = tuple(sorted(name for name, _ in group.members() if name not in known))
    smaller = ("smaller versions of the picture",) if len(levels) > 1 else ()
    return _Found(levels[0], names, channels, smaller + others)


def _letters(array: Any, given: str | None, names: list[str] | None) -> tuple[str, tuple[str, ...]]:
    """A letter for each axis, and notes where they are guessed."""
    said = array.metadata.dimension_names if array.metadata.zarr_format == 3 else None
    names = names or said or array.attrs.get("_ARRAY_DIMENSIONS")
    notes: tuple[str, ...] = ()
    if given is not None:
        letters = given.upper()
    elif names and all(names):
        letters = _from_names([str(name).lower() for name in names])
    else:
        own = "YXS" if array.ndim > 2 and array.shape[-1] in (3, 4) else "YX"
        letters = "Q" * (array.ndim - len(own)) + own
        notes = (f"its axes have no names and are taken for {letters}",)
    if len(letters) != array.ndim or letters.count("Y") != 1 or letters.count("X") != 1:
        how = f"give {array.ndim} letters with Y and X (axes={'TZCYX'[-array.ndim :]})"
        raise FormatError(f"array {array.shape} with axes {letters}: {how}")
    if letters.count("S") > 1 or ("S" in letters and array.shape[letters.index("S")] > 4):
        letters = letters.replace("S", "C")
    return letters, notes


def _from_names(names: list[str]) -> str:
    letters = ""
    for name in names:
        letter = _LETTERS.get(name, name[0].upper())
        letters += letter if letter.isalpha() and letter not in letters else "Q"
    return letters


def _ome_attributes(
    group: Any, source: ZarrPages, stack: Stack, scale: tuple[float, ...]
) -> dict[str, Any]:
    """The attributes of an OME-Zarr image of one level, its pixels smaller by the scale (y, x)."""
    attributes: dict[str, Any] = copy.deepcopy(dict(group.attrs))
    ome = attributes.get("ome", attributes)
    for image in ome.get("multiscales", ())[:1]:
        image["datasets"] = image["datasets"][:1]
        for change in image["datasets"][0].get("coordinateTransformations", ()):
            for letter, factor in zip("YX", scale, strict=True):
                if change.get("type") == "scale":
                    change["scale"][source.letters.index(letter)] /= factor
        ome["multiscales"] = [image]
    outer = source.blocks[0].axes
    for axis, places in stack.chosen.items():
        named = outer[stack.outer.index(axis)]
        if named == "C" and "channels" in ome.get("omero", {}):
            ome["omero"]["channels"] = [ome["omero"]["channels"][place] for place in places]
    return attributes
