"""PSNR and SSIM of batches of images, on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

WINDOW = 11  # side of SSIM's Gaussian window
SIGMA = 1.5  # its standard deviation
C1, C2 = 0.01**2, 0.03**2  # (K1 L)^2 and (K2 L)^2 with L = 1


def psnr(result: Tensor, reference: Tensor, *, border: int, quantize: bool) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB [B]; infinite where the two are equal.

    Args:
        result: [B, C, H, W], float in [0, 1] or uint8; the error is averaged over channels.
        reference: of the same shape.
        border: pixels cut off at every side.
        quantize: clip both to [0, 1] and round them to 0..255 first, as papers do.
    """
    result, reference = _prepare(result, reference, border, quantize)
    return -10 * (result - reference).square().mean(dim=(1, 2, 3)).log10()


def ssim(result: Tensor, reference: Tensor, *, border: int, quantize: bool) -> Tensor:
    """Structural similarity of each image [B], averaged over channels; 1 where both are equal.

    With the 11 x 11 Gaussian window of the authors, where it lies wholly inside the image.

    Args:
        result: [B, C, H, W], float in [0, 1] or uint8.
        reference: of the same shape.
        border: pixels cut off at every side.
        quantize: clip both to [0, 1] and round them to 0..255 first, as papers do.

    References:
        Z. Wang, A. Bovik, H. Sheikh, E. Simoncelli, "Image quality assessment: from error
        visibility to structural similarity", IEEE TIP 2004,
        https://doi.org/10.1109/TIP.2003.819861
    """
    x, y = _prepare(result, reference, border, quantize)
    if min(x.shape[2:]) < WINDOW:
        side = f"{x.shape[2]} x {x.shape[3]}"
        raise ValueError(f"SSIM needs {WINDOW} x {WINDOW} pixels inside the border, got {side}")
    mean_x, mean_y = _blur(x), _blur(y)
    square_x, square_y, product = mean_x.square(), mean_y.square(), mean_x * mean_y
    # Population moments: the weights sum to 1, without the N / (N - 1) of a sample.
    variances = _blur(x.square()) - square_x + (_blur(y.square()) - square_y)
    covariance = _blur(x * y) - product
    likeness = (2 * product + C1) * (2 * covariance + C2)
    return (likeness / ((square_x + square_y + C1) * (variances + C2))).mean(dim=(1, 2, 3))


def _prepare(
    result: Tensor, reference: Tensor, border: int, quantize: bool
) -> tuple[Tensor, Tensor]:
    """Both images checked, in double precision on the [0, 1] scale, rounded and cropped."""
    if result.ndim != 4 or result.shape != reference.shape:
        got = f"{tuple(result.shape)} and {tuple(reference.shape)}"
        raise ValueError(f"images must be [B, C, H, W] of the same shape, got {got}")
    height, width = result.shape[2:]
    if border < 0 or 2 * border >= min(height, width):
        raise ValueError(f"border must leave a part of {height} x {width} pixels, got {border}")
    first, second = (_to_unit(image, quantize) for image in (result, reference))
    inside = (..., slice(border, height - border), slice(border, width - border))
    return first[inside], second[inside]


def _to_unit(image: Tensor, quantize: bool) -> Tensor:
    # MPS has no double; float32 is good for the digits that are printed.
    dtype = torch.float32 if image.device.type == "mps" else torch.float64
    if image.dtype == torch.uint8:
        return image.to(dtype) / 255
    if not image.is_floating_point():
        raise ValueError(f"images must be float in [0, 1] or uint8, got {image.dtype}")
    image = image.to(dtype)
    # Halves up, as MATLAB and a cast to uint8 after + 0.5 have it; torch.round takes the even one.
    return (image.clamp(0, 1) * 255 + 0.5).floor() / 255 if quantize else image


def _blur(image: Tensor) -> Tensor:
    """Gaussian means of image [B, C, H, W] over every window inside it [B, C, H - 10, W - 10]."""
    steps = torch.arange(WINDOW, dtype=image.dtype, device=image.device) - WINDOW // 2
    kernel = (-0.5 * (steps / SIGMA).square()).exp()
    kernel = kernel / kernel.sum()
    planes = image.reshape(-1, 1, *image.shape[2:])  # B C H W -> (B C) 1 H W
    planes = functional.conv2d(planes, kernel.view(1, 1, -1, 1))
    planes = functional.conv2d(planes, kernel.view(1, 1, 1, -1))
    return planes.reshape(*image.shape[:2], *planes.shape[2:])
