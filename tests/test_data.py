from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from training_runs import make_root

from nlrn import data
from nlrn.data import DataError

REAL = Path(os.environ.get("NLRN_DATA", "/nowhere"))
with_real_data = pytest.mark.skipif(not REAL.is_dir(), reason="NLRN_DATA names no data root")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("data"))


def test_sets_by_name(root: Path) -> None:
    assert [file.stem for file in data.image_files("bsd400", root)] == ["a", "b", "c"]
    bsd300 = [file.stem for file in data.image_files("bsd300", root)]
    assert bsd300[:2] == ["a", "b"] and "101085" in bsd300
    validation = {file.stem for file in data.image_files("bsd400-validation", root)}
    assert validation == set(data.VAL_NOT_IN_BSD68[:3])  # 101085 is in BSD68


def test_gray_is_matlabs(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "x.png")
    weights = 0.2989 * colour[..., 0] + 0.5870 * colour[..., 1] + 0.1140 * colour[..., 2]
    np.testing.assert_array_equal(data.read_gray(tmp_path / "x.png"), np.round(weights))


def test_gray_stays_gray(tmp_path: Path) -> None:
    gray = np.arange(15, dtype=np.uint8).reshape(3, 5)
    Image.fromarray(gray).save(tmp_path / "x.png")
    np.testing.assert_array_equal(data.read_gray(tmp_path / "x.png"), gray)


def test_every_scale_is_an_image_of_its_own() -> None:
    images = [np.full((40, 60), 7, np.uint8), np.full((30, 20), 9, np.uint8)]
    found = data.rescaled(images, (1.0, 0.7))
    assert [image.shape for image in found] == [(40, 60), (30, 20), (28, 42), (21, 14)]
    assert [int(image.mean()) for image in found] == [7, 9, 7, 9]
    assert found[0] is images[0]


def test_centre_crop() -> None:
    image = np.arange(35, dtype=np.uint8).reshape(5, 7)
    crop = data.centre_crop(image, 3)
    assert crop is not None and crop.tolist() == image[1:4, 2:5].tolist()
    assert data.centre_crop(image, 6) is None


def test_noise_belongs_to_the_name() -> None:
    first = data.fixed_noise(0, "a", (4, 5))
    assert np.array_equal(first, data.fixed_noise(0, "a", (4, 5)))
    assert not np.array_equal(first, data.fixed_noise(0, "b", (4, 5)))
    assert not np.array_equal(first, data.fixed_noise(1, "a", (4, 5)))
    np.testing.assert_allclose(first[0, :2], NOISE_A, rtol=1e-6)  # the same on every machine


NOISE_A = [-0.14082252979278564, 1.1024103164672852]


def test_missing_data_is_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"t91: no such folder, needed for the image set 't91'"):
        data.image_files("t91", root)
    with pytest.raises(DataError, match="unknown image set 'bsd500'; known sets: bsd400"):
        data.image_files("bsd500", root)
    (tmp_path / "t91").mkdir()
    with pytest.raises(DataError, match="no images of the set 't91'"):
        data.image_files("t91", tmp_path)
    monkeypatch.delenv("NLRN_DATA", raising=False)
    with pytest.raises(DataError, match="name one with --data, or set NLRN_DATA"):
        data.find_root(None)
    with pytest.raises(DataError, match="the data root is not a folder"):
        data.find_root(tmp_path / "none")
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"x\.png: not an image Pillow can read"):
        data.read_gray(tmp_path / "x.png")


@with_real_data
def test_validation_images_are_those_the_manifest_does_not_list_in_bsd68() -> None:
    manifest = json.loads((REAL / "MANIFEST.json").read_text())
    sets = {entry["name"]: entry["files"] for entry in manifest["datasets"]}
    tested = {file["same_as"] for file in sets["bsd68"]}
    rest = {file["file"] for file in sets["bsds500/val"]} - {Path(name).name for name in tested}
    assert {Path(name).stem for name in rest} == set(data.VAL_NOT_IN_BSD68)


@with_real_data
def test_gray_of_val_images_is_bsd68() -> None:
    manifest = json.loads((REAL / "MANIFEST.json").read_text())
    files = next(entry["files"] for entry in manifest["datasets"] if entry["name"] == "bsd68")
    for file in files[:3]:
        gray = data.read_gray(REAL / "bsd68" / file["file"])
        difference = data.read_gray(REAL / file["same_as"]).astype(int) - gray
        assert abs(difference).max() <= 1  # JPEG decoders differ by a level
