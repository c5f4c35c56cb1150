"""What surrounds the network in a restoration, against slow and obvious versions of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nlrn.images import Image, from_float, to_float
from nlrn.inference import Settings
from nlrn.noise.tone import shows_gray
from nlrn.restoration import Denoiser, Upscaler
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
