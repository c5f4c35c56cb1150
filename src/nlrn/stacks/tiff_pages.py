"""TIFF of several pages: plain, OME, ImageJ's and tifffile's, classic and BigTIFF."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nlrn import atomic
from nlrn.images import Image
from nlrn.images.files import decoded_of, image_of
from nlrn.images.samples import Array, Decoded, FormatError, has_alpha, not_kept
from nlrn.images.tiff import (
    PALETTE,
    REDUCED,
    SUB_DIRECTORIES,
    check_page,
    orientation_of,
    samples_of,
    silent,
    warnings_of,
)
from nlrn.stacks import tiff_texts
from nlrn.stacks.stack import Block, Stack
from nlrn.stacks.tiff_texts import Change

DESCRIPTION = 270
IMAGEJ_TAGS = (50838, 50839)  # labels, lookup tables, overlays
# Names, description, camera, page, software, date, artist, XMP, copyright, what ImageJ and
# Micro-Manager say of each page. Tags that hold places in the file could not be copied.
KEPT_TAGS = (269, DESCRIPTION, 271, 272, 285, 297, 305, 306, 315, 316, 700, 33432, *IMAGEJ_TAGS,
             51123)  # fmt: skip
ICC_PROFILE = 34675  # is kept too, by another way
SPOKEN_TAGS = (DESCRIPTION, *IMAGEJ_TAGS)  # in these kinds of TIFF those of one page are for all
DESCRIBED = ("ome", "imagej", "shaped")
LARGEST_CLASSIC = 2**32 - 2**28  # bytes of pixels that leave room for tags in a classic TIFF
_BYTES = (1, 2, 7)  # types of tags whose values are the same in both byte orders


def has_pages(path: Path) -> bool:
    """Whether a TIFF has more than one page, or says so, or breaks off before the next."""
    import tifffile

    with silent("tifffile"), tifffile.TiffFile(path) as tiff:
        if len(tiff.pages) == 1 and _next_page(tiff):
            return True
        return sum(part.block.pages for part in _parts(tiff)) > 1


class _Part(NamedTuple):
    """A block of pages, and where they are: in tifffile's series, or those of these numbers."""

    block: Block
    series: Any
    numbers: list[int] | None = None
    is_virtual: bool = False  # one directory for all pages, which lie one behind the other


def _next_page(tiff: Any) -> int:
    """Where the page behind the last one that could be read should be; 0 where there is none."""
    file, size = tiff.filehandle, tiff.tiff.offsetsize
    file.seek(tiff.pages.next_page_offset)
    return int.from_bytes(file.read(size), "little" if tiff.byteorder == "<" else "big")


def _parts(tiff: Any) -> list[_Part]:
    """The pages of a file in blocks, thumbnails and the levels of pyramids left out."""
    series = [s for s in tiff.series if not s.keyframe.subfiletype & REDUCED] or tiff.series[:1]
    if all(s.kind in ("generic", "uniform") for s in series):
        numbers = [n for n, page in enumerate(tiff.pages) if not page.subfiletype & REDUCED]
        numbers = numbers or [0]
        if len(tiff.pages) == 1 and (described := _imagej_pages(tiff)) > 1:
            raise FormatError(f"broken: describes {described} pages, too short for them")
        return [_Part(Block("I", (len(numbers),)), series[0], numbers)]
    names = _channel_names(tiff, len(series))
    return [_part(s, own) for s, own in zip(series, names, strict=True)]


def _imagej_pages(tiff: Any) -> int:
    """How many pages ImageJ says that there are in a file of one directory."""
    text = tiff.pages[0].description if tiff.is_imagej else ""
    found = re.search(r"(?m)^images=(\d+)", text)
    return int(found[1]) if found else 1


