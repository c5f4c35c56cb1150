"""The level of an image's noise: of white noise, and what denoisers are to be told of other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from nlrn import images
from nlrn.images.samples import check_scale
from nlrn.noise.jpeg import LUMA, compression
from nlrn.noise.tone import tone_of
from nlrn.noise.white import Bounds, ChannelNoise, estimate_channel, white_noise_where

# What a denoiser is best told of an image in a JPEG: this times the strength of the compression, at
# most the second; docs/camera-photos.md says on which images they were chosen.
JPEG_LEVEL, LARGEST_JPEG_LEVEL = 18.0, 15.0
GRAY_SHARE = float(np.linalg.norm(LUMA))  # of noise that differs by channel, what gray has of it
# Fine noise of color over that of a channel, at most, where the channels share theirs: 0.03 to 0.09
# on photographs with noise that were stored with halved color. Texture has 0.25 and more, but is
# hardly ever measured as noise above the level TEXTURE; noise of their own has 1.
SHARED, MOSTLY_SHARED, TEXTURE = 0.15, 0.5, 5.0


@dataclass(frozen=True)
class NoiseEstimate:
    """What was found about the noise of an image; levels are on the 0..255 scale.

    In a picture of one tone (`nlrn.noise.tone`) they are those of its strongest channel.

    Attributes:
        level: what a denoiser made for white noise is to be told, so that it removes this noise.
        white: standard deviation of the noise if it is white, as `estimate_sigma` has it.
        jpeg: strength of the last JPEG compression: 0.5 for quality 75, 0.2 for 90, 0 for none.
        by_channel: the level for a denoiser that takes the channels one by one; None for the same.
    """

    level: float
    white: float
    jpeg: float
    by_channel: float | None = None

    @property
    def one_by_one(self) -> NoiseEstimate:
        """The same for a denoiser that takes the channels one by one."""
        return self if self.by_channel is None else replace(self, level=self.by_channel)

    @property
    def is_correlated(self) -> bool:
        """Whether neighboring pixels or channels have noise in common, as in a camera's JPEG."""
        return self.level > self.white


def estimate_sigma(image: images.ImageLike) -> float:
    """Estimated standard deviation of the white Gaussian noise in an image, on the 0..255 scale.

    Smallest eigenvalue of the covariance of weakly textured patches (Liu, Tanaka, Okutomi 2013),
    with two corrections: the smallest of many sample eigenvalues lies below the true variance
    (Marchenko, Pastur 1967), and clipping to [0, 1] takes variance away (Foi 2009). Images with
    fewer than 196 unsaturated 7 x 7 patches (20 x 20 pixels) get the median absolute diagonal
    difference instead, which texture biases upward; those one pixel wide or high get 0.
    Noise that is correlated between pixels, as in a camera's JPEG, is underestimated:
    `estimate_noise` looks at that too.

    Deterministic. O(H W) for reading plus a bounded amount of work: at most 65536 patches.

    Args:
        image: array [H, W] or [H, W, C] with gray or RGB and perhaps alpha, uint8, uint16, or
            float on the [0, 1] scale, where values may lie outside; a PIL image, a tensor, or the
            path of an image file (see `nlrn.images.as_image`).

    Raises:
        ValueError: the shape or dtype is another one, or a value is not finite, or far beyond 1.

    References:
        X. Liu, M. Tanaka, M. Okutomi, "Single-image noise level estimation for blind denoising",
        IEEE TIP 2013, https://doi.org/10.1109/TIP.2013.2283400
        A. Foi, "Clipped noisy images: heteroskedastic modeling and practical denoising",
        Signal Processing 2009, https://doi.org/10.1016/j.sigpro.2009.04.035
    """
    return 255 * _median([noise.sigma for noise in _channels(_pixels(image))])


def estimate_noise(image: images.ImageLike) -> NoiseEstimate:
    """The noise of an image, white or not, and the level that a denoiser is to be told.

    Denoisers know white noise. Demosaicking and a camera's own smoothing leave less of the finest
    noise than of the coarser, and JPEG takes the finest away and adds errors of its own; told the
    level of what is left there, a denoiser takes the rest for detail. So, other than
    `estimate_sigma`:

    - where the covariance of weakly textured patches shows that the noise is not white, one of its
      larger eigenvalues counts instead of its smallest;
    - where the image has gone through JPEG, the level is at least one that grows with the strength
      of the compression (`nlrn.noise.jpeg`), 8.7 at quality 75;
    - where color has hardly any fine noise, as JPEG, WebP and AVIF leave it when they halve color,
      the channels share what is left, and a denoiser that expects noise of their own takes it for
      detail. It is to be told the level at which their mean would have as much, root of 3 times;
      not so one that takes the channels one by one (`NoiseEstimate.one_by_one`).

    For white noise the level is that of `estimate_sigma`.

    Args:
        image: as `estimate_sigma` takes it.
    """
    pixels = _pixels(image)
    tone = tone_of(pixels)
    if tone is not None:
        found = _estimate(tone.gray(pixels))
        return NoiseEstimate(found.level * tone.strongest, found.white * tone.strongest, found.jpeg)
    return _estimate(pixels)


def _estimate(pixels: np.ndarray) -> NoiseEstimate:
    """The noise of [H, W], or of [H, W, C] whose channels have noise of their own."""
    channels, strength = _channels(pixels), compression(pixels)
    jpeg_level = min(JPEG_LEVEL * strength, LARGEST_JPEG_LEVEL)
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        jpeg_level *= GRAY_SHARE
    white = 255 * _median([c.sigma for c in channels])
    level = max(255 * _median([c.level for c in channels]), jpeg_level)
    shared = _shared_level(pixels, white)
    if shared <= level:
        return NoiseEstimate(level, white, strength)
    return NoiseEstimate(shared, white, strength, by_channel=level)


def _shared_level(pixels: np.ndarray, white: float) -> float:
    """The level to tell where the channels of [H, W, 3] share their noise of that level, else 0."""
    if pixels.ndim == 2 or pixels.shape[2] != 3:
        return 0.0
    red, green, blue = np.moveaxis(pixels, 2, 0)
    black, blown = pixels.max(2) <= 0, pixels.min(2) >= 1
    dead = black | blown  # no noise is left there, of color or of brightness
    most = white * (MOSTLY_SHARED if white > TEXTURE else SHARED)
    for one, other in ((red, green), (blue, green)):
        color = 255 * white_noise_where((one - other) / math.sqrt(2), dead, Bounds(-np.inf, np.inf))
        if not color < most:  # nor where there is none to be seen
            return 0.0
    shares = map(float, LUMA)  # which leave float32 what it is
    brightness = sum(s * channel for s, channel in zip(shares, (red, green, blue), strict=True))
    bounds = Bounds(0.0 if black.any() else -np.inf, 1.0 if blown.any() else np.inf)
    found = 255 * math.sqrt(3) * white_noise_where(brightness, dead, bounds)
    return found if found > 0 else 0.0


def _pixels(image: images.ImageLike) -> np.ndarray:
    pixels = images.as_image(image).pixels
    check_scale(pixels)
    return images.to_float(pixels)


def _channels(pixels: np.ndarray) -> list[ChannelNoise]:
    channels = pixels.reshape(*pixels.shape[:2], -1)
    return [estimate_channel(channels[..., c]) for c in range(channels.shape[2])]


def _median(values: list[float]) -> float:
    # The noise is taken to be the same in all channels, so one that is off (blank, or all
    # texture) should not count.
    return float(np.median(values))
