"""Stacks in Zarr arrays, alone and as OME-Zarr images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stack_files import HEIGHT, WIDTH, Darker, Twice, copied, copy, darker, samples

from nlrn.images import ImageError
from nlrn.restoration import restore_stack
from nlrn.stacks import is_stack, open_stack

zarr: Any = pytest.importorskip("zarr")


def array_file(path: Path, pages: np.ndarray, version: int = 3, **how: Any) -> None:
    chunks = how.pop("chunks", (2,) * (pages.ndim - 2) + (16, 16))
    array = zarr.create_array(path, shape=pages.shape, dtype=how.pop("dtype", pages.dtype),
                              chunks=chunks, zarr_format=version, **how)  # fmt: skip
    array[...] = pages


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_an_array_of_pages(tmp_path: Path, version: int, dtype: str) -> None:
    source, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    pages = samples(3, 5, dtype=dtype)
    names = ("t", "z", "y", "x")
    how: dict[str, Any] = {"attributes": {"by": "hand"}}
    if version == 3:
        how["dimension_names"] = names
    else:
        how["attributes"]["_ARRAY_DIMENSIONS"] = names
    array_file(source, pages, version, **how)
    assert is_stack(source)
    with open_stack(source) as stack:
        assert (stack.axes, stack.shape) == ("TZYX", (3, 5, HEIGHT, WIDTH))
        np.testing.assert_array_equal(stack.page(8).pixels, pages[1, 3])
        facts = restore_stack(stack, target, Darker())
    assert facts["pages"] == 15 and facts["warnings"] == []
    result, before = zarr.open(target, mode="r"), zarr.open(source, mode="r")
    np.testing.assert_array_equal(result[...], darker(pages))
    assert result.metadata.zarr_format == version and dict(result.attrs) == dict(before.attrs)
    assert result.chunks == (1, 1, 16, 16) and result.compressors == before.compressors
    if version == 3:
        assert result.metadata.dimension_names == names


def test_the_other_byte_order_and_the_other_separator(tmp_path: Path) -> None:
    source, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    pages = samples(3)
    key = {"name": "v2", "separator": "/"}
    array_file(source, pages, 2, dtype=">u2", chunk_key_encoding=key)
    copy(source, target)
    np.testing.assert_array_equal(zarr.open(target, mode="r")[...], pages)
    assert (target / "2" / "0" / "0").is_file()


def test_color_and_channels_last(tmp_path: Path) -> None:
    color = samples(3, dtype="uint8", color=True)
    array_file(tmp_path / "a.zarr", color, chunks=(1, 16, 16, 3))
    with open_stack(tmp_path / "a.zarr") as stack:
        assert stack.axes == "QYXS" and stack.page(0).pixels.shape == (HEIGHT, WIDTH, 3)
        assert stack.notes("b.zarr") == ("its axes have no names and are taken for QYXS",)
        restore_stack(stack, tmp_path / "b.zarr", Twice())
    assert zarr.open(tmp_path / "b.zarr", mode="r").shape == (3, 2 * HEIGHT, 2 * WIDTH, 3)
    last = np.moveaxis(samples(2, 3), 1, -1)  # Z Y X C
    array_file(tmp_path / "c.zarr", last, chunks=(1, 16, 16, 2))
    with open_stack(tmp_path / "c.zarr", axes="ZYXC") as stack:
        assert (stack.axes, len(stack)) == ("ZCYX", 6) and stack.channel(4) == 1
        np.testing.assert_array_equal(stack.page(4).pixels, last[1, ..., 1])
        copied(stack, tmp_path / "d.zarr")
    np.testing.assert_array_equal(zarr.open(tmp_path / "d.zarr", mode="r")[...], last)


@pytest.mark.parametrize("version", [2, 3])
def test_ome_zarr(tmp_path: Path, version: int) -> None:
    source, target = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    pages = samples(2, 3)
    axes = [{"name": "c", "type": "channel"}] + [
        {"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"
    ]
    scales = [{"type": "scale", "scale": [1, 2.0, 0.5 * n, 0.25 * n]} for n in (1, 2)]
    levels = [{"path": str(n), "coordinateTransformations": [s]} for n, s in enumerate(scales)]
    image = {"name": "cells", "axes": axes, "datasets": levels}
    facts = {"multiscales": [image], "omero": {"channels": [{"label": "DAPI"}, {"label": "GFP"}]}}
    attributes = facts if version == 2 else {"ome": {"version": "0.5", **facts}}
    group = zarr.create_group(source, zarr_format=version, attributes=attributes)
    for number, data in enumerate((pages, pages[..., ::2, ::2])):
        group.create_array(str(number), data=data, chunks=data.shape)
    with open_stack(source) as stack:
        assert (stack.axes, stack.channels) == ("CZYX", ("DAPI", "GFP"))
        assert restore_stack(stack, target, Twice())["warnings"] == [
            "not kept: smaller versions of the picture"
        ]
        copied(stack.select([1], "C"), tmp_path / "c.ome.zarr")
    result = zarr.open(target, mode="r")
    assert result["0"].shape == (2, 3, 2 * HEIGHT, 2 * WIDTH)
    ome = dict(result.attrs) if version == 2 else result.attrs["ome"]
    assert ome["multiscales"][0]["axes"] == axes and ome["omero"] == facts["omero"]
    (level,) = ome["multiscales"][0]["datasets"]
    assert level["coordinateTransformations"][0]["scale"] == [1, 2.0, 0.25, 0.125]
    part = zarr.open(tmp_path / "c.ome.zarr", mode="r")
    np.testing.assert_array_equal(part["0"][...], pages[1:])
    ome = dict(part.attrs) if version == 2 else part.attrs["ome"]
    assert ome["omero"]["channels"] == [{"label": "GFP"}]


def test_refusals(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    for name in ("one", "two"):
        group.create_array(name, shape=(5, 7), dtype="uint8")
    with pytest.raises(ImageError, match="a Zarr group with one, two inside: give the path of one"):
        open_stack(tmp_path / "a.zarr")
    with open_stack(tmp_path / "a.zarr" / "one") as stack:
        assert (stack.axes, len(stack)) == ("YX", 1)
    array_file(tmp_path / "b.zarr", samples(3), dimension_names=("a", "b", "c"))
    with pytest.raises(ImageError, match=r"with axes ABC: give 3 letters with Y and X \(axes=CYX"):
        open_stack(tmp_path / "b.zarr")
    with pytest.raises(ImageError, match="34x21 is 714 pixels, the limit is 700"):
        open_stack(tmp_path / "b.zarr", axes="ZYX", max_pixels=700)


def test_a_broken_chunk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    source = tmp_path / "a.zarr"
    array_file(source, samples(4), chunks=(1, HEIGHT, WIDTH), dimension_names=("z", "y", "x"))
    (source / "c" / "2" / "0" / "0").write_bytes(b"?")
    with open_stack(source) as stack, pytest.raises(ImageError, match="page 3: broken"):
        restore_stack(stack, tmp_path / "b.zarr", Darker())
    assert [p.name for p in tmp_path.iterdir()] == ["a.zarr"]


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array_file(tmp_path / "a.zarr", samples(2))
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImageError, match=r"Zarr needs a package: pip install 'nlrn\[zarr\]'"):
        open_stack(tmp_path / "a.zarr")