def _part(series: Any, names: tuple[str, ...]) -> _Part:
    sizes = [(axis, size) for axis, size in zip(series.axes, series.shape, strict=True)
             if axis not in "YXS"]  # fmt: skip
    block = Block("".join(axis for axis, _ in sizes), tuple(size for _, size in sizes), names)
    if block.pages == len(series.pages):
        return _Part(block, series)
    if series.dataoffset is None:
        there = f"{len(series.pages)} are in the file"
        raise FormatError(f"broken: describes {block.pages} pages, {there}")
    return _Part(block, series, is_virtual=True)


def _channel_names(tiff: Any, count: int) -> list[tuple[str, ...]]:
    if not tiff.is_ome:
        return [()] * count
    names = tiff_texts.ome_channels(tiff.ome_metadata)
    return names if len(names) == count else [()] * count


class TiffPages:
    """An open TIFF of several pages; its attributes are those of `Source`."""

    suffixes: tuple[str, ...] = (".tif", ".tiff", ".btf", ".tf8")

    def __init__(self, path: Path, white: float | None, max_pixels: int) -> None:
        import tifffile

        self._white, self._max_pixels = white, max_pixels
        with silent("tifffile"):
            self.tiff = tifffile.TiffFile(path)
            try:
                if _next_page(self.tiff):
                    raise FormatError(f"page {len(self.tiff.pages) + 1}: broken, not in the file")
                self.parts = _parts(self.tiff)
                self.flavor: str = self.parts[0].series.kind
            except BaseException:
                self.tiff.close()
                raise
        self.blocks = tuple(part.block for part in self.parts)
        names = {"ome": "OME-TIFF", "imagej": "TIFF of ImageJ"}
        self.kind = names.get(self.flavor, "TIFF")

    def close(self) -> None:
        """Closes the file."""
        self.tiff.close()

    def find(self, number: int) -> tuple[int, int]:
        """The block that a page is in, and its place there."""
        for index, block in enumerate(self.blocks):
            if number < block.pages:
                return index, number
            number -= block.pages
        raise IndexError(number)

    def directory(self, number: int) -> Any:
        """The directory of a page, with all of its tags."""
        index, place = self.find(number)
        part = self.parts[index]
        if part.numbers is not None:
            return self.tiff.pages[part.numbers[place]].aspage()
        page = part.series.pages[0 if part.is_virtual else place]
        if page is None:
            raise FormatError("not in the file, nor in one beside it")
        return page.aspage()

    def read(self, number: int) -> Image:
        """The page of this number, from 0."""
        with silent("tifffile"):
            page = self.directory(number)
            check_page(page, self._max_pixels)
            stored = self._stored(number, page)
            found = Decoded(stored, orientation_of(page), notes=warnings_of(page))
            if self.colormap(page) is None:
                samples, icc, notes = samples_of(page, stored)
                found = found._replace(samples=samples, icc=icc, notes=notes + found.notes)
            return image_of(found, self._white)

    def colormap(self, page: Any) -> Array | None:
        """The lookup table of a page whose values are not colors but measured."""
        is_table = page.photometric == PALETTE and self.flavor in ("imagej", "ome")
        return page.colormap if is_table else None

    def _stored(self, number: int, page: Any) -> Array:
        index, place = self.find(number)
        part = self.parts[index]
        if not part.is_virtual:
            return page.asarray()
        size = math.prod(page.shape) * page.dtype.itemsize
        file = self.tiff.filehandle
        file.seek(part.series.dataoffset + place * size)
        dtype = page.dtype.newbyteorder(self.tiff.byteorder)
        return np.frombuffer(file.read(size), dtype).reshape(page.shape)

    def notes(self, stack: Stack, path: Path) -> tuple[str, ...]:
        """What is not kept, in words."""
        page = self.parts[0].series.keyframe.aspage()
        names = [tag.name for tag in page.tags
                 if tag.code >= 2**15 and tag.code not in (*KEPT_TAGS, ICC_PROFILE)]  # fmt: skip
        count = sum(block.pages for block in (part.block for part in self.parts))
        has_smaller = SUB_DIRECTORIES in page.tags or len(self.tiff.pages) > count
        axes = self.parts[0].block.axes
        is_known = self.flavor in ("ome", "imagej", "shaped", "generic", "uniform")
        return not_kept(
            *names,
            "smaller versions of the picture" if has_smaller else "",
            "" if is_known else f"the axes {axes} of TIFF {self.flavor}",
            "ImageJ's labels and tables" if stack.chosen and IMAGEJ_TAGS[0] in page.tags else "",
        )

    @contextlib.contextmanager
    def write(self, stack: Stack, path: Path, overwrite: bool) -> Iterator[_TiffWriter]:
        """A context of a writer for a result of the stack's pages at the path."""
        with atomic.new_file(path, overwrite=overwrite) as file:
            writer = _TiffWriter(self, stack, file)
            yield writer
            with silent("tifffile"):
                writer.finish()


