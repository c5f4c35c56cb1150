"""WNNM: groups of similar patches are brought to low rank by a weighted nuclear norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nlrn.classic import patches, planes, spectral
from nlrn.progress import Progress

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
    progress: Progress | None = None,
) -> np.ndarray:
    """The image without its noise, by weighted nuclear norm minimisation.

    Every round adds a share of the removed noise back, X <- X + delta (Y - X), and groups each
    reference patch with the K patches most like it. The group Y_C, its mean taken off, becomes

        argmin_Z |Y_C - Z|_F^2 / (2 n^2) + sum_i w_i s_i(Z),   w_i = c sqrt(K) / s_i(Z),

    whose singular values have a closed form: those of Y_C that are small against the noise become
    0, the others (s_i + sqrt(s_i^2 - 4 c sqrt(K) n^2)) / 2. In the first round n is sigma, later
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
        group: from which on K falls by 10 with every matching, the first too; 70 to 140. Never
            below 10.
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
    sigma = planes.check(image, sigma)
    _, own_side, own_group, own_rounds, own_share = next(r for r in PUBLISHED if sigma <= r[0])
    side = patch if patch is not None else own_side
    count = group if group is not None else own_group
    rounds = iterations if iterations is not None else own_rounds
    share = scale if scale is not None else own_share
    stride = step if step is not None else max(1, side // 2 - 1)
    planes.check_positive(patch=side, iterations=rounds, scale=share, step=stride)
    planes.check_positive(c=c, rematch=rematch)
    planes.check_group(count)
    planes.check_covers(stride, side)
    planes.check_share(delta=delta)
    planes.check_odd(window=window)

    def work(noisy: Tensor, tell: Progress) -> Tensor:
        original, estimate = patches.extract(noisy, side), noisy
        piece = GROUPS if noisy.device.type == "cpu" else GROUPS_ON_GPU
        index = torch.empty(0)
        for number in range(rounds):
            estimate = estimate + delta * (noisy - estimate)
            current = patches.extract(estimate, side)
            if number % rematch == 0:
                fewer = FEWER * (number // rematch + 1)  # also the first time, as published
                size = max(min(count, FEWER), count - fewer)
                index = patches.match(current, stride, window, size).filled
            level = current.new_full(current.shape[:2], sigma / 255)
            if number:
                removed = (original - current).square().mean(2)
                level = share * (level.square() - removed).abs().sqrt()
            filtered = _filter(current.flatten(0, 1), level.flatten(), c)
            estimate = patches.average_of_groups(current, index.split(piece), filtered)
            tell(number + 1, rounds)
        return estimate

    return planes.restore(image, sigma, side, planes.each(work, progress), device)


def _filter(flat: Tensor, levels: Tensor, c: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A function numbers [G, K] -> (numbers, results) for patches [N, p*p] with noise [N]."""

    def filtered(numbers: Tensor) -> tuple[Tensor, Tensor]:
        return numbers, low_rank(flat[numbers], levels[numbers[:, 0]], c)

    return filtered


def low_rank(group: Tensor, level: Tensor, c: float) -> Tensor:
    """The minimisers of groups [G, K, p*p] with noise of that level [G].

    From the smaller of the two Gram matrices: a singular value that becomes t of s means a factor
    t / s along its vector.
    """
    mean = group.mean(dim=1, keepdim=True)
    centered = group - mean
    limit = 4 * c * math.sqrt(group.shape[1]) * level.square()
    if group.shape[1] < group.shape[2]:
        return spectral.shrinkage(centered @ centered.mT, limit) @ centered + mean
    return centered @ spectral.shrinkage(centered.mT @ centered, limit) + mean
