"""Bicubic interpolation of images with opacity: color is weighted by what shows of it."""

from __future__ import annotations

import numpy as np

from nlrn import images
from nlrn.degrade import imresize


def resized(
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
    large = np.where(hidden, _bicubic(continued(pixels, weights), scale, size), shown)
    return large, large_opacity.clip(0, 1)


def continued(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
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
    coarse = continued(means, total).repeat(2, axis=0).repeat(2, axis=1)
    return np.where(weights > 0, pixels, coarse[:height, :width])


def _bicubic(pixels: np.ndarray, scale: float | None, size: tuple[int, int] | None) -> np.ndarray:
    """Resized one channel after the other: the resize works in float64."""
    if pixels.ndim == 2:
        return imresize(pixels, scale, size=size).astype(np.float32)
    channels = np.moveaxis(pixels, 2, 0)
    return np.stack([imresize(channel, scale, size=size) for channel in channels], axis=2)