class _TiffWriter:
    """Writes pages with the tags of the ones that they were made of."""

    def __init__(self, source: TiffPages, stack: Stack, file: IO[bytes]) -> None:
        self._source, self._stack, self._file = source, stack, file
        self._tiff: Any = None
        self._count = 0
        self._starts: dict[int, tuple[int, tuple[int, ...], tuple[float, float], str]] = {}

    def add(self, image: Image) -> None:
        """Writes the next page."""
        samples = decoded_of(image).samples
        number = self._stack.numbers[self._count]
        with silent("tifffile"):
            page = self._source.directory(number)
            turned = orientation_of(page) > 4
            width, height = page.imagewidth, page.imagelength
            before = (height, width) if turned else (width, height)
            scale = image.width / before[0], image.height / before[1]
            index, _ = self._source.find(number)
            start = (self._count, samples.shape, scale, samples.dtype.name)
            self._starts.setdefault(index, start)
            self._write(samples, page, scale, image.icc)
        self._count += 1

    def _write(
        self, samples: Array, page: Any, scale: tuple[float, float], icc: bytes | None
    ) -> None:
        import tifffile

        if self._tiff is None:
            source = self._source.tiff
            large = len(self._stack) * samples.nbytes > LARGEST_CLASSIC
            self._tiff = tifffile.TiffWriter(
                self._file,
                bigtiff=source.is_bigtiff or large,
                byteorder=source.byteorder,
                ome=False,  # its XML is the source's
                shaped=False,
            )
        colors = self._source.colormap(page)
        is_rgb = samples.ndim == 3 and samples.shape[2] >= 3
        is_plain = page.compression == 1
        resolution, unit = _resolution(page, scale)
        self._tiff.write(
            samples,
            photometric="rgb" if is_rgb else "minisblack" if colors is None else "palette",
            planarconfig="contig" if samples.ndim == 3 else None,
            extrasamples=["unassalpha"] if has_alpha(samples) else None,
            colormap=colors,
            # Uncompressed stays so: programs map such files into memory.
            compression=None if is_plain else "zlib",
            predictor=not is_plain and (samples.dtype.kind != "f" or page.predictor == 3),
            tile=(page.tilelength, page.tilewidth) if page.is_tiled else None,
            iccprofile=icc,
            resolution=resolution,
            resolutionunit=unit,
            subfiletype=page.subfiletype,
            extratags=self._tags(page),
            metadata=None,
            software=False,
            contiguous=False,
        )

    def _tags(self, page: Any) -> list[tuple[int, int, int, Any, bool]]:
        """What is kept of the tags, for tifffile."""
        index, _ = self._source.find(self._stack.numbers[self._count])
        if self._source.flavor not in DESCRIBED:
            return _copied(page, KEPT_TAGS)
        # One page speaks for all of a block; of OME-TIFF, for the file.
        is_virtual = self._source.parts[index].is_virtual
        own = [] if is_virtual else _copied(page, set(KEPT_TAGS) - set(SPOKEN_TAGS))
        if self._source.flavor == "ome":
            head = self._source.tiff.pages[0].aspage() if self._count == 0 else None
        else:
            is_first = self._starts[index][0] == self._count
            head = self._source.parts[index].series.pages[0].aspage() if is_first else None
        if head is None:
            return own
        spoken = [DESCRIPTION] if self._stack.chosen else SPOKEN_TAGS  # has labels of all pages
        return own + _copied(head, KEPT_TAGS if is_virtual else spoken)

    def finish(self) -> None:
        """Brings the descriptions up to date."""
        import tifffile

        self._tiff.close()
        self._file.seek(0)
        with tifffile.TiffFile(self._file, mode="r+") as tiff:
            for number, text in self._descriptions(tiff).items():
                tag = tiff.pages[number].aspage().tags[DESCRIPTION]
                if tag.value != text:
                    tag.overwrite(text.encode())

    def _descriptions(self, tiff: Any) -> dict[int, str]:
        """The texts that have changed, by the pages that they belong to."""
        changes = [self._change(index) for index in sorted(self._starts)]
        flavor, first = self._source.flavor, self._source.tiff.pages[0].aspage()
        text = first.description
        if flavor == "ome":
            kept = self._is_as_before(changes) and "<UUID" not in text
            return {} if kept else {0: tiff_texts.of_ome(text, changes)}
        if flavor == "imagej":
            return {0: tiff_texts.of_imagej(text, changes[0])} if self._stack.chosen else {}
        if flavor == "shaped":
            pages = {c.first: tiff.pages[c.first].aspage() for c in changes}
            return {c.first: tiff_texts.of_tifffile(pages[c.first].description, c) for c in changes}
        return {}

    def _change(self, index: int) -> Change:
        first, page, scale, dtype = self._starts[index]
        block, stack = self._source.blocks[index], self._stack
        names = dict(zip(stack.outer, block.axes, strict=False))  # where others were given
        chosen = {names.get(axis, axis): places for axis, places in stack.chosen.items()}
        shape = stack.shape if len(self._source.blocks) == 1 else block.shape
        sizes = tuple(zip(block.axes, shape, strict=False))
        return Change(first, sizes, page, scale, dtype, chosen)

    def _is_as_before(self, changes: list[Change]) -> bool:
        """Whether pages are as many, as large and in the same places as in the source."""
        source = self._source
        order = [source.directory(n).index for n in self._stack.numbers]
        return (
            not self._stack.chosen
            and order == list(range(len(source.tiff.pages)))
            and not any(part.series.is_multifile for part in source.parts)
            and all(change.scale == (1, 1) for change in changes)
            and all(
                change.dtype == part.series.dtype.name
                for change, part in zip(changes, source.parts, strict=True)
            )
        )


def _copied(page: Any, codes: Collection[int]) -> list[tuple[int, int, int, Any, bool]]:
    """Tags of a page as tifffile takes them."""
    file, found = page.parent.filehandle, []
    for tag in page.tags:
        if tag.code not in codes:
            continue
        value = tag.value
        if tag.dtype in _BYTES:
            file.seek(tag.valueoffset)
            value = file.read(tag.valuebytecount)
        found.append((tag.code, int(tag.dtype), tag.count, value, False))
    return found


def _resolution(page: Any, scale: tuple[float, float]) -> tuple[Any, Any]:
    """Pixels per unit, more of them where the page became larger, and the unit."""
    given = [page.tags.valueof(tag) for tag in (282, 283)]
    if not all(isinstance(v, tuple) and len(v) == 2 and min(v) > 0 for v in given):
        return None, None
    unit = page.tags.valueof(296, default=2)
    if scale == (1, 1):
        return tuple(given), unit
    return tuple(v[0] / v[1] * s for v, s in zip(given, scale, strict=True)), unit
