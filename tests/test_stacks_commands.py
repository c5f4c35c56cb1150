"""Stacks on the command line: pages, noise levels, memory, and what a killed run leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile
from command_line import assert_one_clear_line, names, nlrn, picture
from stack_files import HEIGHT, WIDTH, Darker, noisy, ome_file, samples

from nlrn import images
from nlrn.images import Image
from nlrn.noise import tone_of
from nlrn.restoration import ClassicDenoiser, Denoiser, restore_pages
from nlrn.restoration.stacks import channel_noise
from nlrn.stacks import open_stack

FAST = ("--method", "nlm")


def test_denoise_says_one_level_for_each_channel(tmp_path: Path, model: str) -> None:
    pages = ome_file(tmp_path / "a.ome.tif", noisy((8, 24), 3, 2))
    result = nlrn("denoise", tmp_path / "a.ome.tif", "--model", model)
    assert result.exit_code == 0, result.output
    assert names(tmp_path) == ["a.ome.tif", "a_denoised.ome.tif"]
    assert "a_denoised.ome.tif (12 pages TZCYX, sigma " in result.stdout
    assert "(DAPI), " in result.stdout and "(GFP)" in result.stdout
    assert tifffile.imread(tmp_path / "a_denoised.ome.tif").shape == pages.shape
    again = nlrn("denoise", tmp_path / "a.ome.tif", *FAST, "-o", tmp_path / "b.tif", "--json")
    (facts,) = json.loads(again.stdout)["done"]
    assert (facts["pages"], facts["axes"], facts["channels"]) == (12, "TZCYX", ["DAPI", "GFP"])
    assert facts["sigma"][0] == pytest.approx(8, rel=0.15)
    assert facts["sigma"][1] == pytest.approx(24, rel=0.15)


def test_the_level_of_a_channel_is_measured_on_a_few_of_its_pages(tmp_path: Path) -> None:
    pages = noisy((6, 18), 9, 1)
    pages[2] = 0  # black says nothing about noise
    tifffile.imwrite(tmp_path / "a.ome.tif", pages, ome=True, metadata={"axes": "TZCYX"})
    read: list[int] = []
    with open_stack(tmp_path / "a.ome.tif") as stack:
        source: Any = stack.source
        page = source.read

        def counted(number: int) -> Image:
            read.append(number)
            return page(number)

        source.read = counted
        levels = {channel: noise.level for channel, noise in channel_noise(stack).items()}
    assert read == [0, 4, 8, 12, 16, 1, 5, 9, 13, 17]
    assert levels == pytest.approx({0: 6, 1: 18}, rel=0.15)


@pytest.mark.parametrize("given", [None, 12.0])
def test_every_page_of_a_channel_gets_its_level(tmp_path: Path, given: float | None) -> None:
    ome_file(tmp_path / "a.ome.tif", noisy((6, 18), 3, 2))
    denoiser = ClassicDenoiser("nlm", sigma=given)
    with open_stack(tmp_path / "a.ome.tif") as stack:
        levels = [restored.facts["sigma"] for restored in restore_pages(stack, denoiser)]
    assert len(levels) == 12 and len(set(levels[::2])) == len(set(levels[1::2])) == 1
    assert (levels[0] == levels[1] == 12) if given else levels[1] > 2 * levels[0]


@pytest.mark.parametrize("given", [None, 15.0])
def test_pages_in_color_are_of_one_tone_all_or_none(tmp_path: Path, given: float | None) -> None:
    """The color of their noise is so weak that by themselves some would be taken for gray."""
    generator = np.random.default_rng(0)
    gray = 110 + generator.normal(0, 15, (10, 64, 72, 1))
    pages = gray + generator.normal(0, 2, (10, 64, 72, 3))
    pages[3] = pages[3].mean(2, keepdims=True)  # one that is gray
    pages = pages.round().clip(0, 255).astype(np.uint8)
    assert len({tone_of(page) is None for page in pages}) == 2
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="rgb")
    with open_stack(tmp_path / "a.tif") as stack:
        denoiser = Denoiser(quality="fast", sigma=given)
        used = [page.facts["model"] for page in restore_pages(stack, denoiser)]
    assert used.pop(3) == "denoise-gray-fast" and len(set(used)) == 1


def test_a_page_is_restored_as_the_same_image_alone(tmp_path: Path, model: str) -> None:
    pages = ome_file(tmp_path / "a.ome.tif")
    nlrn("denoise", tmp_path / "a.ome.tif", "--model", model, "--sigma", 20)
    alone = Denoiser(model, sigma=20).restore(Image(pages[2, 1, 0])).image.pixels
    together = tifffile.imread(tmp_path / "a_denoised.ome.tif")[2, 1, 0]
    np.testing.assert_array_equal(together, alone)


def test_upscale(tmp_path: Path, model: str) -> None:
    ome_file(tmp_path / "a.ome.tif")
    result = nlrn("upscale", tmp_path / "a.ome.tif", "--model", model, "--scale", 2)
    assert result.exit_code == 0, result.output
    assert "a_x2.ome.tif (12 pages TZCYX, x2, " in result.stdout
    with tifffile.TiffFile(tmp_path / "a_x2.ome.tif") as tiff:
        assert tiff.series[0].shape == (3, 2, 2, 2 * HEIGHT, 2 * WIDTH)
        assert 'PhysicalSizeX="0.125"' in str(tiff.ome_metadata)


def test_pages_and_axis(tmp_path: Path) -> None:
    pages = ome_file(tmp_path / "a.ome.tif")
    arguments = ("denoise", tmp_path / "a.ome.tif", *FAST, "--sigma", 0)
    assert_one_clear_line(nlrn(*arguments, "--pages", "1"), "has T 3 x Z 2 x C 2", "(--axis T)")
    assert_one_clear_line(nlrn(*arguments, "--pages", "2-4", "--axis", "T"), "no page 4 along T")
    assert_one_clear_line(nlrn(*arguments, "--pages", "x"), "numbers from 1", "'x'")
    assert_one_clear_line(nlrn(*arguments, "--axis", "T"), "give pages too")
    assert_one_clear_line(nlrn(*arguments, "--axes", "YX"), "axes must be 3 letters and YX")
    result = nlrn(*arguments, "--pages", "2-3", "--axis", "T")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "a_denoised.ome.tif"), pages[1:])
    photo = picture(tmp_path / "photo.png")
    assert_one_clear_line(nlrn("denoise", photo, *FAST, "--pages", "1"), "photo.png: one page only")


def test_folders_of_all_kinds(tmp_path: Path) -> None:
    zarr: Any = pytest.importorskip("zarr")
    folder = tmp_path / "in"
    picture(folder / "photo.png")
    ome_file(folder / "a.ome.tif")
    zarr.create_array(folder / "sub" / "b.zarr", data=samples(3), dimension_names=list("zyx"))
    frames = [PIL.Image.fromarray(page) for page in samples(3, dtype="uint8")]
    frames[0].save(folder / "c.gif", save_all=True, append_images=frames[1:], duration=80)
    options = (*FAST, "--sigma", 9)
    result = nlrn("denoise", folder, *options, "-o", tmp_path / "out", "--recursive")
    assert result.exit_code == 0 and "left alone" not in result.stderr, result.output
    found = sorted(p.name for p in tmp_path.joinpath("out").iterdir())
    assert found == ["a.ome.tif", "c.gif", "photo.png", "sub"]
    assert zarr.open(tmp_path / "out" / "sub" / "b.zarr", mode="r").shape == (3, HEIGHT, WIDTH)
    for _ in range(2):
        array = folder / "sub" / "b.zarr"
        assert nlrn("denoise", array, *options, "--overwrite").exit_code == 0
    result = nlrn("denoise", folder / "sub", *options, "--skip-existing")
    assert "1 skipped" in result.stderr, "a result is no input"
    assert sorted(p.name for p in (folder / "sub").iterdir()) == ["b.zarr", "b_denoised.zarr"]
    assert_one_clear_line(nlrn("denoise", array, *options), "exists already", "--overwrite")
    assert_one_clear_line(nlrn("denoise", array, *options, "-o", tmp_path / "b.tif"), "as .zarr")


def test_a_broken_page_leaves_nothing_and_stops_no_other_file(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "bad.tif") as tiff:
        for page in samples(3):
            tiff.write(page, metadata=None, compression="zlib")
    with tifffile.TiffFile(tmp_path / "bad.tif") as tiff:
        offset = tiff.pages[1].aspage().dataoffsets[0]
    data = bytearray((tmp_path / "bad.tif").read_bytes())
    data[offset : offset + 200] = bytes(200)
    (tmp_path / "bad.tif").write_bytes(data)
    ome_file(tmp_path / "good.ome.tif")
    result = nlrn("denoise", tmp_path, *FAST, "--sigma", 9)
    assert result.exit_code == 1
    assert f"error: {tmp_path / 'bad.tif'}: page 2: broken: " in result.stderr
    assert names(tmp_path) == ["bad.tif", "good.ome.tif", "good_denoised.ome.tif"]


def test_what_is_to_be_known_is_said_once(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", samples(4) // 20, metadata={"axes": "ZYX"},
                     photometric="minisblack")  # fmt: skip
    result = nlrn("denoise", tmp_path / "a.tif", *FAST, "--sigma", 9)
    warnings = result.stderr.strip().splitlines()
    assert len(warnings) == 1 and "of 65535: if white is there" in warnings[0]
    assert "--white 4095" in warnings[0]


def test_pages_do_not_go_through_pipes(tmp_path: Path) -> None:
    ome_file(tmp_path / "a.ome.tif")
    result = nlrn("denoise", tmp_path / "a.ome.tif", *FAST, "-o", "-")
    assert_one_clear_line(result, "pages do not go to the standard output")


def test_one_page_is_written_as_ever(tmp_path: Path) -> None:
    """The bytes do not depend on the way through stacks."""
    page = samples(dtype="uint16")
    tifffile.imwrite(tmp_path / "a.tif", page, description="one", resolution=(90, 90))
    nlrn("denoise", tmp_path / "a.tif", *FAST, "--sigma", 9)
    image = images.read(tmp_path / "a.tif")
    expected = ClassicDenoiser("nlm", sigma=9).restore(image).image
    images.write(tmp_path / "b.tif", expected)
    assert (tmp_path / "a_denoised.tif").read_bytes() == (tmp_path / "b.tif").read_bytes()


def test_progress_goes_over_all_pages(tmp_path: Path) -> None:
    ome_file(tmp_path / "a.ome.tif")
    told: list[tuple[int, int]] = []
    with open_stack(tmp_path / "a.ome.tif") as stack:
        denoiser = ClassicDenoiser("nlm", sigma=9)
        for _ in restore_pages(stack, denoiser, progress=lambda *at: told.append(at)):
            pass
    assert told == sorted(told) and told[-1] == (12000, 12000)
    assert {total for _, total in told} == {12000}


# Whole programs

SLOW_RUN = """
import sys, time
from nlrn import cli
from nlrn.restoration import Restored, ClassicDenoiser

