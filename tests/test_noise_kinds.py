"""estimate_noise and estimate_map: noise that is not white, or not the same everywhere."""

import dataclasses
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import nlrn as run_command
from PIL import Image
from skimage.data import camera, chelsea, grass, gravel
from test_noise import eight_bit, noisy, scene

import nlrn
from nlrn import images
from nlrn.models import Network
from nlrn.models.nlrn import CONFIGS, random_network
from nlrn.noise import estimate_map, estimate_noise, estimate_sigma
from nlrn.noise.jpeg import compression

DATA = os.environ.get("NLRN_DATA")


def photo(height: int = 203, width: int = 262) -> np.ndarray:
    """A photograph of a cat [height, width, 3], uint8, that has not been through JPEG."""
    return np.ascontiguousarray(chelsea()[:height, :width])


def as_jpeg(pixels: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def smoothed(noise: np.ndarray) -> np.ndarray:
    """White noise [H, W] as demosaicking leaves it: neighbors have some of it in common."""
    padded = np.pad(noise, 1, mode="wrap")
    across = (padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]) / 4
    return (across[:-2] + 2 * across[1:-1] + across[2:]) / 4


@pytest.mark.parametrize("sigma", [2, 5, 25, 75])
@pytest.mark.parametrize("shape", [(180, 260), (301, 97)], ids=str)
def test_of_white_noise_the_level_is_the_white_one(shape, sigma):
    for image in (noisy(scene(*shape), sigma), eight_bit(noisy(scene(*shape), sigma))):
        found = estimate_noise(image)
        assert found.level == found.white == estimate_sigma(image)
        assert not found.is_correlated
        assert found.jpeg == 0


def test_smoothed_noise_is_correlated_and_its_level_higher():
    noise = smoothed(np.random.default_rng(0).normal(0, 20 / 255, (180, 260)))
    found = estimate_noise(scene() + noise)
    assert found.is_correlated
    assert found.level > 3 * found.white
    assert found.level < 20


