"""Images on a coarser grid: r x r pixels become the channels of one cell, and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NOISE_SCALE = 2.0  # the map of a noise level of 0..0.3 comes to about the size of the image


def to_grid(image: Tensor, r: int, noise_map: bool) -> Tensor:
    """An image, with its noise map if it has one [B, C', H, W] -> cells [B, C'', H/r, W/r].

    Sides that r does not divide are continued by reflection. The noise map is averaged.
    """
    if r == 1 and not noise_map:
        return image
    image = _to_multiple(image, r)
    if not noise_map:
        return F.pixel_unshuffle(image, r)
    pixels, level = image[:, :-1], image[:, -1:]
    if r > 1:
        pixels, level = F.pixel_unshuffle(pixels, r), F.avg_pool2d(level, r)
    return torch.cat([pixels, NOISE_SCALE * level], 1)


def from_grid(cells: Tensor, image: Tensor, r: int) -> Tensor:
    """Cells [B, C r r, h, w] -> pixels [B, C, H, W] of the size of the image."""
    if r == 1:
        return cells
    height, width = image.shape[-2:]
    return F.pixel_shuffle(cells, r)[..., :height, :width]


def _to_multiple(image: Tensor, r: int) -> Tensor:
    """The image with rows and columns added until r divides both."""
    below, right = (-side % r for side in image.shape[-2:])
    if not below and not right:
        return image
    small = below >= image.shape[-2] or right >= image.shape[-1]  # too small to be reflected
    return F.pad(image, (0, right, 0, below), mode="replicate" if small else "reflect")
