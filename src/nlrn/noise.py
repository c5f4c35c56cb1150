"""Blind estimate of the noise level of an image."""

from statistics import NormalDist

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nlrn import images

PATCH = 7
DIM = PATCH * PATCH
# Texture strength (sum of squared central differences in a patch) that pure noise of variance 1
# exceeds once in a million: quantile of Gamma(r / 2, 2 t / r), r = 45 and t = 35 being the rank
# and the trace of the matrix D whose quadratic form p^T D p is the texture strength of patch p.
TEXTURE_QUANTILE = 81.82
# Fewer patches than this do not show the spectrum of their covariance.
MIN_PATCHES = 4 * DIM
# Bounds time and memory (25 MB per copy): 512 x 512 pixels are read with stride 2.
MAX_PATCHES = 2**16
NORMAL_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)])


def estimate_sigma(image: images.ImageLike) -> float:
    """Estimated standard deviation of the white Gaussian noise in an image, on the 0..255 scale.

    Smallest eigenvalue of the covariance of weakly textured patches (Liu, Tanaka, Okutomi 2013),
    with two corrections: the smallest of many sample eigenvalues lies below the true variance
    (Marchenko, Pastur 1967), and clipping to [0, 1] takes variance away (Foi 2009). Images with
    fewer than 196 unsaturated 7 x 7 patches (20 x 20 pixels) get the median absolute diagonal
    difference instead, which texture biases upward; those one pixel wide or high get 0.
    Noise that is correlated between pixels, as in a camera's JPEG, is underestimated.

    Deterministic. O(H W) for reading plus a bounded amount of work: at most 65536 patches.

    Args:
        image: array [H, W] or [H, W, C] with gray or RGB and perhaps alpha, uint8, uint16, or
            float on the [0, 1] scale, where values may lie outside; a PIL image, a tensor, or the
            path of an image file (see `nlrn.images.as_image`).

    Raises:
        ValueError: the shape or dtype is another one, or a value is not finite.

    References:
        X. Liu, M. Tanaka, M. Okutomi, "Single-image noise level estimation for blind denoising",
        IEEE TIP 2013, https://doi.org/10.1109/TIP.2013.2283400
        A. Foi, "Clipped noisy images: heteroskedastic modeling and practical denoising",
        Signal Processing 2009, https://doi.org/10.1016/j.sigpro.2009.04.035
    """
    pixels = images.to_float(images.as_image(image).pixels)
    channels = pixels.reshape(*pixels.shape[:2], -1)
    sigmas = [_estimate_channel(channels[..., c]) for c in range(channels.shape[2])]
    # The noise is taken to be the same in all channels, so one that is off (blank, or all
    # texture) should not count: the median.
    return 255 * float(np.median(sigmas))


def _estimate_channel(channel: np.ndarray) -> float:
    """Standard deviation of the noise in channel [H, W], on the channel's own scale."""
    low = 0.0 if channel.min() == 0 else -np.inf
    high = 1.0 if channel.max() == 1 else np.inf
    patches = _patches(channel)
    # Blown highlights and black bars are flat without showing the noise.
    saturated = ((patches <= low) | (patches >= high)).mean(axis=1)
    patches = patches[saturated < 0.9]
    if len(patches) < MIN_PATCHES:
        return _median_difference(channel)
    return float(np.sqrt(_noise_variance(patches, low, high)))


def _noise_variance(patches: np.ndarray, low: float, high: float) -> float:
    """Variance of the noise in patches [N, DIM], some of whose pixels are clipped to low..high."""
    means = patches.mean(axis=1)
    texture = _texture_strength(patches)
    weak = np.full(len(patches), True)
    for _ in range(4):  # one more than in the paper: it helps heavy texture at sigma 5
        clipped = _noise_eigenvalue(patches[weak])
        variance = _undo_clipping(clipped, means[weak], low, high)
        before, weak = weak, texture < TEXTURE_QUANTILE * variance
        if weak.sum() < MIN_PATCHES or np.array_equal(weak, before):
            break
    return variance


def _patches(channel: np.ndarray) -> np.ndarray:
    """Patches of channel [H, W] on the densest square grid within MAX_PATCHES: [N, DIM]."""
    if min(channel.shape) < PATCH:
        return np.empty((0, DIM))
    windows = sliding_window_view(channel, (PATCH, PATCH))
    stride = 1
    while windows[::stride, ::stride, 0, 0].size > MAX_PATCHES:
        stride += 1
    return windows[::stride, ::stride].reshape(-1, DIM).astype(np.float64)


def _texture_strength(patches: np.ndarray) -> np.ndarray:
    """Sum of the squared central differences inside each of patches [N, DIM]: [N]."""
    square = patches.reshape(-1, PATCH, PATCH)
    across = square[:, :, 2:] - square[:, :, :-2]  # twice the central difference
    down = square[:, 2:, :] - square[:, :-2, :]
    squares = np.einsum("nij,nij->n", across, across) + np.einsum("nij,nij->n", down, down)
    return squares / 4


def _noise_eigenvalue(patches: np.ndarray) -> float:
    """Noise variance that explains the smallest eigenvalue of the covariance of patches [N, DIM].

    The k sample eigenvalues that hold nothing but noise of variance v spread over
    v (1 - sqrt(k/N))^2 .. v (1 + sqrt(k/N))^2: the lower edge gives v, the upper edge gives k.
    """
    centered = patches - patches.mean(axis=0)
    eigenvalues = np.linalg.eigvalsh(centered.T @ centered / len(patches))
    smallest = max(float(eigenvalues[0]), 0.0)
    count = DIM
    for _ in range(4):
        spread = np.sqrt(count / len(patches))
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
