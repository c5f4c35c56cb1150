"""Stacks in TIFF files that are broken, too large or not finished: one line, nothing written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tifffile
from stack_files import copied, copy, ome_file, samples

from nlrn import images
from nlrn.images import ImageError
from nlrn.stacks import is_stack, open_stack


def plain_file(path: Path, count: int = 4) -> None:
    with tifffile.TiffWriter(path) as tiff:
        for page in samples(count):
            tiff.write(page, metadata=None, compression="zlib")


def test_a_broken_page_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tif", tmp_path / "b.tif"
    plain_file(source)
    data = bytearray(source.read_bytes())
    with tifffile.TiffFile(source) as tiff:
        offset = tiff.pages[2].aspage().dataoffsets[0]
    data[offset : offset + 300] = bytes(300)
    source.write_bytes(data)
    with pytest.raises(ImageError) as error:
        copy(source, target)
    assert str(error.value).startswith(f"{source}: page 3: broken: ")
    assert "\n" not in str(error.value) and [p.name for p in tmp_path.iterdir()] == ["a.tif"]


@pytest.mark.parametrize("kept", [1, 3])
def test_a_file_that_breaks_off_is_never_taken_for_a_shorter_one(tmp_path: Path, kept: int) -> None:
    source = tmp_path / "a.tif"
    plain_file(source)
    with tifffile.TiffFile(source) as tiff:
        offset = tiff.pages[kept].aspage().offset
    source.write_bytes(source.read_bytes()[: offset - 4])
    assert is_stack(source)
    with pytest.raises(ImageError, match=f"page {kept + 1}: broken, not in the file"):
        open_stack(source)


def test_ome_tiff_with_missing_pages(tmp_path: Path) -> None:
    source = tmp_path / "a.ome.tif"
    ome_file(source, samples(3, 2, 2))
    data = source.read_bytes().replace(b'SizeT="3"', b'SizeT="4"')
    source.write_bytes(data.replace(b'PlaneCount="12"', b'PlaneCount="16"'))
    with open_stack(source) as stack, pytest.raises(ImageError, match="page 13: not in the file"):
        copied(stack, tmp_path / "b.ome.tif")
    assert [p.name for p in tmp_path.iterdir()] == ["a.ome.tif"]


def test_too_large_pages_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    ome_file(tmp_path / "a.ome.tif")
    with pytest.raises(ImageError, match="page 1: 34x21 is 714 pixels, the limit is 700"):
        open_stack(tmp_path / "a.ome.tif", max_pixels=700)


def test_pages_that_are_not_added(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    ome_file(source)
    with (
        open_stack(source) as stack,
        pytest.raises(ImageError, match="1 of 12 pages were added"),
        stack.writer(target) as out,
    ):
        out.add(stack.page(0))
    assert not target.exists()


UNFINISHED = """
import sys, time
from nlrn.stacks import open_stack

with open_stack(sys.argv[1]) as stack, stack.writer(sys.argv[2]) as out:
    for i in range(7):
        out.add(stack.page(i))
    print("half", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others have no unnamed files")
def test_a_killed_process_leaves_nothing_at_all(tmp_path: Path) -> None:
    ome_file(tmp_path / "a.ome.tif")
    command = [sys.executable, "-c", UNFINISHED, str(tmp_path / "a.ome.tif"),
               str(tmp_path / "b.ome.tif")]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "half\n"
        running.kill()
    assert [p.name for p in tmp_path.iterdir()] == ["a.ome.tif"]


def test_a_result_that_exists_or_is_of_another_kind(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    ome_file(source)
    target.write_bytes(b"old")
    with open_stack(source) as stack:
        with pytest.raises(images.ExistsError):
            copied(stack, target)
        with pytest.raises(
            ImageError, match=r"the 12 pages of a.ome.tif, OME-TIFF, can be .* \.tif"
        ):
            copied(stack, tmp_path / "b.png")
    assert target.read_bytes() == b"old"


def test_one_page_is_no_stack(tmp_path: Path) -> None:
    for name, imagej in (("a.tif", False), ("b.tif", True), ("c.ome.tif", False)):
        tifffile.imwrite(tmp_path / name, samples(dtype="uint8"), imagej=imagej)
        assert not is_stack(tmp_path / name)
    tifffile.imwrite(
        tmp_path / "d.tif", samples(dtype="uint8", color=True), planarconfig="separate"
    )
    assert not is_stack(tmp_path / "d.tif") and not is_stack(tmp_path / "nothing.tif")
