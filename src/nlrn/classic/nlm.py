"""Non-local means: every pixel becomes the mean of its window, weighted by likeness."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nlrn.classic import planes
from nlrn.progress import Progress

# up to this sigma: side of the patch, h / sigma. Best for 8 crops of BSDS500's training images and
# 4 of scikit-image's photographs, with a = (patch - 1) / 4 and a 15 x 15 window.
TUNED = ((18, 5, 1.0), (40, 7, 0.85), (planes.LARGEST_SIGMA, 11, 0.7))


def denoise_nlm(
    image: np.ndarray,
    sigma: float,
    *,
    patch: int | None = None,
    window: int = 15,
    a: float | None = None,
    h: float | None = None,
    unbiased: bool = True,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> np.ndarray:
    """The image without its noise, by non-local means (soft block matching, equation 3).

        Z_i = 1/delta_i sum_j exp(-|X_i - X_j|^2_{2,a} / h^2) X_j,   delta_i = sum_j exp(...)

    over the pixels j of the window around i. X_i is the patch around i, mirrored at the image's
    edge; |.|_{2,a} weights its pixels by a Gaussian of deviation a whose weights sum to 1. Noise
    alone makes that squared distance 2 sigma^2: with `unbiased` this is taken off first. So
    defined it agrees with the slow mode of scikit-image's `denoise_nl_means` (which has a = (patch
    - 1) / 4, and cuts weights below exp(-5) off).

    O(q^2 p) per pixel, q and p being the sides of window and patch: each pair is looked at once,
    for all pixels at a time, and its distance comes from two one-dimensional filters. Memory: a
    few copies of the image. Colour is filtered channel by channel.

    Args:
        image: [H, W] or [H, W, 3]; uint8, uint16 or float on the [0, 1] scale.
        sigma: standard deviation of the noise on the 0..255 scale.
        patch: odd side of the patches; 7 in the paper, here 5, 7 or 11 by noise level.
        window: odd side of the neighbourhood; 21 in the paper.
        a: deviation of the Gaussian in pixels; (patch - 1) / 4 by default.
        h: degree of filtering on the 0..255 scale; 1, 0.85 or 0.7 sigma by noise level.
        unbiased: whether the distance that noise alone makes is taken off.
        device: where to compute.
        progress: called with (done, total).

    References:
        A. Buades, B. Coll, J.-M. Morel, "A non-local algorithm for image denoising", CVPR 2005,
        https://doi.org/10.1109/CVPR.2005.38
    """
    sigma = planes.check(image, sigma)
    _, tuned_patch, tuned_h = next(row for row in TUNED if sigma <= row[0])
    side = tuned_patch if patch is None else patch
    spread = max((side - 1) / 4, 0.25) if a is None else a
    degree = tuned_h * sigma if h is None else h
    planes.check_odd(patch=side, window=window)
    planes.check_positive(a=spread)
    if sigma > 0:
        planes.check_positive(h=degree)
    bias = 2 * (sigma / 255) ** 2 if unbiased else 0.0

    def work(plane: Tensor, tell: Progress) -> Tensor:
        return _filter(plane, gaussian(side, spread), window, (degree / 255) ** 2, bias, tell)

    return planes.restore(image, sigma, side, planes.each(work, progress), device)


def gaussian(side: int, deviation: float) -> Tensor:
    """Gaussian weights [side] around the middle; they sum to 1."""
    steps = torch.arange(side, dtype=torch.float64) - side // 2
    weights = (-0.5 * (steps / deviation).square()).exp()
    return weights / weights.sum()


def _filter(
    plane: Tensor, kernel: Tensor, window: int, h2: float, bias: float, tell: Progress
) -> Tensor:
    """Equation 3 for a plane [H, W]."""
    kernel, radius = kernel.to(plane), len(kernel) // 2
    padded = F.pad(plane[None, None], (radius,) * 4, mode="reflect")[0, 0]
    total, weights = plane.clone(), torch.ones_like(plane)  # each pixel itself, with weight 1
    offsets = list(_half_window(window, *plane.shape))
    for number, (dy, dx) in enumerate(offsets):
        here, there = _pair(dy, dx, *plane.shape)
        first, second = (_grown(padded, part, 2 * radius) for part in (here, there))
        distance = _blur((first - second).square_(), kernel)
        weight = distance.sub_(bias).clamp_(min=0).div_(-h2).exp_()
        # d(i, j) = d(j, i): each pixel of the pair counts for the other.
        total[here].addcmul_(weight, plane[there])
        total[there].addcmul_(weight, plane[here])
        weights[here] += weight
        weights[there] += weight
        tell(number + 1, len(offsets))
    return total / weights


Region = tuple[slice, slice]


def _half_window(window: int, height: int, width: int) -> Iterator[tuple[int, int]]:
    """Offsets of the window that are not the negative of another, and not 0."""
    radius = window // 2
    for dy in range(min(radius, height - 1) + 1):
        for dx in range(-min(radius, width - 1), min(radius, width - 1) + 1):
            if dy > 0 or dx > 0:
                yield dy, dx


def _pair(dy: int, dx: int, height: int, width: int) -> tuple[Region, Region]:
    """Pixels whose neighbour at the offset (dy >= 0, dx) is in the image, and the neighbours."""
    left, right = max(0, -dx), width - max(0, dx)
    here = (slice(0, height - dy), slice(left, right))
    return here, (slice(dy, height), slice(left + dx, right + dx))


def _grown(padded: Tensor, region: Region, margin: int) -> Tensor:
    """The region of the image with its margin, from the padded image."""
    rows, columns = region
    return padded[rows.start : rows.stop + margin, columns.start : columns.stop + margin]


def _blur(image: Tensor, kernel: Tensor) -> Tensor:
    """Weighted sums of image [H, W] over the windows inside it: rows first, then columns."""
    down = F.conv2d(image[None, None], kernel.view(1, 1, -1, 1))
    return F.conv2d(down, kernel.view(1, 1, 1, -1))[0, 0]
