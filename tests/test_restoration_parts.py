"""What surrounds the network in a restoration, against slow and obvious versions of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skimage.data import astronaut
from torch import Tensor

from nlrn.images import Image, from_float, to_float
from nlrn.inference import Settings
from nlrn.models.conditioning import LARGEST_SHARE, REACH, limit_to_noise
from nlrn.noise import estimate_map, estimate_noise, estimate_sigma
from nlrn.noise.tone import shows_gray
from nlrn.restoration import ClassicDenoiser, Denoiser, Upscaler
from nlrn.restoration.base import SAME, is_flat, to_batch

CPU = torch.device("cpu")


def flat_pixel_by_pixel(image: Tensor, reach: int) -> Tensor:
    result = torch.zeros_like(image, dtype=torch.bool)
    for index in np.ndindex(*image.shape):
        b, c, y, x = index
        top, left = max(0, y - reach), max(0, x - reach)
        part = image[b, c, top : y + reach + 1, left : x + reach + 1]
        result[index] = part.max() - part.min() < SAME
    return result


@pytest.mark.parametrize("reach", [1, 2, 4])
@pytest.mark.parametrize("size", [(1, 1), (3, 20), (17, 4), (11, 14), (23, 16)], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.002, 0.02, 1.0])
def test_flat_parts_are_those_of_plain_loops(
    size: tuple[int, int], reach: int, share: float
) -> None:
    generator = torch.Generator().manual_seed(reach)
    image = torch.full((2, 3, *size), 0.4)
    spots = torch.rand(image.shape, generator=generator) < share  # single pixels that differ
    image = torch.where(spots, torch.rand(image.shape, generator=generator), image)
    image += torch.rand(image.shape, generator=generator) * 1e-7  # what rounding leaves
    assert torch.equal(is_flat(image, reach), flat_pixel_by_pixel(image, reach))


@pytest.mark.parametrize("edge", ["first", "last"])
@pytest.mark.parametrize("width", range(9, 20))
def test_a_flat_corner_is_found_however_blocks_fall(width: int, edge: str) -> None:
    image = torch.rand(1, 1, width + 3, width, generator=torch.Generator().manual_seed(0))
    corner = slice(0, 5) if edge == "first" else slice(-5, None)
    image[..., corner, corner] = 0.7
    flat = is_flat(image, 4)
    assert torch.equal(flat, flat_pixel_by_pixel(image, 4))
    assert int(flat.sum()) == 1  # that of the very corner alone


def test_flat_is_as_the_pooled_window_says_on_a_photo_with_bars() -> None:
    import skimage.data

    photo = torch.from_numpy(skimage.data.astronaut()).permute(2, 0, 1)[None].float() / 255
    photo[..., :21, :] = 0
    photo[..., 200:230, 100:111] = 1
    for reach in (2, 4):
        side = 2 * reach + 1
        highest, lowest = (F.max_pool2d(x, side, 1, reach) for x in (photo, -photo))
        assert torch.equal(is_flat(photo, reach), highest + lowest < SAME)


def test_gray_is_seen_even_if_one_pixel_of_many_is_colored() -> None:
    gray = np.repeat(np.arange(200 * 70, dtype=np.uint16).reshape(200, 70, 1), 3, axis=2)
    assert shows_gray(gray) and shows_gray(gray[..., 0])
    for row in (0, 1, 199):
        colored = gray.copy()
        colored[row, 13, 1] += 1
        assert not shows_gray(colored)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("shape", [(5, 7), (4, 6, 3)], ids=str)
def test_a_batch_has_the_values_of_the_image(shape: tuple[int, ...], dtype: type) -> None:
    values = np.random.default_rng(0).random(shape)
    pixels: np.ndarray = (values * 255).astype(dtype)
    pixels.flags.writeable = False
    batch = to_batch(pixels, CPU, copies=2)
    assert batch.shape == (1, shape[2] if len(shape) == 3 else 1, *shape[:2])
    expected = np.atleast_3d(to_float(pixels)).transpose(2, 0, 1)
    np.testing.assert_array_equal(batch[0].numpy(), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("kind", ["gray", "color", "gray as color"])
def test_a_gpu_restores_as_the_cpu_does(kind: str, dtype: type) -> None:
    shape = (60, 83) if kind == "gray" else (60, 83, 3)
    values = np.random.default_rng(0).random(shape)
    if kind == "gray as color":
        values = np.repeat(values[..., :1], 3, axis=2)
    pixels: np.ndarray = (values * np.iinfo(dtype).max).astype(dtype)
    pixels[:20, :30] = 0  # stays as it is
    image = Image(pixels)
    on_cpu, on_gpu = (
        [
            Denoiser(quality="fast", settings=Settings(device=device)).restore(image, 25),
            Upscaler(2, quality="fast", settings=Settings(device=device)).restore(image),
        ]
        for device in ("cpu", "cuda")
    )
    for slow, fast in zip(on_cpu, on_gpu, strict=True):
        difference = np.abs(to_float(slow.image.pixels) - to_float(fast.image.pixels))
        assert difference.max() < 1.1 / 255 and difference.mean() < 2e-4
        assert fast.image.pixels.dtype == dtype
    assert not on_gpu[0].image.pixels[:16, :26].any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_become_whole_numbers_whatever_their_size(dtype: str) -> None:
    values = np.array([-1, 0, 0.5, 1, 2], dtype)
    assert from_float(values, np.uint16).tolist() == [0, 0, 32768, 65535, 65535]
    assert from_float(np.array([0, 1, 7]), np.uint8).tolist() == [0, 255, 255]


@pytest.mark.parametrize("values", [(-20.0, 0.5), (0.5, 20.0)], ids=str)
def test_floats_on_another_scale_are_refused(values: tuple[float, float]) -> None:
    pixels = np.array([values, values], np.float32)
    for restoration in (Denoiser(quality="fast"), Upscaler(2, quality="fast")):
        with pytest.raises(ValueError, match=r"to be in \[0, 1\], these reach 20"):
            restoration.restore(Image(pixels))
    for estimate in (estimate_sigma, estimate_noise, estimate_map):
        with pytest.raises(ValueError, match=r"to be in \[0, 1\], these reach 20"):
            estimate(pixels)


def test_more_noise_than_there_can_be_is_said_of_the_values() -> None:
    pixels = 8 * np.random.default_rng(0).random((40, 50)).astype(np.float32)
    words = r"noise of sigma [0-9]+ found, above 255: values are to be in \[0, 1\]"
    with pytest.raises(ValueError, match=words):
        Denoiser(quality="fast").restore(Image(pixels))
    with pytest.raises(ValueError, match=words):
        Denoiser(quality="fast")(torch.from_numpy(pixels)[None, None])


def test_maps_that_torch_has_no_view_of() -> None:
    denoiser, x = Denoiser(quality="fast"), torch.rand(1, 1, 16, 20)
    levels = np.linspace(0.05, 0.2, 20, dtype=np.float32)[::-1] * np.ones((1, 1, 16, 1))
    frozen = np.ascontiguousarray(levels, np.float32)
    frozen.flags.writeable = False
    assert torch.equal(denoiser(x, levels[..., ::-1][..., ::-1]), denoiser(x, frozen))
    with pytest.raises(ValueError, match="sigma must be a map of numbers"):
        denoiser(x, np.full((1, 1, 16, 20), "a"))


def test_sixteen_bits_are_warned_of_once() -> None:
    pixels = np.random.default_rng(0).integers(0, 4000, (24, 24)).astype(np.uint16)
    with pytest.warns(UserWarning, match="no value is above") as caught:
        Upscaler(2, quality="fast", denoise=True).restore(Image(pixels))
    assert len(caught) == 1


def noisy_graphics(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Fields of pure colors, which no photograph has, and the same with noise."""
    clean = np.full((80, 100, 3), 255.0)
    clean[10:70, 10:50], clean[10:70, 50:90] = (255, 0, 0), (0, 255, 0)
    clean[30:50, 30:70], clean[35:37] = (0, 0, 255), (255, 255, 0)
    noise = np.random.default_rng(0).normal(0, sigma, clean.shape)
    return clean, np.clip(clean + noise, 0, 255).round().astype(np.uint8)