def restore(self, image, *_, **__):
    print("page", flush=True)
    time.sleep(0.2)
    return Restored(image, {"sigma": 1.0})

ClassicDenoiser.restore = restore
cli.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_leaves_no_file(tmp_path: Path, number: int) -> None:
    ome_file(tmp_path / "a.ome.tif")
    command = [sys.executable, "-c", SLOW_RUN, "denoise", str(tmp_path / "a.ome.tif"), *FAST,
               "--sigma", "9"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for _ in range(4):
            assert running.stdout.readline() == "page\n"
        running.send_signal(number)
    assert running.returncode != 0
    assert [p.name for p in tmp_path.iterdir()] == ["a.ome.tif"]


@pytest.mark.slow
def test_an_ended_run_leaves_no_folder(tmp_path: Path) -> None:
    zarr: Any = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "a.zarr", data=samples(9), dimension_names=list("zyx"))
    command = [sys.executable, "-c", SLOW_RUN, "denoise", str(tmp_path / "a.zarr"), *FAST,
               "--sigma", "9"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for _ in range(4):
            running.stdout.readline()
        running.send_signal(signal.SIGTERM)
    assert running.returncode == 128 + signal.SIGTERM
    assert [p.name for p in tmp_path.iterdir()] == ["a.zarr"]


# What a network takes for a page is another matter, and the same for one page as for 300.
MEASURED_RUN = """
import re, sys
from pathlib import Path
from nlrn.restoration import Restored, restore_stack
from nlrn.stacks import open_stack

class Darker:
    def restore(self, image, *, progress=None, announce=None):
        return Restored(image.with_pixels(image.pixels // 2), {"scale": 1})

source, target = sys.argv[1:]
with open_stack(source) as stack:
    restore_stack(stack, target, Darker())
# Not getrusage, which begins with what the parent had.
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_three_hundred_pages_in_little_memory(tmp_path: Path) -> None:
    pages = np.random.default_rng(0).integers(0, 2**16, (3, 512, 512), np.uint16)
    source, target = tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"
    repeated = (pages[i % 3] for i in range(300))
    tifffile.imwrite(source, repeated, shape=(50, 3, 2, 512, 512), dtype=np.uint16, ome=True,
                     metadata={"axes": "TZCYX", "PhysicalSizeX": 0.25})  # fmt: skip
    begin = time.perf_counter()
    arguments = [str(source), str(target)]
    result = subprocess.run([sys.executable, "-c", MEASURED_RUN, *arguments], check=True,
                            capture_output=True, text=True, env=os.environ)  # fmt: skip
    peak = int(result.stdout) / 2**20  # GiB
    print(f"{peak:.2f} GiB, {time.perf_counter() - begin:.0f} s")
    assert peak < 2
    with tifffile.TiffFile(target) as tiff:
        assert tiff.series[0].axes == "TZCYX" and tiff.series[0].shape == (50, 3, 2, 512, 512)
        assert 'PhysicalSizeX="0.25"' in str(tiff.ome_metadata)


def test_a_stand_in_is_enough_for_python(tmp_path: Path) -> None:
    pages = ome_file(tmp_path / "a.ome.tif")
    with open_stack(tmp_path / "a.ome.tif") as stack, stack.writer(tmp_path / "b.ome.tif") as out:
        for restored in restore_pages(stack, Darker()):
            out.add(restored.image)
    assert tifffile.imread(tmp_path / "b.ome.tif").shape == pages.shape
