"""Where the network looks: the weights that every state gives to the neighbors of a pixel.

The neighborhood of a pixel is cut out of the image with a halo, the network runs on that part, and
the embeddings that its states compare are kept.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nlrn import images
from nlrn.attention_maps.figure import COLORS, figure
from nlrn.attention_maps.trace import HALO, AttentionMaps, Trace, check_position, trace
from nlrn.images import Image
from nlrn.models import Network
from nlrn.noise import tone_of
from nlrn.restoration.base import AUTO, noise_of, to_planes
from nlrn.restoration.denoiser import Denoiser

__all__ = ["COLORS", "HALO", "AttentionMaps", "Trace", "explain", "figure", "planes_for", "trace"]


def explain(
    image: np.ndarray | str | Path,
    position: tuple[int, int],
    sigma: float | None = None,
    model: Network | str | Path | None = None,
    *,
    channel: int = 1,
    halo: int = HALO,
    device: str = "auto",
) -> AttentionMaps:
    """Returns the weights that every state of the network gives to the neighbors of a pixel.

    Args:
        image: as `nlrn.denoise` takes it.
        position: row and column of the pixel.
        sigma: standard deviation of the noise on the 0..255 scale; None estimates it.
        model: a network, the name of a weight in the package, or a file; None takes what denoises
            such an image, whose maps are of cells of 2 x 2 pixels (`AttentionMaps.cell`). The
            paper's networks, as "denoise-gray-s25", compare pixels.
        channel: which one of a color image goes through a gray network, red being 0.
        halo: pixels around the neighborhood that take part. With all of the network's `halo` the
            maps are those of the whole image; with the default they were within 1e-4 of them.
        device: "auto" takes a GPU where there is one.
    """
    picture = images.as_image(image)
    noise, tone = noise_of(picture, sigma), tone_of(picture.pixels)
    if tone is not None:  # a gray network removes its noise
        picture = Image(tone.gray(images.to_float(picture.pixels)))
    denoiser = Denoiser(AUTO if model is None else model)
    network = denoiser.engine_for(1 if picture.pixels.ndim == 2 else 3).network
    level = (noise if network.in_channels == 3 else noise.one_by_one).level
    level /= tone.strongest if tone is not None else 1
    check_position(position, (picture.height, picture.width))
    planes = planes_for(picture, network, channel)
    return trace(network, planes, level, around=position, halo=halo, device=device).maps(position)


def planes_for(image: Image, network: Network, channel: int = 1) -> Tensor:
    """What the network gets of an image [1, C, H, W]: all colors, or one channel."""
    if not 0 <= channel <= 2:
        raise ValueError(f"channel must be 0, 1 or 2, got {channel}")
    pixels = images.to_float(image.pixels)
    channels = torch.from_numpy(pixels).reshape(1, *pixels.shape[:2], -1).permute(0, 3, 1, 2)
    planes = to_planes(channels, network.in_channels)
    return planes[channel : channel + 1] if len(planes) > 1 else planes
