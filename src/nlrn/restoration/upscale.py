"""Enlarges images: luminance through the network, everything else by bicubic interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import max_pool2d

from nlrn import images, weights
from nlrn.degrade import imresize
from nlrn.images import Image, as_array, as_image
from nlrn.models.nlrn import NLRN
from nlrn.restoration.denoise import Settings, warn_of_range

SMALLEST_FACTOR, LARGEST_FACTOR = 2, 4  # by which super-resolution was trained
# MATLAB's rgb2ycbcr: luminance of RGB in [0, 1], and what a change of it is in R, G and B alike.
LUMINANCE = np.array([65.481, 128.553, 24.966], np.float32) / 255
LUMINANCE_OF_BLACK = np.float32(16 / 255)
RGB_OF_LUMINANCE = np.float32(255 / 219)


def upscale(
    image: np.ndarray | str | Path,
    scale: float,
    *,
    model: NLRN | str | Path | None = None,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Returns the image `scale` times as high and wide, in the type in which it came.

    Args:
        image: array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], uint8, uint16 or float in [0, 1]; or
            the path of an image file.
        scale: more than 1, at most 4; the models were trained with 2, 3 and 4.
        model: a network, the name of a weight in the package, or a file; None takes the package's.
        settings: tiles, views, precision, device.
        progress: called with (done, total) in equal units of work.
    """
    picture = as_image(image)
    check_scale(scale)
    result = upscale_image(picture, scale, load_upscaler(model), settings or Settings(), progress)
    return as_array(result, image)


def upscale_image(
    picture: Image,
    scale: float,
    network: NLRN,
    settings: Settings,
    progress: Callable[[int, int], None] | None = None,
) -> Image:
    """The picture enlarged; metadata stay.

    All channels are enlarged by bicubic interpolation. Gray then goes through the network as it
    is; of colour the luminance does, and what the network changes in it is added to all three.
    Where nothing varies nothing is changed: white stays white also at the edges, where the network
    alone is off by a level or two. Below a factor of 2, to which the network would give too much,
    it is enlarged by 2 and shrunk.
    """
    if scale < SMALLEST_FACTOR:
        double = upscale_image(picture, SMALLEST_FACTOR, network, settings, progress)
        size = (math.ceil(picture.height * scale), math.ceil(picture.width * scale))
        small, opacity = _resized(images.to_float(double.pixels), double.alpha, size=size)
        return _like(picture, small, opacity)
    pixels = images.to_float(picture.pixels)
    if not np.isfinite(pixels).all():
        raise ValueError("image has values that float32 cannot hold")
    warn_of_range(picture)
    if network.config.in_channels != 1:
        raise ValueError(f"a network of {network.config.in_channels} channels takes no luminance")
    large, alpha = _resized(pixels, picture.alpha, scale)
    is_gray = large.ndim == 2
    luminance = large if is_gray else large @ LUMINANCE + LUMINANCE_OF_BLACK
    planes = torch.from_numpy(luminance)[None, None]
    restored = settings.restore(network, planes, progress)
    result = torch.where(_is_flat(planes, round(scale)), planes, restored)[0, 0].numpy()
    if not is_gray:
        change = (result - luminance) * RGB_OF_LUMINANCE
        result = np.add(large, change[..., None], out=large)
    return _like(picture, result, alpha)


def _is_flat(planes: torch.Tensor, reach: int) -> torch.Tensor:
    """Where all pixels that are up to `reach` away are equal, but for rounding."""
    side = 2 * reach + 1
    highest = max_pool2d(planes, side, stride=1, padding=reach)
    lowest = -max_pool2d(-planes, side, stride=1, padding=reach)
    return highest - lowest < 1e-5


def _like(picture: Image, pixels: np.ndarray, opacity: np.ndarray | None) -> Image:
    """Float pixels and opacity as a picture of the same type and metadata."""
    dtype = picture.pixels.dtype
    alpha = None if opacity is None else images.from_float(opacity, dtype)
    return picture.with_pixels(images.from_float(pixels, dtype), alpha)


def _resized(
    pixels: np.ndarray,
    alpha: np.ndarray | None,
    scale: float | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Pixels [H, W] or [H, W, 3] and opacity by bicubic interpolation, float32.

    Colour is weighted with its opacity, and what is hidden takes the colours of what shows around
    it: neither the resize nor the network sees an edge there, so that no fringe is left.
    """
    if alpha is None:
        return _bicubic(pixels, scale, size), None
    opacity = images.to_float(alpha)
    large_opacity = _bicubic(
        opacity, scale, size
    )  # overshoots at edges, as the weighted colours do
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


def check_scale(scale: float) -> None:
    """Raises unless images can be enlarged by this factor."""
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise ValueError(f"scale must be a number, got {scale!r}")
    if not 1 < scale <= LARGEST_FACTOR:
        raise ValueError(f"scale must be more than 1 and at most {LARGEST_FACTOR}, got {scale:g}")


def load_upscaler(model: NLRN | str | Path | None) -> NLRN:
    """The network asked for, or the one of the package for super-resolution."""
    network = model if isinstance(model, NLRN) else NLRN.from_pretrained(model or choose_upscaler())
    if network.notes.get("task", "sr") != "sr":
        name = f"{model}: a model" if isinstance(model, str | Path) else "the model is one"
        raise ValueError(f"{name} for {network.notes['task']}, not for super-resolution")
    return network


def choose_upscaler() -> str:
    """Name of the package's weight for super-resolution."""
    return next(entry.name for entry in weights.manifest().values() if entry.task == "sr")
