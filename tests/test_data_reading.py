"""Images of the sets and of one's own: decoded, scaled, held out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nlrn import datasets, degrade
from nlrn.datasets import DataError, own


def test_gray_is_matlabs(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "x.png")
    np.testing.assert_array_equal(datasets.read_image(tmp_path / "x.png"), colour)
    np.testing.assert_array_equal(datasets.read_gray(tmp_path / "x.png"), degrade.rgb2gray(colour))


def test_gray_stays_gray(tmp_path: Path) -> None:
    gray = np.arange(15, dtype=np.uint8).reshape(3, 5)
    Image.fromarray(gray).save(tmp_path / "x.png")
    np.testing.assert_array_equal(datasets.read_gray(tmp_path / "x.png"), gray)
    rgb = datasets.read_rgb(tmp_path / "x.png")
    assert rgb.shape == (3, 5, 3) and all((rgb[..., c] == gray).all() for c in range(3))


def test_color_stays_color(tmp_path: Path) -> None:
    color = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    Image.fromarray(color).save(tmp_path / "x.png")
    np.testing.assert_array_equal(datasets.read_rgb(tmp_path / "x.png"), color)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_and_not_clipped_to_white(suffix: str, tmp_path: Path) -> None:
    gray = np.arange(0, 256, dtype=np.uint16).reshape(8, 32)
    Image.fromarray(gray * 257).save(tmp_path / f"x.{suffix}")
    np.testing.assert_array_equal(datasets.read_gray(tmp_path / f"x.{suffix}"), gray)
    Image.fromarray(gray * 257 + np.uint16(100) * (gray < 255)).save(tmp_path / f"y.{suffix}")
    np.testing.assert_array_equal(datasets.read_gray(tmp_path / f"y.{suffix}"), gray)


def test_values_of_unknown_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 5), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"x\.tif: .*floating-point values"):
        datasets.read_gray(tmp_path / "x.tif")


def test_every_scale_is_an_image_of_its_own() -> None:
    images = [np.full((40, 60), 7, np.uint8), np.full((30, 20), 9, np.uint8)]
    found = datasets.rescaled(images, (1.0, 0.7))
    assert [image.shape for image in found] == [(40, 60), (30, 20), (28, 42), (21, 14)]
    assert [int(image.mean()) for image in found] == [7, 9, 7, 9]
    assert found[0] is images[0]
    color = np.full((40, 60, 3), (7, 8, 9), np.uint8)
    smaller = datasets.rescaled([color], (0.5,))[0]
    assert smaller.shape == (20, 30, 3) and smaller[4, 5].tolist() == [7, 8, 9]


def test_center_crop() -> None:
    image = np.arange(35, dtype=np.uint8).reshape(5, 7)
    crop = datasets.center_crop(image, 3)
    assert crop is not None and crop.tolist() == image[1:4, 2:5].tolist()
    assert datasets.center_crop(image, 6) is None


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """40 images in two folders, and what is none."""
    for number in range(40):
        file = tmp_path / "pictures" / ("a" if number % 2 else "b/c") / f"{number}.JPG"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (5, 4), number).save(file, format="PNG")
    (tmp_path / "pictures" / "notes.txt").write_text("no image")
    hidden = tmp_path / "pictures" / ".thumbnails"
    hidden.mkdir()
    Image.new("L", (5, 4)).save(hidden / "41.png")
    return tmp_path / "pictures"


def test_all_images_of_a_folder_are_found(pictures: Path) -> None:
    found = own.files(pictures)
    assert len(found) == 40 and found == sorted(found)
    (pictures / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no images \(\.png, "):
        own.files(pictures / "empty")


def test_a_part_is_held_out_by_name(pictures: Path) -> None:
    files = own.files(pictures)
    train, held = own.split(files, 0.25)
    assert set(train).isdisjoint(held) and sorted(train + held) == files
    assert 4 <= len(held) <= 16
    shutil.copytree(pictures, pictures.with_name("elsewhere"))
    again = own.split(own.files(pictures.with_name("elsewhere")), 0.25)[1]
    assert {file.name for file in again} == {file.name for file in held}
    fewer = own.split([file for file in files if file != train[0]], 0.25)
    assert fewer[1] == held  # what is held out does not depend on the others
    twin = held[0].with_suffix(".png")
    assert twin in own.split([*files, twin], 0.25)[1]  # the same picture in another format


def test_at_least_one_image_is_held_out_and_one_is_left(pictures: Path) -> None:
    files = own.files(pictures)
    train, held = own.split(files, 1e-9)
    assert len(held) == 1 and len(train) == 39
    with pytest.raises(DataError, match="a single image cannot be trained and validated on"):
        own.split(files[:1], 0.5)
    with pytest.raises(DataError, match=r"held_out 0\.999 leaves nothing to train on"):
        own.split(files[:2], 0.999)


def test_published_images_are_known_by_folder_and_name() -> None:
    assert datasets.published_folder(Path("/x/bsds500/val/101085.jpg")) == "bsds500/val"
    assert datasets.published_folder(Path("/x/kodak24/kodim01.webp")) == "kodak24"
    assert datasets.published_folder(Path("/x/holiday/101085.jpg")) == ""


def test_a_file_that_is_no_image_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"x\.png: not an image Pillow can read \(unknown format"):
        datasets.read_gray(file)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50), np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(DataError, match=r"x\.png: not an image Pillow can read \(.*truncated"):
        datasets.read_gray(file)
