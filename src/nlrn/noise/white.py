"""Blind estimate of the level of white noise, and whether the noise is white at all."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

PATCH = 7
DIM = PATCH * PATCH
# Texture strength (sum of squared central differences in a patch) that pure noise of variance 1
# exceeds once in a million: quantile of Gamma(r / 2, 2 t / r), r = 45 and t = 35 being the rank
# and the trace of the matrix D whose quadratic form p^T D p is the texture strength of patch p.
TEXTURE_QUANTILE = 81.82
# Fewer patches than this do not show the spectrum of their covariance.
MIN_PATCHES = 4 * DIM
# Fewer than this tell how strong the noise is, not whether it is white.
MANY_PATCHES = 16 * DIM
# In an image of fewer pixels texture cannot be told from smoothed noise.
ENOUGH_PIXELS = 134 * 134
# The median eigenvalue over the noise's variance, roots of both. For white noise it is below 1.3 on
# every image of BSD68 and Set12 from sigma 2 on, for that of a camera 1.8 to 7.
WHITE_SPREAD = 1.45
# Noise is much the same everywhere, texture is not: the median of the texture strength over its
# tenth part. Smoothed noise on photographs mostly has 1.2 to 3, gravel, fur and grass 2.3 to 4.3.
LARGEST_UNEVENNESS = 3.5
COARSE = 3 * DIM // 4  # eigenvalue of noise that is not white; above are more and more texture
# Its root over the noise's level, at most: where nothing fine varies, what does is a pattern.
LARGEST_SPREAD = 15
# Bounds time and memory (25 MB per copy): 512 x 512 pixels are read with stride 2.
MAX_PATCHES = 2**16
NORMAL_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)])


class ChannelNoise(NamedTuple):
    """Noise of one channel, on the channel's own scale.

    Attributes:
        sigma: standard deviation, if the noise is white.
        level: the same where it is white; else the one of its coarser part, which is stronger.
    """

    sigma: float
    level: float


class Bounds(NamedTuple):
    """Values to which a channel was clipped; infinite where it was not."""

    low: float
    high: float


def estimate_channel(channel: np.ndarray) -> ChannelNoise:
    """The noise in a channel [H, W]."""
    bounds = clipped_to(channel)
    patches = live_patches(channel, bounds)
    if len(patches) < MIN_PATCHES:
        difference = _median_difference(channel)
        return ChannelNoise(difference, difference)
    return noise_in(patches, *bounds, may_be_smoothed=channel.size >= ENOUGH_PIXELS)


def white_noise_where(channel: np.ndarray, dead: np.ndarray, bounds: Bounds) -> float:
    """Standard deviation of white noise in a channel [H, W], but for pixels that are dead [H, W].

    NaN where hardly any others are left.
    """
    alive = _patches(dead, MAX_PATCHES).mean(axis=1) < 0.1
    patches = _patches(channel, MAX_PATCHES)[alive]
    return noise_in(patches, *bounds).sigma if len(patches) >= MIN_PATCHES else np.nan


def clipped_to(channel: np.ndarray) -> Bounds:
    """The ends of [0, 1] that a channel [H, W] reaches without going beyond."""
    low = 0.0 if channel.min() == 0 else -np.inf
    return Bounds(low, 1.0 if channel.max() == 1 else np.inf)


def live_patches(channel: np.ndarray, bounds: Bounds, most: int = MAX_PATCHES) -> np.ndarray:
    """At most so many patches of channel [H, W] that are not nearly all clipped: [N, DIM]."""
    patches = _patches(channel, most)
    # Blown highlights and black bars are flat without showing the noise.
    saturated = ((patches <= bounds.low) | (patches >= bounds.high)).mean(axis=1)
    return patches[saturated < 0.9]


def noise_in(
    patches: np.ndarray, low: float, high: float, *, may_be_smoothed: bool = False
) -> ChannelNoise:
    """The noise in patches [N, DIM], some of whose pixels are clipped to low..high.

    White, unless it may be smoothed and looks like it.
    """
    means = patches.mean(axis=1)
    texture = _texture_strength(patches)
    weak = np.full(len(patches), True)
    for _ in range(4):  # one more than in the paper: it helps heavy texture at sigma 5
        used = int(weak.sum())
        eigenvalues = _covariance_eigenvalues(patches[weak])
        clipped = _noise_eigenvalue(eigenvalues, used)
        variance = _undo_clipping(clipped, means[weak], low, high)
        before, weak = weak, texture < TEXTURE_QUANTILE * variance
        if weak.sum() < MIN_PATCHES or np.array_equal(weak, before):
            break
    sigma = float(np.sqrt(variance))
    if (
        not may_be_smoothed
        or used < MANY_PATCHES
        or eigenvalues[DIM // 2] < WHITE_SPREAD**2 * clipped
        or _is_uneven(texture[before])
    ):
        return ChannelNoise(sigma, sigma)
    coarse = min(float(np.sqrt(max(eigenvalues[COARSE], 0))), LARGEST_SPREAD * sigma)
    return ChannelNoise(sigma, max(sigma, coarse))


def _is_uneven(texture: np.ndarray) -> bool:
    """Whether texture strengths [N] differ more than those of noise."""
    weakest, median = np.quantile(texture, [0.1, 0.5])
    return bool(median > LARGEST_UNEVENNESS * weakest)


def _patches(channel: np.ndarray, most: int) -> np.ndarray:
    """Patches of channel [H, W] on the densest square grid of at most so many: [N, DIM]."""
    if min(channel.shape) < PATCH:
        return np.empty((0, DIM))
    windows = sliding_window_view(channel, (PATCH, PATCH))
    stride = 1
    while windows[::stride, ::stride, 0, 0].size > most:
        stride += 1
    return windows[::stride, ::stride].reshape(-1, DIM).astype(np.float64)


def _texture_strength(patches: np.ndarray) -> np.ndarray:
    """Sum of the squared central differences inside each of patches [N, DIM]: [N]."""
    square = patches.reshape(-1, PATCH, PATCH)
    across = square[:, :, 2:] - square[:, :, :-2]  # twice the central difference
    down = square[:, 2:, :] - square[:, :-2, :]
    squares = np.einsum("nij,nij->n", across, across) + np.einsum("nij,nij->n", down, down)
    return squares / 4


def _covariance_eigenvalues(patches: np.ndarray) -> np.ndarray:
    """Eigenvalues of the covariance of patches [N, DIM], the smallest first."""
    centered = patches - patches.mean(axis=0)
    return np.linalg.eigvalsh(centered.T @ centered / len(patches))


def _noise_eigenvalue(eigenvalues: np.ndarray, patches: int) -> float:
    """Noise variance that explains the smallest eigenvalue of the covariance of so many patches.

    The k sample eigenvalues that hold nothing but noise of variance v spread over
    v (1 - sqrt(k/N))^2 .. v (1 + sqrt(k/N))^2: the lower edge gives v, the upper edge gives k.
    """
    smallest = max(float(eigenvalues[0]), 0.0)
    count = DIM
    for _ in range(4):
        spread = np.sqrt(count / patches)
        variance = smallest / (1 - spread) ** 2
        count = max(int((eigenvalues <= variance * (1 + spread) ** 2).sum()), 1)
    return variance


def _undo_clipping(clipped: float, means: np.ndarray, low: float, high: float) -> float:
    """Variance before clipping to low..high, from the one after it and the patch means [N]."""
    if clipped < 1e-12 or (np.isinf(low) and np.isinf(high)):
        return clipped
    variance = clipped
    for _ in range(8):  # each round about halves the error
        variance = clipped / _share_kept(means, np.sqrt(variance), low, high)
    return variance


def _share_kept(means: np.ndarray, sigma: float, low: float, high: float) -> float:
    """Share of the noise variance that clipping leaves, averaged over the patch means [N]."""
    steps = sigma * np.linspace(-4, 4, 65)  # farther from a bound the share is 0 or 1
    clean = np.sort(np.concatenate([steps, 1 + steps]))
    noisy = np.clip(clean[:, None] + sigma * NORMAL_QUANTILES, low, high)
    shares = np.interp(means, noisy.mean(axis=1), noisy.var(axis=1) / sigma**2)
    # An image that is nearly all saturated says little: do not blow that little up.
    return max(float(shares.mean()), 0.1)


def _median_difference(channel: np.ndarray) -> float:
    """Robust standard deviation of the diagonal second difference of channel [H, W]."""
    if min(channel.shape) < 2:
        return 0.0
    across = np.diff(channel.astype(np.float64), axis=1)
    # Four pixels add up, so noise of deviation s comes out as 2 s, with a median modulus of
    # 0.6745 times that.
    return float(np.median(np.abs(np.diff(across, axis=0)))) / (2 * 0.6745)
