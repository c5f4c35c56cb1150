"""Pictures of one tone: their channels share the noise, and a gray network is to see it."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest
import skimage.data
import torch

import nlrn
from nlrn.images import Image
from nlrn.noise import estimate_noise, tone_of
from nlrn.noise.tone import GRAY, Tone, shared_axis
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


def test_one_tone_is_so_at_every_scale() -> None:
    """As after a camera's JPEG, which keeps the color of what is coarse: gray in detail alone."""
    gray = noisy(CLEAN, 10)[..., None] * np.ones(3)
    blocks = np.random.default_rng(5).normal(0, 12, (8, 10, 3)).repeat(8, 0).repeat(8, 1)
    assert shared_axis(rounded(gray)) is not None
    assert shared_axis(rounded(gray + blocks)) is None


def test_the_axis_is_that_of_the_finest_noise() -> None:
    fine = np.random.default_rng(6).normal(0, 20, (96, 96, 1)) * [1, 1, 1]
    coarse = np.random.default_rng(7).normal(0, 40, (12, 12, 1)).repeat(8, 0).repeat(8, 1)
    axis = shared_axis(rounded(120 + fine + coarse * [1, 0.85, 0.75]))
    assert axis is not None and axis == pytest.approx(np.ones(3), abs=0.02)


@pytest.mark.parametrize(
    ("dark", "light"),
    [((0, 0, 1), (1, 1, 0)), ((0, 1, 0.5), (1, 0, 0.5)), ((0, 0, 0), (0, 1, 0)),
     ((0, 0, 0), (1, 0.5, 0.2))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("method", ["nlrn", "bm3d"])
def test_any_two_colors_are_denoised_as_gray_is(
    dark: tuple[float, ...], light: tuple[float, ...], method: str
) -> None:
    def toned(gray: np.ndarray) -> np.ndarray:
        return 255 * np.array(dark) + gray[..., None] * np.subtract(light, dark)

    picture = rounded(toned(noisy(CLEAN, 25)))
    channel = 25 * np.abs(np.subtract(light, dark)).max()
    assert estimate_noise(picture).level == pytest.approx(channel, rel=0.15)
    denoiser = ClassicDenoiser(method) if method == "bm3d" else Denoiser(quality="fast")
    for sigma in (None, channel):
        found = denoiser.restore(Image(picture), sigma)
        gained = psnr(found.image.pixels, toned(CLEAN)) - psnr(picture, toned(CLEAN))
        assert gained > 7 and found.facts["sigma"] == pytest.approx(channel, rel=0.15)


@pytest.mark.parametrize(
    "axis", [(1, 1, -1), (1.5, -0.5, -0.5), (0, 1, 0), (1, 0.9, 0.75)], ids=str
)
def test_the_gray_picture_is_in_the_range_that_networks_know(axis: tuple[float, ...]) -> None:
    tone = Tone((np.array(axis) / np.sqrt(np.square(axis).mean())).astype(np.float32))
    corners = np.array([[[r, g, b] for r in (0, 1) for g in (0, 1)] for b in (0, 1)], np.float32)
    assert tone.gray(corners).min() > -1e-6 and tone.gray(corners).max() < 1 + 1e-6
    assert tone.gray(np.full((1, 1, 3), 0.5, np.float32)) == pytest.approx(0.5)
    noise = np.full((1, 1, 3), 0.5, np.float32) + np.float32(0.1) * tone.axis
    assert tone.gray(noise) == pytest.approx(0.6), "noise t is t times the axis"


def test_gray_stored_as_color_has_the_level_of_gray() -> None:
    gray = skimage.data.camera()[:240, :256]
    buffer = io.BytesIO()
    PIL.Image.fromarray(gray).save(buffer, "JPEG", quality=50)
    gray = np.asarray(PIL.Image.open(buffer))
    assert tone_of(np.repeat(gray[..., None], 3, axis=2)) is GRAY
    assert estimate_noise(np.repeat(gray[..., None], 3, axis=2)) == estimate_noise(gray)
    assert estimate_noise(gray).level > 8


def test_a_map_of_one_tone_is_that_of_its_gray_picture() -> None:
    clean = skimage.data.camera()[100:260, 180:350].astype(float)
    picture = rounded(noisy(clean, 20)[..., None] * (0, 1, 0))
    found = Denoiser(quality="fast").restore(Image(picture), "map")
    assert found.facts["sigma"] == pytest.approx(20, rel=0.15)
    assert (
        psnr(found.image.pixels, clean[..., None] * (0, 1, 0))
        > psnr(picture, clean[..., None] * (0, 1, 0)) + 5
    )


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


@pytest.mark.parametrize("denoiser", [Denoiser(quality="fast"), ClassicDenoiser("nlm")], ids=str)
def test_gray_beside_color_is_denoised_as_alone(denoiser: Denoiser | ClassicDenoiser) -> None:
    gray = torch.rand(2, 1, 20, 24, generator=torch.Generator().manual_seed(0)).repeat(1, 3, 1, 1)
    color = torch.rand(1, 3, 20, 24, generator=torch.Generator().manual_seed(1))
    batch = torch.cat([gray[:1], color, gray[1:]])
    alone = torch.cat([denoiser(one[None], 0.1) for one in batch])
    torch.testing.assert_close(denoiser(batch, 0.1), alone, rtol=0, atol=1e-5)
    as_gray = denoiser(gray[:, :1], 0.1).expand_as(gray)
    torch.testing.assert_close(denoiser(batch, 0.1)[::2], as_gray, rtol=0, atol=1e-5)


def test_maps_go_with_their_images() -> None:
    denoiser = Denoiser(quality="fast")
    gray = torch.rand(1, 1, 20, 24, generator=torch.Generator().manual_seed(0)).repeat(1, 3, 1, 1)
    color = torch.rand(1, 3, 20, 24, generator=torch.Generator().manual_seed(1))
    batch = torch.cat([color, gray, color])
    level = torch.tensor([0.1, 0.2, 0.9]).reshape(3, 1, 1, 1).repeat(1, 1, 20, 24)
    level[1, :, :, :9] = 0
    alone = torch.cat([denoiser(x[None], m[None]) for x, m in zip(batch, level, strict=True)])
    torch.testing.assert_close(denoiser(batch, level), alone, rtol=0, atol=1e-5)
    assert torch.equal(alone[1, :, :, :9], batch[1, :, :, :9])


def test_gradients_reach_all_channels_of_gray() -> None:
    x = torch.rand(1, 1, 16, 16).repeat(1, 3, 1, 1).requires_grad_()
    Denoiser(quality="fast")(x, 0.1).square().sum().backward()
    assert x.grad is not None and torch.allclose(x.grad[:, 0], x.grad[:, 2])
    assert float(x.grad.abs().max()) > 0
