"""Pictures of one tone: their channels share the noise, and a gray network is to see it."""

from __future__ import annotations

import numpy as np
import pytest
import skimage.data
import torch

import nlrn
from nlrn.images import Image
from nlrn.noise import shared_axis
from nlrn.restoration import ClassicDenoiser, Denoiser
from nlrn.restoration.base import in_color

SEPIA = np.array([1, 0.9, 0.75])
CLEAN = skimage.data.camera()[100:164, 180:260].astype(float)


def rounded(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 255).round().astype(np.uint8)


def noisy(clean: np.ndarray, sigma: float) -> np.ndarray:
    return clean + np.random.default_rng(0).normal(0, sigma, clean.shape)


def mixed(gray: np.ndarray) -> np.ndarray:
    """As RGB, each channel off by a level at most, a mark in a corner."""
    off = np.random.default_rng(1).integers(-1, 2, (*gray.shape, 3))
    picture = rounded(gray[..., None] + off)
    picture[:6, :9] = (200, 30, 40)
    return picture


def psnr(found: np.ndarray, clean: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.square(found.astype(float) - clean).mean()))


@pytest.mark.parametrize("sigma", [10, 25, 50])
def test_the_axis_of_one_tone(sigma: float) -> None:
    gray = noisy(CLEAN, sigma)
    axis = shared_axis(mixed(gray))
    assert axis is not None and axis == pytest.approx(np.ones(3), abs=0.03)
    axis = shared_axis(rounded(gray[..., None] * SEPIA))
    expected = SEPIA * np.sqrt(3) / np.linalg.norm(SEPIA)
    assert axis is not None and axis == pytest.approx(expected, abs=0.05)  # white is clipped
    assert np.square(axis).mean() == pytest.approx(1)


@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "rocket"])
@pytest.mark.parametrize("sigma", [0, 3, 15, 50])
def test_color_has_no_such_axis(name: str, sigma: float) -> None:
    photo = getattr(skimage.data, name)().astype(float)
    for part in (photo, photo[:64, :64], photo[100:133, 200:231]):
        assert shared_axis(rounded(noisy(part, sigma))) is None


@pytest.mark.parametrize("size", [(1, 1), (15, 40), (16, 16), (33, 1)], ids=str)
def test_what_is_small_or_flat_has_no_axis(size: tuple[int, int]) -> None:
    assert shared_axis(np.full((*size, 3), 120, np.uint8)) is None
    random = np.random.default_rng(0).random((*size, 3))
    assert shared_axis(random) is None


@pytest.mark.parametrize("model", ["auto", "denoise-rgb-fast", "bm3d"])
def test_one_tone_is_denoised_as_gray_is(model: str) -> None:
    gray = noisy(CLEAN, 25)
    denoiser = ClassicDenoiser() if model == "bm3d" else Denoiser(model)

    def gained(picture: np.ndarray, clean: np.ndarray, sigma: float = 25) -> float:
        restored = denoiser.restore(Image(picture), sigma)
        return psnr(restored.image.pixels, clean) - psnr(picture, clean)

    best = gained(rounded(gray), CLEAN)
    assert best > 7.5
    color = np.repeat(CLEAN[..., None], 3, axis=2)
    assert gained(np.repeat(rounded(gray)[..., None], 3, axis=2), color) == pytest.approx(best)
    marked, under = mixed(gray), color.copy()
    under[:6, :9] = (200, 30, 40)
    assert gained(marked, under) > best - 0.4  # the mark's edge
    toned = rounded(gray[..., None] * SEPIA)
    level = 25 * float(np.sqrt(np.square(SEPIA).mean()))
    assert gained(toned, CLEAN[..., None] * SEPIA, level) > best - 0.4


def test_the_color_of_a_mark_stays() -> None:
    picture = mixed(noisy(CLEAN, 25))
    found = nlrn.denoise(picture, 25, quality="fast")[:6, :9].astype(float)
    chroma = found - found.mean(axis=2, keepdims=True)
    assert np.abs(chroma - [110, -60, -50]).max() < 2.5  # of (200, 30, 40) without its mean


def test_gray_in_color_has_white_noise_and_its_own_mean() -> None:
    gray = torch.full((2, 3, 300, 300), 0.5)
    gray = gray + 0.1 * torch.randn(2, 1, 300, 300, generator=torch.Generator().manual_seed(3))
    shown, level = in_color(gray, 25.5)
    assert level == pytest.approx(25.5 * 3**0.5)
    assert torch.allclose(shown.mean(1), gray[:, 0], atol=1e-6)
    noise = (shown[0] - 0.5).reshape(3, -1)
    assert torch.allclose(torch.cov(noise), 0.03 * torch.eye(3), atol=6e-4)
    level_map = torch.linspace(5, 50, 300).expand(2, 1, 300, 300)
    shown, levels = in_color(gray, level_map)
    assert isinstance(levels, torch.Tensor) and levels.shape == level_map.shape
    added = (shown - gray)[..., :10].std() / (shown - gray)[..., -10:].std()
    assert float(added) == pytest.approx(5.7 / 49.3, rel=0.1)


def test_gray_tensors_in_a_color_network_do_not_mind_their_neighbors() -> None:
    denoiser = Denoiser("denoise-rgb-fast")
    x = torch.rand(3, 1, 20, 24, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(denoiser(x, 0.1)[1:2], denoiser(x[1:2], 0.1), atol=1e-5)
    as_color = denoiser(x.repeat(1, 3, 1, 1), 0.1)
    assert as_color.shape == (3, 3, 20, 24)
    assert torch.allclose(as_color, denoiser(x, 0.1).expand_as(as_color), atol=1e-5)


def test_gradients_reach_all_channels_of_gray() -> None:
    x = torch.rand(1, 1, 16, 16).repeat(1, 3, 1, 1).requires_grad_()
    Denoiser(quality="fast")(x, 0.1).square().sum().backward()
    assert x.grad is not None and torch.allclose(x.grad[:, 0], x.grad[:, 2])
    assert float(x.grad.abs().max()) > 0
