"""Noise of any level for networks that were trained for one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Contrast may shrink as much as it takes to bring strong noise down to the level a model knows: at
# sigma 60 the model of 15 is 0.1 dB below that of 50. It may hardly grow: values far outside [0, 1]
# are new to the network, and beyond 1.15 some images lose more than others gain. Weaker noise is
# left to the network as it is, and what that takes away is limited: `limit_to_noise_variance`.
LARGEST_SCALE = 1.15
SMOOTHING = 4.0  # pixels: standard deviation of the window for local means
# What a network that knows all levels takes away has the variance of the noise, more or less: on
# photographs hardly ever twice as much in a window of so many pixels. It has on what the network
# has never seen: edges between pure colors, where it took away a hundred times as much.
REACH, LARGEST_SHARE = 3, 2.0


class Conditioned(NamedTuple):
    """An image prepared for a network, and the way back.

    Attributes:
        input: what the network is to be given [B, C', H, W].
        removed: from what it then gives [B, C, H, W], how much is to be taken away from the image.
    """

    input: Tensor
    removed: Callable[[Tensor], Tensor]


def for_one_level(image: Tensor, sigma: float | Tensor, trained: float | None) -> Conditioned:
    """The image [B, C, H, W] at a contrast that gives its noise the level of the training.

    Args:
        image: in [0, 1].
        sigma: standard deviation of its noise on the 0..255 scale.
        trained: the level that the network was made for; None if that is not known.
    """
    if isinstance(sigma, Tensor):
        if sigma.numel() != 1:
            shape = tuple(sigma.shape)
            raise ValueError(f"this model takes one noise level for all pixels, got {shape}")
        sigma = float(sigma)
    scale = contrast(sigma, trained or 0.0)
    level = sigma

    def removed(clean: Tensor) -> Tensor:
        noise = image - (0.5 + (clean - 0.5) / scale)
        is_weak = level * LARGEST_SCALE < (trained or 0.0)
        return limit_to_noise_variance(noise, level) if is_weak else noise

    # Around mid-gray, so that the brightness the network was trained on stays where it was.
    return Conditioned(0.5 + (image - 0.5) * scale, removed)


def contrast(sigma: float, trained: float) -> float:
    """The factor that brings noise of level sigma to the level of the training, if it may."""
    return trained / sigma if 0 < trained <= LARGEST_SCALE * sigma else 1.0


def limit_to_noise_variance(removed: Tensor, sigma: float) -> Tensor:
    """What a network made for stronger noise took away [B, C, H, W], where it is more than noise.

    If all of the noise n is in what was removed, r = n + detail, then the share of r that is best
    taken away is <n, r> / <r, r> = sigma^2 / mean r^2; the means are local.
    """
    return torch.stack([_limit(image, sigma) for image in removed])  # one by one: less memory


def limit_to_noise(removed: Tensor, level: Tensor) -> Tensor:
    """What was taken away [B, C, H, W], less where it is far more than noise of these levels.

    Args:
        removed: by a network.
        level: of the noise, in the same units, that can be expanded to [B, 1, H, W].
    """
    side = 2 * REACH + 1
    energy = removed.square().mean(1, keepdim=True)
    energy = F.avg_pool2d(energy, side, 1, REACH, count_include_pad=False)
    return removed * (LARGEST_SHARE * level.square() / energy.clamp(min=1e-12)).clamp(max=1)


def _limit(removed: Tensor, sigma: float) -> Tensor:
    """`limit_to_noise_variance` for one image [C, H, W]."""
    reach = math.ceil(3 * SMOOTHING)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / SMOOTHING).square())
    kernel /= kernel.sum()
    energy = removed.square()
    for dim, pad in ((2, (reach, reach, 0, 0)), (1, (0, 0, reach, reach))):
        # Not conv2d, which would copy every pixel once for each weight.
        padded, length = F.pad(energy, pad, mode="replicate"), energy.shape[dim]
        energy = torch.zeros_like(energy)
        for start, weight in enumerate(kernel.tolist()):
            energy.add_(padded.narrow(dim, start, length), alpha=weight)
    share = (sigma / 255) ** 2 / energy.clamp(min=1e-12)
    return removed * share.clamp(max=1)
