"""Stacks in TIFF files: pages, axes and metadata come back as they went in."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from stack_files import (
    HEIGHT,
    WIDTH,
    Darker,
    Twice,
    copied,
    copy,
    darker,
    ome_file,
    samples,
)

from nlrn import images
from nlrn.images import ImageError
from nlrn.restoration import restore_stack
from nlrn.stacks import is_stack, open_stack, page_numbers

OPEN: list[tifffile.TiffFile] = []


def opened(path: Path) -> tifffile.TiffFile:
    OPEN.append(tifffile.TiffFile(path))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def restored(source: Path, target: Path, restoration: Any, **how: Any) -> dict[str, Any]:
    with open_stack(source, **how) as stack:
        return restore_stack(stack, target, restoration)


def series(path: Path) -> tuple[str, tuple[int, ...]]:
    with tifffile.TiffFile(path) as tiff:
        return tiff.series[0].axes, tiff.series[0].shape


def ome_pixels(path: Path) -> ElementTree.Element:
    with tifffile.TiffFile(path) as tiff:
        root = ElementTree.fromstring(str(tiff.ome_metadata).encode())
    return next(e for e in root.iter() if e.tag.endswith("}Pixels"))


def channel_names(path: Path) -> list[str]:
    return [e.attrib["Name"] for e in ome_pixels(path) if e.tag.endswith("}Channel")]


def test_ome_tiff_keeps_axes_and_its_xml_to_the_letter(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    pages = ome_file(source)
    assert is_stack(source)
    facts = restored(source, target, Darker())
    assert facts["pages"] == 12 and facts["axes"] == "TZCYX"
    assert facts["channels"] == ["DAPI", "GFP"] and facts["warnings"] == []
    np.testing.assert_array_equal(tifffile.imread(target), darker(pages))
    assert series(target) == ("TZCYX", (3, 2, 2, HEIGHT, WIDTH))
    assert opened(target).ome_metadata == opened(source).ome_metadata


def test_the_stack_knows_its_pages(tmp_path: Path) -> None:
    pages = ome_file(tmp_path / "a.ome.tif")
    with open_stack(tmp_path / "a.ome.tif") as stack:
        assert (stack.axes, stack.outer, len(stack)) == ("TZCYX", "TZC", 12)
        assert stack.shape == (3, 2, 2, HEIGHT, WIDTH)
        assert stack.channels == ("DAPI", "GFP")
        assert [stack.channel(i) for i in range(4)] == [0, 1, 0, 1]
        np.testing.assert_array_equal(stack.page(7).pixels, pages[1, 1, 1])
        np.testing.assert_array_equal(stack.page(2).pixels, pages[0, 1, 0])


def test_larger_pages_have_smaller_pixels(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    ome_file(source, resolution=(40000.0, 20000.0), resolutionunit="centimeter")
    restored(source, target, Twice())
    assert series(target) == ("TZCYX", (3, 2, 2, 2 * HEIGHT, 2 * WIDTH))
    pixels = ome_pixels(target).attrib
    assert (pixels["SizeX"], pixels["SizeY"]) == (str(2 * WIDTH), str(2 * HEIGHT))
    assert float(pixels["PhysicalSizeX"]) == 0.125 and float(pixels["PhysicalSizeY"]) == 0.25
    assert float(pixels["PhysicalSizeZ"]) == 2 and pixels["PhysicalSizeXUnit"] == "µm"
    assert channel_names(target) == ["DAPI", "GFP"]
    tags = opened(target).pages[3].aspage().tags
    assert (tags[282].value, tags[283].value) == ((80000, 1), (40000, 1))
    assert tags[296].value == 3


def test_some_pages_along_an_axis(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    pages = ome_file(source)
    with open_stack(source) as stack:
        part = stack.select([0, 2], "t").select([1], "C")
        assert part.axes == "TZCYX" and part.shape == (2, 2, 1, HEIGHT, WIDTH)
        copied(part, target)
    np.testing.assert_array_equal(tifffile.imread(target), pages[[0, 2], :, 1])
    pixels = ome_pixels(target)
    sizes = [pixels.attrib[f"Size{axis}"] for axis in "TZC"]
    assert sizes == ["2", "2", "1"] and channel_names(target) == ["GFP"]
    planes = [e.attrib for e in pixels if e.tag.endswith("}Plane")]
    assert [(p["TheT"], p["TheZ"], p["TheC"]) for p in planes] == [
        ("0", "0", "0"), ("0", "1", "0"), ("1", "0", "0"), ("1", "1", "0")
    ]  # fmt: skip
    assert [float(p["DeltaT"]) for p in planes] == [0.5, 1.5, 4.5, 5.5]


def test_pages_that_cannot_be_chosen(tmp_path: Path) -> None:
    source = tmp_path / "a.ome.tif"
    ome_file(source)
    with open_stack(source) as stack:
        for pages, axis, reason in (
            ([0], None, "has T 3 x Z 2 x C 2 pages: say which axis (axis=T)"),
            ([0], "Q", "axis must be C, T or Z, got 'Q'"),
            ([1, 3], "T", "no page 4 along T: has 3"),
        ):
            with pytest.raises(ImageError) as error:
                stack.select(pages, axis)
            assert str(error.value).startswith(str(source)) and reason in str(error.value)
        with pytest.raises(ValueError, match="rising order"):
            stack.select([1, 0], "T")


def test_page_numbers_count_from_one() -> None:
    assert page_numbers("1-3, 7") == [0, 1, 2, 6]
    assert page_numbers("5,2-3,3") == [1, 2, 4]
    for text in ("", "0", "3-1", "a", "1-", "-2", "1.5"):
        with pytest.raises(ValueError, match="pages must be numbers from 1"):
            page_numbers(text)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_imagej_keeps_lines_labels_tables_and_resolution(
    tmp_path: Path, compression: str | None
) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = samples(3, 2, 2)
    table = np.stack([np.arange(256, dtype=np.uint8)] * 3)
    facts = {"axes": "TZCYX", "unit": "um", "spacing": 2.5, "finterval": 0.1, "mode": "composite",
             "Labels": [f"page {i}" for i in range(12)], "LUTs": [table, table[::-1]]}  # fmt: skip
    tifffile.imwrite(source, pages, imagej=True, resolution=(4.0, 5.0), metadata=facts,
                     compression=compression)  # fmt: skip
    restored(source, target, Darker())
    np.testing.assert_array_equal(tifffile.imread(target), darker(pages))
    before, after = opened(source), opened(target)
    assert series(target) == series(source) == ("TZCYX", (3, 2, 2, HEIGHT, WIDTH))
    assert after.pages[0].aspage().description == before.pages[0].aspage().description
    assert after.imagej_metadata is not None and before.imagej_metadata is not None
    assert after.imagej_metadata["Labels"] == facts["Labels"]
    assert len(after.imagej_metadata["LUTs"]) == 2
    assert after.pages[5].aspage().tags[282].value == (4, 1)
    assert after.pages[5].aspage().compression == before.pages[0].aspage().compression
    restored(source, tmp_path / "large.tif", Twice())
    large = opened(tmp_path / "large.tif")
    assert series(tmp_path / "large.tif")[1] == (3, 2, 2, 2 * HEIGHT, 2 * WIDTH)
    assert large.pages[0].aspage().tags[283].value == (10, 1)


def test_some_pages_of_imagej(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = samples(4, 2)
    facts = {"axes": "ZCYX", "Labels": ["?"] * 8}
    tifffile.imwrite(source, pages, imagej=True, metadata=facts)
    with open_stack(source) as stack:
        part = stack.select([1, 2], "Z")
        assert part.notes(target) == ("not kept: ImageJ's labels and tables",)
        copied(part, target)
    np.testing.assert_array_equal(tifffile.imread(target), pages[1:3])
    assert series(target) == ("ZCYX", (2, 2, HEIGHT, WIDTH))


def test_one_directory_for_all_pages_is_a_stack_too(tmp_path: Path) -> None:
    """So are large files of ImageJ, of which only the first page was seen before."""
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = samples(5)
    with tifffile.TiffWriter(source, imagej=True, byteorder=">") as tiff:
        tiff.write(pages, metadata={"axes": "ZYX"})
    with tifffile.TiffFile(source, mode="r+") as tiff:
        first = tiff.pages[0].aspage()
        link = first.offset + 2 + 12 * len(first.tags)
        tiff.filehandle.seek(link)
        tiff.filehandle.write(bytes(4))  # no next page
    assert len(opened(source).pages) == 1 and is_stack(source)
    with pytest.raises(ImageError, match="has 5 pages; only files with one are read here"):
        images.read(source)
    restored(source, target, Darker())
    np.testing.assert_array_equal(tifffile.imread(target), darker(pages))
    assert series(target) == ("ZYX", (5, HEIGHT, WIDTH))
    with tifffile.TiffFile(source) as whole:
        offset = whole.pages[0].aspage().dataoffsets[0]
    source.write_bytes(source.read_bytes()[: offset + pages.nbytes - 100])
    assert is_stack(source)
    with pytest.raises(ImageError, match="broken: describes 5 pages, too short for them"):
        open_stack(source)


@pytest.mark.parametrize("truncate", [False, True])
def test_files_of_tifffile_keep_their_shape(tmp_path: Path, truncate: bool) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = samples(3, 2, dtype="float32")
    tifffile.imwrite(source, pages, metadata={"axes": "TZYX", "by": "hand"}, truncate=truncate)
    restored(source, target, Twice())
    assert series(target) == ("TZYX", (3, 2, 2 * HEIGHT, 2 * WIDTH))
    metadata = opened(target).shaped_metadata
    assert metadata is not None and metadata[0]["by"] == "hand"


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("big", [False, True])
def test_plain_pages_of_every_type(tmp_path: Path, dtype: str, color: bool, big: bool) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = samples(3, dtype=dtype, color=color)
    with tifffile.TiffWriter(source, bigtiff=big) as tiff:
        for number, page in enumerate(pages):
            tiff.write(page, photometric="rgb" if color else "minisblack", metadata=None,
                       description=f"page {number}", resolution=(300, 300),
                       compression="lzw" if color else None)  # fmt: skip
    facts = restored(source, target, Darker())
    assert facts["axes"] == ("IYXS" if color else "IYX") and facts["pages"] == 3
    np.testing.assert_array_equal(tifffile.imread(target), darker(pages))
    with tifffile.TiffFile(target) as tiff:
        assert tiff.is_bigtiff == big
        assert [page.aspage().description for page in tiff.pages] == ["page 0", "page 1", "page 2"]
        assert tiff.pages[2].aspage().tags[282].value == (300, 1)


def test_pages_of_different_sizes_stay_in_order(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = [samples()[:9], samples(seed=1), samples(dtype="uint8", color=True), samples(seed=2)]
    with tifffile.TiffWriter(source) as tiff:
        for page in pages:
            tiff.write(page, metadata=None)
    assert restored(source, target, Darker())["pages"] == 4
    for page, result in zip(pages, opened(target).pages, strict=True):
        np.testing.assert_array_equal(result.asarray(), darker(page))


def test_pages_that_lie_on_their_side(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = samples(2)
    with tifffile.TiffWriter(source) as tiff:
        for page in pages:
            tiff.write(page, metadata=None, extratags=[(274, 3, 1, 6, True)], resolution=(90, 90))
    restored(source, target, Twice())
    result = opened(target).pages[1].aspage()
    upright = np.rot90(pages[1], -1).repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_array_equal(result.asarray(), upright)
    assert 274 not in result.tags or result.tags[274].value == 1
    assert result.tags[282].value == (180, 1)


def test_ome_tiff_of_several_images(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    first, second = samples(2, 2), samples(3, seed=1)[:, :11]
    with tifffile.TiffWriter(source, ome=True) as tiff:
        tiff.write(first, metadata={"axes": "ZCYX", "Channel": {"Name": ["a", "b"]}})
        tiff.write(second, metadata={"axes": "TYX"})
    with open_stack(source) as stack:
        assert (len(stack), stack.axes) == (7, "IYX") and stack.channels == ("a", "b", "3")
        assert [stack.channel(i) for i in range(7)] == [0, 1, 0, 1, 2, 2, 2]
        with pytest.raises(ImageError, match="2 pictures of several pages"):
            stack.select([0])
    restored(source, target, Twice())
    found = [(s.axes, s.shape) for s in opened(target).series]
    assert found == [("ZCYX", (2, 2, 42, 68)), ("TYX", (3, 22, 68))]


def test_pages_in_another_order_and_names_of_files(tmp_path: Path) -> None:
    """As Bio-Formats writes them: an entry for each page, with the name of its file."""
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    pages = samples(3)
    identity = "urn:uuid:00000000-0000-0000-0000-000000000001"
    entries = "".join(
        f'<TiffData FirstT="{t}" IFD="{2 - t}" PlaneCount="1">'
        f'<UUID FileName="a.ome.tif">{identity}</UUID></TiffData>'
        for t in range(3)
    )
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><!-- by hand --><OME xmlns='
        f'"http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="{identity}">'
        '<Image ID="Image:0">'
        f'<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="{WIDTH}" '
        f'SizeY="{HEIGHT}" SizeZ="1" SizeC="1" SizeT="3">{entries}</Pixels></Image></OME>'
    )
    with tifffile.TiffWriter(source, ome=False) as tiff:
        for number, page in enumerate(pages[::-1]):
            tiff.write(page, metadata=None, description=xml if number == 0 else None)
    np.testing.assert_array_equal(tifffile.imread(source), pages)
    copy(source, target)
    np.testing.assert_array_equal(tifffile.imread(target), pages)
    written = str(opened(target).ome_metadata)
    assert "UUID" not in written and 'xmlns="http://www.openmicroscopy.org' in written


def test_a_lookup_table_is_no_color(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages, table = samples(3, dtype="uint8"), samples(dtype="uint16").ravel()[:512]
    colors = np.stack([np.resize(table, 256)] * 3)
    text = "ImageJ=1.53t\nimages=3\nslices=3\n"
    with tifffile.TiffWriter(source) as tiff:
        for number, page in enumerate(pages):
            tiff.write(page, photometric="palette", colormap=colors, metadata=None,
                       description=text if number == 0 else None)  # fmt: skip
    assert restored(source, target, Darker())["axes"] == "ZYX"
    first = opened(target).pages[0].aspage()
    np.testing.assert_array_equal(first.asarray(), darker(pages[0]))
    np.testing.assert_array_equal(first.colormap, colors)


def test_the_white_of_the_camera(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    pages = (samples(3) // 16).astype(np.int16)
    tifffile.imwrite(source, pages, metadata={"axes": "ZYX"}, photometric="minisblack")
    with pytest.raises(ImageError, match=r"page 1: int16 samples up to 409\d: say which"):
        open_stack(source)
    restored(source, target, Darker(), white=4095)
    result = tifffile.imread(target)
    assert result.dtype == np.int16 and np.abs(result - pages * 0.9).max() <= 1


def test_tiles_and_smaller_versions(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    pages = samples(2)
    with tifffile.TiffWriter(source, ome=True) as tiff:
        tiff.write(pages, subifds=1, tile=(16, 32), metadata={"axes": "ZYX"}, compression="zlib")
        tiff.write(pages[:, ::2, ::2], subfiletype=1, tile=(16, 32))
    assert restored(source, target, Darker())["warnings"] == [
        "not kept: smaller versions of the picture"
    ]
    np.testing.assert_array_equal(tifffile.imread(target), darker(pages))
    assert opened(target).pages[1].aspage().is_tiled


def test_axes_by_other_names(tmp_path: Path) -> None:
    source = tmp_path / "a.tif"
    tifffile.imwrite(source, samples(2, 3), metadata=None, photometric="minisblack")
    with open_stack(source, axes="cyx") as stack:
        assert (stack.axes, stack.channels) == ("CYX", ("1", "2", "3", "4", "5", "6"))
        assert stack.channel(4) == 4
    for wrong in ("ZCYX", "YX", "ZXY", "ZYXS"):
        with pytest.raises(ImageError, match="axes must be 1 letters and YX"):
            open_stack(source, axes=wrong)
    tifffile.imwrite(source, samples(2, 3), compression="zlib", photometric="minisblack")
    with open_stack(source) as stack, pytest.raises(ImageError, match=r"is there twice.*axes=TZYX"):
        stack.select([0], "Q")
    with open_stack(source, axes="TZYX") as stack:
        copied(stack.select([0, 2], "Z"), tmp_path / "b.tif")
    assert tifffile.imread(tmp_path / "b.tif").shape == (2, 2, HEIGHT, WIDTH)