@pytest.mark.parametrize("side", [262, 263, 300])
def test_smoothed_noise_is_found_where_part_is_black(side):
    """Whatever share of the patches is read, and left when those that are clipped are out."""
    noise = smoothed(np.random.default_rng(0).normal(0, 40 / 255, (side, side)))
    image = noisy(0.5 + noise, 1)
    image[: side // 4] = 0
    assert estimate_noise(np.clip(image, 0, 1)).level > 10


@pytest.mark.parametrize(("picture", "sigma"), [(camera, 40), (chelsea, 15)])
def test_smoothed_noise_on_photographs_is_found(picture, sigma):
    pixels = picture()[:300, :300] / 255
    pixels = pixels if pixels.ndim == 2 else pixels.mean(2)
    noise = smoothed(np.random.default_rng(0).normal(0, sigma / 255, pixels.shape))
    assert estimate_noise(np.clip(pixels + noise, 0, 1)).level > 0.5 * sigma


@pytest.mark.parametrize("side", [64, 100, 160, 320])
@pytest.mark.parametrize("picture", [gravel, chelsea, camera], ids=lambda picture: picture.__name__)
def test_texture_is_not_taken_for_noise(picture, side):
    pixels = picture()
    for start in ((0, 0), (60, 60), (100, 130)):
        rows, columns = (slice(first, first + side) for first in start)
        assert estimate_noise(pixels[rows, columns]).level < 7


def test_a_small_picture_of_grass_keeps_the_white_level():
    found = estimate_noise(grass()[208:272, 162:226])
    assert found.level == found.white < 10


@pytest.mark.parametrize(("quality", "strength"), [(50, 1.0), (75, 0.5), (90, 0.2)])
def test_strength_of_jpeg_is_seen_in_its_pixels(quality, strength):
    assert compression(as_jpeg(photo(), quality) / 255) == pytest.approx(strength, rel=0.1)
    assert compression(as_jpeg(photo()[..., 0], quality) / 255) == pytest.approx(strength, rel=0.1)


def test_level_of_a_jpeg_grows_with_its_strength_up_to_a_limit():
    levels = [estimate_noise(as_jpeg(photo(), quality)).level for quality in (90, 75, 50, 20)]
    assert levels[:2] == pytest.approx([3.5, 8.8], rel=0.1)
    assert levels[2:] == [15, 15]
    assert estimate_noise(as_jpeg(photo(), 75)).is_correlated


@pytest.mark.parametrize(
    ("sigma", "format", "quality"),
    [(10, "JPEG", 95), (25, "JPEG", 95), (25, "JPEG", 85), (10, "WEBP", 90), (25, "WEBP", 90)],
)
def test_noise_that_the_channels_share_is_found_in_full(sigma, format, quality):
    """Of files with halved color: 0.67 of the noise is left in all channels, the same in each."""
    file, clean = io.BytesIO(), photo()
    grain = np.random.default_rng(0).normal(0, sigma, clean.shape)
    with_noise = np.clip(clean + grain, 0, 255).round().astype(np.uint8)
    Image.fromarray(with_noise).save(file, format, quality=quality)
    pixels = np.asarray(Image.open(file))
    found = estimate_noise(pixels)
    assert found.white < 0.8 * sigma
    assert sigma < found.level < 1.4 * sigma and found.is_correlated
    results = (nlrn.denoise(pixels, level, quality="fast") for level in (found.level, found.white))
    well, weakly = (float(np.mean((result - clean.astype(float)) ** 2)) for result in results)
    assert well < 0.7 * weakly


def grainy(sigma: float, quality: int) -> np.ndarray:
    """The photograph with white noise, as a JPEG with halved color."""
    noise = np.random.default_rng(0).normal(0, sigma, photo().shape)
    return as_jpeg(np.clip(photo() + noise, 0, 255).round().astype(np.uint8), quality)


@pytest.mark.parametrize("value", [0, 255])
def test_what_is_clipped_says_nothing_of_shared_noise(value):
    pixels = photo() + np.random.default_rng(0).normal(0, 15, photo().shape)
    pixels = np.clip(pixels, 0, 255).round().astype(np.uint8)
    pixels[:120] = value  # bars, or what is transparent
    assert not estimate_noise(pixels).is_correlated
    whole, shared = estimate_noise(grainy(20, 95)[120:]), grainy(20, 95).copy()
    shared[:120] = value
    assert estimate_noise(shared).level == pytest.approx(whole.level, rel=0.15)


def test_noise_of_two_channels_is_not_shared_by_three():
    noise = np.random.default_rng(0).normal(0, 15, (203, 262, 2))
    gray = photo()[..., 1].astype(float)
    red, blue = gray + noise[..., 0], photo()[..., 2] + noise[..., 1]
    pixels = np.clip(np.stack([red, red, blue], 2), 0, 255).round().astype(np.uint8)
    assert not estimate_noise(pixels).is_correlated


def test_who_takes_channels_one_by_one_is_told_the_level_of_one():
    image = images.Image(grainy(20, 95)[:80, :90])
    found = estimate_noise(image.pixels)
    assert found.is_correlated and found.one_by_one.level == found.by_channel == found.white
    told: dict[str, Any] = {
        "color": nlrn.Denoiser(quality="fast"),
        "gray": nlrn.Denoiser("denoise-gray-fast"),
        "bm3d": nlrn.ClassicDenoiser("bm3d"),
        "nlm": nlrn.ClassicDenoiser("nlm"),
    }
    sigmas = {name: restoration.restore(image).facts["sigma"] for name, restoration in told.items()}
    level, white = round(found.level, 2), round(found.white, 2)
    assert sigmas == {"color": level, "gray": white, "bm3d": level, "nlm": white}
    assert nlrn.Denoiser("denoise-gray-fast").restore(image, 12).facts["sigma"] == 12


def test_a_clean_photograph_has_no_noise_that_the_channels_share():
    assert not estimate_noise(photo()).is_correlated
    compressed = estimate_noise(as_jpeg(photo(), 85))
    assert compressed.level == pytest.approx(18 * compressed.jpeg)


def test_gray_has_less_of_the_noise_of_a_jpeg():
    color, gray = as_jpeg(photo(), 75), as_jpeg(photo()[..., 1], 75)
    assert estimate_noise(gray).level < 0.75 * estimate_noise(color).level
    assert estimate_noise(gray[..., None]) == estimate_noise(gray)


@pytest.mark.parametrize("cell", [1, 2, 3, 5])
def test_patterns_without_noise_have_none(cell):
    y, x = np.mgrid[:205, :261]
    found = estimate_noise(np.where((y // cell + x // cell) % 2, 200, 40).astype(np.uint8))
    assert found.level == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (9, 8, 3), (64, 5)], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_flat_images_of_any_size_have_none(shape, value):
    found = estimate_noise(np.full(shape, value))
    assert (found.level, found.jpeg) == (pytest.approx(0, abs=1e-4), 0)
    np.testing.assert_allclose(estimate_map(np.full(shape, value)), 0, atol=1e-4)


def test_map_of_white_noise_is_nearly_flat():
    image = noisy(np.stack([scene(204, 263)] * 3, -1), 25)
    found = estimate_map(image)
    assert (found.shape, found.dtype) == ((204, 263), np.float32)
    np.testing.assert_allclose(found, 25, rtol=0.1)


def test_map_follows_noise_that_grows_from_left_to_right():
    clean, level = scene(260, 400), np.linspace(5, 45, 400)
    found = estimate_map(clean + np.random.default_rng(0).normal(0, 1, clean.shape) * level / 255)
    columns = found.mean(0)
    assert columns[:60].mean() < 14
    assert columns[-60:].mean() > 34
    assert np.corrcoef(columns, level)[0, 1] > 0.98


def test_map_follows_noise_that_grows_with_brightness():
    rows = np.repeat(np.linspace(0.1, 0.9, 5), 60)  # bands too narrow for tiles of their own
    clean = np.tile(rows[:, None], (1, 420))[:, ::-1].copy()
    level = 5 + 30 * clean
    found = estimate_map(clean + np.random.default_rng(0).normal(0, 1, clean.shape) * level / 255)
    assert np.corrcoef(found.ravel(), level.ravel())[0, 1] > 0.95
    np.testing.assert_allclose(found.mean(), level.mean(), rtol=0.1)


def test_map_of_a_jpeg_is_its_one_level():
    image = as_jpeg(photo(), 75)
    assert np.unique(estimate_map(image)).tolist() == [np.float32(estimate_noise(image).level)]


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="NLRN_DATA is not set: it names the folder with polyu/")
def test_camera_photos_get_a_level_that_removes_their_noise():
    for file in sorted(Path(str(DATA), "polyu").glob("*_real.JPG"))[3::20]:
        found = nlrn.estimate_noise(file)
        assert found.is_correlated
        assert found.white < 1
        assert 8 < found.level < 16


def map_network() -> Network:
    config = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=2, channels=8, embed=4)
    return random_network(dataclasses.replace(config, noise_map=True))


def test_a_restoration_tells_of_correlated_noise_that_it_measured():
    image, network = images.Image(as_jpeg(photo(96, 120), 60)), map_network()
    facts = nlrn.Denoiser(network).restore(image).facts
    assert facts["correlated"] is True
    assert facts["sigma"] == round(estimate_noise(image.pixels).level, 2)
    assert "correlated" not in nlrn.Denoiser(network).restore(image, 12).facts
    assert nlrn.ClassicDenoiser("nlm").restore(image).facts["correlated"] is True


def test_denoiser_takes_the_estimated_map():
    clean, level = scene(131, 190), np.linspace(5, 60, 190)
    pixels = clean + np.random.default_rng(1).normal(0, 1, clean.shape) * level / 255
    image, denoiser = images.Image(pixels.astype(np.float32)), nlrn.Denoiser(map_network())
    result = denoiser.restore(image, "map")
    low, high = result.facts["sigma_range"]
    assert low < result.facts["sigma"] < high
    x = torch.from_numpy(image.pixels)[None, None]
    given = torch.from_numpy(estimate_map(image.pixels))[None, None] / 255
    torch.testing.assert_close(
        torch.from_numpy(result.image.pixels), denoiser(x, given)[0, 0], atol=1e-5, rtol=0
    )
    assert torch.equal(nlrn.Denoiser(map_network(), sigma="map")(x), denoiser(x, given))


def test_a_map_is_refused_by_what_takes_one_level():
    image = noisy(scene(40, 57), 25)
    with pytest.raises(ValueError, match=r"^denoise-gray-s25 takes one noise level, not a map"):
        nlrn.denoise(image, "map", model="denoise-gray-s25")
    with pytest.raises(ValueError, match=r"^this method takes one noise level, not a map"):
        nlrn.denoise(image, "map", method="nlm")


def test_the_command_says_what_it_found(tmp_path):
    Image.fromarray(photo(96, 120)).save(tmp_path / "a.jpg", quality=60)
    map_network().save_pretrained(tmp_path / "m.safetensors")
    options = ("denoise", tmp_path / "a.jpg", "--model", tmp_path / "m.safetensors", "--overwrite")
    assert "for correlated noise, " in run_command(*options).stdout
    assert "(sigma 12, " in run_command(*options, "--sigma", 12).stdout
    assert " to " in run_command(*options, "--sigma", "map").stdout
    refused = run_command("denoise", tmp_path / "a.jpg", "--method", "nlm", "--sigma", "map")
    assert refused.exit_code == 2
    assert refused.stderr == "error: this method takes one noise level, not a map of them\n"


def test_a_map_of_levels_is_refused_by_classic_methods():
    x, levels = torch.rand(2, 1, 12, 14), torch.full((2, 1, 12, 14), 0.1)
    with pytest.raises(ValueError, match=r"^this method takes one noise level, not a map of them"):
        nlrn.ClassicDenoiser("nlm")(x, levels)