def psnr(found: np.ndarray, clean: np.ndarray, white: float = 255) -> float:
    return float(10 * np.log10(white**2 / np.square(found.astype(float) - clean).mean()))


@pytest.mark.parametrize("quality", ["fast", "balanced"])
@pytest.mark.parametrize("sigma", [3, 10])
def test_what_no_network_has_seen_is_not_made_worse(quality: str, sigma: float) -> None:
    clean, noisy = noisy_graphics(sigma)
    found = Denoiser(quality=quality).restore(Image(noisy), sigma).image.pixels
    assert psnr(found, clean) > psnr(noisy, clean) - 2  # by the network alone up to 16 less


@pytest.mark.parametrize("kind", ["number", "batch", "map"])
def test_what_is_removed_is_limited_by_plain_loops(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    removed = 0.1 * torch.randn(2, 3, 9, 13, generator=generator)
    removed[..., 4:] *= 4
    level = {
        "number": torch.tensor(0.1),
        "batch": torch.tensor([0.1, 0.2]).reshape(2, 1, 1, 1),
        "map": torch.rand(2, 1, 9, 13, generator=generator) * 0.3,
    }[kind]
    found = limit_to_noise(removed, level)
    levels = level.expand(2, 1, 9, 13)
    for b, y, x in np.ndindex(2, 9, 13):
        window = removed[b, :, max(0, y - REACH) : y + REACH + 1, max(0, x - REACH) : x + REACH + 1]
        most = LARGEST_SHARE * levels[b, 0, y, x] ** 2
        share = min(1.0, float(most / window.square().mean()))
        torch.testing.assert_close(found[b, :, y, x], removed[b, :, y, x] * share)
    assert not torch.equal(found, removed)
    assert torch.equal(limit_to_noise(removed, level + 5), removed)


@pytest.mark.parametrize(("scale", "offset"), [(1, -0.3), (1, 0.4), (2, 0), (6, -1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_values_beyond_white_and_black(scale: float, offset: float, channels: int) -> None:
    """As in linear light and in dark frames taken off: as good as the same in [0, 1]."""
    inside = astronaut()[60:124, 180:260, :channels].squeeze() / 255
    noise = np.random.default_rng(0).normal(0, 0.05, inside.shape)
    denoiser = Denoiser(quality="fast")
    noisy = (inside + noise).astype(np.float32)
    best = psnr(denoiser.restore(Image(noisy), 0.05 * 255).image.pixels, inside, 1)
    given = scale * noisy + np.float32(offset)
    found = denoiser.restore(Image(given), 0.05 * 255 * scale).image.pixels
    assert psnr(found, scale * inside + offset, scale) > best - 0.3 > psnr(noisy, inside, 1) + 3
    both = np.stack([np.atleast_3d(noisy), np.atleast_3d(given)])
    batch = torch.from_numpy(both).permute(0, 3, 1, 2)
    level = torch.tensor([0.05, 0.05]).reshape(2, 1, 1, 1).expand(2, 1, 64, 80)
    alone = torch.cat([denoiser(one[None], 0.05) for one in batch])
    torch.testing.assert_close(denoiser(batch, level.clone()), alone, rtol=0, atol=1e-5)


def test_enlarging_values_beyond_white() -> None:
    inside = np.ascontiguousarray(astronaut()[60:92, 180:220] / 255, np.float32)
    large = Upscaler(2, quality="fast").restore(Image(inside)).image.pixels
    beyond = Upscaler(2, quality="fast").restore(Image(8 * inside)).image.pixels
    assert np.abs(beyond / 8 - large).max() < 0.1 and np.abs(beyond / 8 - large).mean() < 0.01


@pytest.mark.parametrize("denoiser", [Denoiser(quality="fast"), ClassicDenoiser()], ids=str)
def test_what_is_transparent_does_not_show(denoiser: Denoiser | ClassicDenoiser) -> None:
    rows, columns = np.mgrid[:64, :72]
    shows = (rows - 32) ** 2 + (columns - 36) ** 2 < 500
    pixels = np.where(shows[..., None], (220, 40, 40), (0, 255, 0)).astype(np.uint8)
    alpha = (255 * shows).astype(np.uint8)
    found = denoiser.restore(Image(pixels, alpha=alpha), 25).image
    assert (found.pixels == pixels).all(), "flat in what shows, left alone in what does not"
    noise = np.random.default_rng(0).normal(0, 25, pixels.shape)
    noisy = np.where(shows[..., None], np.clip(pixels + noise, 0, 255), (90, 120, 60))
    restored = denoiser.restore(Image(noisy.astype(np.uint8), alpha=alpha))
    assert restored.facts["sigma"] == pytest.approx(25, rel=0.25), "what is hidden has no noise"
    assert (restored.image.pixels[~shows] == (90, 120, 60)).all()
    assert np.abs(restored.image.pixels[shows].astype(float) - (220, 40, 40)).mean() < 5
