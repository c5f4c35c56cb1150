"""A stack of pages: where each of them stands, read one at a time, written one by one."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from nlrn.errors import one_line
from nlrn.images import Image, ImageError
from nlrn.images.files import check_place, errors_name
from nlrn.images.samples import FormatError, either


class Block(NamedTuple):
    """Pages of one kind: the axes that they are counted along, slowest first, and the sizes."""

    axes: str
    shape: tuple[int, ...]
    channels: tuple[str, ...] = ()  # their names, where the file says them

    @property
    def pages(self) -> int:
        """Number of pages."""
        return math.prod(self.shape)


class PageWriter(Protocol):
    """Takes the pages of a result, one after the other."""

    def add(self, image: Image) -> None:
        """Writes the next page."""


class Source(Protocol):
    """An open file of pages.

    Attributes:
        kind: what it is, in words.
        suffixes: of the files that its result can be written to.
        blocks: the pages, in order; more than one where a file holds several pictures.
    """

    kind: str
    suffixes: tuple[str, ...]
    blocks: tuple[Block, ...]

    def notes(self, stack: Stack, path: Path) -> tuple[str, ...]:
        """What a result of the stack's pages at the path does not keep, in words."""

    def read(self, number: int) -> Image:
        """The page of this number, from 0."""

    def write(self, stack: Stack, path: Path, overwrite: bool) -> Any:
        """A context of a `PageWriter`, for a result of the stack's pages at the path."""

    def close(self) -> None:
        """Closes the file."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Pages of a file, each read when it is asked for; a context that closes the file.

    Attributes:
        path: the file.
        source: what reads it.
        axes: a letter for each axis, as in OME: T, Z, C, Y, X, S for the samples of color, others
            (I, Q) for axes of no stated meaning. YX or YXS come last: they are a page's own.
        shape: the sizes of the axes; of Y, X and S those of the first page, where pages differ.
        numbers: the pages of the file that are in the stack, from 0.
        chosen: the places that were chosen along an axis, where not all were.
    """

    path: Path
    source: Source
    axes: str
    shape: tuple[int, ...]
    numbers: tuple[int, ...]
    chosen: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.source.close()

    @property
    def outer(self) -> str:
        """The axes that pages are counted along, slowest first."""
        return re.sub("YXS?$", "", self.axes)

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels; numbers from 1 where the file has no names."""
        names: list[str] = []
        for block in self.source.blocks:
            sizes = dict(zip(self._block_axes(block), block.shape, strict=True))
            count = sizes.get("C", 1)
            own = block.channels if len(block.channels) == count else ("",) * count
            names += [name or str(len(names) + i + 1) for i, name in enumerate(own)]
        return tuple(names)

    def channel(self, page: int) -> int:
        """Which channel a page is of: its place in `channels`."""
        number, before = self.numbers[page], 0
        for block in self.source.blocks:
            axes = self._block_axes(block)
            if number < block.pages:
                place = np.unravel_index(number, block.shape) if block.shape else ()
                return before + int(dict(zip(axes, place, strict=True)).get("C", 0))
            number -= block.pages
            before += dict(zip(axes, block.shape, strict=True)).get("C", 1)
        raise IndexError(page)

    def _block_axes(self, block: Block) -> str:
        """The axes of a block, by the names that were given for them, if any."""
        return self.outer if len(self.source.blocks) == 1 else block.axes

    def page(self, i: int) -> Image:
        """The page of this number, from 0.

        Raises:
            ImageError: if it is broken; one line that names it.
        """
        number = self.numbers[i]
        try:
            return self.source.read(number)
        except Exception as error:  # on broken files the libraries raise anything
            broken = "" if isinstance(error, FormatError | MemoryError) else "broken: "
            reason = f"page {number + 1}: {broken}{one_line(error)}"
            raise ImageError(f"{self.path}: {reason}") from error

    def select(self, pages: Sequence[int], axis: str | None = None) -> Stack:
        """The stack of some of the pages: all that have these places along an axis.

        Args:
            pages: places along the axis, from 0, in rising order.
            axis: its letter; not needed where there is one only.
        """
        if len(self.source.blocks) > 1:
            raise ImageError(f"{self.path}: {len(self.source.blocks)} pictures of several pages: "
                             "pages can be chosen from files with one")  # fmt: skip
        outer, axis = self.outer, self._axis(axis)
        at = outer.index(axis)
        if not pages or list(pages) != sorted(set(pages)):
            raise ValueError("pages must be numbers in rising order, each once")
        if pages[0] < 0 or pages[-1] >= self.shape[at]:
            bad = pages[0] if pages[0] < 0 else pages[-1]
            raise ImageError(f"{self.path}: no page {bad + 1} along {axis}: has {self.shape[at]}")
        grid = np.array(self.numbers).reshape(self.shape[: len(outer)])
        numbers = np.take(grid, list(pages), axis=at)
        before = self.chosen.get(axis, range(self.shape[at]))
        return replace(
            self,
            shape=(*numbers.shape, *self.shape[len(outer) :]),
            numbers=tuple(int(number) for number in numbers.flat),
            chosen=self.chosen | {axis: tuple(before[page] for page in pages)},
        )

    def _axis(self, axis: str | None) -> str:
        """The axis that pages are chosen along; raises where it has to be said."""
        outer = self.outer
        sizes = " x ".join(f"{a} {n}" for a, n in zip(outer, self.shape, strict=False))
        if axis is None and len(outer) == 1:
            return outer
        if not outer:
            raise ImageError(f"{self.path}: has one page only")
        if axis is None:
            longest = max(zip(self.shape, outer, strict=False))[1]
            raise ImageError(f"{self.path}: has {sizes} pages: say which axis (axis={longest})")
        if outer.count(axis.upper()) > 1:
            how = f"name all of them first (axes={'TZCHRVPQ'[: len(outer)]}YX)"
            raise ImageError(f"{self.path}: axis {axis} is there twice: {how}")
        if axis.upper() not in outer:
            known = either(sorted(set(outer)))
            raise ImageError(f"{self.path}: axis must be {known}, got {axis!r} (has {sizes})")
        return axis.upper()

    def check_target(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Raises the ImageError that `writer` would raise, before any work."""
        path = Path(path)
        if path.suffix.lower() not in self.source.suffixes and not (
            path.suffix == self.path.suffix == ""
        ):
            known = either(list(self.source.suffixes))
            what = f"the {len(self)} pages of {self.path.name}, {self.source.kind},"
            raise ImageError(f"{path}: {what} can be written as {known}")
        check_place(path, overwrite=overwrite)

    def notes(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """What a result at the path does not keep, or what is guessed, in words."""
        return self.source.notes(self, Path(path))

    @contextlib.contextmanager
    def writer(
        self, path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> Iterator[PageWriter]:
        """A context whose `add` takes the stack's pages one by one, restored, in their order.

        The file is there when the block has ended and all pages were added; else nothing is.
        Axes and metadata are the stack's; where pages have become larger, pixels have become
        smaller.

        Args:
            path: a file of the same kind as the stack's own.
            overwrite: whether an existing file is replaced.

        Raises:
            ImageError: if it cannot be written, or pages are missing.
        """
        self.check_target(path, overwrite=overwrite)
        path = Path(path)
        with errors_name(path), self.source.write(self, path, overwrite) as pages:
            counted = _Counted(pages)
            yield counted
            if counted.count != len(self):
                raise FormatError(f"{counted.count} of {len(self)} pages were added")


class _Counted:
    """Counts the pages that are written."""

    def __init__(self, pages: PageWriter) -> None:
        self._pages, self.count = pages, 0

    def add(self, image: Image) -> None:
        """Writes the next page."""
        self._pages.add(image)
        self.count += 1


def make_stack(path: Path, source: Source, axes: str | None) -> Stack:
    """The stack of all pages of a source, which is closed if there is something wrong with it."""
    blocks = source.blocks
    outer, sizes = blocks[0][:2] if len(blocks) == 1 else ("I", (sum(b.pages for b in blocks),))
    numbers = tuple(range(math.prod(sizes)))
    try:
        first = Stack(path, source, f"{outer}YX", sizes, numbers).page(0).samples
        own = "YX" if first.ndim == 2 else "YXS"
        if axes is not None:
            outer = _named(axes.upper(), outer, own, path)
    except BaseException:
        source.close()
        raise
    return Stack(path, source, outer + own, (*sizes, *first.shape), numbers)


def _named(axes: str, outer: str, own: str, path: Path) -> str:
    """The outer axes by the names that were given for all."""
    if len(axes) != len(outer + own) or not axes.endswith(own):
        raise ImageError(f"{path}: axes must be {len(outer)} letters and {own}, got {axes!r}")
    return axes.removesuffix(own)


def page_numbers(text: str) -> list[int]:
    """The places, from 0, in a text that counts from 1: "1-10,15"."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last:
            raise ValueError(f"pages must be numbers from 1 such as 1-10,15, got {text!r}")
        if last > 10**7:
            raise ValueError(f"pages must be at most {10**7}, got {last}")
        numbers |= set(range(first - 1, last))
    return sorted(numbers)
