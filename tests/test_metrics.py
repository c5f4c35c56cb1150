"""PSNR and SSIM against scikit-image, to which none of the code is related."""

import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from nlrn.metrics import psnr, ssim

SHAPES = [(1, 1, 23, 37), (3, 1, 40, 19), (2, 3, 31, 26)]


def pair(*shape: int, seed: int = 0, spread: float = 0.1) -> tuple[Tensor, Tensor]:
    """(result, reference): the result strays a little from the reference, and out of [0, 1]."""
    rng = np.random.default_rng(seed)
    reference = rng.random(shape)
    return (
        torch.from_numpy(reference + rng.normal(0, spread, shape)),
        torch.from_numpy(reference),
    )


def bytes_of(image: Tensor) -> np.ndarray:
    return np.floor(image.clamp(0, 1).numpy() * 255 + 0.5).astype(np.uint8)


def cropped(image: np.ndarray, border: int) -> np.ndarray:
    return image[..., border : image.shape[-2] - border, border : image.shape[-1] - border]


def peer_psnr(result: np.ndarray, reference: np.ndarray, data_range: int) -> list[float]:
    return [
        peak_signal_noise_ratio(y, x, data_range=data_range)
        for x, y in zip(result, reference, strict=True)
    ]


def peer_ssim(result: np.ndarray, reference: np.ndarray, data_range: int) -> list[float]:
    return [
        structural_similarity(
            x,
            y,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=data_range,
            channel_axis=0,
        )
        for x, y in zip(result, reference, strict=True)
    ]


METRICS = [(psnr, peer_psnr), (ssim, peer_ssim)]


@pytest.mark.parametrize(("metric", "peer"), METRICS, ids=["psnr", "ssim"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("border", [0, 2, 4])
def test_same_as_scikit_image(shape, border, metric, peer):
    result, reference = pair(*shape)
    values = metric(result, reference, border=border, quantize=False)
    expected = peer(cropped(result.numpy(), border), cropped(reference.numpy(), border), 1)
    assert values.shape == (shape[0],)
    assert values.dtype == torch.float64
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("metric", "peer"), METRICS, ids=["psnr", "ssim"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("border", [0, 3])
def test_same_as_scikit_image_on_bytes(shape, border, metric, peer):
    result, reference = pair(*shape)
    as_bytes = bytes_of(result), bytes_of(reference)
    expected = peer(*(cropped(image, border) for image in as_bytes), 255)
    values = metric(result, reference, border=border, quantize=True)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
    for quantize in (False, True):  # bytes are steps of 1/255 already
        first, second = (torch.from_numpy(image) for image in as_bytes)
        values = metric(first, second, border=border, quantize=quantize)
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
        mixed = metric(first, second / 255, border=border, quantize=quantize)
        np.testing.assert_allclose(mixed, expected, rtol=0, atol=1e-4)  # float32 reference


@pytest.mark.parametrize(("metric", "peer"), METRICS, ids=["psnr", "ssim"])
def test_constant_images(metric, peer):
    result, reference = torch.full((2, 1, 14, 20), 0.25), torch.full((2, 1, 14, 20), 0.75)
    result[1], reference[1] = 0, 1
    values = metric(result, reference, border=0, quantize=False)
    expected = peer(result.double().numpy(), reference.double().numpy(), 1)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("image", [pair(2, 3, 17, 12)[1], torch.zeros(2, 1, 12, 17)])
@pytest.mark.parametrize("quantize", [False, True])
def test_identical_images(image, quantize):
    assert psnr(image, image.clone(), border=0, quantize=quantize).tolist() == [math.inf] * 2
    assert ssim(image, image.clone(), border=0, quantize=quantize).tolist() == [1.0] * 2


def test_psnr_worked_by_hand():
    reference = torch.zeros(2, 1, 2, 5)
    result = reference.clone()
    result[0, 0, 0, 0] = 0.1  # mean squared error 0.001
    result[1] = 0.1
    values = psnr(result, reference, border=0, quantize=False)
    np.testing.assert_allclose(values, [30, 20], atol=1e-6)


def test_quantizing_clips_and_rounds_halves_up():
    reference = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    for value, level in [(-3.0, 0), (0.49 / 255, 0), (0.5 / 255, 1), (2.5 / 255, 3), (7.0, 255)]:
        decibels = psnr(reference + value, reference, border=0, quantize=True).item()
        assert decibels == pytest.approx(20 * math.log10(255 / level) if level else math.inf)
        assert decibels == psnr(reference, reference + value, border=0, quantize=True).item()


def test_border_is_left_out():
    result, reference = pair(2, 1, 20, 27)
    spoilt = result.clone()
    spoilt[..., :3, :] = spoilt[..., -3:, :] = spoilt[..., :3] = spoilt[..., -3:] = 9
    for metric in (psnr, ssim):
        expected = metric(result, reference, border=3, quantize=False)
        assert torch.equal(metric(spoilt, reference, border=3, quantize=False), expected)
        assert (metric(spoilt, reference, border=2, quantize=False) < expected).all()


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_low_precision_is_taken_to_double_first(metric):
    result, reference = pair(2, 1, 18, 25)
    for dtype in (torch.float32, torch.bfloat16):
        low = metric(result.to(dtype), reference.to(dtype), border=1, quantize=True)
        rounded = result.to(dtype).double(), reference.to(dtype).double()
        assert low.dtype == torch.float64
        assert torch.equal(low, metric(*rounded, border=1, quantize=True))


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_bad_input_is_named(metric):
    image = torch.zeros(2, 1, 12, 15)
    with pytest.raises(ValueError, match=r"got \(1, 12, 15\) and \(1, 12, 15\)"):
        metric(image[0], image[0], border=0, quantize=False)
    with pytest.raises(ValueError, match=r"got \(2, 1, 12, 15\) and \(2, 1, 12, 14\)"):
        metric(image, image[..., 1:], border=0, quantize=False)
    for border in (-1, 6):
        with pytest.raises(ValueError, match=f"12 x 15 pixels, got {border}"):
            metric(image, image, border=border, quantize=False)
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        metric(image, image.long(), border=0, quantize=True)


def test_ssim_needs_a_whole_window():
    image = torch.zeros(1, 1, 13, 30)
    assert ssim(image, image, border=1, quantize=False).item() == 1
    with pytest.raises(ValueError, match="11 x 11 pixels inside the border, got 9 x 26"):
        ssim(image, image, border=2, quantize=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("metric", [psnr, ssim])
def test_same_on_the_gpu(metric):
    result, reference = pair(2, 3, 31, 26)
    values = metric(result.cuda(), reference.cuda(), border=2, quantize=True)
    assert values.is_cuda
    expected = metric(result, reference, border=2, quantize=True)
    np.testing.assert_allclose(values.cpu(), expected, rtol=1e-12)
