"""estimate_sigma on images made here, and on Set12 and BSD68 where NLRN_DATA points to them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nlrn import images
from nlrn.noise import estimate_sigma

LEVELS = [5, 10, 15, 25, 50, 75]
DATA = os.environ.get("NLRN_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="NLRN_DATA is not set: it names the folder that holds set12/ and bsd68/"
)


def scene(height: int = 180, width: int = 260) -> np.ndarray:
    """A clean image [height, width]: a smooth ramp, a third of it under stripes, and a disc."""
    y, x = np.mgrid[:height, :width]
    ramp = 0.25 + 0.3 * x / width + 0.2 * np.sin(3 * y / height)
    stripes = 0.15 * np.sin(0.9 * x + 0.6 * y) * (x > 2 * width / 3)
    disc = 0.3 * ((y - height / 2) ** 2 + (x - width / 3) ** 2 < (height / 5) ** 2)
    return ramp + stripes + disc


def noisy(clean: np.ndarray, sigma: float, seed: int = 0) -> np.ndarray:
    return clean + np.random.default_rng(seed).normal(0, sigma / 255, clean.shape)


def eight_bit(image: np.ndarray) -> np.ndarray:
    """What a file keeps of image: clipped to [0, 1] and rounded to 256 levels."""
    return np.round(255 * np.clip(image, 0, 1)) / 255


@pytest.mark.parametrize("sigma", LEVELS)
@pytest.mark.parametrize("shape", [(180, 260), (300, 97)], ids=str)
def test_known_level(shape, sigma):
    assert estimate_sigma(noisy(scene(*shape), sigma)) == pytest.approx(sigma, rel=0.1)


@pytest.mark.parametrize("sigma", LEVELS)
def test_known_level_after_clipping_and_rounding(sigma):
    assert estimate_sigma(eight_bit(noisy(scene(), sigma))) == pytest.approx(sigma, rel=0.1)


@pytest.mark.parametrize("sigma", [5, 25])
def test_blown_highlights_do_not_hide_the_noise(sigma):
    image = eight_bit(noisy(2 * scene(), sigma))
    assert (image == 1).mean() > 0.5
    assert estimate_sigma(image) == pytest.approx(sigma, rel=0.1)


@pytest.mark.parametrize("shape", [(24, 40), (9, 200), (20, 33)], ids=str)
def test_small_images(shape):
    levels = [estimate_sigma(noisy(np.full(shape, 0.5), 25, seed)) for seed in range(10)]
    assert np.mean(levels) == pytest.approx(25, rel=0.1)


def test_too_small_for_patches_is_still_near():
    levels = [estimate_sigma(noisy(np.full((6, 11), 0.5), 25, seed)) for seed in range(40)]
    assert np.mean(levels) == pytest.approx(25, rel=0.15)


def test_scales_with_the_image_and_ignores_an_offset():
    image = noisy(scene(), 25)
    level = estimate_sigma(image)
    assert estimate_sigma(0.5 * image) == pytest.approx(0.5 * level, rel=1e-6)
    assert estimate_sigma(image + 0.3) == pytest.approx(level, rel=1e-6)


@pytest.mark.parametrize("shape", [(180, 260), (330, 410)], ids=str)  # all patches, every other
def test_transpose_and_flips(shape):
    image = noisy(scene(*shape), 25)
    level = estimate_sigma(image)
    for view in (image.T, image[::-1], image[:, ::-1]):
        assert estimate_sigma(view) == pytest.approx(level, rel=0.02)


def test_same_answer_twice_in_float32_and_input_untouched():
    image = noisy(scene(), 15).astype(np.float32)
    before = image.copy()
    assert estimate_sigma(image) == estimate_sigma(image)
    assert estimate_sigma(image) == pytest.approx(estimate_sigma(image.astype(np.float64)), 1e-4)
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, -2.0])
@pytest.mark.parametrize("shape", [(40, 61), (5, 4), (30, 44, 3)], ids=str)
def test_constant_image_has_no_noise(shape, value):
    assert estimate_sigma(np.full(shape, value)) == pytest.approx(0, abs=1e-4)


def test_clean_ramp_has_no_noise():
    assert estimate_sigma(np.mgrid[:90, :130][1] / 129) == pytest.approx(0, abs=1e-3)


def test_color_and_single_channel():
    clean = np.stack([scene(), scene()[::-1], 1 - scene()], axis=-1)
    assert estimate_sigma(noisy(clean, 15)) == pytest.approx(15, rel=0.1)
    gray = noisy(scene(), 15)
    assert estimate_sigma(gray[..., None]) == estimate_sigma(gray)


def test_blank_channel_does_not_count():
    image = noisy(np.stack([scene()] * 3, axis=-1), 15)
    image[..., 2] = 0
    assert estimate_sigma(image) == pytest.approx(15, rel=0.1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (2, 2), (2, 3), (7, 7), (6, 300)])
@pytest.mark.parametrize("channels", [(), (3,)], ids=["gray", "color"])
def test_tiny_images_give_a_finite_level(shape, channels):
    image = np.random.default_rng(0).random(shape + channels)
    level = estimate_sigma(image)
    assert isinstance(level, float)
    assert np.isfinite(level)
    assert level >= 0
    assert (level == 0) == (min(shape) == 1)


@pytest.mark.parametrize("shape", [(), (9,), (1, 3, 8, 9), (0, 5), (5, 0), (4, 6, 0)], ids=str)
def test_wrong_shape_is_named(shape):
    with pytest.raises(ValueError, match=str(shape).replace("(", r"\(").replace(")", r"\)")):
        estimate_sigma(np.zeros(shape))


def test_whatever_denoise_takes(tmp_path):
    bytes_ = (eight_bit(noisy(scene(), 20)) * 255).round().astype(np.uint8)
    level = estimate_sigma(bytes_)
    assert level == pytest.approx(20, rel=0.1)
    assert estimate_sigma(bytes_.astype(np.uint16) * 257) == pytest.approx(level, rel=1e-5)
    assert estimate_sigma((bytes_ / 255).astype(np.float16)) == pytest.approx(level, rel=0.01)
    opaque = np.dstack([bytes_] * 3 + [np.full_like(bytes_, 255)])
    assert estimate_sigma(opaque) == pytest.approx(level)
    images.write(tmp_path / "noisy.png", images.Image(bytes_))
    assert estimate_sigma(tmp_path / "noisy.png") == level
    assert estimate_sigma(Image.fromarray(bytes_)) == level
    assert estimate_sigma(torch.from_numpy(bytes_)) == level
    assert estimate_sigma(np.dstack([bytes_, np.full_like(bytes_, 255)])) == level


def test_other_types_and_nan_are_refused():
    with pytest.raises(ValueError, match="int32"):
        estimate_sigma(np.zeros((8, 9), np.int32))
    with pytest.raises(ValueError, match=r"NumPy array .* or a path, got list"):
        estimate_sigma([[0.5, 0.5]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        estimate_sigma(np.full((8, 9), np.nan))
    with pytest.raises(ValueError, match="these reach 1e"):
        estimate_sigma(np.full((8, 9), 1e300))


def mean_relative_error(images: list[np.ndarray], sigma: int, clip: bool = False) -> float:
    errors = []
    for seed, clean in enumerate(images):
        image = noisy(clean, sigma, seed)
        level = estimate_sigma(eight_bit(image) if clip else image)
        errors.append(abs(level / sigma - 1))
    return float(np.mean(errors))


@pytest.fixture(scope="module", params=["set12", "bsd68"])
def photographs(request: pytest.FixtureRequest) -> list[np.ndarray]:
    paths = sorted(Path(str(DATA), request.param).glob("*.png"))
    assert len(paths) == int(request.param[3:])
    return [np.asarray(Image.open(path), np.float64) / 255 for path in paths]


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("sigma", LEVELS)
def test_mean_error_on_photographs(photographs, sigma):
    half = len(photographs) > 12 and sigma in (10, 15, 50)  # for time; measured on all once
    assert mean_relative_error(photographs[:: 2 if half else 1], sigma) < 0.1


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("sigma", [5, 25, 75])
def test_mean_error_on_eight_bit_photographs(photographs, sigma):
    assert mean_relative_error(photographs[::6], sigma, clip=True) < 0.1
