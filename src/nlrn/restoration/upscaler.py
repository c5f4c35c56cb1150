"""Enlarges images: luminance through the network, everything else by bicubic interpolation."""

from __future__ import annotations

import math
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlrn import images, models
from nlrn.degrade import imresize
from nlrn.hardware import choose_device, mind_fork
from nlrn.images import Image
from nlrn.inference import Engine, Settings
from nlrn.inference.settings import check_settings
from nlrn.models import Network
from nlrn.progress import Progress
from nlrn.restoration.base import (
    Announce,
    Restored,
    announce_time,
    check_batch,
    check_image,
    is_flat,
    model_name,
    warn_of_range,
)
from nlrn.restoration.choice import choose_upscaler

AUTO = "auto"
SMALLEST_FACTOR, LARGEST_FACTOR = 2, 4  # by which super-resolution was trained
# MATLAB's rgb2ycbcr: luminance of RGB in [0, 1], and what a change of it is in R, G and B alike.
LUMINANCE = np.array([65.481, 128.553, 24.966], np.float32) / 255
LUMINANCE_OF_BLACK = np.float32(16 / 255)
RGB_OF_LUMINANCE = np.float32(255 / 219)


class Upscaler(nn.Module):
    """Enlarges images with a network, ready to run.

    Called with tensors it is `upscaler(x)`; `restore` takes an `Image`. The network is loaded and
    prepared once, on first use. It can be pickled: models of the package go by name.

    Args:
        scale: more than 1, at most 4; the models were trained with 2, 3 and 4.
        model: a name of the package (see `nlrn.list_models`), a file, or a network; "auto" takes
            the package's.
        settings: tiles, views, precision, device.
    """

    def __init__(
        self,
        scale: float = 2,
        model: str | Path | Network = AUTO,
        *,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self.scale, self.settings = check_scale(scale), check_settings(settings)
        choose_device(self.settings.device)  # one that is not there is refused before any work
        self.model = choose_upscaler() if model == AUTO else model_name(model)
        self._given = isinstance(model, Network)
        self._engine: Engine | None = None
        if isinstance(model, Network):
            self._engine = Engine(_checked(model, self.model), self.settings)
        elif model != AUTO:
            _ = self.engine  # a wrong name or file is refused here

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if self._given else {"_engine": None})

    @property
    def engine(self) -> Engine:
        """What runs the network."""
        mind_fork()
        if self._engine is None:
            self._engine = Engine(_checked(models.load(self.model), self.model), self.settings)
        return self._engine

    def restore(
        self,
        image: Image,
        scale: float | None = None,
        *,
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> Restored:
        """The image enlarged; metadata stay.

        All channels are enlarged by bicubic interpolation. Gray then goes through the network as it
        is; of color the luminance does, and what the network changes in it is added to all three.
        Where nothing varies nothing is changed: white stays white also at the edges, where the
        network alone is off by a level or two. Below a factor of 2, to which the network would
        give too much, it is enlarged by 2 and shrunk.

        Args:
            image: what to enlarge.
            scale: None takes the upscaler's.
            progress: called with (done, total) in equal units of work.
            announce: called before long work with the seconds it may take.
        """
        scale = self.scale if scale is None else check_scale(scale)
        facts = {"scale": scale, "model": self.model}
        check_image(image)
        warn_of_range(image)
        pixels = images.to_float(image.pixels)
        factor = max(scale, SMALLEST_FACTOR)
        large, alpha = _resized(pixels, image.alpha, factor)
        is_gray = large.ndim == 2
        luminance = large if is_gray else large @ LUMINANCE + LUMINANCE_OF_BLACK
        announce_time(self.engine, (large.shape[0], large.shape[1]), 1, announce)
        planes = torch.from_numpy(luminance)[None, None]
        restored = self.engine(planes, progress)
        result = torch.where(is_flat(planes, round(factor)), planes, restored)[0, 0].numpy()
        if not is_gray:
            change = (result - luminance) * RGB_OF_LUMINANCE
            result = np.add(large, change[..., None], out=large)
        enlarged = _like(image, result, alpha)
        if scale < SMALLEST_FACTOR:
            size = (math.ceil(image.height * scale), math.ceil(image.width * scale))
            small, opacity = _resized(images.to_float(enlarged.pixels), enlarged.alpha, size=size)
            enlarged = _like(image, small, opacity)
        return Restored(enlarged, facts)

    def seconds(self, size: tuple[int, int], scale: float | None = None) -> float:
        """How long an image of (H, W) will take here, roughly."""
        factor = max(self.scale if scale is None else check_scale(scale), SMALLEST_FACTOR)
        return self.engine.seconds((math.ceil(size[0] * factor), math.ceil(size[1] * factor)))

    def forward(self, x: Tensor) -> Tensor:
        """Gray or RGB images [B, C, H, W] in [0, 1], enlarged, on x's device and in its dtype."""
        check_batch(x)
        results = []
        for one in x.detach().float().cpu():  # C H W
            array = np.ascontiguousarray(one[0] if len(one) == 1 else one.permute(1, 2, 0))
            large = torch.from_numpy(self.restore(Image(array)).image.pixels)
            results.append(torch.atleast_3d(large).permute(2, 0, 1))
        return torch.stack(results).to(x.device, x.dtype)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"scale={self.scale:g}, model={self.model!r}"


def _like(image: Image, pixels: np.ndarray, opacity: np.ndarray | None) -> Image:
    """Float pixels and opacity as an image of the same type and metadata."""
    dtype = image.pixels.dtype
    alpha = None if opacity is None else images.from_float(opacity, dtype)
    return image.with_pixels(images.from_float(pixels, dtype), alpha)


def _resized(
    pixels: np.ndarray,
    alpha: np.ndarray | None,
    scale: float | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Pixels [H, W] or [H, W, 3] and opacity by bicubic interpolation, float32.

    Color is weighted with its opacity, and what is hidden takes the colors of what shows around
    it: neither the resize nor the network sees an edge there, so that no fringe is left.
    """
    if alpha is None:
        return _bicubic(pixels, scale, size), None
    opacity = images.to_float(alpha)
    large_opacity = _bicubic(opacity, scale, size)  # overshoots at edges, as the weighted colors do
    weights = opacity if pixels.ndim == 2 else opacity[..., None]
    large_weights = large_opacity if pixels.ndim == 2 else large_opacity[..., None]
    shown = _bicubic(pixels * weights, scale, size) / np.maximum(large_weights, 1e-3)
    hidden = large_weights < 0.5 / 255
    large = np.where(hidden, _bicubic(_continued(pixels, weights), scale, size), shown)
    return large, large_opacity.clip(0, 1)


def _continued(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pixels of weight 0 replaced by the mean of those near them, the nearest that there are.

    Means over ever larger blocks: a pixel takes that of the smallest block in which anything shows.
    """
    height, width = weights.shape[:2]
    if height == width == 1:
        return pixels
    pad = [(0, height % 2), (0, width % 2)] + [(0, 0)] * (pixels.ndim - 2)

    def blocks(values: np.ndarray) -> np.ndarray:
        even = np.pad(values, pad)
        return even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]

    total = blocks(weights)
    means = blocks(pixels * weights) / np.maximum(total, 1e-12)
    coarse = _continued(means, total).repeat(2, axis=0).repeat(2, axis=1)
    return np.where(weights > 0, pixels, coarse[:height, :width])


def _bicubic(pixels: np.ndarray, scale: float | None, size: tuple[int, int] | None) -> np.ndarray:
    """Resized one channel after the other: the resize works in float64."""
    if pixels.ndim == 2:
        return imresize(pixels, scale, size=size).astype(np.float32)
    channels = np.moveaxis(pixels, 2, 0)
    return np.stack([imresize(channel, scale, size=size) for channel in channels], axis=2)


def check_scale(scale: float) -> float:
    """The factor as a float; raises unless images can be enlarged by it."""
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise ValueError(f"scale must be a number, got {scale!r}")
    if not 1 < scale <= LARGEST_FACTOR:
        raise ValueError(f"scale must be more than 1 and at most {LARGEST_FACTOR}, got {scale:g}")
    return float(scale)


def _checked(network: Network, name: str) -> Network:
    if network.card.task not in ("", "sr"):
        raise ValueError(f"{name}: a model for {network.card.task}, not for super-resolution")
    if network.in_channels != 1:
        raise ValueError(f"a network of {network.in_channels} channels takes no luminance")
    return network
