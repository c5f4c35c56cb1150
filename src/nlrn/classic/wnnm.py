"""WNNM: groups of similar patches are brought to low rank by a weighted nuclear norm."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from nlrn.classic import parallel, patches, planes, spectral

# up to this sigma: side of the patch, patches in a group, iterations, lambda (as published)
PUBLISHED = ((20, 6, 70, 8, 0.54), (40, 7, 90, 12, 0.56), (60, 8, 120, 14, 0.58),
             (planes.LARGEST_SIGMA, 9, 140, 14, 0.58))  # fmt: skip
FEWER = 10  # patches that a group loses with each new matching, as the noise goes down
# Groups that are filtered at a time: small pieces for the threads of a CPU, many to fill a GPU.
GROUPS, GROUPS_ON_GPU = 256, 4096


def denoise_wnnm(
    image: np.ndarray,
    sigma: float,
    *,
    patch: int | None = None,
    group: int | None = None,
    iterations: int | None = None,
    scale: float | None = None,
    step: int | None = None,
    window: int = 61,
    c: float = 2 * math.sqrt(2),
    delta: float = 0.1,
    rematch: int = 2,
    device: str | torch.device = "cpu",
    progress: planes.Progress | None = None,
) -> np.ndarray:
    """The image without its noise, by weighted nuclear norm minimisation.

    Every round adds a share of the removed noise back, X <- X + delta (Y - X), and groups each
    reference patch with the K patches most like it. The group Y_C, its mean taken off, becomes

        argmin_Z |Y_C - Z|_F^2 / s^2 + sum_i w_i s_i(Z),   w_i = c sqrt(K) / s_i(Z),

    whose singular values have a closed form: those of Y_C that are small against the noise become
    0, the others (s_i + sqrt(s_i^2 - 4 c sqrt(K) s^2)) / 2. In the first round s is sigma, later
    lambda sqrt(|sigma^2 - mean squared difference of the patch to Y|): what noise is left there.
    Overlapping patches are averaged.

    O(T (q^2 p^2 + K p^4 + p^6) / step^2) per pixel for T rounds: the eigenvectors of the p^2 x p^2
    Gram matrix of each group take most of it (on CUDA, matrix products with the same result; see
    `nlrn.classic.spectral`). Memory: about 6 p^2 values per pixel. Colour is
    filtered channel by channel.

    Args:
        image: [H, W] or [H, W, 3]; uint8, uint16 or float on the [0, 1] scale.
        sigma: standard deviation of the noise on the 0..255 scale.
        patch: side of the patches; None takes the published one for the noise level, 6 to 9.
        group: K of the first rounds, and 10 less with every new matching; 70 to 140.
        iterations: rounds; 8 to 14.
        scale: lambda; 0.54 to 0.58.
        step: distance of the reference patches; half a patch less one.
        window: odd side of the search window.
        c: of the weights.
        delta: share of the removed noise that is added back.
        rematch: rounds between two matchings.
        device: where to compute.
        progress: called with (done, total).

    References:
        S. Gu, L. Zhang, W. Zuo, X. Feng, "Weighted nuclear norm minimization with application to
        image denoising", CVPR 2014, https://doi.org/10.1109/CVPR.2014.366
    """
    planes.check(image, sigma)
    _, own_side, own_group, own_rounds, own_share = next(r for r in PUBLISHED if sigma <= r[0])
    side = patch if patch is not None else own_side
    count = group if group is not None else own_group
    rounds = iterations if iterations is not None else own_rounds
    share = scale if scale is not None else own_share
    stride = step if step is not None else max(1, side // 2 - 1)
    planes.check_positive(patch=side, group=count, iterations=rounds, scale=share, step=stride)
    planes.check_positive(c=c, rematch=rematch)
    planes.check_odd(window=window)

    def work(noisy: Tensor, tell: planes.Progress) -> Tensor:
        original, estimate = patches.extract(noisy, side), noisy
        index = torch.empty(0)
        for number in range(rounds):
            estimate = estimate + delta * (noisy - estimate)
            current = patches.extract(estimate, side)
            if number % rematch == 0:
                size = max(1, count - FEWER * (number // rematch + 1))
                found = patches.match(current, stride, window, size)
                # Where the window holds fewer patches, the reference stands in for the others.
                index = found.index.where(found.distance.isfinite(), found.index[:, :1])
            level = current.new_full(current.shape[:2], sigma / 255)
            if number:
                removed = (original - current).square().mean(2)
                level = share * (level.square() - removed).abs().sqrt()
            estimate = _average_of_groups(current, index, level, c, side)
            tell(number + 1, rounds)
        return estimate

    return planes.restore(image, sigma, side, planes.each(work, progress), device)


def _average_of_groups(
    current: Tensor, index: Tensor, level: Tensor, c: float, side: int
) -> Tensor:
    """The plane [H, W] from the filtered groups index [R, K] of patches [H', W', p*p]."""
    shape = current.shape[:2]
    flat, levels = current.flatten(0, 1), level.flatten()
    total, counts = torch.zeros_like(flat), torch.zeros_like(levels)

    def filtered(numbers: Tensor) -> tuple[Tensor, Tensor]:
        return numbers.flatten(), low_rank(flat[numbers], levels[numbers[:, 0]], c)

    size = GROUPS if current.device.type == "cpu" else GROUPS_ON_GPU
    for numbers, clean in parallel.each(filtered, index.split(size), current.device):
        total.index_add_(0, numbers, clean.flatten(0, 1))
        counts.index_add_(0, numbers, counts.new_ones(len(numbers)))
    value = patches.overlap_add(total.T.reshape(-1, *shape), side)
    return value / patches.overlap_add(counts.view(1, *shape).expand(side * side, -1, -1), side)


def low_rank(group: Tensor, level: Tensor, c: float) -> Tensor:
    """Groups [G, K, p*p] with noise of that level [G] -> their minimisers.

    From the smaller of the two Gram matrices: a singular value that becomes t of s means a factor
    t / s along its vector.
    """
    mean = group.mean(dim=1, keepdim=True)
    centred = group - mean
    limit = 4 * c * math.sqrt(group.shape[1]) * level.square()
    if group.shape[1] < group.shape[2]:
        return spectral.shrinkage(centred @ centred.mT, limit) @ centred + mean
    return centred @ spectral.shrinkage(centred.mT @ centred, limit) + mean
