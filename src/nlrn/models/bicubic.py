"""MATLAB's bicubic enlargement by a whole number, on tensors: gradients pass, any device."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from nlrn.degrade import imresize_weights

REACH = 2  # pixels of the image on either side of a new one that take part in it


def enlarge(image: Tensor, scale: int) -> Tensor:
    """Image [B, C, H, W] -> [B, C, scale H, scale W], as `nlrn.degrade.imresize` makes it.

    Every new pixel of a cell is a filter of its own over 5 x 5 pixels of the image, whose edges
    are mirrored. In the image's dtype, autocast or not: bfloat16 has steps of a whole gray level
    above one half, and a network that is added to such an image learns to make up for them.
    """
    if scale == 1:
        return image
    with torch.autocast(image.device.type, enabled=False):
        return _enlarge(image, scale)


def _enlarge(image: Tensor, scale: int) -> Tensor:
    batch, channels, height, width = image.shape
    rows, columns = (_mirrored(side, image.device) for side in (height, width))
    planes = image[:, :, rows][..., columns].flatten(0, 1).unsqueeze(1)  # BC 1 H+4 W+4
    filters = _filters(scale, image.dtype, image.device)
    # Columns, then rows: 2 s filters of 5 weights, where s s filters would have 25 each.
    across = F.conv2d(planes, filters.view(scale, 1, 1, -1))  # BC s H+4 W
    across = across.flatten(0, 1).unsqueeze(1)
    both = F.conv2d(across, filters.view(scale, 1, -1, 1))  # BC s (columns), s (rows), H, W
    cells = both.view(batch, channels, scale, scale, height, width)
    return cells.permute(0, 1, 4, 3, 5, 2).reshape(batch, channels, scale * height, scale * width)


@functools.cache
def _filters(scale: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weights [scale, 5]; kept, for a CUDA graph cannot record how they come to the device."""
    with torch.inference_mode(False):  # what is kept is for training too
        return torch.from_numpy(imresize_weights(scale, REACH)).to(device, dtype)


def _mirrored(length: int, device: torch.device) -> Tensor:
    """Which pixels of a row of that length stand at -2, -1, 0, 1, ...: b a | a b c | c b."""
    index = torch.arange(-REACH, length + REACH, device=device) % (2 * length)
    return torch.minimum(index, 2 * length - 1 - index)
